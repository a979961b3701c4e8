"""Parts of a job array become one run: hosts, cards that have the same name, and nothing counted twice."""

import pytest

from everywatt.api.run import load
from everywatt.batch import array
from everywatt.batch.array import Array, Follow
from everywatt.batch.collecting import collect
from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, FAILED, Attempt, Device, Journal, read_journal
from everywatt.batch.measuring import figures
from everywatt.batch.plan import Pace
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.errors import UsageError
from everywatt.core.spans import Span
from everywatt.tape.importing import Recording, write_tape

CARD_W, PACKAGE_W = 100.0, 40.0


def recording(device, domain, watts, start_s, end_s):
    """A counter in joules that grows steadily, read every 100 ms."""
    facts = Facts(period_s=0.001)
    channel = Channel(f"{device}.energy", "J", Kind.COUNTER, device, domain, 1.0, Pedigree.COUNTER, facts=facts)
    info = GroupInfo(f"x.{device}.energy", "x", device, (channel,))
    times = [round((start_s + n / 10) * NS) for n in range(round((end_s - start_s) * 10) + 1)]
    return Recording(info, [Row(t, t, t, (watts * t / NS,)) for t in times], 0.1)


def task(run, number, host, start_s, items, uuid):
    """What a task of an array leaves: items of one second each on its card, which it calls gpu.0."""
    folder = run / "parts" / "1" / str(number)
    folder.mkdir(parents=True)
    end_s = start_s + len(items)
    spans = [Span(f"root{number}", "batch", round(start_s * NS), round(end_s * NS), None, {"role": "run"})]
    journal = Journal(folder)
    journal.batch(["work"], items, [Device("gpu.0", title="Card", uuid=uuid)])
    for place, item in enumerate(items):
        span = Span(f"s{number}.{place}", item.id, round((start_s + place) * NS), round((start_s + place + 1) * NS))
        marks = {"role": "item", "device": "gpu.0", "devices": ["gpu.0", "cpu.0"]}
        spans.append(Span(span.id, span.name, span.start_ns, span.end_ns, None, marks))
        journal.start(item, Attempt(1, "gpu.0", 0, span.id, at=f"2026-01-01T00:00:{place:02d}"))
        journal.end(item, 1, DONE, {"exit_code": 0, "runtime_s": 1.0}, final=True)
    journal.close()
    write_tape(
        folder / f"{host}-0001.tape",
        [
            recording("gpu.0", Domain.GPU, CARD_W, start_s, end_s),
            recording("cpu.0", Domain.PACKAGE, PACKAGE_W, start_s, end_s),
        ],
        meta={"host": {"name": host}},
        anchors=[Anchor(0, 1_800_000_000 * NS, 0, 0), Anchor(100 * NS, 1_800_000_100 * NS, 100 * NS, 0)],
        spans=spans,
    )


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def begin(run, items):
    journal = Journal(run)
    journal.batch(["work"], items, [])
    journal.close()


def items_of(*names):
    return [Item(place, name, name) for place, name in enumerate(names)]


def test_two_hosts_keep_their_cards_apart(run):
    items = items_of("a", "b", "c")
    begin(run, items)
    task(run, 0, "north", 10.0, items[:2], "GPU-1")
    task(run, 1, "south", 10.0, items[2:], "GPU-2")
    assert collect(run, run / "parts" / "1") == []
    found = figures(load(run), read_journal(run))
    assert [(one.device, one.done) for one in found.devices] == [("north/gpu.0", 2), ("south/gpu.0", 1)]
    assert [item.energy.joules for item in found.items] == pytest.approx([140.0, 140.0, 140.0], rel=1e-3)
    assert found.total.joules == pytest.approx(420.0, rel=1e-3) and found.adds_up
    assert found.devices[0].own.joules == pytest.approx(200.0, rel=1e-3)


def test_one_host_shares_its_processors_and_cards_of_one_name_get_numbers(run):
    """Both tasks saw their own card as gpu.0, and the same package: 40 W for both together, not for each."""
    items = items_of("a", "b", "c", "d")
    begin(run, items)
    task(run, 0, "north", 10.0, items[:2], "GPU-1")
    task(run, 1, "north", 10.0, items[2:], "GPU-2")
    collect(run, run / "parts" / "1")
    opened = load(run)
    assert len(opened.tapes) == 1
    found = figures(opened, read_journal(run))
    assert [one.device for one in found.devices] == ["gpu.0", "gpu.1"]
    assert found.total.joules == pytest.approx(2 * (100 + 100 + 40), rel=1e-3)
    assert [item.energy.joules for item in found.items] == pytest.approx([120.0] * 4, rel=1e-3)
    assert [item.state.device for item in found.items] == ["gpu.0", "gpu.0", "gpu.1", "gpu.1"]


def test_collecting_again_adds_nothing(run):
    items = items_of("a", "b")
    begin(run, items)
    task(run, 0, "north", 10.0, items, "GPU-1")
    collect(run, run / "parts" / "1")
    before = figures(load(run), read_journal(run)).to_dict()
    collect(run, run / "parts" / "1")
    history = read_journal(run)
    assert history.collected == {"1"} and [len(state.attempts) for state in history.states.values()] == [1, 1]
    assert figures(load(run), history).to_dict() == before
    assert len(list(run.glob("*.tape"))) == 1


def test_a_task_that_was_killed_leaves_its_item_interrupted(run):
    items = items_of("a", "b")
    begin(run, items)
    task(run, 0, "north", 10.0, items[:1], "GPU-1")
    folder = run / "parts" / "1" / "0"
    journal = Journal(folder)
    journal.batch(["work"], items[1:], [])
    journal.start(items[1], Attempt(1, "gpu.0", 0, None, at="2026-01-01T00:01:00"))
    journal.close()
    collect(run, run / "parts" / "1")
    states = read_journal(run).states
    assert states["a"].status == DONE
    assert (states["b"].status, states["b"].attempts[0].ended["error"]) == ("interrupted", "its task was terminated")


def test_the_tasks_get_all_items_the_largest_first(run, tmp_path):
    items = [Item(n, f"i{n}", f"i{n}", {}, float(n)) for n in range(7)]
    part = array.prepare(run, ["work", "{input}"], items, Array(3, ("--time=5",)), Pace(), tmp_path)
    shares = [[*read_journal(folder).states] for folder in array.tasks(part)]
    assert sorted(name for share in shares for name in share) == [item.id for item in items]
    assert [share[0] for share in shares] == ["i6", "i5", "i4"]
    text = (part / array.SCRIPT).read_text()
    assert "#SBATCH --array=0-2\n" in text and "#SBATCH --time=5\n" in text and array.job_of(part) is None
    assert array.prepare(run, ["w"], items, Array(1), Pace(), tmp_path).name == "2"


@pytest.mark.parametrize("option", ["gres=gpu:1", "--time=5\n#SBATCH --x"])
def test_what_is_no_option_of_sbatch_is_refused(option):
    with pytest.raises(UsageError, match="not an option of sbatch"):
        Array(1, (option,))


def test_progress_reads_each_line_once(run):
    items = items_of("a", "b")
    part = array.prepare(run, ["w"], items, Array(1), Pace(), run)
    follow = Follow(part)
    follow.look()
    assert (follow.done, follow.failed) == (0, 0)
    journal = Journal(part / "0")
    journal.end(items[0], 1, DONE, {}, final=True)
    follow.look()
    journal.end(items[1], 1, FAILED, {}, final=False)
    journal.end(items[1], 2, FAILED, {}, final=True)
    journal.close()
    follow.look()
    follow.look()
    assert (follow.done, follow.failed) == (1, 1)
