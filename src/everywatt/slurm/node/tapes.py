"""The tapes of a node that cover a time, and the stretch between two of them, while no recorder was running.

Counters went on, so it can be charged: the last readings before and the first ones after are written to a small tape,
which is booked like any other, energy by the differences of counters, owners by the differences of CPU time. Gauges
have no difference, so that what only they measure is not covered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from everywatt.core.channels import Row
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError
from everywatt.ledger.groups import Grouping
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.use.account import PROCESSES, tape_use
from everywatt.ledger.use.usage import memory_held
from everywatt.tape.accumulate import publication_ns
from everywatt.tape.reader import StoredGroup, Tape
from everywatt.tape.writer import TapeWriter

HOST_USE: Final = "use.host"
MARGIN_NS: Final = 2 * NS  # readings beyond both ends, between which energy at the ends is interpolated
FURTHER_NS: Final = 60 * NS  # readings after the end, by which it is found when those around it were published
SETTLED_NS: Final = 2 * NS  # a recorder that has started finds in this time when cards publish their readings
LEEWAY_S: Final = 60.0  # by how much the times of files and of tapes may differ
MOST_FOLDERS: Final = 64  # of recorders that were killed before anything was booked, after the last that was
SAME_BOOT_NS: Final = 60 * NS  # by how much the wall clock may be set meanwhile, where tapes do not name their boot
ROUNDING_NS: Final = 1000  # UTC seconds as floats resolve 238 ns in these years
STRANGE_PID: Final = 1 << 23  # above every pid of Linux: a process that was never read

Rows = dict[tuple[int, Any], dict[str, Any]]


def tapes_in(*folders: Path) -> Callable[[float, float], Iterable[Tape]]:
    """The tapes of some runs' folders that cover a stretch of time, and the one before it, oldest first.

    Segments stay open between calls, and follow.
    """
    opened: dict[Path, Tape] = {}

    def cover(start_s: float, end_s: float) -> Iterable[Tape]:
        for path in [path for path in opened if not path.exists()]:
            opened.pop(path).close()
        paths = [path for folder in folders for path in sorted(folder.glob("*.tape"))]
        old = [path for path in paths if _written_s(path) < start_s - LEEWAY_S]
        for path in (path for path in paths if path not in old[:-1]):
            try:
                tape = opened.get(path)
                if tape is None or tape.replaced:
                    tape = opened[path] = Tape.open(path)
                tape.refresh()
                if tape.to_utc_ns(tape.extent_ns()[0]) / NS < end_s:
                    yield tape
            except (EverywattError, FileNotFoundError):
                opened.pop(path, None)

    return cover


def not_booked(folders: Iterable[str], booked_s: float | None) -> list[str]:
    """Those of some runs' folders, oldest first, whose tapes go beyond what was booked, and the last one before.

    A recorder may be killed before anything of its tape was booked, and so may the one after it.
    """
    known = [(folder, _written_s(*Path(folder).glob("*.tape"))) for folder in folders if folder]
    there = [(folder, written_s) for folder, written_s in known if written_s]
    old = [folder for folder, written_s in there if written_s < (booked_s or 0.0) - LEEWAY_S]
    kept = [folder for folder, _ in there if folder not in old[:-1]]
    return kept[:1] + kept[1:][-MOST_FOLDERS:]  # from the first one counters go on


def _written_s(*paths: Path) -> float:
    """When tapes were last written to: while one is live that is in its log."""
    times = []
    for file in (file for path in paths for file in (path, path.with_name(f"{path.name}-wal"))):
        try:
            times.append(file.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=0.0)


def looks_ns(tape: Tape) -> list[int]:
    """When processes were read on a tape; its beginning where they are not read with its counters.

    None where its recorder was killed before any of that was on disk.
    """
    use = tape_use(tape).processes
    if use is None:
        counts = any(channel.carries_energy for group in tape.groups for channel in group.info.channels)
        return [tape.extent_ns()[0]] if counts else []
    return list(use.edges[1:])  # the first edge is a period before the first look


def instant_ns(tape: Tape, at_s: float) -> int:
    """An instant of a tape by UTC seconds: the look that they were rounded from, where there is one."""
    at_ns = tape.from_utc_ns(round(at_s * NS))
    return next((look_ns for look_ns in looks_ns(tape) if abs(look_ns - at_ns) <= ROUNDING_NS), at_ns)


def bridge_end_ns(tape: Tape, latest_s: float, waits: bool) -> int | None:
    """The look of a tape, up to a UTC time, at which a bridge to it ends: if nothing `waits` for a better, the last.

    Only some time after a recorder has started it is known when its first readings were published, and so how much
    energy is before and after them. None where there is no such look.
    """
    looks, latest_ns = looks_ns(tape), instant_ns(tape, latest_s)
    settled = (look for look in looks if looks[0] + SETTLED_NS <= look <= latest_ns - MARGIN_NS)
    last_ns = None if waits else max((look for look in looks if look <= latest_ns), default=None)
    return next(settled, last_ns)


@contextmanager
def bridged(
    before: Tape, after: Tape, start_s: float, end_ns: int, ended_cpu_s: Mapping[int, float]
) -> Iterator[Tape | None]:
    """A tape of the stretch from a UTC time on one tape to an instant of the next one.

    `ended_cpu_s` are CPU seconds that jobs used in it before they ended, by job. None where it was another boot.
    """
    start_ns = instant_ns(before, start_s)
    if not before.same_boot(after, SAME_BOOT_NS) or end_ns <= start_ns:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="everywatt-") as folder:
        path = _write(Path(folder) / "bridge.tape", before, after, (start_ns, end_ns), ended_cpu_s)
        with Tape.open(path) as tape:
            use = tape_use(before)
            if use.processes is not None:
                name_processes(tape, {use.processes.processes[n].pid: step for n, step in use.steps.items()})
            yield tape


def _write(
    path: Path, before: Tape, after: Tape, between_ns: tuple[int, int], ended_cpu_s: Mapping[int, float]
) -> Path:
    start_ns, end_ns = between_ns
    writer = TapeWriter(path, {"host": after.meta.get("host", {}), "period_s": after.meta.get("period_s", 1.0)})
    for anchor in (*before.anchors()[-1:], *after.anchors()[:1]):
        writer.anchor(anchor)
    there = {group.info.name: group for group in before.groups}
    for group in after.groups:
        same = there.get(group.info.name)
        if same is None or same.info.channels != group.info.channels:
            continue
        if group.info.name == PROCESSES:
            number = writer.add_group(group.info, (end_ns - start_ns) / NS)
            earlier, later = _tables(before, same, after, group, start_ns, end_ns, ended_cpu_s)
            writer.append_table(number, start_ns, earlier)
            writer.append_table(number, end_ns, later)
        elif group.info.name == HOST_USE or any(channel.carries_energy for channel in group.info.channels):
            number = writer.add_group(group.info, group.expected_period_s)
            writer.append(number, _rows(before, same, start_ns - MARGIN_NS, None))
            writer.append(number, _rows(after, group, start_ns, end_ns + FURTHER_NS))
    return writer.seal()


def _rows(tape: Tape, group: StoredGroup, low_ns: int, high_ns: int | None) -> list[Row]:
    rows = [row for frame in tape.frames(group.id, low_ns, high_ns) for row in frame.rows()]
    return [row for row in rows if low_ns <= publication_ns(row) <= (high_ns or publication_ns(row))]


def _tables(
    before: Tape,
    there: StoredGroup,
    after: Tape,
    group: StoredGroup,
    start_ns: int,
    end_ns: int,
    ended_cpu_s: Mapping[int, float],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All processes at the beginning and at the end of the stretch."""
    earlier, later = _alive(before, there, start_ns), _alive(after, group, end_ns)
    jobs = _jobs(before, earlier) | _jobs(after, later)
    for table in (earlier, later):
        for key, row in table.items():
            if key not in jobs:
                row.pop("children_cpu_s", None)  # of init and slurmd they are jobs, which are known
            if key[0] == 0:
                row["exits"] = False  # nothing recorded how processes ended meanwhile
    gone = {key: {"pid": key[0], "start": key[1], "gone": True} for key in earlier if key not in later}
    alive = {jobs.get(key) for key in later}
    for job, cpu_s in ((job, cpu_s) for job, cpu_s in ended_cpu_s.items() if job not in alive):
        mine = [key for key in gone if jobs.get(key) == job]
        if mine:
            busiest = max(mine, key=lambda key: earlier[key].get("cpu_s") or 0.0)
            gone[busiest] = {**earlier[busiest], "cpu_s": (earlier[busiest].get("cpu_s") or 0.0) + cpu_s}
        else:
            pid, start = STRANGE_PID + len(gone), _start_ticks(after, start_ns)
            cgroup = f"/system.slice/slurmstepd.scope/job_{job}/step_batch/user/task_0"
            gone[pid, start] = {"pid": pid, "start": start, "ppid": 1, "name": "job", "cpu_s": cpu_s, "cgroup": cgroup}
    return list(earlier.values()), [*later.values(), *gone.values()]


def _alive(tape: Tape, group: StoredGroup, at_ns: int) -> Rows:
    """The last row of each process that was alive at an instant: a table lists only what changed."""
    found: Rows = {}
    of_pid: dict[int, tuple[int, Any]] = {}
    for frame in tape.tables(group.id, None, at_ns):
        for row in frame.rows if frame.at_ns <= at_ns else ():
            pid = row["pid"]
            if row.get("gone") or row.get("exit"):
                found.pop(of_pid.pop(pid, (pid, None)), None)
                continue
            key = (pid, row.get("start"))
            if of_pid.get(pid, key) != key:
                found.pop(of_pid[pid], None)
            of_pid[pid] = key
            found[key] = {**found.get(key, {}), **row}
    return found


def _jobs(tape: Tape, rows: Rows) -> dict[tuple[int, Any], int]:
    """The job of each process that has one."""
    use = tape_use(tape).processes
    if use is None:
        return {}
    own, found = Grouping.of("step", [tape]).owner, {}
    for pid, start in rows:
        numbers = [number for _, number in use.seen.get(pid, ()) if use.processes[number].start == start]
        owner = own(tape, use.processes[numbers[-1]]) if numbers else None
        if owner is not None and owner.kind is OwnerKind.JOB:
            job = owner.id.removeprefix("slurm:").partition(".")[0]
            if job.isdecimal():
                found[pid, start] = int(job)
    return found


def _start_ticks(tape: Tape, at_ns: int) -> int:
    """An instant as /proc gives the start of a process: hundredths of seconds since the boot."""
    anchor = tape.anchors()[0]
    return (at_ns + anchor.boottime_ns - anchor.monotonic_ns) * 100 // NS + 1


def gpu_uuids(tape: Tape) -> dict[str, str]:
    """The UUID of each GPU (`gpu.0`); of one whose sensor reports none (AMD, Intel) its name."""
    channels = ((group, channel) for group in tape.groups for channel in group.info.channels)
    found = {channel.device: channel.device for _, channel in channels if is_gpu(channel.device)}
    return found | {group.info.device: group.info.uuid for group in tape.groups if group.info.uuid}


def gpu_busy_s(tape: Tape, gpu: str, start_ns: int, end_ns: int) -> tuple[float, float]:
    """Seconds that a GPU was busy between two instants, and seconds of which that is known."""
    seconds = max(end_ns - start_ns, 0) / NS
    found = tape_use(tape).channel(tape, f"{gpu}.utilisation")
    if found is None or not len(found.at_ns) or not seconds:
        return 0.0, 0.0
    share = float(found.mean(np.array([start_ns, end_ns]))[0]) / 100
    return (share * seconds, seconds) if share == share else (0.0, 0.0)


def gpu_memory_bytes(tape: Tape, gpu: str, start_ns: int, end_ns: int) -> tuple[int, float] | None:
    """The most memory of a GPU that was in use between two instants, and the mean; None where it was not read."""
    found = tape_use(tape).channel(tape, f"{gpu}.memory")
    if found is None:
        return None
    low, high = np.searchsorted(found.at_ns, (start_ns, end_ns))
    inside = found.values[low:high]
    return (int(inside.max()), float(inside.mean())) if len(inside) else None


def memory_mean_bytes(tape: Tape, start_ns: int, end_ns: int) -> dict[str, float]:
    """Mean resident memory of the processes of each step, by its owner's id in the ledger, between two instants."""
    processes = tape_use(tape).processes
    held = None if processes is None else memory_held(processes, "rss_bytes", [(start_ns, end_ns)])
    found: dict[str, float] = {}
    if processes is None or held is None:
        return found
    own = Grouping.of("step", [tape]).owner
    for number in np.flatnonzero(held.mean_bytes).tolist():
        owner = own(tape, processes.processes[number])
        if owner.kind is OwnerKind.JOB:
            found[owner.id] = found.get(owner.id, 0.0) + float(held.mean_bytes[number])
    return found


def step_times(tape: Tape, start_ns: int, end_ns: int) -> dict[str, tuple[float, float]]:
    """When (UTC) each step, by its owner's id in the ledger, used CPU time between two instants: first and last."""
    processes = tape_use(tape).processes
    if processes is None:
        return {}
    records = processes.records
    low = int(np.searchsorted(processes.edges, start_ns, side="right")) - 1
    high = int(np.searchsorted(processes.edges, end_ns, side="left"))
    first, last = np.searchsorted(records.place, (low, high))
    own = Grouping.of("step", [tape]).owner
    found: dict[str, tuple[int, int]] = {}
    for number in np.unique(records.number[first:last]).tolist():
        owner = own(tape, processes.processes[number])
        if owner.kind is OwnerKind.JOB:
            mine = records.number[first:last] == number
            span = (
                max(int(records.from_ns[first:last][mine].min()), start_ns),
                min(int(records.to_ns[first:last][mine].max()), end_ns),
            )
            there = found.get(owner.id, span)
            found[owner.id] = (min(there[0], span[0]), max(there[1], span[1]))
    return {owner: (tape.to_utc_ns(a) / NS, tape.to_utc_ns(b) / NS) for owner, (a, b) in found.items()}


def name_processes(tape: Tape, steps: Mapping[int, tuple[int, str]]) -> None:
    """Tell a tape whose the processes of these numbers (pids) are, where no cgroup and no parent says it."""
    use = tape_use(tape)
    if use.processes is None:
        return
    for pid, step in steps.items():
        seen = use.processes.seen.get(pid)
        if seen:
            use.steps[seen[-1][1]] = step
