"""Where in a sealed tape the inline reads of a time are: the table has no index, and windows ask it again and again."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class EdgeIndex:
    """Row numbers of inline reads by group and time, from (group, number, read_ns) in the order of the numbers."""

    def __init__(self, rows: Iterable[tuple[int, int, int]]) -> None:
        self._ids: dict[int, array[int]] = {}
        # Threads read nearly in order: what counts is the latest time up to a row, and the soonest from it on.
        self._latest: dict[int, array[int]] = {}
        self._soonest: dict[int, array[int]] = {}
        for group, number, read_ns in rows:
            latest = self._latest.setdefault(group, array("q"))
            self._ids.setdefault(group, array("q")).append(number)
            self._soonest.setdefault(group, array("q")).append(read_ns)
            latest.append(max(read_ns, latest[-1]) if latest else read_ns)
        for soonest in self._soonest.values():
            for place in range(len(soonest) - 2, -1, -1):
                soonest[place] = min(soonest[place], soonest[place + 1])

    def between(self, group: int, start_ns: int, end_ns: int) -> tuple[int, int] | None:
        """The least and the greatest number that a read of that time may have; None where there is no such read."""
        if group not in self._ids:
            return None
        first = bisect_left(self._latest[group], start_ns)
        last = bisect_right(self._soonest[group], end_ns) - 1
        return (self._ids[group][first], self._ids[group][last]) if first <= last else None
