"""A run's ledger on tapes whose truth is known: conservation, shares, intervals, policies."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import Process, write_machine

from everywatt.api.run import Run, load
from everywatt.core.budget import Budget
from everywatt.core.errors import UsageError
from everywatt.ledger.counters import OwnerKey
from everywatt.ledger.engine import microjoules
from everywatt.ledger.owners import IDLE, OTHER, UNATTRIBUTED, OwnerKind, Part
from everywatt.ledger.use.owner_use import OwnerUse
from everywatt.tape.reader import Tape

SECONDS = 12


def flat(value, seconds=SECONDS):
    return [value] * seconds


def joules(ledger):
    return {entry.owner.label: entry.microjoules / 1e6 for entry in ledger.entries}


def check(ledger):
    """The conservation law, of amounts and of intervals, and the run-time checks."""
    assert sum(entry.microjoules for entry in ledger.entries) == microjoules(ledger.total.value)
    assert ledger.checks.hold, ledger.checks
    for entry in ledger.entries:
        assert all(amount >= 0 for amount in entry.by_part_uj.values())
        assert sum(round(part.value * 1e6) for _, part in entry.energy.parts) == entry.microjoules
    together = Budget()
    for entry in ledger.entries:
        together = together + entry.energy.budget
    assert together.sides() == pytest.approx(ledger.total.budget.sides(), rel=1e-6, abs=1e-6)


@st.composite
def machines(draw):
    """A machine with some devices, loads, gaps and processes that come and go, and a policy."""
    level = st.floats(0.5, 400)
    names = draw(st.sets(st.sampled_from(["cpu.0", "cpu.1", "dram.0", "gpu.0", "gpu.1"]), min_size=1))
    devices = {name: draw(st.lists(level, min_size=SECONDS, max_size=SECONDS)) for name in sorted(names)}
    processes = []
    for number in range(draw(st.integers(0, 5))):
        began = draw(st.integers(0, SECONDS - 1))
        ended = draw(st.one_of(st.none(), st.integers(began + 1, SECONDS)))
        rates = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0]), min_size=SECONDS, max_size=SECONDS))
        pid = draw(st.sampled_from([100 + number, 100]))
        overlaps = any(p.pid == pid and (p.ended is None or p.ended > began) for p in processes)
        extra = {"meter": True} if draw(st.booleans()) and number == 0 else {}
        ppid = draw(st.sampled_from([1, 100]))
        processes.append(Process(100 + number if overlaps else pid, rates, began, ended, ppid=ppid, extra=extra))
    gpu_rows = {}
    for second in draw(st.sets(st.integers(0, SECONDS), max_size=6)):
        sm = draw(st.sampled_from([None, 0.0, 30.0, 80.0]))
        gpu_rows[second] = [
            {"gpu": gpu, "uuid": "u", "pid": 100 + gpu, "type": "C", "memory_bytes": 1 << 20, "sm": sm}
            | ({"gone": True} if draw(st.booleans()) else {})
            for gpu in draw(st.sets(st.integers(0, 1)))
        ]
    options = {
        "other": draw(st.lists(st.floats(0, 2), min_size=SECONDS, max_size=SECONDS)),
        "gauges": sorted(draw(st.sets(st.sampled_from(["gpu.0", "gpu.1"])))),
        "missing": sorted(draw(st.sets(st.integers(2, SECONDS - 2), max_size=4))),
        "gpu_rows": gpu_rows or None,
        "everything": draw(st.booleans()),
        "follow": draw(st.sampled_from([(), (100,)])),
        "memory_bytes": draw(st.sampled_from([None, 1 << 30])),
        "spans": [("idle", 0, 3, {"role": "idle"}), ("run", 3, SECONDS, {})] if draw(st.booleans()) else [],
    }
    return devices, processes if draw(st.booleans()) or processes else None, options


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.sampled_from(["separate", "by-use", "by-allocation"]), st.data())
def test_every_ledger_adds_up_and_so_do_its_intervals(machine, policy, data):
    devices, processes, options = machine
    with TemporaryDirectory() as folder:
        run = load(write_machine(Path(folder) / "box-0001.tape", devices, processes, seconds=SECONDS, **options))
        check(run.ledger(idle_policy=policy))
        check(run.ledger("device"))
        start = data.draw(st.floats(0, SECONDS - 1))
        between = (start, data.draw(st.floats(start + 0.05, SECONDS)))
        check(run.ledger(between=between, idle_policy=policy))
        check(run.ledger(baseline=data.draw(st.floats(0, 300))))
        run.tapes[0].close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines())
def test_twice_the_power_is_twice_for_every_owner_of_a_machine(machine):
    devices, processes, options = machine
    with TemporaryDirectory() as folder:
        paths = []
        for factor in (1, 2):
            scaled = {name: [factor * watts for watts in levels] for name, levels in devices.items()}
            path = Path(folder) / f"{factor}.tape"
            paths.append(write_machine(path, scaled, processes, seconds=SECONDS, **options))
        once, twice = (load(path).ledger() for path in paths)
    small = {entry.owner: entry.microjoules for entry in once.entries}
    for entry in twice.entries:
        assert entry.microjoules == pytest.approx(2 * small.get(entry.owner, 0), rel=1e-6, abs=10)


def test_a_process_on_a_card_that_used_nothing_may_have_used_what_counts_as_idle(tmp_path):
    """Each card was never seen without its process, so half of its idle power may be that process's."""
    rows = [
        {"gpu": gpu, "uuid": "u", "pid": 100 + gpu, "type": "C", "memory_bytes": 1 << 20, "sm": 0.0} for gpu in (0, 1)
    ]
    devices = {"gpu.0": flat(1.0), "gpu.1": flat(1.0)}
    processes, path = [Process(100, flat(0.0))], tmp_path / "box-0001.tape"
    write_machine(path, devices, processes, seconds=SECONDS, gpu_rows={0: rows}, everything=True)
    ledger = load(path).ledger()
    check(ledger)
    owed = [entry.energy.high for entry in ledger.entries if entry.owner.kind is OwnerKind.PROCESS]
    assert owed == pytest.approx([6, 6])


def test_three_workers_owe_what_they_used(tmp_path):
    workers = [Process(101, flat(1.0), name="a"), Process(102, flat(0.5), name="b"), Process(103, flat(0.25), name="c")]
    for worker in workers:
        worker.rates = [0.0] * 4 + list(worker.rates[4:])
    watts = flat(20.0, 4) + flat(20 + 1.75 * 16, 8)
    path = write_machine(tmp_path / "x.tape", {"cpu.0": watts}, workers, seconds=SECONDS)
    ledger = load(path).ledger()
    check(ledger)
    owed = joules(ledger)
    assert owed["idle"] == pytest.approx(240, rel=1e-3)
    assert [owed[name] for name in "abc"] == pytest.approx([128, 64, 32], rel=1e-3)
    assert ledger.entry("a").use["cpu_s"] == pytest.approx(8)
    assert ledger.entry("a").method == "cpu time"
    assert ledger.idle["cpu.0"]["method"] == "quiet"
    assert ledger.unattributed_share == 0


def test_busy_time_of_nobody_who_is_asked_about_is_others(tmp_path):
    mine = Process(101, flat(1.0), name="mine")
    idle = [("idle", 0, 4, {"role": "idle"}), ("run", 4, 12, {})]
    mine.rates = [0.0] * 4 + flat(1.0, 8)
    watts = flat(20.0, 4) + flat(50.0, 8)
    other = flat(0.0, 4) + flat(2.0, 8)
    for everything, owner in ((False, OTHER), (True, UNATTRIBUTED)):
        path = tmp_path / f"{everything}.tape"
        write_machine(path, {"cpu.0": watts}, [mine], seconds=12, other=other, spans=idle, everything=everything)
        ledger = load(path).ledger()
        check(ledger)
        found = {entry.owner: entry.microjoules / 1e6 for entry in ledger.entries}
        assert found[owner] == pytest.approx(160, rel=0.02)
        assert ledger.entry("mine").energy.value == pytest.approx(80, rel=0.02)
        assert found[IDLE] == pytest.approx(160, rel=0.01)


def test_idle_that_was_measured_on_a_busy_machine_is_not_idle(tmp_path):
    """20 W and 10 W a busy CPU: others kept two busy while idle was recorded, and nobody did at the end."""
    spans = [("idle", 0, 4, {"role": "idle"}), ("run", 4, 12, {})]
    watts, other = flat(40.0, 4) + flat(30.0, 4) + flat(20.0, 4), flat(2.0, 4) + flat(0.0, 8)
    mine = Process(101, flat(0.0, 4) + flat(1.0, 4) + flat(0.0, 4), name="mine")
    path = write_machine(tmp_path / "x.tape", {"cpu.0": watts}, [mine], seconds=12, other=other, spans=spans)
    ledger = load(path).ledger()
    check(ledger)
    idle = ledger.idle["cpu.0"]
    assert (idle["method"], idle["watts"]) == ("quiet", pytest.approx(20.0, rel=0.02))
    assert "baseline rejected: it was 50.0 % busy" in idle["note"]
    assert ledger.entry("mine").energy.value == pytest.approx(40.0, rel=0.05)


def test_processes_that_were_not_asked_about_are_other(tmp_path):
    root, child = Process(100, flat(0.5), name="root"), Process(101, flat(0.5), began=3, ppid=100, name="child")
    child.rates = [0.0] * 3 + list(flat(0.5, 9))
    stranger = Process(300, flat(1.0), name="stranger")
    path = tmp_path / "x.tape"
    write_machine(path, {"cpu.0": flat(50.0)}, [root, child, stranger], seconds=12, follow=[100])
    ledger = load(path).ledger(baseline=10.0)
    labels = set(joules(ledger))
    assert labels == {"root", "child", "other processes", "idle", "unattributed"}
    assert ledger.entry("other").use["cpu_s"] == pytest.approx(12)


def test_the_meter_is_a_row(tmp_path):
    processes = [Process(100, flat(0.9), name="work"), Process(50, flat(0.1), name="python", extra={"meter": True})]
    path = write_machine(tmp_path / "x.tape", {"cpu.0": flat(30.0)}, processes, seconds=12)
    ledger = load(path).ledger(baseline=20.0)
    assert joules(ledger)["everywatt itself"] == pytest.approx(12, rel=1e-3)
    assert joules(ledger)["work"] == pytest.approx(108, rel=1e-3)


def test_a_tape_without_processes_has_idle_and_unattributed(tmp_path):
    path = tmp_path / "x.tape"
    write_machine(path, {"cpu.0": flat(20.0, 6) + flat(90.0, 6)}, None, seconds=12)
    ledger = load(path).ledger()
    check(ledger)
    assert {entry.owner for entry in ledger.entries} == {IDLE, UNATTRIBUTED}
    assert ledger.unattributed_share == pytest.approx(420 / 660, rel=0.01)
    assert any("no process was recorded" in note for note in ledger.notes)
    assert any("could not be attributed" in note for note in ledger.notes)


GPU_ROW = {"gpu": 0, "uuid": "u", "type": "C", "memory_bytes": 1 << 30, "gpu_instance": None, "compute_instance": None}


def on_gpu(pid, sm, **more):
    return {**GPU_ROW, "pid": pid, "sm": sm, **more}


def gpu_tape(path, rows, watts, use, **more):
    """pids 101 and 102 are processes; utilisation of gpu.0 is `use`."""
    processes = [Process(101, flat(0.0), name="a"), Process(102, flat(0.0), name="b")]
    return write_machine(
        path, {"gpu.0": watts}, processes, seconds=12, gpu_rows=rows, utilisation={"gpu.0": use}, **more
    )


def test_gpu_energy_is_idle_then_held_then_by_sm_time(tmp_path):
    watts = flat(20.0, 4) + flat(120.0, 4) + flat(220.0, 4)
    rows = {
        5: [on_gpu(101, 0.0)],
        9: [on_gpu(101, 75.0), on_gpu(102, 25.0)],
        10: [on_gpu(101, 75.0, sample_us=1)],
    }
    ledger = load(gpu_tape(tmp_path / "x.tape", rows, watts, flat(0.0, 8) + flat(100.0, 4))).ledger()
    check(ledger)
    a, b = ledger.entry("a"), ledger.entry("b")
    assert ledger.entry("idle").energy.value == pytest.approx(240, rel=0.01)
    assert a.by_part_uj[Part.HELD] / 1e6 == pytest.approx(400 + 200, rel=0.01)
    assert b.by_part_uj[Part.HELD] / 1e6 == pytest.approx(200, rel=0.01)
    assert a.by_part_uj[Part.ACTIVE] / 1e6 == pytest.approx(300, rel=0.01)
    assert b.by_part_uj[Part.ACTIVE] / 1e6 == pytest.approx(100, rel=0.01)
    assert a.use["gpu_s"] == pytest.approx(3.0, rel=0.01)
    assert ledger.idle["gpu.0"]["held_watts"] == pytest.approx(100, rel=0.01)


def test_a_busy_gpu_on_which_no_process_is_listed_is_not_idle(tmp_path):
    """True idle is 40 W; a process in another container alternates between 100 and 300 W and is never listed."""
    watts = [100.0, 300.0] * 6
    ledger = load(gpu_tape(tmp_path / "x.tape", {}, watts, flat(93.0))).ledger()
    check(ledger)
    idle, lost = ledger.entry("idle").energy, ledger.entry("unattributed").energy
    assert idle.low <= 40 * SECONDS <= idle.high and lost.low <= 160 * SECONDS <= lost.high
    assert ledger.entry("unattributed").method == "above idle while no process used it"


def test_gpu_energy_by_memory_where_use_is_not_known_and_wider(tmp_path):
    watts = flat(20.0, 4) + flat(220.0, 8)
    known = {5: [on_gpu(101, 50.0), on_gpu(102, 50.0)]}
    unknown = {5: [on_gpu(101, None, memory_bytes=3 << 30), on_gpu(102, None)]}
    use = flat(0.0, 4) + flat(90.0, 8)
    sure, unsure = (
        load(gpu_tape(tmp_path / f"{i}.tape", rows, watts, use)).ledger() for i, rows in enumerate((known, unknown))
    )
    assert unsure.entry("a").energy.value == pytest.approx(3 * unsure.entry("b").energy.value, rel=0.01)
    assert (sure.entry("a").method, unsure.entry("a").method) == ("sm time", "memory")
    assert unsure.entry("b").energy.half_width > 1.5 * sure.entry("b").energy.half_width
    assert any("shared by memory" in note for note in unsure.notes)


def test_mig_instances_share_the_board_by_slices(tmp_path):
    watts = flat(20.0, 4) + flat(300.0, 8)
    rows = {
        5: [
            on_gpu(101, None, gpu_instance=1, compute_instance=0, slices=3, of_slices=7),
            on_gpu(102, None, gpu_instance=2, compute_instance=0, slices=1, of_slices=7),
        ]
    }
    ledger = load(gpu_tape(tmp_path / "x.tape", rows, watts, flat(0.0, 4) + flat(90.0, 8))).ledger()
    check(ledger)
    assert ledger.entry("a").energy.value == pytest.approx(3 * ledger.entry("b").energy.value, rel=0.01)
    assert ledger.entry("a").method == "slices"


def test_mig_instances_share_what_the_board_draws_though_its_utilisation_is_not_known(tmp_path):
    """Drivers report none of a board with instances. The instances were there already while idle was measured."""
    rows = {
        1: [
            on_gpu(101, None, gpu_instance=1, compute_instance=0, slices=3, of_slices=7),
            on_gpu(102, None, gpu_instance=2, compute_instance=0, slices=1, of_slices=7),
        ]
    }
    watts, spans = flat(20.0, 4) + flat(300.0, 8), [("idle", 0, 4, {"role": "idle"})]
    processes = [Process(101, flat(0.0), name="a"), Process(102, flat(0.0), name="b")]
    path = write_machine(tmp_path / "x.tape", {"gpu.0": watts}, processes, seconds=12, gpu_rows=rows, spans=spans)
    ledger = load(path).ledger(between=(4.0, 12.0))
    check(ledger)
    assert ledger.entry("a").energy.value == pytest.approx(3 * ledger.entry("b").energy.value, rel=0.01)
    assert "held_watts" not in ledger.idle["gpu.0"]


def test_mig_instances_share_the_board_by_what_their_slices_did_where_that_is_known(tmp_path):
    """Three slices at 20 % and one at 60 % did as much; while idle was measured both did nothing."""

    def did(first, second):
        return [
            on_gpu(101, None, gpu_instance=1, compute_instance=0, slices=3, of_slices=7, instance_sm=first),
            on_gpu(102, None, gpu_instance=2, compute_instance=0, slices=1, of_slices=7, instance_sm=second),
        ]

    watts = flat(20.0, 2) + flat(50.0, 4) + flat(300.0, 6)
    processes = [Process(101, flat(0.0), name="a"), Process(102, flat(0.0), name="b")]
    rows = {2: [], 3: did(0.0, 0.0), 6: did(0.0, 0.0), 7: did(20.0, 60.0)}
    spans = [("idle", 0, 2, {"role": "idle"})]
    path = write_machine(tmp_path / "x.tape", {"gpu.0": watts}, processes, seconds=12, gpu_rows=rows, spans=spans)
    ledger = load(path).ledger()
    check(ledger)
    a, b = ledger.entry("a"), ledger.entry("b")
    assert a.by_part_uj[Part.ACTIVE] == pytest.approx(b.by_part_uj[Part.ACTIVE], rel=0.01)
    assert a.method == "slices by activity"
    assert ledger.idle["gpu.0"]["held_watts"] == pytest.approx(30, rel=0.01)


def test_a_gpu_that_works_while_nobody_is_listed_is_unattributed(tmp_path):
    watts = flat(20.0, 4) + flat(220.0, 8)
    ledger = load(gpu_tape(tmp_path / "x.tape", {0: []}, watts, flat(0.0, 4) + flat(90.0, 8))).ledger()
    assert joules(ledger)["unattributed"] == pytest.approx(1600, rel=0.01)
    assert any("no process was listed" in note for note in ledger.notes)


def test_dram_refresh_goes_by_memory_held_and_the_rest_by_cpu_time(tmp_path):
    worker = Process(101, flat(0.0, 4) + flat(1.0, 8), name="a", extra={"rss_bytes": 1 << 29})
    watts = {"dram.0": flat(4.0, 4) + flat(10.0, 8)}
    path = write_machine(tmp_path / "x.tape", watts, [worker], seconds=12, memory_bytes=1 << 30)
    entry = load(path).ledger().entry("a")
    assert entry.by_part_uj[Part.HELD] / 1e6 == pytest.approx(24, rel=0.02)
    assert entry.by_part_uj[Part.ACTIVE] / 1e6 == pytest.approx(48, rel=0.02)


def test_idle_can_be_spread_by_use_and_by_allocation(tmp_path):
    a = Process(101, flat(0.75), name="a", extra={"cgroup": "/small"})
    b = Process(102, flat(0.25), name="b", extra={"cgroup": "/big"})
    limits = {0: [{"cgroup": "/small", "version": 2, "cpu_s": None, "cpus": 1.0}]}
    path = tmp_path / "x.tape"
    write_machine(path, {"cpu.0": flat(50.0)}, [a, b], seconds=12, cgroup_rows=limits)
    run = load(path)
    by_use, by_allocation = (run.ledger(idle_policy=p, baseline=40.0) for p in ("by-use", "by-allocation"))
    for ledger in (by_use, by_allocation):
        check(ledger)
        assert ledger.entry("idle").microjoules == 0
    assert by_use.entry("a").by_part_uj[Part.IDLE] / 1e6 == pytest.approx(360, rel=1e-3)
    assert by_allocation.entry("a").by_part_uj[Part.IDLE] / 1e6 == pytest.approx(120, rel=1e-3)
    assert by_allocation.entry("b").by_part_uj[Part.IDLE] / 1e6 == pytest.approx(360, rel=1e-3)


def test_a_made_cgroup_tells_of_what_no_process_row_did(tmp_path):
    root = Process(100, flat(0.25), name="root")
    rows = {k: [{"cgroup": "/ew", "version": 2, "cpu_s": 1.0 * k, "made": True}] for k in range(13)}
    path = tmp_path / "x.tape"
    write_machine(path, {"cpu.0": flat(50.0)}, [root], seconds=12, other=flat(0.75), cgroup_rows=rows, follow=[100])
    ledger = load(path).ledger(baseline=10.0)
    check(ledger)
    gone = ledger.entry("short-lived processes of the command")
    assert gone.use["cpu_s"] == pytest.approx(9, rel=0.01)
    assert gone.energy.value == pytest.approx(360, rel=0.01)


REST = {"cpu.0": 20.0, "gpu.0": 100.0, "module rest": 120.0}
MODULE_REST = "rest of the module beside its chips"
WEB, CRON = "/system.slice/web.service", "/system.slice/cron.service"


def test_short_lived_processes_of_a_unit_are_its_own_as_in_the_agent(tmp_path):
    """One unit has a process that lives, and children of which no row tells; another one has such children alone."""
    workers = [Process(101, flat(0.25), extra={"cgroup": WEB}), Process(102, flat(0.0), extra={"cgroup": CRON})]
    used = {WEB: 1.0, CRON: 0.5, "/system.slice": 1.5}
    rows = {
        k: [{"cgroup": path, "version": 2, "cpu_s": 7 + cpus * k} for path, cpus in used.items()] for k in range(13)
    }
    path = tmp_path / "x.tape"
    truth = {"cpu.0": flat(10.0 + 20.0 * 1.5)}
    write_machine(path, truth, workers, seconds=12, other=flat(1.25), cgroup_rows=rows, everything=True)
    ledger = load(path).ledger(by="container", baseline=10.0)
    check(ledger)
    for unit, cpu_s in (("web.service", 12.0), ("cron.service", 6.0)):
        entry = ledger.entry(unit)
        assert entry.use["cpu_s"] == pytest.approx(cpu_s, rel=0.05)
        assert entry.energy.low <= 20.0 * cpu_s <= entry.energy.high
    assert ledger.unattributed_share < 0.01
    agent = OwnerUse(lambda facts: OwnerKey("container", (facts.cgroup or "?").rpartition("/")[2]), 1.0, 0)
    with Tape.open(path) as tape:
        groups = {group.info.name: group.id for group in tape.groups}
        for name in ("use.processes", "use.cgroups"):
            assert name in groups
        looks = [list(tape.tables(groups[name], None, None)) for name in ("use.processes", "use.cgroups")]
        for processes, counted in zip(*looks, strict=True):
            agent.feed(processes.at_ns, processes.rows)
            agent.feed_cgroups(counted.rows)
    for owner, cpu_s in agent.take().uses.items():
        assert ledger.entry(owner.id).use["cpu_s"] == pytest.approx(cpu_s, rel=0.01), owner


def test_segments_add_up_and_hosts_name_their_owners(tmp_path):
    worker = [Process(101, flat(1.0), name="a")]
    for name, host in (("one", "box"), ("two", "box"), ("three", "bay")):
        write_machine(tmp_path / f"{name}.tape", {"cpu.0": flat(50.0)}, worker, seconds=12, host=host)
    tapes = {name: Tape.open(tmp_path / f"{name}.tape") for name in ("one", "two", "three")}
    same = Run(tmp_path, [tapes["one"], tapes["two"]]).ledger(baseline=10.0)
    check(same)
    # Both are of one host at one time, as where two programs append to a run at once: that time counts once.
    assert same.entry("a").energy.value == pytest.approx(480, rel=1e-3)
    assert same.entry("a").use["cpu_s"] == pytest.approx(12)
    both = Run(tmp_path, [tapes["one"], tapes["three"]]).ledger(baseline={"cpu.0": 10.0})
    check(both)
    assert {"box: a", "bay: a"} <= set(joules(both))
    assert {entry.owner.id for entry in Run(tmp_path, [tapes["one"], tapes["three"]]).ledger("device").entries} == {
        "box/cpu.0",
        "bay/cpu.0",
    }


def test_a_gap_of_a_gauge_is_nobodys_and_costs_no_idle(tmp_path):
    worker = [Process(101, flat(1.0), name="a")]
    path = tmp_path / "x.tape"
    write_machine(path, {"gpu.0": flat(50.0)}, worker, seconds=12, gauges=["gpu.0"], missing=[5, 6, 7, 8])
    ledger = load(path).ledger(baseline=20.0)
    check(ledger)
    assert ledger.total.coverage < 0.75
    assert ledger.entry("idle").energy.value == pytest.approx(20 * 12 * ledger.total.coverage, rel=0.02)


def test_several_packages_are_split_by_who_ran_on_which(tmp_path):
    a = Process(101, flat(1.0), name="a", extra={"cpu": 0})
    b = Process(102, flat(1.0), name="b", extra={"cpu": 3})
    c = Process(103, flat(2.0), name="c", extra={"cpu": 3, "threads": 8})
    watts = {"cpu.0": flat(30.0), "cpu.1": flat(50.0)}
    idle = {"cpu.0": 10.0, "cpu.1": 10.0}
    ledgers = []
    for name, packages in (("known", [0, 0, 1, 1]), ("unknown", None)):
        path = write_machine(tmp_path / f"{name}.tape", watts, [a, b, c], seconds=12, packages=packages)
        ledgers.append(load(path).ledger(baseline=idle))
        check(ledgers[-1])
    known, unknown = ledgers
    owed = {name: dict(known.entry(name).energy.parts) for name in "abc"}
    # On each package one process with a CPU of its own, and half of the threads of c.
    assert (owed["a"]["cpu.0"].value, owed["c"]["cpu.0"].value) == (pytest.approx(120), pytest.approx(120))
    assert (owed["b"]["cpu.1"].value, owed["c"]["cpu.1"].value) == (pytest.approx(240), pytest.approx(240))
    assert set(owed["a"]) == {"cpu.0"}
    assert unknown.entry("a").energy.value == pytest.approx(unknown.entry("b").energy.value)
    assert unknown.entry("a").energy.half_width > known.entry("a").energy.half_width


def owed_beside_another(folder, ranks, cgroup=None):
    """A ledger with hyper-threading: a program on 8 CPUs in so many processes, beside one on 2 of 16."""
    rates = [0.0] * 4 + [8.0 / ranks] * (SECONDS - 4)
    extra = [{"cgroup": cgroup.format(n)} if cgroup else {} for n in range(ranks)]
    processes = [Process(100, rates, name="first", extra=extra[0])]
    processes += [Process(100 + n, rates, ppid=100, name=f"rank {n}", extra=extra[n]) for n in range(1, ranks)]
    processes.append(Process(50, [0.0] * 4 + [2.0] * (SECONDS - 4), name="small"))
    watts = {"cpu.0": [10.0] * 4 + [60.0] * (SECONDS - 4)}
    path = write_machine(
        folder / f"{ranks}{bool(cgroup)}.tape", watts, processes, seconds=SECONDS, cpus=16, everything=True,
        spans=[("idle", 0, 4, {"role": "idle"})], threads_per_core=2,
    )  # fmt: skip
    return load(path)


@pytest.mark.parametrize("cgroup", [None, "/pg1", "/slurm_box/uid_1000/job_12/step_0/task_{}"])
def test_ranks_of_a_program_owe_together_what_it_owes_as_one_process(tmp_path, cgroup):
    whole = joules(owed_beside_another(tmp_path, 1).ledger("process"))
    run = owed_beside_another(tmp_path, 8, cgroup)
    ledger = run.ledger("process")
    apart = joules(ledger)
    assert apart["small"] == pytest.approx(whole["small"], abs=1e-5)
    # 2 and 8 CPUs of 8 cores: 0.2 of 400 J by CPU time, 0.4375 / 1.4375 by what each would draw alone.
    assert apart["small"] == pytest.approx(400 * (0.2 + 0.4375 / 1.4375) / 2, abs=1e-3)
    assert {entry.method for entry in ledger.entries if entry.owner.kind == "process"} == {"cpu time, saturating"}
    if cgroup and "job" in cgroup:
        assert joules(run.ledger("job"))["job 12"] == pytest.approx(400 - whole["small"], abs=1e-5)
    check(ledger)


def test_the_interval_of_idle_is_its_spread_and_nobody_gets_it_twice(tmp_path):
    worker = [Process(101, flat(0.0, 6) + flat(1.0, 6), name="a")]
    watts = [20.0 + (1 if k % 2 else -1) for k in range(6)] + flat(60.0, 6)
    ledger = load(write_machine(tmp_path / "x.tape", {"cpu.0": watts}, worker, seconds=12)).ledger()
    idle, *others = (ledger.entry(name).energy for name in ("idle", "a", "unattributed"))
    widths = [part.budget.by_source().get("baseline", 0.0) for part in others]
    assert idle.budget.by_source()["baseline"] == pytest.approx(sum(widths)) and widths[0] > 1
    assert sum(others, idle).budget.by_source()["baseline"] == pytest.approx(0, abs=1e-9)


def test_a_live_tape_is_continued(tmp_path):
    path = tmp_path / "x.tape"
    worker = [Process(101, flat(0.0, 6) + flat(1.0, 6), name="a")]
    write_machine(path, {"cpu.0": flat(20.0, 6) + flat(60.0, 6)}, worker, seconds=12, seal=False)
    run = load(path)
    first = run.ledger()
    run.tapes[0].refresh()
    check(first)
    assert joules(run.ledger(between=(6.0, 12.0)))["a"] == pytest.approx(240, rel=0.05)


@pytest.mark.parametrize("by", ["colour"])
def test_what_a_ledger_cannot_be_kept_by_is_said(tmp_path, by):
    run = load(write_machine(tmp_path / "x.tape", {"cpu.0": flat(50.0)}, [], seconds=12))
    with pytest.raises(UsageError, match=by):
        run.ledger(by)
    with pytest.raises(UsageError, match="idle policy"):
        run.ledger(idle_policy="all")


def test_nothing_in_the_window_is_refused_not_zero(tmp_path):
    run = load(write_machine(tmp_path / "x.tape", {"cpu.0": flat(50.0)}, [], seconds=12))
    ledger = run.ledger(between=(500.0, 600.0))
    assert ledger.total.joules is None and ledger.entries == ()
    assert not math.isnan(ledger.unattributed_share)


@pytest.mark.parametrize("by", ["process", "device", "user", "span"])
def test_owners_of_a_superchip_add_up_to_the_module(tmp_path, by):
    """They share its chips. What is beside them (memory, I/O) is unattributed, and a note says how much that is."""
    watts = {"module.0": flat(240.0), "cpu.0": flat(20.0), "gpu.0": flat(100.0)}
    spans = [("work", 2.0, 8.0, {})]
    run = load(write_machine(tmp_path / "x.tape", watts, [Process(101, flat(0.5))], seconds=SECONDS, spans=spans))
    ledger = run.ledger(by)
    check(ledger)
    assert (run.energy().scope, ledger.total.scope) == ("module", "module")
    assert ledger.microjoules == microjoules(run.energy().value)
    parts = {
        name: sum(dict(e.energy.parts)[name].value for e in ledger.entries if name in dict(e.energy.parts))
        for name in REST
    }
    assert parts == {name: pytest.approx(w * run.duration_s, rel=1e-3) for name, w in REST.items()}
    rest = ledger.entry("module rest" if by == "device" else "unattributed")
    assert rest.energy.low <= 120.0 * run.duration_s <= rest.energy.high
    assert by == "device" or MODULE_REST in rest.method
    assert any("rest of the module" in note and "50" in note for note in ledger.notes)


def test_idle_that_was_assumed_may_be_anything_that_no_process_used(tmp_path):
    """A card draws 200 W and nothing is known of its use: that may be idle, or the work of an unseen program."""
    ledger = load(write_machine(tmp_path / "x.tape", {"gpu.0": [200.0] * 10}, [], seconds=10)).ledger()
    idle, lost = ledger.entry("idle").energy, ledger.entry("unattributed").energy
    assert (idle.value, lost.value) == (pytest.approx(2000, rel=1e-3), 0.0)
    assert ledger.idle["gpu.0"]["method"] == "lowest"
    assert idle.low == pytest.approx(0, abs=1)
    assert (lost.low, lost.high) == (0.0, pytest.approx(2000, rel=0.01))
    assert ledger.total.half_width < 10
