"""A recorder that was dead for some seconds: counters and CPU times went on, and jobs get what they used meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import machines
import pytest
from fake_clock import FakeClock
from machines import Process, write_machine
from tapes import UTC_NS

from everywatt.api.provenance import provenance
from everywatt.core.clocks import NS, Anchor
from everywatt.core.machine import boot_id
from everywatt.ledger.idle import Idle
from everywatt.slurm.node.booking import book
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.recorder import Node
from everywatt.slurm.node.state import Account, State
from everywatt.slurm.node.tapes import SAME_BOOT_NS, bridged, not_booked, tapes_in
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.store import Store
from everywatt.tape.mending import seal_left
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter

T0 = UTC_NS / NS
SECONDS = 30
DEAD = (10, 18)  # no recorder was running from here to there
IDLE_W, CPU_W = 20.0, 10.0  # the truth: idle, and each CPU second
CARD_IDLE_W, CARD_W = 40.0, 100.0
TRUE_CPU_S = {1: 2.0 * 26, 2: 1.0 * 12, 3: 1.0 * 3}
JOBS = {1: (2.0, 28.0), 2: (2.0, 14.0), 3: (12.0, 15.0)}  # the second ends in the gap, the third is wholly in it


def while_alive(start: float, end: float) -> list[float]:
    return [1.0 if start <= second < end else 0.0 for second in range(SECONDS)]


def tapes(
    folder: Path,
    *,
    gauges: tuple[str, ...] = (),
    looked_until: int | None = None,
    second: str = "box",
    searching: bool = False,
    killed: tuple[int, int, int] | None = None,
) -> None:
    """What two recorders recorded of one machine: until the first one died, and since the second one started.

    `killed` is one between them: when it started, and the last seconds of which energy and use are on its tape.
    """
    rates = {pid: while_alive(*JOBS[job]) for pid, job in ((101, 1), (102, 1), (103, 2), (104, 3))}
    job_of = {101: 1, 102: 1, 103: 2, 104: 3}
    processes = [
        Process(
            pid,
            rate,
            began=int(JOBS[job_of[pid]][0]),
            ended=int(JOBS[job_of[pid]][1]),
            extra={"uid": 1000, "cgroup": f"/system.slice/slurmstepd.scope/job_{job_of[pid]}/step_batch/user/task_0"},
        )
        for pid, rate in rates.items()
    ]
    processes.append(Process(105, [0.5] * SECONDS, extra={"uid": 0, "cgroup": "/system.slice/sshd.service"}))
    busy = [sum(rate[second] for rate in rates.values()) + 0.5 for second in range(SECONDS)]
    watts = {
        "cpu.0": [IDLE_W + CPU_W * cpus for cpus in busy],
        "gpu.0": [CARD_IDLE_W + CARD_W * on for on in while_alive(*JOBS[1])],
    }
    folder.mkdir()
    recorders = [(0, DEAD[0], looked_until), *([killed] if killed else []), (DEAD[1], SECONDS, None)]
    for number, (start, end, looked) in enumerate(recorders):
        last = number == len(recorders) - 1
        write_machine(
            folder / f"box-{number:04}.tape",
            watts,
            processes,
            seconds=SECONDS,
            everything=True,
            gauges=gauges,
            between=(start, end),
            seal=last,
            looked_until=looked,
            searching=searching,
            host=second if number else "box",
        )


def drop(spool: Path, kind: str, job: int, at: float, **values: object) -> None:
    lines = {"event": kind, "job_id": job, "node": "n1", "cluster": "c", **values, "whole": "yes"}
    path = spool / "events" / f"{kind}-{job}.event"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    os.utime(path, (T0 + at, T0 + at))


def node_at(folder: Path, now: float, cpu_s: Mapping[int, float], boot: str = "b") -> Node:
    make_spool(folder / "spool")
    node = Node(
        "n1",
        folder / "spool",
        Store(folder / "store"),
        tapes_in(folder / "tape"),
        ask=lambda jobs, node, conf: {job: {} for job in jobs},
        cpu_time_s=lambda job, *_: cpu_s.get(job),
        clock=FakeClock(round(now * NS), utc_offset_ns=round(T0 * NS)),
        boot=boot,
    )
    node.state.idle |= {"cpu.0": Idle(IDLE_W, 0.0, "baseline"), "gpu.0": Idle(CARD_IDLE_W, 0.0, "baseline")}
    return node


def recorded(folder: Path, cpu_s: Mapping[int, float], *, sealed: bool = False) -> dict[int, JobOnNode]:
    """What is stored of jobs after the node recorder was killed with the recorder, and started again with it.

    `sealed`: the agent that came back has sealed the tape that was left.
    """
    before = node_at(folder, DEAD[0], cpu_s)
    for job in (1, 2):
        drop(folder / "spool", "start", job, JOBS[job][0], cpus=2 if job == 1 else 1, gpus="0" if job == 1 else "")
    before.listen()
    before.settle()
    for job in (2, 3):
        if job == 3:
            drop(folder / "spool", "start", job, JOBS[job][0], cpus=1)
        drop(folder / "spool", "end", job, JOBS[job][1], exit_code="0:0")
    if sealed:
        assert seal_left(folder / "tape" / "box-0000.tape", quiet_s=0.0)
    after = node_at(folder, 24, cpu_s)
    after.listen()
    after.settle()
    drop(folder / "spool", "end", 1, JOBS[1][1], exit_code="0:0")
    last = node_at(folder, SECONDS, cpu_s)
    last.listen()
    last.settle()
    return {row["job_id"]: JobOnNode.of_row(row) for row in Store(folder / "store").jobs(0, 1e12).to_pylist()}


def hours(folder: Path) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = Store(folder / "store").query("SELECT * FROM nodes", [], 0, 1e11).to_pylist()
    assert all(row["jobs_uj"] + row["idle_uj"] + row["system_uj"] == row["total_uj"] for row in rows)
    return rows


def true_j(job: int) -> float:
    return CPU_W * TRUE_CPU_S[job] + (CARD_W * 26 if job == 1 else 0.0)


def test_the_time_without_a_recorder_is_charged_by_counters_and_cpu_time(tmp_path: Path) -> None:
    tapes(tmp_path / "tape")
    found = recorded(tmp_path, TRUE_CPU_S)
    for job, row in found.items():
        assert row.low_uj / 1e6 <= true_j(job) <= row.high_uj / 1e6
        assert row.energy_uj / 1e6 == pytest.approx(true_j(job), rel=0.05), job
        assert row.coverage == pytest.approx(1.0, abs=0.02)
        assert row.cpu_s == pytest.approx(TRUE_CPU_S[job], rel=0.05)
    rows = hours(tmp_path)
    # From when jobs are known to the last look at processes.
    for row in rows:
        true_uj = {"cpu.0": (IDLE_W + 5.0) * 27 + CPU_W * sum(TRUE_CPU_S.values()), "gpu.0": 40.0 * 27 + 2600.0}
        assert row["total_uj"] / 1e6 == pytest.approx(true_uj[row["device"]], rel=0.01)
        assert row["coverage"] == pytest.approx(1.0, abs=0.01)
    assert sum(row["jobs_uj"] for row in rows) == sum(row.energy_uj for row in found.values())
    assert set(found) == set(JOBS)


@pytest.mark.parametrize(
    ("killed", "sealed"),
    [((13, 0, 0), False), ((13, 0, 0), True), ((13, 14, 0), False), ((13, 14, 0), True), ((13, 14, 14), False)],
    ids=["no row", "no row, sealed later", "no table", "no table, sealed later", "one second"],
)
def test_a_recorder_that_is_killed_soon_does_not_end_the_bridge(
    tmp_path: Path, killed: tuple[int, int, int], sealed: bool
) -> None:
    """Counters go on from the last tape that has them, however little a recorder wrote that was there meanwhile."""
    tapes(tmp_path / "tape", killed=killed)
    if sealed:
        assert seal_left(tmp_path / "tape" / "box-0001.tape", quiet_s=0.0)
    found = recorded(tmp_path, TRUE_CPU_S)
    assert set(found) == set(JOBS)
    for job, row in found.items():
        assert row.low_uj / 1e6 <= true_j(job) <= row.high_uj / 1e6
        assert row.energy_uj / 1e6 == pytest.approx(true_j(job), rel=0.05), job
        assert row.coverage == pytest.approx(1.0, abs=0.02)
        assert row.cpu_s == pytest.approx(TRUE_CPU_S[job], rel=0.05)
    for row in hours(tmp_path):
        true_uj = {"cpu.0": (IDLE_W + 5.0) * 27 + CPU_W * sum(TRUE_CPU_S.values()), "gpu.0": 40.0 * 27 + 2600.0}
        assert row["total_uj"] / 1e6 == pytest.approx(true_uj[row["device"]], rel=0.01)
        assert row["coverage"] == pytest.approx(1.0, abs=0.01)


def test_a_recorder_that_looked_once_does_not_end_the_bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "UTC_NS", UTC_NS + 100)  # seconds as floats resolve 238 ns in these years
    tapes(tmp_path / "tape", killed=(13, 14, 13))
    found = recorded(tmp_path, TRUE_CPU_S)
    assert set(found) == set(JOBS)
    for job, row in found.items():
        assert row.low_uj / 1e6 <= true_j(job) <= row.high_uj / 1e6
        assert row.energy_uj / 1e6 == pytest.approx(true_j(job), rel=0.05), job
        assert row.cpu_s == pytest.approx(TRUE_CPU_S[job], rel=0.05)
        assert row.coverage == pytest.approx(1.0, abs=0.02)


def test_a_recorder_that_is_killed_before_it_knows_when_cards_publish_changes_nothing(tmp_path: Path) -> None:
    totals = []
    for number, killed in enumerate((None, (13, 14, 13))):
        folder = tmp_path / str(number)
        folder.mkdir()
        tapes(folder / "tape", searching=True, killed=killed)
        recorded(folder, TRUE_CPU_S)
        totals.append({row["device"]: row["total_uj"] for row in hours(folder)})
    assert totals[0] == totals[1]


def test_a_job_that_began_after_another_gave_its_card_back_in_the_gap_has_its_joules(tmp_path, monkeypatch) -> None:
    """The gap is cut where a card was handed over, and the third job was there in the second part only."""
    monkeypatch.setitem(JOBS, 1, (3.0, 12.0))
    monkeypatch.setitem(TRUE_CPU_S, 1, 2.0 * 9)
    tapes(tmp_path / "tape")
    before = node_at(tmp_path, DEAD[0], TRUE_CPU_S)
    for job in (1, 2):
        drop(tmp_path / "spool", "start", job, JOBS[job][0], cpus=3 - job, gpus="0" if job == 1 else "")
    before.listen()
    before.settle()
    drop(tmp_path / "spool", "start", 3, JOBS[3][0], cpus=1)
    for job in JOBS:
        drop(tmp_path / "spool", "end", job, JOBS[job][1], exit_code="0:0")
    last = node_at(tmp_path, SECONDS, TRUE_CPU_S)
    last.listen()
    last.settle()
    for row in Store(tmp_path / "store").jobs(0, 1e12).to_pylist():
        true = CPU_W * TRUE_CPU_S[row["job_id"]] + (CARD_W * 9 if row["job_id"] == 1 else 0.0)
        assert row["low_uj"] / 1e6 <= true <= row["high_uj"] / 1e6, row["job_id"]
        assert row["energy_uj"] / 1e6 == pytest.approx(true, rel=0.35), row["job_id"]


def test_what_a_kill_took_of_the_tables_is_charged_with_the_time_after_it(tmp_path: Path) -> None:
    """Tables of processes are written every ten seconds, energy every second."""
    tapes(tmp_path / "tape", looked_until=4)
    found = recorded(tmp_path, TRUE_CPU_S, sealed=True)
    for job, row in found.items():
        assert row.low_uj / 1e6 <= true_j(job) <= row.high_uj / 1e6
        assert row.energy_uj / 1e6 == pytest.approx(true_j(job), rel=0.05), job
        assert row.cpu_s == pytest.approx(TRUE_CPU_S[job], rel=0.05)
    assert set(found) == set(JOBS)
    assert sum(row["jobs_uj"] for row in hours(tmp_path)) == sum(row.energy_uj for row in found.values())


def test_what_was_counted_after_the_last_look_is_in_the_hour_also_after_a_reboot(tmp_path: Path) -> None:
    tapes(tmp_path / "tape", looked_until=4, second="another")  # as good as of another boot
    before = node_at(tmp_path, DEAD[0], {})
    drop(tmp_path / "spool", "start", 1, 2.0, cpus=2)
    before.listen()
    before.settle()
    assert seal_left(tmp_path / "tape" / "box-0000.tape", quiet_s=0.0)
    after = node_at(tmp_path, SECONDS, {}, boot="another")
    after.listen()
    after.settle()
    seen_s = (DEAD[0] - 2) + (SECONDS - DEAD[1])
    covered = {row["device"]: row["coverage"] for row in hours(tmp_path)}
    assert covered["cpu.0"] == pytest.approx(seen_s / (SECONDS - 2), abs=0.05)


def test_a_second_of_a_recorder_is_counted_on_from_after_a_reboot(tmp_path: Path) -> None:
    """The first recorder of the new boot was killed after a second, and the next one started four seconds later."""
    tapes(tmp_path / "tape", second="another", killed=(13, 14, 14))
    before = node_at(tmp_path, DEAD[0], {})
    drop(tmp_path / "spool", "start", 1, 2.0, cpus=2)
    before.listen()
    before.settle()
    after = node_at(tmp_path, SECONDS, {}, boot="another")
    after.listen()
    after.settle()
    for row in hours(tmp_path):
        assert row["coverage"] == pytest.approx(1 - 3 / (SECONDS - 2), abs=0.03), row["device"]


def test_a_job_that_ended_meanwhile_and_whose_cpu_time_is_unknown_has_an_interval_that_says_so(tmp_path: Path) -> None:
    tapes(tmp_path / "tape")
    found = recorded(tmp_path, {})
    for job in JOBS:
        row = found[job]
        if row.energy_uj is not None:
            assert row.low_uj / 1e6 <= true_j(job) <= row.high_uj / 1e6, job
    assert found[1].coverage == pytest.approx(1.0, abs=0.02)
    assert found[2].coverage == pytest.approx(8 / 12, abs=0.02)
    assert found[3].energy_uj is None and "none of its processes" in (found[3].refused or "")
    assert sum(row["jobs_uj"] for row in hours(tmp_path)) == sum(row.energy_uj or 0 for row in found.values())


def test_the_end_of_a_bridge_is_an_error_of_its_own(tmp_path: Path) -> None:
    """The tape that follows knows better when its first readings were published, so what is off does not cancel."""
    tapes(tmp_path / "tape", searching=True)
    before, after = (Tape.open(path) for path in sorted((tmp_path / "tape").glob("*.tape")))
    job, idle = NodeJob(1, 0, T0 + 2, cpus=2.0, gpus=[0]), {"gpu.0": Idle(CARD_IDLE_W, 0.0, "baseline")}
    accounts: dict[str, Account] = {}
    with bridged(before, after, T0 + DEAD[0], after.from_utc_ns(UTC_NS + DEAD[1] * NS), {}) as bridge:
        book(bridge, "n1", [job], accounts, T0 + DEAD[0], T0 + DEAD[1], idle, bridge=True)
    alone = sum(accounts["1/0"].budgets["gpu.0"].sides())
    assert alone > 30, "the first reading is up to a second old"
    book(after, "n1", [job], accounts, T0 + DEAD[1], T0 + 28, idle)
    assert sum(accounts["1/0"].budgets["gpu.0"].sides()) > alone


def test_idle_power_in_an_outage_is_that_of_all_of_the_tape_before_it(tmp_path, monkeypatch) -> None:
    """A kill took the tables of processes, so nothing of the tape was booked after 2 s; the card was idle until 6 s."""
    monkeypatch.setitem(JOBS, 1, (6.0, 28.0))
    tapes(tmp_path / "tape", looked_until=2)
    assert seal_left(tmp_path / "tape" / "box-0000.tape", quiet_s=0.0)
    node = node_at(tmp_path, SECONDS, TRUE_CPU_S)
    drop(tmp_path / "spool", "start", 1, 6.0, cpus=2, gpus="0")
    drop(tmp_path / "spool", "end", 1, 28.0, exit_code="0:0")
    node.state.booked_s, node.state.idle["gpu.0"] = T0 + 2.0, Idle(5.0, 50.0, "lowest")
    node.listen()
    node.settle()
    (row,) = Store(tmp_path / "store").jobs(0, 1e12, "job_id = 1").to_pylist()
    (card,) = [part for part in row["devices"] if part["device"] == "gpu.0"]
    assert card["energy_uj"] / 1e6 == pytest.approx(CARD_W * 22, rel=0.05)


def test_what_only_gauges_measure_is_not_covered_and_widens_the_interval(tmp_path: Path) -> None:
    tapes(tmp_path / "tape", gauges=("gpu.0",))
    found = recorded(tmp_path, TRUE_CPU_S)
    row = found[1]
    assert row.coverage < 0.9
    assert row.energy_uj / 1e6 < true_j(1) - 700
    assert row.low_uj / 1e6 <= true_j(1) <= row.high_uj / 1e6
    assert found[2].coverage == pytest.approx(1.0, abs=0.02), "it has no card"
    covered = {row["device"]: row["coverage"] for row in hours(tmp_path)}
    assert covered["cpu.0"] == pytest.approx(1.0, abs=0.01)
    assert covered["gpu.0"] == pytest.approx(19 / 27, abs=0.02)


def test_another_boot_is_not_bridged(tmp_path: Path) -> None:
    """The job ended with the boot: nothing of what came after it is its own, and the hour says what is missing."""
    tapes(tmp_path / "tape")
    before = node_at(tmp_path, DEAD[0], {})
    drop(tmp_path / "spool", "start", 1, 2.0, cpus=2)
    before.listen()
    before.settle()
    (tmp_path / "tape" / "box-0000.tape").unlink()  # as good as of another boot: nothing to count on from
    after = node_at(tmp_path, SECONDS, {}, boot="another")
    after.listen()
    after.settle()
    covered = {row["device"]: row["coverage"] for row in hours(tmp_path)}
    # The second for which hooks are waited for was lost with the tape.
    assert covered["cpu.0"] == pytest.approx(18 / 27, abs=0.02)


def test_hours_stay_open_for_a_job_whose_start_comes_late(tmp_path: Path) -> None:
    """Its processes were charged to the system until then."""
    tapes(tmp_path / "tape")
    before = node_at(tmp_path, 9, {})
    drop(tmp_path / "spool", "start", 2, 2.0, cpus=1)
    before.listen()
    before.settle()
    drop(tmp_path / "spool", "start", 1, 2.0, cpus=2)  # the hook was slow
    drop(tmp_path / "spool", "end", 1, 7.0)
    drop(tmp_path / "spool", "end", 2, 7.0)
    after = node_at(tmp_path, 11, {})
    after.listen()
    after.settle()
    found = {row["job_id"]: JobOnNode.of_row(row) for row in Store(tmp_path / "store").jobs(0, 1e12).to_pylist()}
    assert found[1].cpu_s == pytest.approx(2.0 * 5, abs=2.1)
    assert found[1].devices[0].energy_uj / 1e6 == pytest.approx(CPU_W * 2.0 * 5, abs=21)
    assert sum(row["jobs_uj"] for row in hours(tmp_path)) == sum(row.energy_uj or 0 for row in found.values())


def test_folders_of_tapes_that_are_not_booked_yet(tmp_path: Path) -> None:
    """Two recorders were killed before anything of their tapes was booked; of older ones the last is enough."""
    names = [str(tmp_path / name) for name in ("a", "b", "c", "d", "gone")]
    for number, name in enumerate(names[:-1]):
        Path(name).mkdir()
        (Path(name) / "x.tape").write_bytes(b"")
        os.utime(Path(name) / "x.tape", (1000 * number + 1000,) * 2)
    assert not_booked(names, 2500.0) == names[1:4]
    assert not_booked(names, None) == names[:4]
    assert not_booked(names, 9e9) == names[3:4]


def test_the_folder_that_was_booked_last_is_kept_however_often_a_recorder_is_killed(tmp_path: Path) -> None:
    """Counters go on from there."""
    names = [str(tmp_path / f"{number:03}") for number in range(100)]
    for name in names:
        Path(name).mkdir()
        (Path(name) / "x.tape").write_bytes(b"")
    kept = not_booked(names, 0.0)
    assert (kept[0], kept[-1]) == (names[0], names[-1])
    assert len(kept) < len(names)


def test_a_state_of_an_earlier_version_names_one_folder(tmp_path: Path) -> None:
    data = {"jobs": [], "hours": [], "idle": {}, "accounts": {}, "folder": "/runs/a"}
    (tmp_path / "node.json").write_text(json.dumps(data))
    assert State.read(tmp_path / "node.json").folders == ["/runs/a"]


@pytest.mark.parametrize(
    ("boots", "set_by_s", "same"),
    [
        (("one", "one"), 600, True),  # the wall clock was wrong until it was set
        (("one", "another"), 20, False),  # a machine that starts in seconds
        (("", "one"), 20, True),  # of an earlier version
        (("", ""), 600, False),
    ],
)
def test_a_boot_goes_by_its_id_where_there_is_one(tmp_path: Path, boots, set_by_s: int, same: bool) -> None:
    for number, boot in enumerate(boots):
        writer = TapeWriter(tmp_path / f"{number}.tape", {"host": {"name": "box", **({"boot": boot} if boot else {})}})
        writer.anchor(Anchor(machines.ORIGIN_NS, UTC_NS + number * set_by_s * NS, machines.ORIGIN_NS, 0))
        writer.seal()
    with Tape.open(tmp_path / "0.tape") as before, Tape.open(tmp_path / "1.tape") as after:
        assert before.same_boot(after, SAME_BOOT_NS) == same


def test_a_tape_names_its_boot() -> None:
    assert provenance()["host"]["boot"] == boot_id()
