"""The trees under followed processes: who is there, what each has used. Never looks at the rest of the machine.

A tree's CPU time is the sum over its living members of `cpu_s + children_cpu_s`: when a child is waited for, the kernel
moves what it used into its parent's `children_cpu_s`, so nothing that exited between two reads is lost.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.sensors import cgroups, procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CMDLINE_LIMIT = 400
KEEP_OPEN = 128  # stat files that stay open; the rest of a large tree is opened at each read
_SETTLING = 3  # reads in which a young process is expected to exec and to be moved to its cgroup
_RECHECK = 10  # later on, every so many reads


@dataclass(slots=True)
class _Member:
    """A process that is followed: what was said of it last."""

    pid: int
    meter: bool
    root: bool = False
    stat: procfs.ProcessStat | None = None
    place: cgroups.Place | None = None
    file: procfs.KeptFile | None = None
    reads: int = 0
    told: tuple[Any, ...] = ()
    said: dict[str, Any] = field(default_factory=dict)
    hidden: bool = False

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class Trees:
    """Process trees below some roots of `proc`. `read` gives what is new or changed since the last read.

    `meter` is the pid of the process that does the measuring: it and its children are followed too and their rows say
    `"meter": true`, unless it was itself asked for.
    """

    def __init__(self, proc: Path, pids: Iterable[int] = (), *, meter: int | None = None) -> None:
        self._proc = str(proc)
        self._members: dict[int, _Member] = {}
        self._forks: bytes | None = None
        self._open = 0
        self._foreign: set[int] = set()
        if meter is not None:
            self._members[meter] = _Member(meter, meter=True, root=True)
        self.follow(tuple(pids))

    def follow(self, pids: Sequence[int]) -> None:
        """Follow these too, and say everything again at the next read: somebody new is listening."""
        for pid in pids:
            member = self._members.setdefault(pid, _Member(pid, meter=False, root=True))
            member.meter, member.root = False, True
        for member in self._members.values():
            member.told, member.said = (), {}
            member.meter = self._root_of(member).meter
        self._forks = None
        self._foreign.clear()

    @property
    def places(self) -> frozenset[cgroups.Place]:
        """The cgroups of the living members."""
        return frozenset(m.place for m in self._members.values() if m.place is not None)

    def __len__(self) -> int:
        return len(self._members)

    def read(self) -> list[dict[str, Any]]:
        """Rows of processes that are new, changed or gone."""
        rows: list[dict[str, Any]] = []
        self._read_members(list(self._members.values()), rows)
        if self._forked():
            # Members may have had children, those may have had some; go on until nobody new turns up.
            parents = list(self._members)
            while parents:
                young = self._newborn(parents)
                self._read_members(young, rows)
                parents = [member.pid for member in young]
        return rows

    def close(self) -> None:
        """Let go of all files."""
        for member in self._members.values():
            member.close()
        self._open = 0

    def _root_of(self, member: _Member) -> _Member:
        """The nearest followed ancestor; a member whose parents are gone answers for itself."""
        while not member.root and member.stat is not None and member.stat.ppid in self._members:
            member = self._members[member.stat.ppid]
        return member

    def _forked(self) -> bool:
        """Whether anything was started on this machine since the last read (the last pid given out has moved)."""
        try:
            forks = procfs.slurp(f"{self._proc}/loadavg", 256).split()[-1]
        except (OSError, IndexError):
            return True
        changed, self._forks = forks != self._forks, forks
        return changed

    def _read_members(self, members: Iterable[_Member], rows: list[dict[str, Any]]) -> None:
        for member in members:
            try:
                row = self._read(member)
            except PermissionError:
                if not member.hidden:
                    member.hidden = True
                    why = "the process belongs to another user and /proc is mounted with hidepid"
                    rows.append({"pid": member.pid, "start": None, "hidden": True, "why": why})
            except (OSError, ValueError):
                self._drop(member, rows)
            else:
                if row:
                    rows.append(row)

    def _drop(self, member: _Member, rows: list[dict[str, Any]]) -> None:
        if member.file is not None:
            self._open -= 1
        member.close()
        if self._members.get(member.pid) is member:
            del self._members[member.pid]
        if member.stat is not None or member.root:  # a child that ended before its first read was never spoken of
            rows.append({"pid": member.pid, "start": member.stat.start if member.stat else None, "gone": True})

    def _read(self, member: _Member) -> dict[str, Any] | None:
        """The row of one process, None where nothing changed. OSError when it is gone."""
        stat = procfs.parse_process_stat(self._stat_bytes(member))
        before = member.stat
        if before is not None and before.start != stat.start:
            raise ProcessLookupError(f"{member.pid} is another process now")
        member.stat = stat
        renamed = before is not None and before.name != stat.name
        member.reads += 1
        if renamed or not member.said or member.reads <= _SETTLING or member.reads % _RECHECK == 0:
            fixed = self._fixed(member)
        else:
            fixed = member.said
        zombie = stat.state in "ZX"
        numbers = (stat.ppid, stat.name, zombie, stat.cpu_s, stat.children_cpu_s, stat.rss_bytes, stat.threads)
        changed = {key: value for key, value in fixed.items() if member.said.get(key, member) != value}
        if numbers == member.told and not changed:
            return None
        member.told, member.said = numbers, fixed
        row: dict[str, Any] = {
            "pid": stat.pid,
            "start": stat.start,
            "ppid": stat.ppid,
            "name": stat.name,
            "cpu_s": stat.cpu_s,
            "children_cpu_s": stat.children_cpu_s,
            "rss_bytes": stat.rss_bytes,
            "threads": stat.threads,
            **changed,
        }
        if zombie:
            row["zombie"] = True
        if member.meter:
            row["meter"] = True
        return row

    def _stat_bytes(self, member: _Member) -> bytes:
        if member.file is not None:
            return member.file.read(2048)
        path = f"{self._proc}/{member.pid}/stat"
        if self._open >= KEEP_OPEN:
            return procfs.slurp(path, 2048)
        member.file = procfs.KeptFile(path)
        self._open += 1
        return member.file.read(2048)

    def _fixed(self, member: _Member) -> dict[str, Any]:
        """What seldom changes. A file that cannot be read leaves its entry out or as it was."""
        folder = f"{self._proc}/{member.pid}"
        fixed = dict(member.said)
        try:
            fixed["uid"] = procfs.parse_uid(procfs.slurp(f"{folder}/status"))
        except (OSError, ValueError):
            pass
        try:
            cmdline = procfs.parse_cmdline(procfs.slurp(f"{folder}/cmdline", 4 * CMDLINE_LIMIT), CMDLINE_LIMIT)
            if cmdline or "cmdline" not in fixed:  # a zombie has none any more
                fixed["cmdline"] = cmdline
        except OSError:
            pass
        try:
            member.place = cgroups.parse_place(procfs.slurp(f"{folder}/cgroup"))
            fixed["cgroup"] = member.place.path
        except OSError:
            pass
        return fixed

    def _newborn(self, parents: Sequence[int]) -> list[_Member]:
        """New members: children of these parents that are not followed yet."""
        found: list[_Member] = []
        for parent in parents:
            try:
                pids = self._children(parent)
            except FileNotFoundError:
                if Path(self._proc, str(parent), "task").is_dir():  # this kernel has no `children` files
                    return found + self._scan(set(parents))
                continue
            except OSError:
                continue
            meter = parent in self._members and self._members[parent].meter
            found += [self._join(pid, meter) for pid in pids if pid not in self._members]
        return found

    def _join(self, pid: int, meter: bool) -> _Member:
        member = self._members[pid] = _Member(pid, meter=meter)
        return member

    def _children(self, pid: int) -> list[int]:
        """Pids of the children of all threads of a process."""
        member = self._members.get(pid)
        folder = f"{self._proc}/{pid}/task"
        stat = member.stat if member else None
        threads = [str(pid)] if stat is not None and stat.threads == 1 else _names(folder)
        pids: list[int] = []
        for thread in threads:
            try:
                pids += [int(word) for word in procfs.slurp(f"{folder}/{thread}/children").split()]
            except FileNotFoundError:
                if thread == str(pid):
                    raise
        return pids

    def _scan(self, parents: set[int]) -> list[_Member]:
        """The same by asking every process that is new on this machine for its parent: for kernels without lists."""
        found: list[_Member] = []
        alive = {int(name) for name in _names(self._proc) if name.isdigit()}
        self._foreign &= alive
        parent_of: dict[int, int] = {}
        for pid in sorted(alive - self._foreign - self._members.keys()):
            try:
                parent_of[pid] = procfs.parse_process_stat(procfs.slurp(f"{self._proc}/{pid}/stat", 2048)).ppid
            except (OSError, ValueError):
                continue
        while young := [pid for pid, parent in parent_of.items() if parent in parents]:
            for pid in young:
                parent = self._members.get(parent_of.pop(pid))
                found.append(self._join(pid, parent.meter if parent else False))
            parents = set(young)
        self._foreign.update(parent_of)
        return found


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
