"""Owners for a screen: the same shares as a whole ledger, every joule once, and no oftener than it may cost."""

import os
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from machines import Process, write_machine
from tapes import at

from everywatt.api.run import Run
from everywatt.ledger.use.account import tape_use
from everywatt.report.live import owners
from everywatt.report.live.gather import Gatherer
from everywatt.report.live.owners import NOT_YET, LedgerOwners, RunningOwners
from everywatt.sensors.procfs import start_of
from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape

SECONDS = 12
IDLE = 4
"""A package idles at 10 W for four seconds, then draws 50 W for two processes, of which one uses thrice as much."""
WATTS = [10.0] * IDLE + [50.0] * (SECONDS - IDLE)


def processes():
    rest = [0.0] * IDLE
    busy = SECONDS - IDLE
    return [Process(100, rest + [0.5] * busy, name="small"), Process(200, rest + [1.5] * busy, name="large")]


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def machine(tmp_path):
    path = write_machine(
        tmp_path / "box-0001.tape", {"cpu.0": WATTS}, processes(), seconds=SECONDS, everything=True, seal=False,
        spans=[("idle", 0, IDLE, {"role": "idle"})],
    )  # fmt: skip
    tape = Tape.open(path, verify=False)
    gatherer = Gatherer(1.0)
    gatherer.adopt(tape)
    gatherer.feed(Follower(tape).look())
    yield Run(path, [tape]), gatherer
    tape.close()


def named(owners):
    return {entry.label.partition(" ")[0]: entry for entry in owners.entries}


def test_shares_are_by_cpu_time_and_every_joule_has_one_owner(machine):
    run, gatherer = machine
    owners = RunningOwners("process", clock=Clock(), cpu_clock=lambda: 0.0).ask(
        run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns
    )
    assert owners.refused is None
    whole_j = sum(entry.power_w for entry in owners.entries) * owners.duration_s
    line = gatherer.lines["cpu.0"]
    seen_j, _ = line.between(*([value] for value in (at(SECONDS - owners.duration_s), at(SECONDS))))
    assert whole_j == pytest.approx(float(seen_j[0]), rel=0.02)
    found = named(owners)
    active_j = 40.0 * (SECONDS - IDLE)
    assert found["large"].power_w == pytest.approx(3 * found["small"].power_w, rel=0.02)
    assert (found["large"].joules + found["small"].joules) == pytest.approx(active_j, rel=0.05)
    assert found["large"].cpu_pct == pytest.approx(100 * 1.5 * (SECONDS - IDLE) / owners.duration_s, rel=0.02)
    assert found["large"].memory_bytes == 1 << 20


def test_it_agrees_with_the_whole_ledger(machine):
    run, gatherer = machine
    ask = (run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    quick = named(RunningOwners("process", clock=Clock(), cpu_clock=lambda: 0.0).ask(*ask))
    whole = named(LedgerOwners("process").ask(*ask))
    for name in ("small", "large", "idle"):
        assert quick[name].joules == pytest.approx(whole[name].joules, rel=0.05), name


def test_nothing_is_worked_out_before_its_time(machine):
    run, gatherer = machine
    clock, spent = Clock(), iter([0.0, 0.0, 0.0, 0.0, 0.004, *[0.004] * 20])
    asker = RunningOwners("process", clock=clock, cpu_clock=lambda: next(spent))
    ask = (run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    first = asker.ask(*ask)
    assert first.refused is None
    clock.now_s = 3.9
    assert asker.ask(*ask) == first, "it took 4 ms, a thousandth of 4 s"
    clock.now_s = 4.1
    assert asker.ask(*ask) == first, "no process was read since: the last answer stands, and nothing is counted twice"


def test_finding_intervals_does_not_make_owners_old(machine, monkeypatch):
    run, gatherer = machine
    clock, looked = Clock(), []
    monkeypatch.setattr(owners, "tape_use", lambda tape: looked.append(clock.now_s) or tape_use(tape))
    spent = iter([0.0, 0.0, 0.0, 0.0, 0.004, *[0.504] * 20])  # 4 ms for owners, then half a second for intervals
    asker = RunningOwners("process", clock=clock, cpu_clock=lambda: next(spent))
    for clock.now_s in (0.0, 3.9, 4.1):
        asker.ask(run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    assert looked == [0.0, 4.1], "4 ms are a thousandth of 4 s"


def test_the_rest_of_a_tape_is_shared_out_once(machine):
    run, gatherer = machine
    asker = RunningOwners("process", clock=Clock(), cpu_clock=lambda: 0.0)
    asker.finish(run.tapes[0], gatherer.lines, at(8.2))
    part = named(asker.ask(run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns))["large"].joules
    with Tape.open(run.tapes[0].path, verify=False) as again:
        asker.finish(again, gatherer.lines, gatherer.last_ns)
        owners = asker.ask(Run(again.path, [again]), gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    found = named(owners)
    assert found["large"].joules == pytest.approx(30.0 * (SECONDS - IDLE), rel=0.05) and part <= found["large"].joules
    assert found["small"].joules == pytest.approx(10.0 * (SECONDS - IDLE), rel=0.05)


@pytest.fixture
def sleeper():
    """A process that is not collected when it ends, with its start as /proc has it."""
    process = subprocess.Popen(["sleep", "600"])
    yield process, start_of("/proc", process.pid)
    process.kill()
    process.wait()


def owners_of(tmp_path, listed, by, proc):
    """Owners of a tape whose package draws 40 W for these processes; gives what asks for them once more."""
    path = write_machine(
        tmp_path / "box-0001.tape", {"cpu.0": WATTS}, listed, seconds=SECONDS, everything=True, seal=False,
        spans=[("idle", 0, IDLE, {"role": "idle"})],
    )  # fmt: skip
    with Tape.open(path, verify=False) as tape:
        gatherer = Gatherer(1.0)
        gatherer.adopt(tape)
        gatherer.feed(Follower(tape).look())
        asker = RunningOwners(by, proc=proc, clock=Clock(), cpu_clock=lambda: 0.0)
        ask = (Run(path, [tape]), gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
        while True:
            yield asker.ask(*ask)


@pytest.mark.parametrize("by", ["process", "container"])
def test_an_owner_leaves_with_its_last_process(tmp_path, sleeper, by):
    process, start = sleeper
    mine, other = (f"/system.slice/docker-{letter * 64}.scope" for letter in "ab")
    rates = [0.0] * IDLE + [0.5] * (SECONDS - IDLE)
    listed = [
        Process(process.pid, rates, name="sleeper", extra={"start": start, "cgroup": mine}),
        Process(os.getpid(), rates, name="tests", extra={"start": start_of("/proc", os.getpid()), "cgroup": other}),
    ]
    asked = owners_of(tmp_path, listed, by, Path("/proc"))
    before = next(asked)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not collected yet
    _, after = next(asked), next(asked)
    left = {entry.id for entry in before.entries} - {entry.id for entry in after.entries}
    (gone,) = (entry for entry in before.entries if entry.id in left)
    assert gone.joules == pytest.approx(160, rel=0.05)
    (rest,) = (entry for entry in after.entries if entry.id == "ended")
    assert (rest.joules, rest.power_w) == (gone.joules, gone.power_w) and rest.low <= rest.joules <= rest.high
    for amount in ("joules", "power_w"):
        sums = [sum(getattr(entry, amount) for entry in one.entries) for one in (before, after)]
        assert sums[0] == pytest.approx(sums[1])


def test_an_owner_stays_while_it_has_newer_processes(tmp_path, sleeper):
    """Of this user the tape has one process, which ends; others run that are younger than the last working-out."""
    process, start = sleeper
    rates = [0.0] * IDLE + [0.5] * (SECONDS - IDLE)
    listed = [
        Process(process.pid, rates, name="sleeper", extra={"start": start, "uid": os.getuid()}),
        Process(2**22 - 1, rates, name="far", extra={"uid": 54321}),
    ]
    asked = owners_of(tmp_path, listed, "user", Path("/proc"))
    next(asked)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    for owners_now in islice(asked, 3):
        kept = {entry.id for entry in owners_now.entries if entry.kind == "user"}
        assert kept == {str(os.getuid())}, "the other one has none"


def test_processes_of_another_machine_are_not_looked_up_here(tmp_path):
    listed = [Process(2**22 - number, [0.0] * IDLE + [0.5] * (SECONDS - IDLE), name="far") for number in (1, 2)]
    before, after = islice(owners_of(tmp_path, listed, "process", None), 2)
    assert before.entries == after.entries and sum(entry.kind == "process" for entry in after.entries) == 2


def test_what_ended_or_did_nothing_lately_is_in_the_sum(tmp_path):
    rates = [0.0] * IDLE + [0.5] * (SECONDS - IDLE)
    resting = [*rates[:8], *[0.0] * (SECONDS - 8)]
    listed = [Process(1, rates), Process(2, rates, ended=7), Process(3, resting)]
    path = write_machine(
        tmp_path / "box-0001.tape", {"cpu.0": WATTS}, listed, seconds=SECONDS, everything=True, seal=False,
        spans=[("idle", 0, IDLE, {"role": "idle"})],
    )  # fmt: skip
    with Tape.open(path, verify=False) as tape:
        gatherer = Gatherer(1.0)
        gatherer.adopt(tape)
        gatherer.feed(Follower(tape).look())
        clock = Clock()
        asker = RunningOwners("process", clock=clock, cpu_clock=lambda: 0.0)
        asker.finish(tape, gatherer.lines, at(8.2))
        clock.now_s = 5.0
        owners = asker.ask(Run(path, [tape]), gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    assert {entry.id.partition(":")[0] for entry in owners.entries if entry.kind == "process"} == {"1"}
    whole_j = IDLE * 10.0 + (SECONDS - IDLE) * 50.0
    assert sum(entry.joules for entry in owners.entries) == pytest.approx(whole_j, rel=1e-6)


def test_too_little_time_is_said(tmp_path):
    path = write_machine(tmp_path / "box-0001.tape", {"cpu.0": [10.0]}, [Process(1, [1.0])], seconds=1, seal=False)
    tape = Tape.open(path, verify=False)
    gatherer = Gatherer(1.0)
    gatherer.adopt(tape)
    asker = RunningOwners("owner", clock=Clock(), cpu_clock=lambda: 0.0)
    owners = asker.ask(Run(path, [tape]), gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    assert (owners.by, owners.refused, owners.entries) == ("process", NOT_YET, ())
    tape.close()


def test_owners_say_how_much_older_than_the_total_they_are(machine):
    run, gatherer = machine
    asker = RunningOwners("process", clock=Clock(), cpu_clock=lambda: 0.0)
    first = asker.ask(run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    later = asker.ask(run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns + 9_000_000_000)
    assert 0 <= first.age_s < 2 and later.age_s == pytest.approx(first.age_s + 9.0)
    assert later.entries == first.entries


def test_an_owner_that_came_after_intervals_were_found_has_one(tmp_path):
    """Intervals are found now and then; the clock stands still, so that they are found once."""
    late = Process(300, [0.0] * 9 + [1.0] * (SECONDS - 9), began=9, name="late")
    path = write_machine(
        tmp_path / "box-0001.tape", {"cpu.0": WATTS}, [*processes(), late], seconds=SECONDS, everything=True,
        seal=False,
    )  # fmt: skip
    with Tape.open(path, verify=False) as tape:
        gatherer = Gatherer(1.0)
        gatherer.adopt(tape)
        gatherer.feed(Follower(tape).look())
        clock = Clock()
        asker = RunningOwners("process", clock=clock, cpu_clock=lambda: 0.0)
        asker.finish(tape, gatherer.lines, at(8.2))
        clock.now_s = 5.0
        owners = asker.ask(Run(path, [tape]), gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    assert named(owners)["late"].joules > 20
    for entry in owners.entries:
        assert entry.low is not None and entry.low <= entry.joules <= entry.high, entry
    assert named(owners)["late"].low < named(owners)["late"].joules
