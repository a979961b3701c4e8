"""A node's jobs: who they are, what of the tape is theirs, and that nothing is lost when it is killed."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fake_clock import FakeClock
from machines import Process, write_machine
from tapes import UTC_NS

from everywatt.cli.main import main
from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError
from everywatt.core.machine import Machine
from everywatt.slurm.lists import expand, indices
from everywatt.slurm.node import recorder
from everywatt.slurm.node.booking import book, with_unseen
from everywatt.slurm.node.cards import card_order, cards_here, gres_files
from everywatt.slurm.node.hooks import Site, hook, make_spool
from everywatt.slurm.node.node_jobs import NodeJob, NodeJobs
from everywatt.slurm.node.recorder import Node
from everywatt.slurm.node.scontrol import parse_job, parse_pids
from everywatt.slurm.node.spool import AGENT, Event, forget, holder, leave, read_events, take_place
from everywatt.slurm.node.state import Account, State, record, running
from everywatt.slurm.node.tapes import tapes_in
from everywatt.slurm.schema import NODE_ENDS, JobOnNode, NodeHour
from everywatt.slurm.site.checks import flaws
from everywatt.slurm.site.figures import running_row
from everywatt.slurm.site.store import Store
from everywatt.tape.reader import Tape

SECONDS = 12
T0 = UTC_NS / NS
SHOWN = (
    "JobId=6 ArrayJobId=5 ArrayTaskId=2 JobName=a Account=evil b.sh UserId=ada(1000) GroupId=x(1) MCS_label=N/A "
    "Account=phys Partition=p JobState=RUNNING Restarts=1 SubmitTime=1794700000 NumNodes=2 NumCPUs=4 "
    "  Nodes=n[1-2] CPU_IDs=0-1 Mem=2048 GRES=gpu:1(IDX:1)   MinCPUsNode=1 Command=/x WorkDir=/h Account=evil"
)


def flat(value: float) -> list[float]:
    return [value] * SECONDS


def step(job: int) -> dict[str, object]:
    return {"uid": 1000, "cgroup": f"/system.slice/slurmstepd.scope/job_{job}/step_batch/user/task_0"}


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """60 W for job 1 (two CPUs), job 2 and a daemon (one each); a card of 40 W, then 160 W, with nobody listed."""
    processes = [
        Process(101, flat(1.0), extra=step(1)),
        Process(102, flat(1.0), extra=step(1)),
        Process(103, flat(1.0), extra=step(2)),
        Process(104, flat(1.0), extra={"uid": 0, "cgroup": "/system.slice/sshd.service"}),
    ]
    folder = tmp_path / "tape"
    folder.mkdir()
    return write_machine(
        folder / "box-0001.tape",
        {"cpu.0": flat(60.0), "gpu.0": [40.0] * 6 + [160.0] * 6},
        processes,
        seconds=SECONDS,
        everything=True,
    )


def event(kind: str, job: int, at: float, by: int = 0, **values: str) -> Event:
    return Event(kind, job, T0 + at, by, values, Path(f"{kind}-{job}.event"))


def drop(spool: Path, kind: str, job: int, at: float, **values: object) -> None:
    """What a hook writes."""
    lines = {"event": kind, "job_id": job, **values, "whole": "yes"}
    path = spool / "events" / f"{kind}-{job}-{at}.event"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    os.utime(path, (T0 + at, T0 + at))


def test_a_stretch_is_charged_to_jobs_idle_and_the_system(tape: Path) -> None:
    jobs = [NodeJob(1, 0, T0, cpus=2.0, gpus=[0]), NodeJob(2, 0, T0, T0 + 6, cpus=1.0)]
    accounts: dict[str, Account] = {}
    opened = Tape.open(tape)
    idle = {}
    hours = {row.device: row for row in book(opened, "n1", jobs, accounts, T0 + 1, T0 + 11, idle)}
    for row in hours.values():
        assert row.jobs_uj + row.idle_uj + row.system_uj == row.total_uj
    assert hours["cpu.0"].total_uj == pytest.approx(600e6, rel=1e-3)
    first, second = accounts["1/0"], accounts["2/0"]
    assert first.own_uj["cpu.0"] == pytest.approx(2 * second.own_uj["cpu.0"], rel=1e-3)
    assert hours["cpu.0"].jobs_uj == first.own_uj["cpu.0"] + second.own_uj["cpu.0"]
    # The card was given to job 1 alone.
    assert first.own_uj["gpu.0"] == pytest.approx(600e6, rel=1e-2)
    assert first.idle_uj["gpu.0"] == pytest.approx(400e6, rel=1e-2)
    assert "gpu.0" not in second.own_uj
    assert first.cpu_s == pytest.approx(20.0, rel=1e-2)


def ends(row: object, name: str) -> tuple[int, int, int]:
    """The lower end of an interval, the amount, and the upper end."""
    stem = "" if name == "energy" else f"{name}_"
    return getattr(row, f"{stem}low_uj"), getattr(row, f"{name}_uj"), getattr(row, f"{stem}high_uj")


def test_hours_steps_and_idle_shares_have_intervals(tape: Path) -> None:
    jobs = [NodeJob(1, 0, T0 + 1, T0 + 11, cpus=2.0, gpus=[0]), NodeJob(2, 0, T0 + 1, T0 + 11, cpus=1.0)]
    accounts: dict[str, Account] = {}
    hours = book(Tape.open(tape), "n1", jobs, accounts, T0 + 1, T0 + 11, {})
    for row in hours:
        assert row.jobs_uj + row.idle_uj + row.system_uj == row.total_uj
        for name in ("total", "jobs", "idle", "system"):
            low, amount, high = ends(row, name)
            assert 0 <= low <= amount <= high, (row.device, name)
        assert row.idle_low_uj < row.idle_high_uj, "idle was seen for some seconds only"
    again = {key: Account.of_dict(json.loads(json.dumps(account.to_dict()))) for key, account in accounts.items()}
    for job in jobs:
        made = record(job, again[job.key], {}, "cpu")
        assert made == record(job, accounts[job.key], {}, "cpu"), "the state keeps what intervals are made of"
        (batch,) = made.steps
        parts = [ends(made, "idle"), ends(batch, "energy"), *(ends(part, "idle") for part in made.devices)]
        assert all(0 <= low <= amount <= high for low, amount, high in parts)
        assert parts[0][0] < parts[0][2] and parts[1][0] < parts[1][2]
        assert sum(part.idle_uj for part in made.devices) == made.idle_uj
    card, true_uj = next(row for row in hours if row.device == "gpu.0"), 5 * 40e6 + 5 * 160e6
    assert card.total_low_uj <= true_uj <= card.total_high_uj
    assert card.idle_low_uj <= 400e6 <= card.idle_high_uj and card.jobs_low_uj <= 600e6 <= card.jobs_high_uj


def test_what_was_not_seen_of_an_hour_is_in_its_interval() -> None:
    seen = NodeHour(0, "n1", "gpu.0", "gpu", "nvml", 100, 60, 30, 10, 0.5, 0.0, 3600.0)
    seen = replace(seen, **dict.fromkeys(NODE_ENDS, 100))
    wide = with_unseen(seen)
    assert (wide.total_low_uj, wide.total_high_uj) == (100, 300), "twice the power of the rest, or nothing"
    assert (wide.jobs_high_uj, wide.idle_high_uj, wide.system_high_uj) == (220, 160, 120)
    nothing = with_unseen(replace(seen, coverage=0.0))
    assert nothing.total_low_uj is None and nothing.jobs_high_uj is None
    assert with_unseen(replace(seen, coverage=1.0)) == replace(seen, coverage=1.0)


def test_what_a_card_did_is_of_who_had_it_then(tape: Path) -> None:
    """The card goes from 40 W to 160 W at 6 s; one job has it until then, another one for three seconds more."""
    jobs = [NodeJob(1, 0, T0 + 3, T0 + 6, cpus=1.0, gpus=[0]), NodeJob(2, 0, T0 + 6, T0 + 9, cpus=1.0, gpus=[0])]
    accounts: dict[str, Account] = {}
    hours = book(Tape.open(tape), "n1", jobs, accounts, T0 + 1, T0 + 11, {})
    assert accounts["1/0"].own_uj.get("gpu.0", 0) == pytest.approx(0, abs=1e6)
    assert accounts["2/0"].own_uj["gpu.0"] == pytest.approx(3 * 120e6, rel=0.01)
    assert accounts["2/0"].idle_uj["gpu.0"] == pytest.approx(3 * 40e6, rel=0.01)
    rows = [row for row in hours if row.device == "gpu.0"]
    assert sum(row.total_uj for row in rows) == pytest.approx(5 * 40e6 + 5 * 160e6, rel=0.01)
    assert sum(row.jobs_uj for row in rows) == sum(account.own_uj.get("gpu.0", 0) for account in accounts.values())


def test_booking_in_pieces_is_booking_at_once(tape: Path) -> None:
    jobs = [NodeJob(1, 0, T0, cpus=2.0), NodeJob(2, 0, T0, cpus=1.0)]
    opened = Tape.open(tape)
    whole: dict[str, Account] = {}
    parts: dict[str, Account] = {}
    idle = {}
    book(opened, "n1", jobs, whole, T0 + 1, T0 + 11, idle)
    for second in range(1, 11, 2):
        book(opened, "n1", jobs, parts, T0 + second, T0 + second + 2, idle)
    for key in whole:
        assert sum(parts[key].own_uj.values()) == pytest.approx(sum(whole[key].own_uj.values()), rel=2e-3)
        width = sum(sum(b.sides()) for b in parts[key].budgets.values())
        assert width == pytest.approx(sum(sum(b.sides()) for b in whole[key].budgets.values()), rel=0.25)


def test_accounts_survive_as_plain_data(tape: Path) -> None:
    accounts: dict[str, Account] = {}
    book(Tape.open(tape), "n1", [NodeJob(1, 0, T0, cpus=2.0)], accounts, T0, T0 + 5, {})
    assert Account.of_dict(accounts["1/0"].to_dict()) == accounts["1/0"]


def node_at(tmp_path: Path, now: float, boot: str = "b") -> Node:
    spool = tmp_path / "spool"
    make_spool(spool)
    return Node(
        "n1",
        spool,
        Store(tmp_path / "store"),
        tapes_in(tmp_path / "tape"),
        ask=lambda jobs, node, conf: {job: {"account": "evil", "name": f"job {job}"} for job in jobs},
        clock=FakeClock(round(now * NS), utc_offset_ns=round(T0 * NS)),
        boot=boot,
    )


def stored(tmp_path: Path) -> dict[int, JobOnNode]:
    rows = Store(tmp_path / "store").jobs(0, 1e12).to_pylist()
    return {row["job_id"]: JobOnNode.of_row(row) for row in rows}


def test_jobs_end_in_the_store_with_what_they_cost(tape: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    make_spool(spool)
    for job, cpus, end in ((1, 2, 10), (2, 1, 7)):
        drop(spool, "start", job, 1, node="n1", user="ada", account="phys", cpus=cpus, cluster="c", period="2s")
        drop(spool, "end", job, end, node="n1", exit_code="0:0" if job == 1 else "2:0")
    node = node_at(tmp_path, 12)
    assert node.listen() == 4
    assert node.settle() == 2
    found = stored(tmp_path)
    assert found[1].energy_uj == pytest.approx(2 * 9 / 6 * (found[2].energy_uj or 0), rel=0.35)
    assert (found[1].user, found[1].account, found[1].state, found[2].state) == ("ada", "phys", "COMPLETED", "FAILED")
    assert found[1].coverage == pytest.approx(1.0, abs=0.01)
    assert found[1].low_uj < found[1].energy_uj < found[1].high_uj
    assert [step.step for step in found[1].steps] == ["batch"]
    assert list((spool / "events").iterdir()) == []
    assert node_at(tmp_path, 12).settle() == 0


def test_killed_between_any_two_steps_it_goes_on(tape: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    make_spool(spool)
    drop(spool, "start", 1, 1, node="n1", cpus=2)
    node_at(tmp_path, 4).listen()  # killed here
    first = node_at(tmp_path, 6)
    first.settle()  # and here
    drop(spool, "end", 1, 10, node="n1")
    last = node_at(tmp_path, 12)
    assert last.running == 1
    last.listen()
    assert last.settle() == 1
    assert stored(tmp_path)[1].coverage == pytest.approx(1.0, abs=0.01)


def test_a_reboot_ends_what_ran(tape: Path, tmp_path: Path) -> None:
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 1, 1, node="n1", cpus=2)
    node_at(tmp_path, 5).listen()
    after = node_at(tmp_path, 12, boot="another")
    after.settle()
    record = stored(tmp_path)[1]
    assert (record.complete, record.state, record.end_s) == (False, "NODE_FAIL", T0 + 5)
    assert "went down" in record.note
    # slurmd calls the Epilog of what it finds in its own spool when it is back.
    drop(tmp_path / "spool", "end", 1, 9, node="n1", restart=0)
    assert (after.listen(), after.settle(), after.waiting) == (1, 0, 0)
    again = node_at(tmp_path, 12, boot="another")
    drop(tmp_path / "spool", "end", 1, 10, node="n1", restart=0)
    again.listen()
    assert again.settle() == 0
    assert stored(tmp_path)[1].note == record.note


def test_a_reboot_ends_what_began_while_nothing_recorded_jobs(tape: Path, tmp_path: Path) -> None:
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 7, -3, node="n1", cpus=2)  # the machine booted at T0
    drop(tmp_path / "spool", "start", 2, 1, node="n1", cpus=1)
    after = node_at(tmp_path, 12, boot="another")
    after.listen()
    assert (after.waiting, after.running) == (1, 1)
    after.settle()
    record = stored(tmp_path)[7]
    assert (record.complete, record.state, record.end_s) == (False, "NODE_FAIL", T0 - 3)
    assert record.refused and "went down" in record.note


class Killed(BaseException):
    """What a SIGKILL is to the test."""


def killed_at(monkeypatch: pytest.MonkeyPatch, place: int) -> list[int]:
    """From now on the node dies at its `place`-th write: before it or after it, in turn. Gives a counter of them."""
    seen = [0]

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def write(*words: Any) -> None:
            for part in (lambda: None, lambda: work(*words)):
                part()
                seen[0] += 1
                if seen[0] == place:
                    raise Killed

        return write

    monkeypatch.setattr(Store, "append", dying(Store.append))
    monkeypatch.setattr(Store, "append_hours", dying(Store.append_hours))
    monkeypatch.setattr(State, "write", dying(State.write))
    monkeypatch.setattr("everywatt.slurm.node.recorder.forget", dying(forget))
    return seen


def through(tmp_path: Path, *, again: bool = False) -> None:
    """Two jobs from start to end, on a node that is started again wherever it dies, or `again` each time."""
    spool = tmp_path / "spool"
    make_spool(spool)
    news = {
        3: [("start", 1, 1.0), ("start", 2, 2.0)],
        8: [("end", 2, 7.0)],
        12: [("end", 1, 10.0)],
        13: [],
        14: [],
    }
    node = None
    for now, events in news.items():
        for kind, job, at in events:
            drop(spool, kind, job, at, node="n1", cpus=1, cluster="c", exit_code="0:0")
        node = None if again and events else node
        while True:
            try:
                node = node or node_at(tmp_path, now)
                node._now_s = lambda now=now: T0 + now
                node.listen()
                node.settle()
                break
            except Killed:
                node = None
            except EverywattError:
                assert node is None, "only a start may be refused"
    assert node is not None and (node.running, node.waiting) == (0, 0)


def balance_uj(tmp_path: Path) -> tuple[int, int]:
    """What hours say that jobs had, and what the jobs' own records say."""
    hours = Store(tmp_path / "store").query("SELECT * FROM nodes", [], 0, 1e11).to_pylist()
    assert all(row["jobs_uj"] + row["idle_uj"] + row["system_uj"] == row["total_uj"] for row in hours)
    return sum(row["jobs_uj"] for row in hours), sum(row.energy_uj or 0 for row in stored(tmp_path).values())


def test_a_kill_at_any_write_leaves_hours_that_are_the_sum_of_jobs(tape: Path, tmp_path: Path) -> None:
    true_uj, place, writes = None, 0, 1
    while place <= writes:
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / "tape").symlink_to(tmp_path / "tape")
        with pytest.MonkeyPatch.context() as patch:
            seen = killed_at(patch, place)
            through(folder)
        of_hours_uj, of_jobs_uj = balance_uj(folder)
        assert of_hours_uj == of_jobs_uj > 0, f"killed at write {place}"
        assert list((folder / "spool" / "events").iterdir()) == []
        true_uj, writes = (of_jobs_uj, seen[0]) if true_uj is None else (true_uj, writes)
        assert of_jobs_uj == pytest.approx(true_uj, rel=1e-6)
        place += 1 if place == 0 else 2  # to die after a write is to die before the next one
    assert writes > 20


CALLS = ((os, "open"), (io, "open"), (os, "mkdir"), (os, "fsync"), (os, "rename"), (os, "replace"), (os, "unlink"),
         (os, "scandir"))  # fmt: skip


def by_node() -> bool:
    """Whether it is the node that calls, and not the test."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != recorder.__file__:
        frame = frame.f_back
    return frame is not None


def failing_at(patch: pytest.MonkeyPatch, folder: Path, place: int, number: int) -> list[str]:
    """From now on the `place`-th call of the system in the node's spool or store fails. Gives what was called."""
    seen: list[str] = []
    ours = tuple(str(folder / name) for name in ("spool", "store"))

    def wrapped(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *words: Any, **options: Any) -> Any:
            inside = name == "fsync" or (not isinstance(path, int) and os.fsdecode(path).startswith(ours))
            if inside and by_node():
                seen.append(f"{name} {path}")
                if len(seen) == place:
                    raise OSError(number, os.strerror(number), str(path))
            return work(path, *words, **options)

        return call

    for module, name in CALLS:
        patch.setattr(module, name, wrapped(name, getattr(module, name)))
    return seen


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_any_one_call_may_fail(tmp_path: Path, stride: int) -> None:
    """After any single failure the records are the truth: nothing is lost, and nothing is counted twice."""
    (tmp_path / "tape").mkdir()
    processes = [
        Process(101, [0.0] + [1.0] * 9 + [0.0] * 2, extra=step(1)),
        Process(103, [0.0] * 2 + [1.0] * 5 + [0.0] * 5, extra=step(2)),
        Process(104, flat(1.0), extra={"uid": 0, "cgroup": "/system.slice/sshd.service"}),
    ]
    machine = {"cpu.0": flat(60.0)}
    write_machine(tmp_path / "tape" / "box-0001.tape", machine, processes, seconds=SECONDS, everything=True)
    true_uj, place, calls = None, 0, ["none"]
    while place <= len(calls):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / "tape").symlink_to(tmp_path / "tape")
        make_spool(folder / "spool")
        with pytest.MonkeyPatch.context() as patch:
            seen = failing_at(patch, folder, place, errno.ENOSPC if place % 2 else errno.EMFILE)
            through(folder, again=True)
        what = f"{place}: {seen[place - 1] if place else ''}"
        of_hours_uj, of_jobs_uj = balance_uj(folder)
        true_uj, calls = (of_jobs_uj, list(seen)) if true_uj is None else (true_uj, calls)
        assert of_hours_uj == of_jobs_uj == pytest.approx(true_uj, rel=1e-6), what
        assert list((folder / "spool" / "events").iterdir()) == [], what
        place += stride if place else 1
    assert len(calls) > 60


def test_a_full_disk_is_waited_out(tape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the store nor the spool can be written for a while: events stay, and nothing is counted twice."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    make_spool(tmp_path / "spool")
    for kind, at in (("start", 1.0), ("end", 7.0)):
        drop(tmp_path / "spool", kind, 1, at, node="n1", cpus=1, cluster="c", exit_code="0:0")
    node = node_at(tmp_path, 8)
    with monkeypatch.context() as patch:
        for place in ((Store, "append"), (Store, "append_hours"), (State, "write")):
            patch.setattr(*place, full)
        for _ in range(3):
            node.listen()
            assert node.settle() == 0
        assert "No space left" in node.trouble
        assert len(list((tmp_path / "spool" / "events").iterdir())) == 2
    assert (node.listen(), node.settle(), node.trouble) == (0, 1, "")
    assert list((tmp_path / "spool" / "events").iterdir()) == []
    of_hours_uj, of_jobs_uj = balance_uj(tmp_path)
    assert of_hours_uj == of_jobs_uj > 0
    assert stored(tmp_path)[1].coverage == pytest.approx(1.0, abs=0.01)


def test_a_controller_that_is_busy_is_asked_again(tape: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    asked: list[list[int]] = []
    make_spool(spool)
    for job in (1, 2):
        for kind, at in (("start", 1.0), ("end", 5.0)):
            drop(spool, kind, job, at, node="n1", cpus=1, cluster="c", exit_code="0:0")
    node = node_at(tmp_path, 8)

    def ask(jobs: Sequence[int], *_: str) -> dict[int, dict[str, Any]]:
        asked.append(list(jobs))
        return {1: {"name": "told"}} if 1 in jobs and len(asked) > 1 else {}

    node._ask = ask
    rounds = [(node.listen(), node.settle()) for _ in range(4)]
    assert rounds == [(4, 0), (0, 1), (0, 1), (0, 0)]
    assert asked == [[1, 2], [1], [2], [2]]
    assert {key: row.name for key, row in stored(tmp_path).items()} == {1: "told", 2: ""}


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"restart": 0, "state": "CANCELLED"}, "CANCELLED"),
        ({"restart": 0, "state": "COMPLETING"}, "COMPLETED"),
        ({"restart": 1, "state": "PENDING"}, "REQUEUED"),
        ({"restart": 1, "state": "RUNNING"}, "REQUEUED"),
        ({"restart": 1, "state": "FAILED"}, "REQUEUED"),
    ],
)
def test_how_a_run_ended_is_not_taken_from_the_next(
    tape: Path, tmp_path: Path, answer: dict[str, Any], state: str
) -> None:
    """scontrol is asked a moment later, and on a busy machine the job may run again by then, or have ended."""
    make_spool(tmp_path / "spool")
    for kind, at in (("start", 1.0), ("end", 5.0)):
        drop(tmp_path / "spool", kind, 1, at, node="n1", cpus=1, exit_code="0:0", restart=0)
    node = node_at(tmp_path, 8)
    node._ask = lambda jobs, *_: {1: answer}
    node.listen()
    assert node.settle() == 1
    assert stored(tmp_path)[1].state == state


def test_a_job_that_was_never_on_the_tape_is_refused(tape: Path, tmp_path: Path) -> None:
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 9, 2.0, node="n1", cpus=1)
    drop(tmp_path / "spool", "end", 9, 2.1, node="n1")
    node = node_at(tmp_path, 12)
    node.listen()
    assert node.settle() == 1
    record = stored(tmp_path)[9]
    assert record.energy_uj is None
    assert "none of its processes was observed" in (record.refused or "")


def test_another_nodes_events_stay_where_they_are(tape: Path, tmp_path: Path) -> None:
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 1, 1, node="n2")
    assert node_at(tmp_path, 3).listen() == 0
    assert len(list((tmp_path / "spool" / "events").iterdir())) == 1


def test_a_state_that_is_rubbish_is_put_aside(tape: Path, tmp_path: Path) -> None:
    make_spool(tmp_path / "spool")
    (tmp_path / "spool" / "node.json").write_text("{")
    assert node_at(tmp_path, 3).running == 0
    assert (tmp_path / "spool" / "node.bad").exists()


def take(jobs: NodeJobs, events: Iterable[Event]) -> None:
    for one in events:
        jobs.take(one, "n1")


def test_a_requeued_job_runs_again_under_its_number() -> None:
    jobs = NodeJobs()
    take(jobs, [event("start", 1, 0, restart="0"), event("end", 1, 5), event("start", 1, 9, restart="1")])
    assert {key: job.end_s for key, job in jobs.jobs.items()} == {"1/0": T0 + 5, "1/1": None}


def test_an_epilog_that_is_called_again_is_not_the_end_of_the_next_run(tape: Path, tmp_path: Path) -> None:
    """A busy controller asks for the Epilog of a requeued job twice; the second has the next run's number."""
    spool = tmp_path / "spool"
    make_spool(spool)
    drop(spool, "start", 9, 1, node="n1", restart=0)
    drop(spool, "end", 9, 3, node="n1", restart=0)
    drop(spool, "end", 9, 4, node="n1", restart=1)
    node = node_at(tmp_path, 12)
    assert (node.listen(), node.settle(), node.waiting) == (3, 1, 0)
    assert {row["restart"] for row in Store(tmp_path / "store").jobs(0, 1e12).to_pylist()} == {0}


def test_a_requeued_run_without_a_prolog_begins_with_its_first_process(tape: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    make_spool(spool)
    drop(spool, "start", 1, 0, node="n1", cpus=2, restart=0)
    drop(spool, "end", 1, 3, node="n1", restart=0)
    for now in (5, 7, 8):
        node = node_at(tmp_path, now)
        node.listen()
        node.settle()
    drop(spool, "end", 1, 10, node="n1", cpus=2, restart=1)
    last = node_at(tmp_path, 12)
    last.listen()
    assert last.settle() == 1
    rows = [JobOnNode.of_row(row) for row in Store(tmp_path / "store").jobs(0, 1e12).to_pylist()]
    before, again = sorted(rows, key=lambda row: row.restart)
    assert (again.complete, again.end_s) == (True, T0 + 10) and "first process" in again.note
    assert before.end_s <= again.start_s < T0 + 5
    assert again.energy_uj == pytest.approx(2 * (before.energy_uj or 0), rel=0.5)
    hours = Store(tmp_path / "store").query("SELECT * FROM nodes", [], 0, 1e11).to_pylist()
    assert sum(row["jobs_uj"] for row in hours) == sum(row.energy_uj or 0 for row in rows)


def test_a_requeued_run_without_a_prolog_does_not_begin_before_the_run_before_it(tape: Path, tmp_path: Path) -> None:
    """The processes of the first run are seen for three seconds before its Prolog says that it starts."""
    spool = tmp_path / "spool"
    make_spool(spool)
    drop(spool, "start", 2, 0.5, node="n1", cpus=1)
    for now in (2, 4):
        node = node_at(tmp_path, now)
        node.listen()
        node.settle()
    drop(spool, "start", 1, 4, node="n1", cpus=2, restart=0)
    drop(spool, "end", 1, 6, node="n1", restart=0)
    for now in (5, 7, 8):
        node = node_at(tmp_path, now)
        node.listen()
        node.settle()
    drop(spool, "end", 1, 10, node="n1", cpus=2, restart=1)
    last = node_at(tmp_path, 12)
    last.listen()
    assert last.settle() == 1
    rows = [JobOnNode.of_row(row) for row in Store(tmp_path / "store").jobs(0, 1e12).to_pylist() if row["job_id"] == 1]
    before, again = sorted(rows, key=lambda row: row.restart)
    assert before.end_s <= again.start_s < again.end_s
    hours = Store(tmp_path / "store").query("SELECT * FROM nodes", [], 0, 1e11).to_pylist()
    charged_uj = sum(account.own_uj["cpu.0"] for account in last.state.accounts.values())
    assert sum(row["jobs_uj"] for row in hours) == sum(row.energy_uj or 0 for row in rows) + charged_uj


@pytest.mark.parametrize("told", [{"nodes": "2"}, {"nodelist": "n[1-2]"}, {"nodes": "2", "nodelist": "n[1-2]"}])
def test_how_many_nodes_a_job_has_is_taken_from_whichever_hook_says_it(told: dict[str, str]) -> None:
    for first, second in ((told, {}), ({}, told)):
        jobs = NodeJobs()
        take(jobs, [event("start", 1, 0, **first), event("end", 1, 5, **second)])
        assert jobs.jobs["1/0"].nodes == 2


def test_a_task_may_speak_of_its_own_job_only() -> None:
    jobs = NodeJobs()
    take(jobs, [event("start", 1, 0, uid="1000")])
    assert jobs.take(event("task", 1, 1, by=2000, array_task_id="7", array_job_id="1")) is None
    assert jobs.take(event("task", 1, 1, by=1000, array_task_id="4", array_job_id="1")) is not None
    assert jobs.jobs["1/0"].array_task_id == 4


def test_an_end_without_a_start_is_kept_and_said() -> None:
    jobs = NodeJobs()
    take(jobs, [event("end", 1, 5, user="ada")])
    assert (jobs.jobs["1/0"].complete, jobs.jobs["1/0"].user) == (False, "ada")


def test_what_scontrol_says() -> None:
    facts = parse_job(SHOWN, "n2")
    assert facts == {
        "array_job_id": 5, "array_task_id": 2, "restart": 1, "name": "a Account=evil b.sh", "submit_s": 1794700000,
        "state": "RUNNING", "memory_bytes": 2 << 30,
    }  # fmt: skip
    assert parse_job(SHOWN + SHOWN) == {}
    assert parse_job("rubbish") == {}


CARDS = {"gpu.0": "GPU-a", "gpu.1": "GPU-b", "gpu.2": "GPU-c"}


def driver(proc: Path, minors: dict[str, int]) -> Path:
    """What NVIDIA's driver tells of its cards."""
    for uuid, minor in minors.items():
        folder = proc / "driver/nvidia/gpus" / f"0000:0{minor}:00.0"
        folder.mkdir(parents=True)
        folder.joinpath("information").write_text(
            f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nBus Location: \t {folder.name}\nDevice Minor: \t {minor}\n"
        )
    return proc


def test_slurms_gpus_are_found_by_their_device_files(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "sys", driver(tmp_path / "proc", {"GPU-a": 2, "GPU-b": 0, "GPU-c": 1}))
    conf = tmp_path / "slurm.conf"
    # Without files in gres.conf Slurm sorts cards by device file; with them it goes by the lines.
    order = card_order(CARDS, "n1", str(conf), machine)
    assert (order.of([0, 2]), order.doubt) == (["gpu.1", "gpu.0"], "")
    gres = "NodeName=n2 Name=gpu File=/dev/nvidia7\nNodeName=n[1,3] Name=gpu Type=a File=/dev/nvidia{} # and more\n"
    (tmp_path / "gres.conf").write_text(gres.format("[0-2]"))
    assert card_order(CARDS, "n1", str(conf), machine) == order
    (tmp_path / "gres.conf").write_text(gres.format("[1,0]"))
    order = card_order(CARDS, "n1", str(conf), machine)
    assert order.of([0, 1]) == ["gpu.2", "gpu.1"] and "out of order" in order.doubt
    assert "driver does not report" in card_order(CARDS, "n2", str(conf), machine).doubt


def test_where_nobody_tells_device_numbers_that_is_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "sys", tmp_path / "proc")
    order = card_order(CARDS, "n1", str(tmp_path / "slurm.conf"), machine)
    assert (order.of([2, 5]), "used as the driver's" in order.doubt) == (["gpu.2", "gpu.5"], True)
    assert card_order({"gpu.0": "GPU-a"}, "n1", "", machine).doubt == ""
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/nvidia[0-2]\n")
    assert card_order(CARDS, "n1", str(tmp_path / "slurm.conf"), machine).doubt == ""
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\nName=gpu Type=x\n")
    assert gres_files((tmp_path / "gres.conf").read_text(), "n1") is None


def drm(sys: Path, address: str, chip: str, render: int, number: int) -> None:
    """A card of AMD or Intel: a PCI device with a render node and power in hwmon."""
    device = sys / "devices" / "pci0000:00" / address
    for folder, name in ((sys / "class" / "hwmon", f"hwmon{number}"), (sys / "class" / "drm", f"renderD{render}")):
        place = device / folder.name / name
        place.mkdir(parents=True)
        (place / "device").symlink_to(device)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(place)
    (device / "hwmon" / f"hwmon{number}" / "name").write_text(f"{chip}\n")
    (device / "hwmon" / f"hwmon{number}" / ("power1_average" if chip == "amdgpu" else "energy1_input")).write_text(
        "9\n"
    )


def test_cards_of_amd_and_intel_are_found_by_their_render_nodes(tmp_path: Path) -> None:
    """Sensors number them by PCI address, Slurm by render nodes or by gres.conf."""
    machine, conf = Machine(tmp_path / "sys", tmp_path / "proc"), str(tmp_path / "slurm.conf")
    cards = {f"gpu.{number}": f"gpu.{number}" for number in range(3)}
    drm(machine.sys, "0000:03:00.0", "amdgpu", 130, 0)
    drm(machine.sys, "0000:43:00.0", "amdgpu", 128, 1)
    drm(machine.sys, "0000:83:00.0", "xe", 129, 2)
    assert cards_here(machine) == cards
    order = card_order(cards, "n1", conf, machine)
    assert (order.of([0, 1, 2]), order.doubt) == (["gpu.1", "gpu.2", "gpu.0"], "")
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/dri/renderD[129-130]\n")
    order = card_order(cards, "n1", conf, machine)
    assert (order.of([0, 1]), order.doubt) == (["gpu.2", "gpu.0"], "")
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/dri/renderD140\n")
    assert "does not report" in card_order(cards, "n1", conf, machine).doubt


@pytest.mark.parametrize(
    ("variable", "value", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES", "1", [1]),
        ("ROCR_VISIBLE_DEVICES", "0,3", [0, 3]),
        ("HIP_VISIBLE_DEVICES", "2", [2]),
        ("ZE_AFFINITY_MASK", "1.0,1.1", [1]),
        ("ROCR_VISIBLE_DEVICES", "GPU-7a", []),
    ],
)
def test_hooks_tell_the_cards_of_every_vendor(tmp_path: Path, variable: str, value: str, gpus: list[int]) -> None:
    make_spool(tmp_path)
    script = tmp_path / "prolog.sh"
    script.write_text(hook("start", Site(spool=tmp_path, command=tmp_path / "none")))
    environment = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", variable: value}
    subprocess.run(["/bin/sh", str(script)], env=environment, check=True)
    jobs = NodeJobs()
    take(jobs, read_events(tmp_path))
    assert jobs.jobs["7/0"].gpus == gpus


def test_parts_of_cards_are_not_numbers_of_cards() -> None:
    jobs = NodeJobs()
    take(jobs, [event("start", 1, 0, gpus="3", visible="MIG-1f,MIG-2e")])
    job = jobs.jobs["1/0"]
    assert (job.devices, job.slices) == ([], ["MIG-1f", "MIG-2e"])
    assert record(job, None, {}, "").gpus == ("MIG-1f", "MIG-2e")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10],x", ["n08", "n09", "n10", "x"]),
        ("a[1-2]b[1,3]", ["a1b1", "a1b3", "a2b1", "a2b3"]),
        ("", []),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(("text", "found"), [("0,2-3", [0, 2, 3]), ("", []), ("a,1", [1]), ("0-99999999", [])])
def test_lists_of_gpus(text: str, found: list[int]) -> None:
    assert indices(text) == found


def test_one_process_serves_a_spool(tmp_path: Path) -> None:
    assert take_place(tmp_path)
    assert holder(tmp_path) == os.getpid()
    assert take_place(tmp_path)
    assert not take_place(tmp_path, pid=os.getppid())
    assert take_place(tmp_path, AGENT, pid=os.getppid()), "recording is another matter"
    leave(tmp_path)
    assert holder(tmp_path) is None
    (tmp_path / "node.pid").write_text("999999999 1\n")
    assert take_place(tmp_path)


LISTED = """PID      JOBID    STEPID   LOCALID GLOBALID
15684    6        batch    0       0
15702    6        batch    -       -
15717    5        0        0       0
"""


def test_what_scontrol_lists() -> None:
    assert parse_pids(LISTED) == {15684: (6, "batch"), 15702: (6, "batch"), 15717: (5, "0")}
    assert parse_pids("slurm_load_jobs error: Unable to contact slurm controller") == {}


def test_a_job_that_nothing_else_shows_is_found_by_its_list(tmp_path: Path) -> None:
    (tmp_path / "tape").mkdir()
    write_machine(
        tmp_path / "tape" / "box-0001.tape",
        {"cpu.0": flat(60.0)},
        [Process(101, flat(1.0), extra={"uid": 1000}), Process(104, flat(1.0), extra={"uid": 0})],
        seconds=SECONDS,
        everything=True,
    )
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 1, 0.5, node="n1", cpus=1)
    asked = []

    def pids(job: int, node: str, conf: str) -> dict[int, tuple[int, str]]:
        asked.append(job)
        return {101: (job, "batch")}

    node = node_at(tmp_path, 4.0)
    node._pids = pids
    for now in (4.0, 8.0, 11.0):
        node._now_s = lambda now=now: T0 + now
        node.listen()
        node.settle()
    assert asked == [1]
    assert node.state.accounts["1/0"].cpu_s == pytest.approx(7.0, abs=0.1), (
        "from the first booking on at which it was missed"
    )


def test_gpus_go_by_uuid_with_their_use(tmp_path: Path) -> None:
    job = NodeJob(1, 0, T0, T0 + 10, node="n1", gpus=[0, 1])
    account = Account(
        {"gpu.0": 5_000_000}, {"gpu.0": 8_000_000}, observed_s=10.0, covered_s=10.0,
        gpu_busy_s={"gpu.0": 2.5, "gpu.1": 0.0}, gpu_known_s={"gpu.0": 10.0, "gpu.1": 0.0},
        gpu_memory_bytes={"gpu.0": 1 << 30},
    )  # fmt: skip
    made = record(job, account, {}, "gpu", {"gpu.0": "GPU-a"})
    assert made.gpus == ("GPU-a", "gpu.1")
    (used,) = made.gpu_use
    assert (used.uuid, used.mean_utilisation, used.idle_s, used.idle_uj) == ("GPU-a", 0.25, 7.5, 8_000_000)
    assert used.memory_peak_bytes == 1 << 30
    assert (made.gpu_utilisation, made.waste_uj) == (0.25, 6_000_000), "nothing is known of the other"


def test_a_suspended_job_holds_nothing_meanwhile() -> None:
    line = (
        "JobId=3 JobName=x UserId=a(1) GroupId=a(1) MCS_label=N/A JobState=COMPLETED "
        "RunTime=00:00:30 StartTime=1000 EndTime=1050 SuspendTime=1020 "
        "SecsPreSuspend=20 "
    )
    facts = parse_job(line)
    assert facts["suspended_s"] == 20.0
    assert "suspended_s" not in parse_job(line.replace("SuspendTime=1020", "SuspendTime=None"))
    job = NodeJob(3, 0, T0, T0 + 50, suspended_s=20.0)
    account = Account({"cpu.0": 7}, {"cpu.0": 100}, observed_s=50.0, covered_s=50.0)
    assert (record(job, account, {}, "cpu").idle_uj, record(job, account, {}, "cpu").energy_uj) == (60, 7)


def test_what_no_tape_covers_is_not_covered(tape: Path) -> None:
    accounts: dict[str, Account] = {}
    job = NodeJob(1, 0, T0 - 12, T0 + 12, cpus=2.0)
    book(Tape.open(tape), "n1", [job], accounts, T0 - 12, T0 + 12, {})
    assert record(job, accounts["1/0"], {}, "cpu").coverage == pytest.approx(0.5, abs=0.05)


def test_two_runs_of_a_job_in_one_stretch_are_booked_apart(tape: Path) -> None:
    accounts: dict[str, Account] = {}
    runs = [NodeJob(1, 0, T0 + 1, T0 + 4, cpus=2.0), NodeJob(1, 1, T0 + 5, T0 + 11, cpus=2.0)]
    book(Tape.open(tape), "n1", runs, accounts, T0 + 1, T0 + 11, {})
    first, second = accounts["1/0"].own_uj["cpu.0"], accounts["1/1"].own_uj["cpu.0"]
    assert first / second == pytest.approx(4 / 6, rel=0.05)


def test_parts_of_a_job_and_its_sluid() -> None:
    jobs = NodeJobs()
    take(jobs, [event("start", 8, 0, het_job_id="7", het_offset="1", sluid="sEKNKTV3WPV500")])
    job = jobs.jobs["8/0"]
    assert (job.het_job_id, job.het_offset, job.sluid, job.shown_id) == (7, 1, "sEKNKTV3WPV500", "7+1")
    assert NodeJob(9, 0, 0.0, array_job_id=5, array_task_id=3).shown_id == "5_3"


def test_nothing_is_booked_before_hooks_were_heard_of_it(tape: Path, tmp_path: Path) -> None:
    """A machine so busy that booking comes late: what a hook said meanwhile is heard before its time is charged."""
    node = node_at(tmp_path, 4)
    drop(tmp_path / "spool", "start", 2, 0.5, node="n1", cpus=1)
    node.listen()
    node._now_s = lambda: T0 + 10  # the spool was looked at six seconds ago
    drop(tmp_path / "spool", "start", 1, 5, node="n1", cpus=2)
    node.settle()
    assert node.state.booked_s is not None and node.state.booked_s <= T0 + 3
    drop(tmp_path / "spool", "end", 1, 8, node="n1")
    node.listen()
    node.settle()
    node._now_s = lambda: T0 + 12
    node.listen()
    node.settle()
    found = stored(tmp_path)[1]
    assert found.energy_uj is not None and found.coverage == pytest.approx(1.0, abs=0.01)


def test_a_slow_controller_holds_nobody_up(tape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everywatt.slurm.node.recorder.SLOW_S", 0.0)
    make_spool(tmp_path / "spool")
    for job in (1, 2):
        drop(tmp_path / "spool", "start", job, 1, node="n1", cpus=1)
        drop(tmp_path / "spool", "end", job, 5, node="n1")
    node = node_at(tmp_path, 12)
    assert node.listen() == 4
    assert node.settle() == 0, "nobody has told yet who they are"
    monkeypatch.setattr("everywatt.slurm.node.recorder.SLOW_S", 9.0)
    node.listen()
    assert node.settle() == 2
    assert (stored(tmp_path)[1].account, stored(tmp_path)[1].name) == ("", "job 1"), "who it belongs to, a hook says"


def test_a_job_whose_start_was_not_told_has_what_its_processes_were_charged_with():
    """Else the hours of the node would hold joules that are in no record."""
    job = NodeJob(66, 0, 100.0, 100.0, complete=False, note="its start was not reported")
    made = record(job, Account(own_uj={"cpu.0": 687_914}), {"cpu.0": ("package", "rapl")}, "cpu")
    assert (made.energy_uj, made.refused, made.idle_uj, made.coverage) == (687_914, None, None, 0.0)
    assert record(job, Account(), {}, "cpu").refused == "nothing was recorded while it ran"


def two_jobs(tmp_path: Path) -> Path:
    """A spool that says that jobs 1 and 2 have run."""
    spool = tmp_path / "spool"
    make_spool(spool)
    for job in (1, 2):
        drop(spool, "start", job, 1, node="n1", cpus=1, cluster="c")
        drop(spool, "end", job, 7, node="n1", exit_code="0:0")
    return spool


def asking(node: Node, error: BaseException) -> Node:
    def ask(jobs: Sequence[int], *_: str) -> dict[int, dict[str, Any]]:
        if 1 in jobs:
            raise error
        return {job: {"name": f"job {job}"} for job in jobs}

    node._ask = ask
    return node


def test_a_job_that_cannot_be_asked_for_stops_no_other(tape: Path, tmp_path: Path) -> None:
    two_jobs(tmp_path)
    node = asking(node_at(tmp_path, 12), MemoryError())
    for _ in range(4):
        node.listen()
        node.settle()
    assert {key: row.name for key, row in stored(tmp_path).items()} == {1: "", 2: "job 2"}


def test_an_event_that_killed_twice_is_put_aside_and_named(tape: Path, tmp_path: Path) -> None:
    spool = two_jobs(tmp_path)
    (spool / "events" / "end-1-7.event").unlink()
    kills = 0
    for _ in range(6):
        node = asking(node_at(tmp_path, 12), Killed())
        try:
            node.listen()
            node.settle()
        except Killed:
            kills += 1
    assert kills == 2
    assert [path.name for path in (spool / "quarantine").iterdir()] == ["start-1-1.event"]
    assert stored(tmp_path)[2].complete
    (flaw,) = flaws(Store(tmp_path / "store"), 0, 1e12)
    assert (flaw.kind, flaw.node, "start-1-1.event" in flaw.problem) == ("quarantined", "n1", True)
    (spool / "quarantine" / "start-1-1.event").unlink()
    node_at(tmp_path, 12).listen()
    assert flaws(Store(tmp_path / "store"), 0, 1e12) == []


@pytest.mark.parametrize("key", ["array_task_id", "het_offset"])
def test_no_number_of_a_users_can_keep_records_out_of_the_store(tape: Path, tmp_path: Path, key: str) -> None:
    spool = two_jobs(tmp_path)
    own = spool / "tasks" / "0"
    own.mkdir()
    (own / "task-1.event").write_text(f"event=task\njob_id=1\n{key}={10**17}\nwhole=yes\n")
    os.utime(own / "task-1.event", (T0 + 2, T0 + 2))
    node = node_at(tmp_path, 12)
    node.listen()
    assert node.settle() == 2
    assert set(stored(tmp_path)) == {1, 2}


def test_the_recorder_of_a_node_has_a_limit_of_memory(tmp_path: Path) -> None:
    """systemd limits the unit; what a Prolog starts is in slurmd's cgroup."""
    script = (
        "import resource, sys\nfrom everywatt.cli.main import main\n"
        "sys.argv = ['everywatt', *sys.argv[1:]]\n"
        "import everywatt.slurm.node.recorder as recorder\n"
        "recorder.Node.listen = lambda node: print(resource.getrlimit(resource.RLIMIT_DATA)[0]) or 0\n"
        "main()\n"
    )
    words = [
        "slurm",
        "node",
        "--once",
        "--tape",
        tmp_path,
        "--spool",
        tmp_path / "spool",
        "--store",
        tmp_path / "store",
    ]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert 0 < int(done.stdout.split()[0]) < 4 << 30, done.stderr


def test_a_node_needs_neither_pyarrow_nor_duckdb(tape: Path, tmp_path: Path) -> None:
    """A node has the base install with the agent; the host of the site has the rest."""
    two_jobs(tmp_path)
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pyarrow', 'pyarrow.parquet', 'duckdb', 'pandas')))\n"
        "from everywatt.cli.main import main\nmain()\n"
    )
    words = ["slurm", "node", "--once", "--node=n1", *(f"--{n}={tmp_path / n}" for n in ("tape", "spool", "store"))]
    env = {**os.environ, "EVERYWATT_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", script, *words], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "n1: 2 jobs recorded, 0 running."), done.stderr
    assert {key: row.energy_uj is not None for key, row in stored(tmp_path).items()} == {1: True, 2: True}


def test_mean_memory_of_a_job_is_that_of_its_processes(tape: Path, tmp_path: Path) -> None:
    """Each process of the tape has 1 MiB, job 1 two of them. A job's cards are added up."""
    accounts: dict[str, Account] = {}
    jobs = [NodeJob(1, 0, T0 + 1, T0 + 11, cpus=2.0, gpus=[0]), NodeJob(2, 0, T0 + 1, T0 + 6, cpus=1.0)]
    book(Tape.open(tape), "n1", jobs, accounts, T0 + 1, T0 + 11, {})
    made = [record(job, accounts[job.key], {}, "cpu") for job in jobs]
    assert made[0].memory_mean_bytes == pytest.approx(2 << 20, rel=0.02)
    assert made[0].gpu_memory_mean_bytes is None, "it was not read"
    held = {"gpu.0": [60.0, 10.0], "gpu.1": [30.0, 10.0]}
    account = Account(observed_s=10.0, gpu_memory_byte_s=held)
    assert record(NodeJob(1, 0, T0, T0 + 10, gpus=[0, 1]), account, {}, "").gpu_memory_mean_bytes == 9


def test_top_lists_what_runs(tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Job 1 has two CPUs busy and job 2 one of the same machine; job 3 has ended."""
    make_spool(tmp_path / "spool")
    for job, cpus in ((1, 2), (2, 1), (3, 1)):
        drop(tmp_path / "spool", "start", job, 1, node="n1", user="ada", cpus=cpus, account=f"a{job}")
    drop(tmp_path / "spool", "end", 3, 2, node="n1")
    node = node_at(tmp_path, 12)
    node.listen()
    node.settle()
    rows = [running_row(job, T0 + 11) for job in running(State.read(tmp_path / "spool" / "node.json"), T0 + 11)]
    assert [row["job_id"] for row in rows] == ["1", "2"]
    assert rows[0]["power_w"] == pytest.approx(2 * rows[1]["power_w"], rel=0.02)
    assert rows[0]["energy_j"] == pytest.approx(10 * rows[0]["power_w"], rel=0.02)
    assert main(["slurm", "top", "--spool", str(tmp_path / "spool")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["1", "ada", "a1"], ["2", "ada", "a2"]]
    assert main(["slurm", "top", "--spool", str(tmp_path / "nowhere")]) == 2


def test_top_has_an_interval_for_each_amount(tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 1, 1, node="n1", user="ada", cpus=2)
    node = node_at(tmp_path, 12)
    node.listen()
    node.settle()
    assert main(["slurm", "top", "--spool", str(tmp_path / "spool"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["jobs"]
    assert row["low_j"] < row["energy_j"] < row["high_j"]
    assert row["idle_low_j"] <= row["idle_j"] <= row["idle_high_j"]
    assert row["coverage"] == pytest.approx(1.0, abs=0.01)
    assert main(["slurm", "top", "--spool", str(tmp_path / "spool")]) == 0
    assert re.search(r"^1 .* J.*[±…].* J.*[±…]", capsys.readouterr().out, re.MULTILINE)


def test_top_says_as_of_when_its_figures_are(tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_spool(tmp_path / "spool")
    drop(tmp_path / "spool", "start", 1, 1, node="n1", user="ada", cpus=2)
    node = node_at(tmp_path, 12)
    node.listen()
    node.settle()
    state = State.read(tmp_path / "spool" / "node.json")
    (early,), (late,) = running(state, state.booked_s), running(state, state.booked_s + 60)
    assert early == late, "a figure of another time than its joules"
    assert main(["slurm", "top", "--spool", str(tmp_path / "spool")]) == 0
    assert re.search(
        r"^1 job running, [\d.]+ W; energy as of 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\.$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
