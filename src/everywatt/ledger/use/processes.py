"""From rows of `use.processes` and `use.cgroups` to CPU seconds: who used how much when. Without numpy.

Rows are written only on change, so what a process used between two reads is the difference of two rows, and where
nothing was written for longer than a period, the use is of the last period. What children used that came and went
between two reads is in their parent's `children_cpu_s`; what of that is not known of a child is charged to the ones
that went, and the rest to a stand-in, "children of NAME that came and went".

`ProcessTable` reads the rows. What becomes of the use is up to who derives from it: finished runs and live views keep
it by process and time (`ledger.use.usage`), the agent adds it up by owner (`ledger.use.owner_use`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.facts import ProcessFacts, places_of
from everywatt.sensors.base import TableRow

TICK_NS = NS // 100  # `start` is in ticks of 10 ms since boot, on every Linux of today
PLAIN_ROW = 9  # keys of a row with nothing but numbers
LITTLE_S = 0.05  # what a group has beyond its processes may be rounding below this: processes count in steps of 10 ms
MOST_BEHIND_S = 1.0  # and what it lacks beyond this is a group that does not count all of its processes
NO_PROGRAMS = (1, 2)  # init and the kernel's own: what they started are programs by themselves
LATE = 1.5  # a read that comes later than this many periods is taken for one before which nothing was written


@dataclass(slots=True)
class Seen:
    """What was last reported of a living process."""

    facts: ProcessFacts
    start: int | None
    cpu_s: float
    children_s: float
    threads: int = 1
    recent_s: float = 0.0
    rss_bytes: float | None = None
    cpu: int = -1  # that it ran on; -1 where it has several threads, or that is not known


class CpuRecord(NamedTuple):
    """CPU seconds of a process between two instants; `last` marks its end in there, `young` its beginning.

    `cpu` is the CPU that it ran on, -1 where that is not known or there are several threads.
    """

    facts: ProcessFacts
    from_ns: int
    to_ns: int
    cpu_s: float
    last: bool = False
    young: bool = False
    cpu: int = -1


class CgroupTable:
    """Reads rows of `use.cgroups` in order: what whole groups used, those included that came and went in them."""

    def __init__(self) -> None:
        self.cpus: dict[str, float] = {}  # that groups may use, where there is a limit
        self.names: dict[str, dict[str, Any]] = {}  # what files on the host say of groups: name, pod, job_id, …
        self._cpu_s: dict[str, float] = {}
        self._gone: set[str] = set()

    def tidy(self) -> Collection[str]:
        """Forget groups that are gone; gives those."""
        gone, self._gone = self._gone, set()
        for path in gone:
            self.cpus.pop(path, None)
            self.names.pop(path, None)
        return gone

    def feed(self, rows: Sequence[TableRow]) -> Iterator[tuple[str, bool, bool, float]]:
        """Path, whether it was made for a command, whether it is new, and CPU seconds since it was last reported.

        A new one has a past that is not ours, unless it was made for a command.
        """
        for row in rows:
            path, cpu_s, made = str(row.get("cgroup")), row.get("cpu_s"), "made" in row and bool(row["made"])
            if "cpus" in row and row["cpus"] is not None:
                self.cpus[path] = float(row["cpus"])
            if "name" in row and isinstance(row["name"], Mapping):
                self.names.setdefault(path, {}).update(row["name"])
            if cpu_s is not None:
                before_s = self._cpu_s.get(path)
                self._cpu_s[path] = cpu_s = float(cpu_s)
                past_s = 0.0 if made else cpu_s
                yield path, made, before_s is None, max(cpu_s - (past_s if before_s is None else before_s), 0.0)
            if row.get("gone"):
                self._cpu_s.pop(path, None)
                self._gone.add(path)
            elif self._gone:
                self._gone.discard(path)


Ended = dict[int, tuple[Seen, int | None]]  # who ended since the last read, with its parent's pid, by its own


class ProcessTable:
    """Reads frames of `use.processes` in order; can be given more later. Nothing is ever taken back."""

    def __init__(self, period_s: float, boot_offset_ns: int | None) -> None:
        self.alive: dict[int, Seen] = {}
        self.whole_machine = False  # whether all processes of the machine are in the table, and not only some trees
        self.first_ns: int | None = None  # where the first read's interval begins
        self.last_ns: int | None = None  # when it was read last
        self.bridged_ns: tuple[int, int] | None = None  # before the first read, since one that went before
        self.hidden: set[int] = set()  # processes of which nothing is reported, or their CPU time only
        self._exits = False
        self._period_ns = int(period_s * NS)
        self._boot_offset_ns = boot_offset_ns
        self._known: dict[tuple[int, int | None], ProcessFacts] = {}
        self._exited: dict[int | str, ProcessFacts] = {}
        self._count = 0
        self._goes_on = False
        self.cgroups = CgroupTable()
        self._low_ns = 0  # where the interval of the last read begins
        self._groups_read = False  # what groups used is known from their second reading on
        self._in_groups_s: dict[str, float] = {}  # used by processes of groups since those were read
        self._placeless_s = 0.0  # and by processes that ended, of which no group is known
        self._beyond_s: dict[str, float] = {}  # what groups have used beyond that, not charged yet

    # What becomes of it.

    def _interval(self, low_ns: int, at_ns: int) -> None:
        """A read: what follows was used between these instants."""

    def _began(self, facts: ProcessFacts, at_ns: int) -> None:
        """Facts of a process, or of what stands in for some, that were not known before."""

    def _ended(self, facts: ProcessFacts, at_ns: int) -> None:
        """A process ended, or was moved to another cgroup where it goes on as another."""

    def _holds(self, name: str, facts: ProcessFacts, at_ns: int, value: float) -> None:
        """What a process holds of the memory is another since an instant: `rss_bytes`, `pss_bytes` or `uss_bytes`."""

    def _used(
        self, whose: Sequence[ProcessFacts], low_ns: int, at_ns: int, cpu_s: Sequence[float], cpus: Sequence[int]
    ) -> None:
        """CPU seconds of many processes in the interval of the read."""
        raise NotImplementedError

    def _used_by(self, use: CpuRecord) -> None:
        """CPU seconds of one process between two instants."""
        raise NotImplementedError

    def _used_since(self, facts: ProcessFacts, began_ns: int, at_ns: int, cpu_s: float) -> None:
        """CPU seconds of one that was read for the first time, since its beginning, which may be long ago."""
        self._used_by(CpuRecord(facts, began_ns, at_ns, cpu_s, young=True))

    def _made(self, new: bool, used_s: float) -> None:
        """CPU seconds of a group that was made for a command, since it was last reported."""

    def _is_owner(self, path: str) -> bool:
        """Whether a group is a job, a container or a unit."""
        return bool(places_of(path))

    # Groups.

    def feed_cgroups(self, rows: Sequence[TableRow]) -> None:
        """Rows of `use.cgroups`, which are read after the processes.

        What groups used beyond their processes was used by some that came and went. Inner groups come first: what is in
        them is in the outer ones too. A group that was made for a command is counted by itself.
        """
        self._groups_read = True
        used_s: dict[str, float] = {}
        made = False
        for path, for_command, new, more_s in self.cgroups.feed(rows):
            if for_command:
                self._made(new, more_s)
                made = True
            elif path != "/" and not new:  # of a new group neither its own past nor that of its processes counts
                used_s[path] = used_s.get(path, 0.0) + more_s
        known_s: dict[str, float] = {}
        for path, seconds in self._in_groups_s.items():
            _add_upwards(known_s, path, seconds)
        placeless_s, self._in_groups_s, self._placeless_s = self._placeless_s, {}, 0.0
        if not self.whole_machine or self.hidden or made or self.last_ns is None:
            return  # what groups have beyond their processes may be of some that live and are not listed
        for path in sorted(used_s, key=lambda path: -path.count("/")):
            beyond_s = self._beyond_s.get(path, 0.0) + used_s[path] - known_s.get(path, 0.0)
            if beyond_s > LITTLE_S and self._is_owner(path):
                known = min(beyond_s, placeless_s)
                placeless_s -= known
                _add_upwards(known_s, path, beyond_s)
                if beyond_s > known:
                    stand_in = self._group_stand_in(path)
                    self._used_by(CpuRecord(stand_in, self._low_ns, self.last_ns, beyond_s - known, True, True))
                beyond_s = 0.0
            self._beyond_s[path] = max(min(beyond_s, LITTLE_S), -MOST_BEHIND_S)

    def _group_stand_in(self, path: str) -> ProcessFacts:
        """The facts of processes of a group that came and went between two reads."""
        found = self._exited.get(path)
        if found is None:
            uids = (place.details.get("uid") for place in places_of(path).values())
            name = path.rpartition("/")[2]
            facts = ProcessFacts(0, None, f"short-lived processes in {name}", uid=next(filter(None, uids), None))
            facts.cgroup, facts.exited, facts.more["of"] = path, True, name
            found = self._exited[path] = self._number(facts)
        return found

    def _note(self, facts: ProcessFacts, cpu_s: float) -> None:
        if not self._groups_read:
            return  # where groups are never read there is nothing to compare it with, and it would grow
        if facts.cgroup is not None:
            self._in_groups_s[facts.cgroup] = self._in_groups_s.get(facts.cgroup, 0.0) + cpu_s
        elif facts.exited:
            self._placeless_s += cpu_s

    def _charge(self, use: CpuRecord) -> None:
        self._note(use.facts, use.cpu_s)
        self._used_by(use)

    # Rows.

    def feed(self, at_ns: int, rows: Sequence[TableRow]) -> None:
        """Take the rows of one instant, which is after all instants before."""
        if self.last_ns is not None and at_ns <= self.last_ns:
            return
        goes_on, self._goes_on = self._goes_on, False
        low_ns = self.last_ns
        if low_ns is None or (low_ns < at_ns - int(LATE * self._period_ns) and not goes_on):
            low_ns = at_ns - self._period_ns
        self.first_ns = low_ns if self.first_ns is None else self.first_ns
        self.last_ns = at_ns
        self._low_ns = low_ns
        self._interval(low_ns, at_ns)
        self.bridged_ns = (low_ns, at_ns) if goes_on else self.bridged_ns
        gains: dict[int, float] = {}
        went: Ended = {}
        whose: list[ProcessFacts] = []
        amounts: list[float] = []
        cpus: list[int] = []
        for row in rows:
            seen = self.alive.get(row["pid"])
            if seen is None or row.get("start") != seen.start or "gone" in row or "exit" in row:
                self._row(row, low_ns, at_ns, gains, went)
                continue
            if (used_s := self._again(seen, row, at_ns, gains)) > 0:
                whose.append(seen.facts)
                amounts.append(used_s)
                cpus.append(seen.cpu)
        if goes_on:  # a recorder that begins reports all processes: those missing have ended
            reported = {row["pid"] for row in rows}
            for pid in self.alive.keys() - reported:
                self._leave(self.alive[pid], pid, at_ns, went)
        in_groups_s = self._in_groups_s
        for facts, used_s in zip(whose, amounts, strict=True) if self._groups_read else ():
            if facts.cgroup is not None:
                in_groups_s[facts.cgroup] = in_groups_s.get(facts.cgroup, 0.0) + used_s
        self._used(whose, low_ns, at_ns, amounts, cpus)
        if not self._exits:
            self._came_and_went(gains, went, low_ns, at_ns)
        for pid, (seen, _) in went.items():
            if self.alive.get(pid) is seen:
                del self.alive[pid]

    def _leave(self, seen: Seen, key: int, at_ns: int, went: Ended) -> None:
        went[key] = (seen, seen.facts.ppid)
        self._ended(seen.facts, at_ns)

    def _again(self, seen: Seen, row: TableRow, at_ns: int, gains: dict[int, float]) -> float:
        """A process that is known: what it used since it was last reported, never below zero."""
        cpu_s = row.get("cpu_s")
        if cpu_s is None:
            return 0.0
        facts = seen.facts
        if facts.cgroup is not None and row.get("cgroup", facts.cgroup) != facts.cgroup:
            facts = self._move(seen, at_ns)
            facts.take(row)
        elif len(row) > PLAIN_ROW or row.get("ppid") != facts.ppid or row.get("name") != facts.name or facts.meter:
            if facts.ppid is None:  # known from a state file only
                self._child(facts, row)
            facts.take(row)
        used_s = seen.recent_s = float(max(cpu_s - seen.cpu_s, 0.0))
        seen.cpu_s = cpu_s
        children_s = row.get("children_cpu_s") or 0.0
        if children_s != seen.children_s:
            if children_s > seen.children_s:
                gains[facts.pid] = children_s - seen.children_s
            seen.children_s = children_s
        self._sizes(seen, row, at_ns)
        return used_s

    def _sizes(self, seen: Seen, row: TableRow, at_ns: int) -> None:
        seen.threads = row.get("threads") or 1
        seen.cpu = row.get("cpu", -1) if seen.threads == 1 else -1
        rss = row.get("rss_bytes")
        if rss is not None and rss != seen.rss_bytes:
            seen.rss_bytes = rss
            self._holds("rss_bytes", seen.facts, at_ns, rss)
        if len(row) != PLAIN_ROW:  # those of imports have fewer
            for name in ("pss_bytes", "uss_bytes"):
                if row.get(name) is not None:
                    self._holds(name, seen.facts, at_ns, row[name])

    def _move(self, seen: Seen, at_ns: int) -> ProcessFacts:
        """A process that was moved to another cgroup: what it uses from now on belongs there."""
        before = seen.facts
        self._ended(before, at_ns)
        seen.facts, seen.rss_bytes = self._add(replace(before, more=dict(before.more)), at_ns), None
        before.moved = True
        return seen.facts

    def _row(self, row: TableRow, low_ns: int, at_ns: int, gains: dict[int, float], went: Ended) -> None:
        pid, start = int(row["pid"]), row.get("start")
        if pid == 0:
            self.whole_machine = bool(row.get("everything", self.whole_machine))
            self._exits = bool(row.get("exits", self._exits))
            return
        if row.get("exit"):
            self._exit(row, low_ns, at_ns, went)
            return
        seen = self.alive.get(pid)
        if start is None:
            if row.get("hidden"):
                self.hidden.add(pid)
            if row.get("cpu_s") is None and not (row.get("gone") and seen is not None):
                return
        if seen is not None and seen.start != start:
            # The number was given to another process before the end of the first was reported.
            self._leave(seen, -pid, at_ns, went)
            del self.alive[pid]
            seen = None
        if row.get("gone"):
            if seen is not None:
                self._leave(seen, pid, at_ns, went)
            return
        if row.get("cpu_s") is not None:
            self._sizes(self._first(row, at_ns, gains), row, at_ns)

    def _first(self, row: TableRow, at_ns: int, gains: dict[int, float]) -> Seen:
        """A process reported for the first time: what it used since it started counts, if it did so in our time."""
        cpu_s, children_s = float(row["cpu_s"]), float(row.get("children_cpu_s") or 0.0)
        pid, start = int(row["pid"]), row["start"]
        facts = self._known.get((pid, start))
        known = facts is not None
        if facts is None:
            facts = self._add(self._child(ProcessFacts(pid, start), row), at_ns)
        facts.take(row)
        seen = self.alive[pid] = Seen(facts, start, cpu_s, children_s)
        began_ns = self._began_ns(start)
        assert self.first_ns is not None
        if not known and began_ns is not None and began_ns >= self.first_ns - TICK_NS:
            began_ns = min(max(began_ns, self.first_ns), at_ns - 1)
            seen.recent_s = cpu_s
            if cpu_s > 0:
                self._note(facts, cpu_s)
                self._used_since(facts, began_ns, at_ns, cpu_s)
            if children_s > 0:
                gains[pid] = children_s
        return seen

    def _exit(self, row: TableRow, low_ns: int, at_ns: int, went: Ended) -> None:
        """The kernel's record of an end: the final CPU time of a known process, or all there is of one never read."""
        pid, start, cpu_s = int(row["pid"]), row.get("start"), float(row.get("cpu_s") or 0.0)
        seen = self.alive.get(pid)
        if seen is not None and start in (None, seen.start):
            if seen.facts.uid is None:  # known from a state file only, or gone before all of it was read
                seen.facts.take(row)
            self._leave(seen, pid, at_ns, went)
            went[pid] = (seen, row.get("ppid"))
            if cpu_s > seen.cpu_s:
                self._charge(CpuRecord(seen.facts, low_ns, at_ns, cpu_s - seen.cpu_s, last=True, cpu=seen.cpu))
            return
        if (pid, start) in self._known and start is not None:
            return  # its end was already reported
        if cpu_s > 0:
            parent = self.alive.get(row["ppid"]) if row.get("ppid") is not None else None
            facts = self._stand_in(parent, at_ns, str(row.get("name") or "?"), row.get("uid"))
            began_ns = self._began_ns(start) or low_ns
            self._charge(CpuRecord(facts, min(max(began_ns, low_ns), at_ns - 1), at_ns, cpu_s, last=True, young=True))

    def _came_and_went(self, gains: dict[int, float], went: Ended, low_ns: int, at_ns: int) -> None:
        """Charge what parents got from children beyond what was known of those."""
        pools: dict[int, list[Seen]] = {}
        for seen, ppid in went.values():
            steps = 0
            while ppid in went and steps < len(went):
                ppid, steps = went[ppid][1], steps + 1
            if ppid in gains:
                pools.setdefault(ppid, []).append(seen)
        for pid, gain in gains.items():
            gone = pools.get(pid, [])
            left_s = gain - sum(seen.cpu_s + seen.children_s for seen in gone)
            if left_s <= 0:
                continue
            weight = sum(seen.recent_s + 0.01 for seen in gone)
            for seen in gone:
                most_s = (at_ns - low_ns) / NS * seen.threads
                part_s = min(left_s * (seen.recent_s + 0.01) / weight, most_s)
                self._charge(CpuRecord(seen.facts, low_ns, at_ns, part_s, last=True, cpu=seen.cpu))
                gain -= part_s
            rest_s = gain - sum(seen.cpu_s + seen.children_s for seen in gone)
            if rest_s > 1e-9:
                facts = self._stand_in(self.alive[pid], at_ns)
                self._charge(CpuRecord(facts, low_ns, at_ns, rest_s, last=True, young=True))

    def _stand_in(self, parent: Seen | None, at_ns: int, name: str = "", uid: int | None = None) -> ProcessFacts:
        """The facts of "children of … that came and went"; one for each parent, or for each name without one."""
        key = name if parent is None else parent.facts.number
        found = self._exited.get(key)
        if found is None:
            if parent is None:
                facts = ProcessFacts(0, None, f"{name}, short-lived", uid=uid, exited=True)
            else:
                of = parent.facts
                facts = ProcessFacts(of.pid, of.start, "", of.pid, None, of.uid, of.cgroup, of.meter, parent=of.number)
                facts.tree = of.tree
                facts.exited, facts.meter, facts.user = True, of.meter and not of.reaper, of.user
                name = "the command" if of.reaper else of.name
                facts.name = f"short-lived children of {name}"
            facts.more["of"] = name
            found = self._exited[key] = self._number(facts)
        return found

    def _child(self, facts: ProcessFacts, row: TableRow) -> ProcessFacts:
        """A process with the parent that it has when it is first reported."""
        parent = self.alive.get(row.get("ppid", 0))
        if parent is not None:
            facts.parent = parent.facts.number
            facts.tree = facts.tree if parent.facts.pid in NO_PROGRAMS else parent.facts.tree
        return facts

    def _add(self, facts: ProcessFacts, at_ns: int) -> ProcessFacts:
        self._known[facts.pid, facts.start] = self._number(facts)
        self._began(facts, at_ns)
        return facts

    def _number(self, facts: ProcessFacts) -> ProcessFacts:
        facts.number, self._count = self._count, self._count + 1
        if facts.tree < 0:
            facts.tree = facts.number
        return facts

    def _began_ns(self, start: int | None) -> int | None:
        if start is None or self._boot_offset_ns is None:
            return None
        return start * TICK_NS - self._boot_offset_ns


def _add_upwards(sums: dict[str, float], path: str, amount: float) -> None:
    """Add to the sum of a group and of all groups around it."""
    while path:
        sums[path] = sums.get(path, 0.0) + amount
        path = path.rpartition("/")[0]
