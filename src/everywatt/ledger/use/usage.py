"""Use over time, from the tables and channels of a tape: processes (CPU seconds, memory), tenants of GPUs, busy time.

All of it can be given more later, while the tape grows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.processes import CpuRecord, ProcessTable
from everywatt.ledger.use.tenants import GpuTable, Tenant
from everywatt.sensors.base import TableRow
from everywatt.tape.columns import Flags, Floats, Ints, load_columns
from everywatt.tape.reader import StoredGroup, Tape

HOST_BUSY, HOST_IDLE = "host.cpu_time", "host.idle_time"


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
    last: Flags
    young: Flags
    cpu: Ints


class ProcessUse(ProcessTable):
    """Reads frames of `use.processes` in order; can be given more later. Nothing is ever taken back."""

    def __init__(self, period_s: float, boot_offset_ns: int | None) -> None:
        super().__init__(period_s, boot_offset_ns)
        self.processes: list[ProcessFacts] = []
        self.edges: list[int] = []
        self.everything: list[bool] = []
        self.seen: dict[int, list[tuple[int, int]]] = {}  # pid: when processes of that number were first seen
        self.memory: dict[str, tuple[array[int], array[int], array[float]]] = {}
        self._columns = (array("q"), array("q"), array("q"), array("q"), array("d"), array("b"), array("b"), array("q"))
        self._sorted: Records | None = None
        self._made_at = array("q")  # when a group that was made for the command was reported
        self._made_s = array("d")  # and what it had used by then

    def go_on_from(self, before: ProcessUse) -> None:
        """Begin where the segment before ended: what processes used since is known from their own counters."""
        if not before.edges or self.edges:
            return
        self._edge(before.edges[-1])
        self.first_ns = self.last_ns = before.edges[-1]
        self.processes = [replace(facts, more=dict(facts.more)) for facts in before.processes]
        self.seen = {pid: list(found) for pid, found in before.seen.items()}
        self._known = {key: self.processes[facts.number] for key, facts in before._known.items()}
        self._exited = {key: self.processes[facts.number] for key, facts in before._exited.items()}
        self.alive = {pid: replace(seen, facts=self.processes[seen.facts.number]) for pid, seen in before.alive.items()}
        self._count = len(self.processes)
        self._goes_on = True

    def end_with(self, at_ns: int, rows: Sequence[TableRow]) -> None:
        """What the segment after this one reported first: all processes at that time."""
        self._goes_on = True
        self.feed(at_ns, rows)

    def feed(self, at_ns: int, rows: Sequence[TableRow]) -> None:
        """Take the rows of one instant, which is after all instants before."""
        if self.last_ns is not None and at_ns <= self.last_ns:
            return
        super().feed(at_ns, rows)
        self.everything[-1] = self.whole_machine
        self._sorted = None

    def feed_groups_at(self, at_ns: int, rows: Sequence[TableRow]) -> None:
        """Rows of `use.cgroups` of one instant."""
        self._groups_ns = at_ns
        self.feed_cgroups(rows)
        self._sorted = None

    def _made(self, new: bool, used_s: float) -> None:
        at_ns, whole_s = self._groups_ns, self._made_s[-1] if self._made_s else 0.0
        if new and (not self._made_at or self._made_at[-1] < at_ns - NS):
            # It was made less than a period ago, and had used nothing then.
            self._made_at.append(at_ns - NS)
            self._made_s.append(whole_s)
        self._made_at.append(at_ns)
        self._made_s.append(whole_s + used_s)

    def made_use(self, starts_ns: Ints, ends_ns: Ints) -> Floats | None:
        """CPU seconds of the groups that were made for the command in each stretch; None if no such group exists."""
        if len(self._made_at) < 2:
            return None
        at, counted = np.array(self._made_at), np.array(self._made_s)
        return np.asarray(np.interp(ends_ns, at, counted) - np.interp(starts_ns, at, counted), dtype=np.float64)

    def _interval(self, low_ns: int, at_ns: int) -> None:
        if self.edges[-1:] != [low_ns]:
            self._edge(low_ns)
        self._edge(at_ns)

    def _edge(self, at_ns: int) -> None:
        self.edges.append(at_ns)
        self.everything.append(self.whole_machine)

    def _number(self, facts: ProcessFacts) -> ProcessFacts:
        self.processes.append(facts)
        return super()._number(facts)

    def _began(self, facts: ProcessFacts, at_ns: int) -> None:
        self.seen.setdefault(facts.pid, []).append((at_ns, facts.number))

    def _ended(self, facts: ProcessFacts, at_ns: int) -> None:
        for name in self.memory:
            self._holds(name, facts, at_ns, 0.0)

    def _used_since(self, facts: ProcessFacts, began_ns: int, at_ns: int, cpu_s: float) -> None:
        """One record for each stretch of the timeline between two instants."""
        first = bisect_right(self.edges, began_ns)
        cuts = [began_ns, *self.edges[first:-1], at_ns]
        for left, right in pairwise(cuts):
            if right > left:
                part_s = cpu_s * (right - left) / (at_ns - began_ns)
                self._used_by(CpuRecord(facts, left, right, part_s, young=left == began_ns))

    def _used(
        self, whose: Sequence[ProcessFacts], low_ns: int, at_ns: int, cpu_s: Sequence[float], cpus: Sequence[int]
    ) -> None:
        place, number, begin, end, used, last, young, cpu = self._columns
        count, none = len(whose), bytes(len(whose))
        place.extend([len(self.edges) - 2] * count)
        number.extend([facts.number for facts in whose])
        begin.extend([low_ns] * count)
        end.extend([at_ns] * count)
        used.extend(cpu_s)
        last.extend(none)
        young.extend(none)
        cpu.extend(cpus)

    def _used_by(self, use: CpuRecord) -> None:
        place = len(self.edges) - 2
        while place > 0 and self.edges[place] >= use.to_ns:
            place -= 1
        for column, value in zip(self._columns, (place, use.facts.number, *use[1:]), strict=True):
            column.append(value)  # type: ignore[attr-defined]

    def _holds(self, name: str, facts: ProcessFacts, at_ns: int, value: float) -> None:
        if name not in self.memory:
            self.memory[name] = (array("q"), array("q"), array("d"))
        numbers, times, values = self.memory[name]
        numbers.append(facts.number)
        times.append(at_ns)
        values.append(value)

    @property
    def records(self) -> Records:
        """All records so far, in order of their stretch."""
        if self._sorted is None:
            place, number, from_ns, to_ns, cpu_s, last, young, cpu = (np.array(column) for column in self._columns)
            order = np.argsort(place, kind="stable")
            flags = last.astype(np.bool_)[order], young.astype(np.bool_)[order]
            amounts = place[order], number[order], from_ns[order], to_ns[order], cpu_s[order]
            self._sorted = Records(*amounts, *flags, cpu[order])
        return self._sorted


class GpuUse:
    """Reads frames of `nvml.processes` in order. For each GPU: stretches with the tenants of each."""

    def __init__(self, period_s: float) -> None:
        self._table = GpuTable(period_s)
        self.edges: dict[int, list[int]] = {}
        self.tenants: dict[int, list[tuple[Tenant, ...]]] = {}

    def feed(self, at_ns: int, rows: Sequence[TableRow]) -> None:
        """Take the rows of one instant. A row's use is of the period that ends there."""
        for gpu, start_ns, end_ns, tenants in self._table.feed(at_ns, rows):
            self.edges.setdefault(gpu, [start_ns]).append(end_ns)
            self.tenants.setdefault(gpu, []).append(tenants)

    def at(self, gpu: int, instants_ns: Ints) -> list[tuple[Tenant, ...]]:
        """Tenants at each instant; those that were reported last are still there."""
        edges, kept = self.edges.get(gpu), self.tenants.get(gpu)
        if not edges or not kept:
            return [()] * len(instants_ns)
        places = np.searchsorted(edges, instants_ns, side="right") - 1
        now = self._table.now(gpu)
        return [() if place < 0 else kept[place] if place < len(kept) else now for place in places.tolist()]


class Series:
    """One channel's finite values with the instants they belong to, oldest first."""

    def __init__(self, group: StoredGroup, name: str) -> None:
        self.group, self.name = group, name
        self.at_ns: Ints = np.empty(0, dtype=np.int64)
        self.values: Floats = np.empty(0)
        self._rising: Floats = np.empty(0)

    def update(self, tape: Tape) -> None:
        """Take the rows that came since."""
        start_ns = int(self.at_ns[-1]) if len(self.at_ns) else None
        columns = load_columns(tape, self.group.id, [self.name], start_ns, None, tight=True)
        values = columns.values[self.name]
        new = np.isfinite(values)
        if start_ns is not None:
            new &= columns.published > start_ns
        if new.any():
            self.at_ns = np.concatenate((self.at_ns, columns.published[new]))
            self.values = np.concatenate((self.values, values[new]))

    def end_with(self, later: Series) -> None:
        """Take the first value that another segment has beyond these."""
        beyond = np.flatnonzero(later.at_ns > (self.at_ns[-1] if len(self.at_ns) else 0))[:1]
        self.at_ns = np.concatenate((self.at_ns, later.at_ns[beyond]))
        self.values = np.concatenate((self.values, later.values[beyond]))

    def rising(self) -> Floats:
        """A counter's values without steps back: what it had counted in all, a fall counting for nothing."""
        if len(self._rising) != len(self.values):
            self._rising = np.concatenate(([0.0], np.cumsum(np.maximum(np.diff(self.values), 0.0))))
        return self._rising

    def used(self, starts_ns: Ints, ends_ns: Ints) -> Floats:
        """What a counter counted in each stretch; NaN where it says nothing."""
        if len(self.at_ns) < 2:
            return np.full(len(starts_ns), np.nan)
        counted = self.rising()
        used = np.interp(ends_ns, self.at_ns, counted) - np.interp(starts_ns, self.at_ns, counted)
        # Before the first and after the last reading the rate of what is known is taken on.
        inside = np.clip(ends_ns, self.at_ns[0], self.at_ns[-1]) - np.clip(starts_ns, self.at_ns[0], self.at_ns[-1])
        whole = ends_ns - starts_ns
        return np.where(inside > 0.2 * whole, used * whole / np.maximum(inside, 1), np.nan)

    def mean(self, edges_ns: Ints) -> Floats:
        """A gauge's mean between neighbouring edges, each value held backwards; NaN where it says nothing."""
        if not len(self.at_ns):
            return np.full(max(len(edges_ns) - 1, 0), np.nan)
        sums = np.concatenate(([0.0], np.cumsum(self.values)))
        at = np.searchsorted(self.at_ns, edges_ns, side="right")
        count = np.diff(at)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.diff(sums[at]) / count
        nearest = self.values[np.clip(at[1:], 0, len(self.values) - 1)]
        return np.where(count > 0, means, nearest)


def find_series(tape: Tape, name: str) -> Series | None:
    """The series of a channel, still empty; None where the tape has no such channel."""
    for group in tape.groups:
        if any(channel.name == name for channel in group.info.channels):
            return Series(group, name)
    return None


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of each process (by its number): the mean over the windows, and the most at any read in them."""

    mean_bytes: Floats
    peak_bytes: Floats


def memory_held(use: ProcessUse, name: str, windows: Sequence[tuple[int, int]]) -> Held | None:
    """What processes held of `rss_bytes`, `pss_bytes` or `uss_bytes`; None where it was not recorded.

    A value holds from the read that reported it until the next. Many windows are taken as one from first to last.
    """
    if name not in use.memory or not windows:
        return None
    count = len(use.processes)
    number, at_ns, value = (np.array(column) for column in use.memory[name])
    order = np.lexsort((at_ns, number))
    number, at_ns, value = number[order], at_ns[order], value[order]
    same = np.append(number[1:] == number[:-1], False)
    until_ns = np.where(same, np.append(at_ns[1:], 0), windows[-1][1])
    mean, peak = np.zeros(count), np.zeros(count)
    hull = windows if len(windows) <= 16 else [(windows[0][0], windows[-1][1])]
    for start_ns, end_ns in hull:
        overlap = np.clip(np.minimum(until_ns, end_ns) - np.maximum(at_ns, start_ns), 0, None)
        mean += np.bincount(number, value * overlap, count)
        np.maximum.at(peak, number[overlap > 0], value[overlap > 0])
    return Held(mean / max(sum(end - start for start, end in hull), 1), peak)
