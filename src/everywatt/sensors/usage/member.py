"""One process that is followed: its CPU clock every time, its /proc files only when that clock moved."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everywatt.core.secrets import mask_text
from everywatt.sensors import procfs
from everywatt.sensors.usage import cgroups, container_names

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Required, TypedDict

    from everywatt.sensors.usage.exits import Exit

    class ProcessRow(TypedDict, total=False):
        """A process that is new, changed or gone. Process 0 is the host, of which `everything` and `exits` say what the
        table has. `memory_why` is why `pss_bytes` and `uss_bytes` are None."""

        pid: Required[int]
        start: Required[int | None]  # ticks since boot, None where /proc does not show it
        ppid: int
        name: str
        cpu_s: float
        children_cpu_s: float
        rss_bytes: float
        threads: int
        uid: int | None
        user: str
        cmdline: str
        cgroup: str
        cpu: int
        pss_bytes: int | None
        uss_bytes: int | None
        memory_why: str
        zombie: bool
        meter: bool
        reaper: bool
        hidden: bool
        exit: bool  # the row comes from the kernel's record of its end
        gone: bool
        everything: bool
        exits: bool
        why: str


CMDLINE_LIMIT = 400
KEEP_OPEN = 128  # stat files that stay open; the rest of a large tree is opened at each read
HIDDEN = "the process belongs to another user and /proc is mounted with hidepid"
_SETTLING = 3  # reads in which a young process is expected to exec and to be moved to its cgroup
_RECHECK = 10  # later on, every so many reads


@dataclass(slots=True, eq=False)
class Member:
    """A process that is followed: what was said of it last.

    base_s is what its children had used before it was first read, known_s what those that ended since then are known
    to have used.
    """

    pid: int
    meter: bool = False
    root: bool = False
    reaper: bool = False
    stat: procfs.ProcessStat | None = None
    place: cgroups.Place | None = None
    file: procfs.KeptFile | None = None
    reads: int = 0
    reported: tuple[Any, ...] = ()
    fixed: dict[str, int | str | None] = field(default_factory=dict)
    hidden: bool = False
    clock_ns: int = -1
    cpu_s: float = 0.0
    base_s: float = 0.0
    known_s: float = 0.0
    final: Exit | None = None
    clock: int = field(init=False)

    def __post_init__(self) -> None:
        self.clock = procfs.cpu_clock(self.pid)

    @property
    def start(self) -> int | None:
        """Ticks since boot, None where /proc does not show it."""
        return self.stat.start if self.stat is not None else None


class Reader:
    """Reads members. `memory` is "rss" or "pss"."""

    def __init__(self, proc: Path | str, memory: str = "rss") -> None:
        self.proc = str(proc)
        self.clocks = procfs.sees_own_namespace(proc)
        self._memory = memory
        self._open = 0
        self._users = container_names.user_names(Path(proc).parent)

    def moved(self, members: Iterable[Member]) -> list[Member]:
        """Those whose clock moved since their last row, or whose clock is no more; all, where clocks cannot be read.

        A process that had a child to wait for ran itself, so what its /proc files say has not changed either.
        """
        if not self.clocks:
            return list(members)
        now_ns = time.clock_gettime_ns
        found = []
        for member in members:
            try:
                if now_ns(member.clock) != member.clock_ns:
                    found.append(member)
            except OSError:
                found.append(member)
        return found

    def row(self, member: Member) -> ProcessRow | None:
        """The row of a process, None where nothing changed. OSError or ValueError when it is gone."""
        clock_ns = time.clock_gettime_ns(member.clock) if self.clocks else -1
        try:
            stat = procfs.parse_process_stat(self._stat_bytes(member))
        except (FileNotFoundError, PermissionError) as error:
            return self._unseen(member, clock_ns, error)
        before = member.stat
        if before is not None and before.start != stat.start:
            raise ProcessLookupError(f"{member.pid} is another process now")
        member.stat, member.clock_ns = stat, clock_ns
        if before is None:
            member.base_s = stat.children_cpu_s
        # Whatever a kernel or a hypervisor does, CPU time never decreases.
        member.cpu_s = max(member.cpu_s, clock_ns / 1e9 if clock_ns >= 0 else stat.cpu_s)
        return self._changed_row(member, stat, renamed=before is not None and before.name != stat.name)

    def close(self, member: Member) -> None:
        if member.file is not None:
            member.file.close()
            member.file = None
            self._open -= 1

    def alive(self, pid: int) -> bool:
        """Whether there is such a process, be it a zombie; False where clocks cannot tell."""
        try:
            return self.clocks and time.clock_gettime_ns(procfs.cpu_clock(pid)) >= 0
        except OSError:
            return False

    def _unseen(self, member: Member, clock_ns: int, error: OSError) -> ProcessRow | None:
        """The row of a process that lives and is not shown by /proc: its clock is all that is known."""
        if isinstance(error, FileNotFoundError) and (clock_ns < 0 or member.stat is not None):
            raise error
        if clock_ns >= 0:
            time.clock_gettime_ns(member.clock)  # OSError: it went in between, so it is not hidden
        if member.hidden and (clock_ns < 0 or clock_ns == member.clock_ns):
            return None
        member.clock_ns = clock_ns
        row: ProcessRow = {"pid": member.pid, "start": None, "hidden": True}
        if not member.hidden:
            row["why"] = HIDDEN
        if clock_ns >= 0:
            row["cpu_s"] = member.cpu_s = clock_ns / 1e9
        if member.meter:
            row["meter"] = True
        member.hidden = True
        return row

    def _changed_row(self, member: Member, stat: procfs.ProcessStat, *, renamed: bool) -> ProcessRow | None:
        member.reads += 1
        zombie = stat.state in "ZX"
        if zombie and member.fixed:
            fixed = member.fixed  # it has left its cgroup and forgotten its arguments
        elif renamed or not member.fixed or member.reads <= _SETTLING:
            fixed = self._fixed(member)
        elif member.reads % _RECHECK == 0:
            fixed = self._placed(member, member.fixed.copy())
        else:
            fixed = member.fixed
        numbers = (stat.ppid, stat.name, zombie, member.cpu_s, stat.children_cpu_s, stat.rss_bytes, stat.threads)
        changed: dict[str, int | str | None] = {}
        if fixed is not member.fixed:
            changed = {key: value for key, value in fixed.items() if member.fixed.get(key, member) != value}
        if numbers == member.reported and not changed:
            return None
        member.reported, member.fixed = numbers, fixed
        row: ProcessRow = {
            "pid": stat.pid,
            "start": stat.start,
            "ppid": stat.ppid,
            "name": stat.name,
            "cpu_s": member.cpu_s,
            "children_cpu_s": stat.children_cpu_s,
            "rss_bytes": stat.rss_bytes,
            "threads": stat.threads,
        }
        row.update(cast("ProcessRow", changed))
        if stat.cpu is not None:
            row["cpu"] = stat.cpu
        if self._memory == "pss":
            row.update(cast("ProcessRow", self._held(member)))
        if zombie:
            row["zombie"] = True
        if member.meter:
            row["meter"] = True
        if member.reaper:
            row["reaper"] = True
        return row

    def _stat_bytes(self, member: Member) -> bytes:
        if member.file is not None:
            return member.file.read(2048)
        path = f"{self.proc}/{member.pid}/stat"
        # One that sleeps all the time is not worth a descriptor: its clock says so.
        if self._open >= KEEP_OPEN or (self.clocks and member.reads < _SETTLING):
            return procfs.slurp(path, 2048)
        member.file = procfs.KeptFile(path)
        self._open += 1
        return member.file.read(2048)

    def _fixed(self, member: Member) -> dict[str, int | str | None]:
        """What seldom changes. A file that cannot be read leaves its entry out or as it was."""
        folder = f"{self.proc}/{member.pid}"
        fixed = member.fixed.copy()
        try:
            fixed["uid"] = uid = procfs.parse_uid(procfs.slurp(f"{folder}/status", 4096))
            if uid is not None and uid in self._users:
                fixed["user"] = self._users[uid]
            else:
                fixed.pop("user", None)
        except (OSError, ValueError):
            pass  # it has ended: its entry stays as it was
        try:
            data = procfs.slurp(f"{folder}/cmdline", 4 * CMDLINE_LIMIT)
            cmdline = mask_text(procfs.parse_cmdline(data, CMDLINE_LIMIT))
            if cmdline or "cmdline" not in fixed:  # a zombie has none any more
                fixed["cmdline"] = cmdline
        except OSError:
            pass  # ended, or another user's under hidepid
        return self._placed(member, fixed)

    def _placed(self, member: Member, fixed: dict[str, int | str | None]) -> dict[str, int | str | None]:
        try:
            place = cgroups.parse_place(procfs.slurp(f"{self.proc}/{member.pid}/cgroup", 4096))
        except OSError:
            return fixed
        if place != member.place:
            member.place = place
        fixed["cgroup"] = place.path
        return fixed

    def _held(self, member: Member) -> dict[str, int | str | None]:
        """PSS and USS; None if the kernel does not report them; RSS is used then."""
        try:
            held = procfs.parse_rollup(procfs.slurp(f"{self.proc}/{member.pid}/smaps_rollup", 2048))
            return {"pss_bytes": held.pss_bytes, "uss_bytes": held.uss_bytes}
        except PermissionError:
            why = "PSS of other users' processes requires CAP_SYS_PTRACE; RSS is used instead"
        except (OSError, ValueError):
            why = "no memory of its own"
        return {"pss_bytes": None, "uss_bytes": None, "memory_why": why}
