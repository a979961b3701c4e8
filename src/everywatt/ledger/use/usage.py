"""From rows of `use.processes` to CPU seconds: who used how much between which instants.

Rows are told only where something changed, so what a process used between two reads is the difference of two rows, and
where nothing was told for longer than a period, the use is of the last period. What children used that came and went
between two reads is in their parent's `children_cpu_s`; what of that is not known of a child is charged to the ones
that went, and the rest to a stand-in, "children of NAME that came and went".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.facts import ProcessFacts

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TICK_NS = NS // 100  # `start` is in ticks of 10 ms since boot, on every Linux of today
PLAIN_ROW = 9  # keys of a row with nothing but numbers
LATE = 1.5  # a read that comes later than this many periods is taken for one before which nothing was told


@dataclass(slots=True)
class _Seen:
    """What was last told of a living process."""

    number: int
    start: int | None
    cpu_s: float
    children_s: float
    threads: int = 1
    recent_s: float = 0.0
    rss_bytes: float | None = None
    cpu: int = -1


@dataclass(frozen=True, slots=True)
class Records:
    """CPU seconds of process `number` between two instants that lie in one stretch of the timeline.

    `place` is that stretch; `last` marks what ended in it (so before the end of the run, if that is there too), and
    `young` what began in it. `cpu` is the CPU that it ran on, -1 where that is not known or there are several threads.
    """

    place: Ints
    number: Ints
    from_ns: Ints
    to_ns: Ints
    cpu_s: Floats
    last: npt.NDArray[np.bool_]
    young: npt.NDArray[np.bool_]
    cpu: Ints


class ProcessUse:
    """Reads frames of `use.processes` in order; can be given more later. Nothing is ever taken back."""

    def __init__(self, period_s: float, boot_offset_ns: int | None) -> None:
        self.processes: list[ProcessFacts] = []
        self.edges: list[int] = []
        self.everything: list[bool] = []
        self.hidden: set[int] = set()
        self.seen: dict[int, list[tuple[int, int]]] = {}  # pid: when processes of that number were first seen
        self.memory: dict[str, tuple[array[int], array[int], array[float]]] = {}
        self._period_ns = int(period_s * NS)
        self._boot_offset_ns = boot_offset_ns
        self._numbers: dict[tuple[int, int | None], int] = {}
        self._alive: dict[int, _Seen] = {}
        self._exited: dict[int | str, int] = {}
        self._all = self._exits = False
        self._columns = (array("q"), array("q"), array("q"), array("q"), array("d"), array("b"), array("b"), array("q"))
        self._made: Records | None = None
        self.bridged_ns: tuple[int, int] | None = None  # between two segments, where nothing was recorded
        self._goes_on = False

    def go_on_from(self, before: ProcessUse) -> None:
        """Begin where the segment before ended: what processes used since is known from their own counters."""
        if not before.edges or self.edges:
            return
        self._edge(before.edges[-1])
        self.processes = [replace(facts, more=dict(facts.more)) for facts in before.processes]
        self.seen = {pid: list(found) for pid, found in before.seen.items()}
        self._numbers, self._exited = dict(before._numbers), dict(before._exited)
        self._alive = {pid: replace(seen) for pid, seen in before._alive.items()}
        self._goes_on = True

    def feed(self, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        """Take the rows that were told at one instant, which is after all instants before."""
        if self.edges and at_ns <= self.edges[-1]:
            return
        goes_on, self._goes_on = self._goes_on, False
        if not self.edges or (self.edges[-1] < at_ns - int(LATE * self._period_ns) and not goes_on):
            self._edge(at_ns - self._period_ns)
        low_ns = self.edges[-1]
        self._edge(at_ns)
        if goes_on:
            self.bridged_ns = low_ns, at_ns
        gains: dict[int, float] = {}
        went: dict[int, tuple[_Seen, int | None]] = {}
        numbers: list[int] = []
        amounts: list[float] = []
        cpus: list[int] = []
        for row in rows:
            seen = self._alive.get(row["pid"])
            if seen is None or row.get("start") != seen.start or "gone" in row or "exit" in row:
                self._row(row, low_ns, at_ns, gains, went)
                continue
            if (used_s := self._again(seen, row, at_ns, gains)) > 0:
                numbers.append(seen.number)
                amounts.append(used_s)
                cpus.append(seen.cpu)
        if goes_on:  # a recorder that begins tells of everything: who is missing has ended meanwhile
            told = {row["pid"] for row in rows}
            for pid in self._alive.keys() - told:
                seen = self._alive[pid]
                went[pid] = (seen, self.processes[seen.number].ppid)
                self._forget(seen.number, at_ns)
        self._record_all(numbers, low_ns, at_ns, amounts, cpus)
        self.everything[-1] = self._all
        if not self._exits:
            self._came_and_went(gains, went, low_ns, at_ns)
        for pid, (seen, _) in went.items():
            if self._alive.get(pid) is seen:
                del self._alive[pid]
        self._made = None

    def _again(self, seen: _Seen, row: dict[str, Any], at_ns: int, gains: dict[int, float]) -> float:
        """A process that is known: what it used since it was last told of, never below zero."""
        cpu_s = row.get("cpu_s")
        if cpu_s is None:
            return 0.0
        facts = self.processes[seen.number]
        if facts.cgroup is not None and row.get("cgroup", facts.cgroup) != facts.cgroup:
            facts = self._move(seen, at_ns)
            facts.take(row)
        elif len(row) > PLAIN_ROW or row.get("ppid") != facts.ppid or row.get("name") != facts.name or facts.meter:
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

    def _move(self, seen: _Seen, at_ns: int) -> ProcessFacts:
        """A process that was moved to another cgroup: what it uses from now on belongs there."""
        before = self.processes[seen.number]
        self._forget(seen.number, at_ns)
        seen.number, seen.rss_bytes = self._add(replace(before, more=dict(before.more))), None
        before.moved = True
        self.seen.setdefault(before.pid, []).append((at_ns, seen.number))
        return self.processes[seen.number]

    def _sizes(self, seen: _Seen, row: dict[str, Any], at_ns: int) -> None:
        seen.threads = row.get("threads") or 1
        seen.cpu = row.get("cpu", -1) if seen.threads == 1 else -1
        rss = row.get("rss_bytes")
        if rss is not None and rss != seen.rss_bytes:
            seen.rss_bytes = rss
            self._remember("rss_bytes", seen.number, at_ns, rss)
        if len(row) > PLAIN_ROW:
            for name in ("pss_bytes", "uss_bytes"):
                if row.get(name) is not None:
                    self._remember(name, seen.number, at_ns, row[name])

    def _edge(self, at_ns: int) -> None:
        self.edges.append(at_ns)
        self.everything.append(self._all)

    def _row(
        self,
        row: dict[str, Any],
        low_ns: int,
        at_ns: int,
        gains: dict[int, float],
        went: dict[int, tuple[_Seen, int | None]],
    ) -> None:
        pid, start = int(row["pid"]), row.get("start")
        if pid == 0:
            self._all, self._exits = bool(row.get("everything", self._all)), bool(row.get("exits", self._exits))
            return
        if row.get("exit"):
            self._exit(row, low_ns, at_ns, went)
            return
        seen = self._alive.get(pid)
        if start is None:
            if row.get("hidden"):
                self.hidden.add(pid)
            if row.get("cpu_s") is None and not (row.get("gone") and seen is not None):
                return
        if seen is not None and self.processes[seen.number].start != start:
            # The number was given to another process before the end of the first was told.
            went[-pid] = (seen, self.processes[seen.number].ppid)
            self._forget(seen.number, at_ns)
            del self._alive[pid]
            seen = None
        if row.get("gone"):
            if seen is not None:
                went[pid] = (seen, self.processes[seen.number].ppid)
                self._forget(seen.number, at_ns)
            return
        if row.get("cpu_s") is None:
            return
        self._sizes(self._first(row, at_ns, gains), row, at_ns)

    def _first(self, row: dict[str, Any], at_ns: int, gains: dict[int, float]) -> _Seen:
        """A process told of for the first time: what it used since it started counts, if that was on the tape."""
        cpu_s, children_s = float(row["cpu_s"]), float(row.get("children_cpu_s") or 0.0)
        pid, start = int(row["pid"]), row["start"]
        number = self._numbers.get((pid, start))
        known = number is not None
        if number is None:
            number = self._add(ProcessFacts(pid, start, parent=self._number_of(row.get("ppid"))))
            self.seen.setdefault(pid, []).append((at_ns, number))
        self.processes[number].take(row)
        seen = self._alive[pid] = _Seen(number, start, cpu_s, children_s)
        began_ns = self._began_ns(start)
        if not known and began_ns is not None and began_ns >= self.edges[0] - TICK_NS:
            began_ns = min(max(began_ns, self.edges[0]), at_ns - 1)
            seen.recent_s = cpu_s
            if cpu_s > 0:
                self._spread(number, began_ns, at_ns, cpu_s)
            if children_s > 0:
                gains[pid] = children_s
        return seen

    def _exit(self, row: dict[str, Any], low_ns: int, at_ns: int, went: dict[int, tuple[_Seen, int | None]]) -> None:
        """The kernel's record of an end: the final CPU time of a known process, or all there is of one never read."""
        pid, start, cpu_s = int(row["pid"]), row.get("start"), float(row.get("cpu_s") or 0.0)
        seen = self._alive.get(pid)
        if seen is not None and start in (None, self.processes[seen.number].start):
            went[pid] = (seen, row.get("ppid"))
            self._forget(seen.number, at_ns)
            if cpu_s > seen.cpu_s:
                self._record(seen.number, low_ns, at_ns, cpu_s - seen.cpu_s, last=True, cpu=seen.cpu)
            return
        if (pid, start) in self._numbers and start is not None:
            return  # its end was told already
        if cpu_s > 0:
            parent = self._number_of(row.get("ppid"))
            number = self._stand_in(parent, str(row.get("name") or "?"), row.get("uid"))
            began_ns = self._began_ns(start) or low_ns
            self._record(number, min(max(began_ns, low_ns), at_ns - 1), at_ns, cpu_s, last=True, young=True)

    def _came_and_went(
        self, gains: dict[int, float], went: dict[int, tuple[_Seen, int | None]], low_ns: int, at_ns: int
    ) -> None:
        """Charge what parents got from children beyond what was known of those."""
        pools: dict[int, list[_Seen]] = {}
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
                self._record(seen.number, low_ns, at_ns, part_s, last=True, cpu=seen.cpu)
                gain -= part_s
            rest_s = gain - sum(seen.cpu_s + seen.children_s for seen in gone)
            if rest_s > 1e-9:
                number = self._stand_in(self._alive[pid].number)
                self._record(number, low_ns, at_ns, rest_s, last=True, young=True)

    def _stand_in(self, parent: int | None, name: str = "", uid: int | None = None) -> int:
        """The number of "children of … that came and went"; one for each parent, or for each name without one."""
        key = name if parent is None else parent
        number = self._exited.get(key)
        if number is None:
            if parent is None:
                facts = ProcessFacts(0, None, f"{name}, short-lived", uid=uid, exited=True)
                facts.more["of"] = name
            else:
                of = self.processes[parent]
                facts = ProcessFacts(of.pid, of.start, "", of.pid, None, of.uid, of.cgroup, of.meter, parent=parent)
                facts.exited, facts.meter = True, of.meter and not of.reaper
                of_whom = "the command" if of.reaper else of.name
                facts.name = f"short-lived children of {of_whom}"
            number = self._exited[key] = len(self.processes)
            self.processes.append(facts)
        return number

    def _add(self, facts: ProcessFacts) -> int:
        number = self._numbers[facts.pid, facts.start] = len(self.processes)
        self.processes.append(facts)
        return number

    def _number_of(self, pid: int | None) -> int | None:
        seen = self._alive.get(pid) if pid is not None else None
        return None if seen is None else seen.number

    def _began_ns(self, start: int | None) -> int | None:
        if start is None or self._boot_offset_ns is None:
            return None
        return start * TICK_NS - self._boot_offset_ns

    def _spread(self, number: int, from_ns: int, to_ns: int, cpu_s: float) -> None:
        """One record for each stretch of the timeline between two instants."""
        first = int(np.searchsorted(self.edges, from_ns, side="right"))
        cuts = [from_ns, *self.edges[first:-1], to_ns]
        for left, right in pairwise(cuts):
            if right > left:
                part_s = cpu_s * (right - left) / (to_ns - from_ns)
                self._record(number, left, right, part_s, young=left == from_ns)

    def _record_all(
        self, numbers: Sequence[int], from_ns: int, to_ns: int, cpu_s: Sequence[float], cpus: Sequence[int]
    ) -> None:
        """Records of many processes between the last two edges."""
        place, number, begin, end, used, last, young, cpu = self._columns
        count, none = len(numbers), bytes(len(numbers))
        place.extend([len(self.edges) - 2] * count)
        number.extend(numbers)
        begin.extend([from_ns] * count)
        end.extend([to_ns] * count)
        used.extend(cpu_s)
        last.extend(none)
        young.extend(none)
        cpu.extend(cpus)

    def _record(
        self,
        number: int,
        from_ns: int,
        to_ns: int,
        cpu_s: float,
        *,
        last: bool = False,
        young: bool = False,
        cpu: int = -1,
    ) -> None:
        place = len(self.edges) - 2
        while place > 0 and self.edges[place] >= to_ns:
            place -= 1
        for column, value in zip(self._columns, (place, number, from_ns, to_ns, cpu_s, last, young, cpu), strict=True):
            column.append(value)  # type: ignore[attr-defined]

    def _remember(self, name: str, number: int, at_ns: int, value: float) -> None:
        if name not in self.memory:
            self.memory[name] = (array("q"), array("q"), array("d"))
        numbers, times, values = self.memory[name]
        numbers.append(number)
        times.append(at_ns)
        values.append(value)

    def _forget(self, number: int, at_ns: int) -> None:
        for name in self.memory:
            self._remember(name, number, at_ns, 0.0)

    @property
    def records(self) -> Records:
        """All records so far, in order of their stretch."""
        if self._made is None:
            place, number, from_ns, to_ns, cpu_s, last, young, cpu = (np.array(column) for column in self._columns)
            order = np.argsort(place, kind="stable")
            flags = last.astype(np.bool_)[order], young.astype(np.bool_)[order]
            amounts = place[order], number[order], from_ns[order], to_ns[order], cpu_s[order]
            self._made = Records(*amounts, *flags, cpu[order])
        return self._made
