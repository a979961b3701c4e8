"""CPU seconds of processes on a timeline: what `ledger.use.processes` finds in a table, kept by process and time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.processes import ProcessTable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
        self._made: Records | None = None

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

    def feed(self, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        """Take the rows that were told at one instant, which is after all instants before."""
        if self.last_ns is not None and at_ns <= self.last_ns:
            return
        super().feed(at_ns, rows)
        self.everything[-1] = self.everybody
        self._made = None

    def _interval(self, low_ns: int, at_ns: int) -> None:
        if self.edges[-1:] != [low_ns]:
            self._edge(low_ns)
        self._edge(at_ns)

    def _edge(self, at_ns: int) -> None:
        self.edges.append(at_ns)
        self.everything.append(self.everybody)

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
                self._used_by(facts, left, right, part_s, young=left == began_ns)

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

    def _used_by(
        self,
        facts: ProcessFacts,
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
        row = (place, facts.number, from_ns, to_ns, cpu_s, last, young, cpu)
        for column, value in zip(self._columns, row, strict=True):
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
        if self._made is None:
            place, number, from_ns, to_ns, cpu_s, last, young, cpu = (np.array(column) for column in self._columns)
            order = np.argsort(place, kind="stable")
            flags = last.astype(np.bool_)[order], young.astype(np.bool_)[order]
            amounts = place[order], number[order], from_ns[order], to_ns[order], cpu_s[order]
            self._made = Records(*amounts, *flags, cpu[order])
        return self._made
