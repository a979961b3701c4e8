"""The processes of a machine, or the trees under some of them: who is there, what each has used.

Where exit records cannot be had, a tree's CPU time is the sum over its living members of `cpu_s + children_cpu_s`: when
a child is waited for, the kernel moves what it used into its parent's `children_cpu_s`, so nothing that exited between
two reads is lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.sensors import procfs
from everywatt.sensors.usage import cgroups
from everywatt.sensors.usage.exits import Exit, ExitRecords
from everywatt.sensors.usage.member import Member, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from everywatt.sensors.usage.member import ProcessRow

_TICK_S = 1.0 / procfs.TICKS_PER_S
_ROUNDING_S = 2 * _TICK_S  # /proc gives user and system time in whole ticks
FEW = 256  # numbers given out since the last read, besides one for each member, that are tried one by one
LOOK_EVERYWHERE_S = 30.0  # a number may be given out of order (a restored container)
LOST = "exit records were lost: too many processes ended at once"


def open_records() -> tuple[ExitRecords | None, str]:
    """The exit records, or None and why they are not available."""
    try:
        return ExitRecords(), ""
    except PermissionError:
        return None, "exit records require CAP_NET_ADMIN"
    except (OSError, ValueError) as error:
        return None, f"no exit records: {error}"


def of_whom(records: Iterable[Exit], known: Iterable[int]) -> dict[int, int]:
    """The known pid above each process that ended (its own, if it is known itself); those of others are left out.

    A parent that ended unseen between a known one and its child is in the records too.
    """
    below: dict[int, list[Exit]] = {}
    for record in records:
        below.setdefault(record.ppid, []).append(record)
    owner = {pid: pid for pid in known}
    waiting = [parent for parent in below if parent in owner]
    while waiting:
        parent = waiting.pop()
        for record in below.pop(parent, ()):
            if record.pid not in owner:
                owner[record.pid] = owner[parent]
                waiting.append(record.pid)
    return owner


def is_about(record: Exit, member: Member) -> bool:
    """False where the member is younger than the process of the record: its number was given out again."""
    if member.stat is None:
        return True
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - member.stat.start * _TICK_S
    return age_s >= record.age_s - 0.1


def row_of(record: Exit, *, start: int | None = None, meter: bool = False) -> ProcessRow:
    row: ProcessRow = {
        "pid": record.pid,
        "start": start,
        "ppid": record.ppid,
        "name": record.name,
        "uid": record.uid,
        "cpu_s": record.cpu_s,
        "exit": True,
        "gone": True,
    }
    if meter:
        row["meter"] = True
    return row


def completed(unseen: Mapping[int, list[Exit]], parents: Mapping[int, Member]) -> list[Exit]:
    """Records of processes that were never read, with what they used after their record was written.

    The kernel adds all that a child used to its parent once it was waited for. What that is more than the records say
    was used by those that ended, in their last tick; it is shared among them, none getting more than a tick, or more
    than it lived.
    """
    done: list[Exit] = []
    for pid, records in unseen.items():
        parent = parents.get(pid)
        if parent is None or parent.stat is None:
            done += records
            continue
        parent.known_s += sum(record.cpu_s for record in records)
        more_s = parent.stat.children_cpu_s - parent.base_s - parent.known_s
        room = [max(0.0, min(_TICK_S, record.age_s - record.cpu_s)) for record in records]
        share = min(1.0, more_s / sum(room)) if more_s > _ROUNDING_S and sum(room) > 0 else 0.0
        for record, free_s in zip(records, room, strict=True):
            done.append(record._replace(cpu_s=record.cpu_s + share * free_s))
        parent.known_s += share * sum(room)
    return done


class Trees:
    """Process trees below some roots of `proc`. `read` gives what is new or changed since the last read.

    meter       the process that does the measuring: it and its children are followed too and their rows say
                `"meter": true`, unless it was itself asked for
    reaper      the process of the everywatt command: its own CPU time is the meter's, its children are the subject's
    everything  all processes of the machine, kernel threads too (an idle one costs one look at its clock)
    below       the process under which all processes of a simulated machine are: then those are everything
    beside      the one of those that makes the machine's power: it is not in it
    memory      "pss" reads the proportional set size of those that ran
    exits       whether the kernel's exit records are asked for; what came of it is in the row of pid 0
    """

    def __init__(
        self,
        proc: Path,
        pids: Iterable[int] = (),
        *,
        meter: int | None = None,
        reaper: int | None = None,
        everything: bool = False,
        below: int | None = None,
        beside: int | None = None,
        memory: str = "rss",
        exits: bool = False,
    ) -> None:
        self._proc = str(proc)
        self._reader = Reader(proc, memory)
        self._members: dict[int, Member] = {}
        self._everything = everything and below is None
        self._whole = everything
        self._beside = beside
        self._last_pid: int | None = None
        self._looked_s = 0.0
        self._foreign: set[int] = set()
        self._left: list[Member] = []
        self._host: tuple[bool, bool, str] = (False, False, "")
        self._records: ExitRecords | None = None
        self._why = ""
        if exits and self._reader.clocks:
            self._records, self._why = open_records()
        if meter is not None:
            self._members[meter] = Member(meter, meter=True, root=True)
        if reaper is not None:
            self._members[reaper] = Member(reaper, meter=True, root=True, reaper=True)
        if everything and below is not None:
            self._members.setdefault(below, Member(below, root=True))
        self.follow(tuple(pids))

    def follow(self, pids: Sequence[int]) -> None:
        """Follow these too, and report everything again at the next read, for a new listener."""
        for pid in pids:
            member = self._members.setdefault(pid, Member(pid, root=True))
            member.meter = member.reaper = False
            member.root = True
        for member in self._members.values():
            member.reported, member.fixed, member.hidden, member.clock_ns = (), {}, False, -1
            if not member.root:
                root = self._root_of(member)
                member.meter = root.meter and not root.reaper
        self._last_pid = None
        self._foreign.clear()
        self._host = (False, False, "")

    @property
    def places(self) -> frozenset[cgroups.Place]:
        # Processes of one group share their place as a rule, and comparing a thousand of them takes long.
        found = {id(member.place): member.place for member in self._members.values()}
        return frozenset(place for place in found.values() if place is not None)

    @property
    def exits(self) -> bool:
        """Whether the end of every process is reported, as of the last read."""
        return self._host[1]

    @property
    def running(self) -> int:
        """How many members are there that are no zombies."""
        return sum(member.stat is None or member.stat.state not in "ZX" for member in self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def read(self) -> list[ProcessRow]:
        """Rows of processes that are new, changed or gone."""
        rows: list[ProcessRow] = []
        self._read_members(self._reader.moved(self._members.values()), rows)
        born = self._born()
        if born is not None:
            self._read_members(self._joined(born), rows)
        elif self._everything:
            self._read_members(self._joined(_pids(self._proc)), rows)
        else:
            self._read_young(rows)
        complete = self._endings(rows)
        return self._host_row(complete) + rows

    def close(self) -> None:
        for member in self._members.values():
            self._reader.close(member)
        if self._records is not None:
            self._records.close()
            self._records = None

    def _host_row(self, complete: bool) -> list[ProcessRow]:
        """What holds for the table from here on, where that changed: all processes or not, exit records or not."""
        exits = self._records is not None and complete
        why = "" if exits else LOST if self._records is not None else self._why if self._whole else ""
        now = (self._whole, exits, why)
        if now == self._host:
            return []
        self._host = now
        row: ProcessRow = {"pid": 0, "start": 0, "name": "host", "everything": self._whole, "exits": exits}
        if why:
            row["why"] = why
        return [row]

    # Who is there.

    def _root_of(self, member: Member) -> Member:
        """The nearest followed ancestor; a member whose parents are gone answers for itself."""
        while not member.root and member.stat is not None and member.stat.ppid in self._members:
            member = self._members[member.stat.ppid]
        return member

    def _born(self) -> list[int] | None:
        """Processes that were started since the last read; None where one has to look everywhere.

        Numbers are given out in order, so they lie between the last one of then and the last one of now.
        """
        before, now_s = self._last_pid, time.monotonic()
        try:
            last = self._last_pid = int(procfs.slurp(f"{self._proc}/loadavg", 256).split()[-1])
        except (OSError, IndexError, ValueError):
            return None
        if before is not None and before <= last and now_s < self._looked_s + LOOK_EVERYWHERE_S:
            fresh = range(before + 1, last + 1)
            if not fresh:
                return []
            if self._reader.clocks and len(fresh) <= FEW + len(self._members):
                return [pid for pid in fresh if self._reader.alive(pid)]
        self._looked_s = now_s
        return None

    def _joined(self, pids: Iterable[int]) -> list[Member]:
        """New members: all of these in a table of everything, else those with a member above them."""
        fresh = [pid for pid in pids if pid not in self._members]
        if self._everything:
            return [self._join(pid) for pid in fresh]
        return self._below(set(self._members), fresh)[0]

    def _read_members(self, members: Iterable[Member], rows: list[ProcessRow]) -> None:
        read = self._reader.row
        for member in members:
            try:
                row = read(member)
            except (OSError, ValueError):
                self._drop(member, rows)
                continue
            if row is not None:
                if member.reads == 1 and not member.root and self._of_meter(member):
                    member.meter = row["meter"] = True
                rows.append(row)

    def _of_meter(self, member: Member) -> bool:
        parent = self._members.get(member.stat.ppid) if member.stat is not None else None
        return parent is not None and parent.meter and not parent.reaper

    def _drop(self, member: Member, rows: list[ProcessRow]) -> None:
        self._reader.close(member)
        if self._members.get(member.pid) is member:
            del self._members[member.pid]
        if self._records is not None:
            self._left.append(member)  # its exit record has been written by now
        elif member.stat is not None or member.root or member.hidden:  # never spoken of: nothing to take back
            rows.append({"pid": member.pid, "start": member.start, "gone": True})

    def _read_young(self, rows: list[ProcessRow]) -> None:
        """Members may have had children, those may have had some; continue until no new one turns up."""
        parents = list(self._members)
        while parents:
            young = self._newborn(parents)
            self._read_members(young, rows)
            parents = [member.pid for member in young]

    def _newborn(self, parents: Sequence[int]) -> list[Member]:
        """New members: children of these parents that are not followed yet."""
        found: list[Member] = []
        for parent in parents:
            try:
                pids = self._children(parent)
            except FileNotFoundError:
                if Path(self._proc, str(parent), "task").is_dir():  # this kernel has no `children` files
                    return found + self._scan(set(parents))
                continue
            except OSError:
                continue
            found += [self._join(pid) for pid in pids if pid not in self._members]
        return found

    def _join(self, pid: int) -> Member:
        member = self._members[pid] = Member(pid)
        return member

    def _children(self, pid: int) -> list[int]:
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
        return [pid for pid in pids if pid != self._beside]

    def _scan(self, parents: set[int]) -> list[Member]:
        """The same by asking every process that is new on this machine for its parent: for kernels without lists."""
        alive = set(_pids(self._proc))
        self._foreign &= alive
        found, strangers = self._below(parents, sorted(alive - self._foreign - self._members.keys()))
        self._foreign.update(strangers)
        return found

    def _below(self, parents: set[int], pids: Iterable[int]) -> tuple[list[Member], list[int]]:
        """Those of these processes that descend from `parents`, as new members, and the others."""
        found: list[Member] = []
        parent_of: dict[int, int] = {}
        for pid in pids:
            if pid == self._beside:
                continue
            try:
                parent_of[pid] = procfs.parse_process_stat(procfs.slurp(f"{self._proc}/{pid}/stat", 2048)).ppid
            except (OSError, ValueError):
                continue
        while young := [pid for pid, parent in parent_of.items() if parent in parents]:
            for pid in young:
                parent_of.pop(pid)
                found.append(self._join(pid))
            parents = set(young)
        return found, list(parent_of)

    # Who has ended.

    def _endings(self, rows: list[ProcessRow]) -> bool:
        """Add the rows of those that ended. False where exit records were lost."""
        if self._records is None:
            return True
        try:
            records, complete = self._records.drain()
        except OSError as error:
            self._records.close()
            self._records, self._why = None, f"no exit records: {error}"
            records, complete = [], False
        # Later ones first: what a child is known to have used is its parent's to hand on.
        self._left.sort(key=lambda member: (member.start or 0, member.pid), reverse=True)
        left = {member.pid: member for member in self._left}
        self._left = []
        unseen: dict[int, list[Exit]] = {}
        for record, parent in self._ours(records, left):
            member = left.get(record.pid) or self._members.get(record.pid)
            if member is not None and is_about(record, member):
                member.final = record
            elif member is None and self._reader.alive(record.pid):
                self._members[record.pid] = Member(record.pid, final=record)  # not waited for yet
            else:
                unseen.setdefault(parent, []).append(record)
        full = completed(unseen, {**left, **self._members})
        rows += [row for member in left.values() if (row := self._last_row(member, left))]
        for record in full:
            above = self._members.get(record.ppid) or left.get(record.ppid)
            rows.append(row_of(record, meter=above is not None and above.meter and not above.reaper))
        return complete

    def _ours(self, records: list[Exit], left: dict[int, Member]) -> list[tuple[Exit, int]]:
        """The records that belong to this table, each with the nearest member above it."""
        owner = of_whom(records, (*self._members, *left)) if records else {}
        return [(record, owner.get(record.ppid, 0)) for record in records if self._everything or record.pid in owner]

    def _last_row(self, member: Member, left: dict[int, Member]) -> ProcessRow | None:
        """What a member that is gone used in all; its parent knows of it now."""
        final = member.final
        own_s = member.cpu_s if final is None else max(final.cpu_s, member.cpu_s)  # a zombie's clock has the last word
        ppid = member.stat.ppid if member.stat is not None else 0
        parent = self._members.get(ppid) or left.get(ppid)
        if parent is not None:
            parent.known_s += own_s + member.base_s + member.known_s
        if final is None:
            spoken = member.stat is not None or member.root or member.hidden
            return {"pid": member.pid, "start": member.start, "gone": True} if spoken else None
        return row_of(final._replace(cpu_s=own_s), start=member.start, meter=member.meter)


def _pids(proc: str) -> list[int]:
    return [int(name) for name in _names(proc) if name.isdigit()]


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
