"""Who runs what, and in which order: the longest first where sizes are known, so that no GPU waits for a straggler."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, State
from everywatt.core.format import format_count, format_duration
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import Table, columns_of

MOST_LANES = 40  # rows of a table that a person reads


def in_order(items: Sequence[Item]) -> list[Item]:
    """Largest first; items without a size come first of all, since they may be anything, in their own order."""
    if all(item.size is None for item in items):
        return list(items)
    return sorted(items, key=lambda item: (item.size is not None, -(item.size or 0.0), item.index))


@dataclass(frozen=True, slots=True)
class Share(ToDict):
    """What one lane is expected to get. `seconds` is None until something is known of how long items take."""

    JSON = "lane device items=ids size seconds"

    lane: int
    device: str
    items: tuple[Item, ...]
    size: float | None
    seconds: float | None

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.items]


def shares(items: Sequence[Item], devices: Sequence[str], pace: Pace | None = None) -> list[Share]:
    """How the items would spread over lanes if each took its next one when free; really they do just that."""
    pace = pace or Pace()
    free = [(0.0, lane) for lane in range(len(devices))]
    given: list[list[Item]] = [[] for _ in devices]
    for item in in_order(items):
        at, lane = heapq.heappop(free)
        given[lane].append(item)
        heapq.heappush(free, (at + pace.weight(item), lane))
    return [
        Share(
            lane,
            device,
            tuple(mine),
            sum(item.size or 0.0 for item in mine) if any(item.size is not None for item in mine) else None,
            pace.seconds(mine),
        )
        for lane, (device, mine) in enumerate(zip(devices, given, strict=True))
    ]


def plan_table(found: Sequence[Share]) -> Table:
    """The lanes that get something, the first of them where there are many."""
    rows = [
        [
            *(share.lane, share.device, len(share.items), None if share.size is None else f"{share.size:g}"),
            *(share.seconds, ", ".join(share.ids[:3]) + (" …" if len(share.items) > 3 else "")),
        ]
        for share in _busy(found)[:MOST_LANES]
    ]
    return Table.of(*columns_of("lane [], device, items [], size [], time [s], first"), rows=rows)


def plan_lines(found: Sequence[Share]) -> list[str]:
    """What `plan_table` leaves out, summed up; the last line says how much there is to do, where, and for how long."""
    busy = _busy(found)
    idle, rest = len(found) - len(busy), busy[MOST_LANES:]
    lines = []
    if rest:
        items = sum(len(one.items) for one in rest)
        lines.append(f"and {format_count(len(rest), 'more lane')} with {format_count(items, 'item')}")
    if idle:
        lines.append(f"{format_count(idle, 'lane')} of {len(found):,} {'gets' if idle == 1 else 'get'} no items")
    devices = list(dict.fromkeys(one.device for one in busy))
    where = ", ".join([*devices[:8], *(["…"] if len(devices) > 8 else [])])
    words = f"{format_count(sum(len(one.items) for one in busy), 'item')} on {format_count(len(busy), 'lane')}"
    known = [one.seconds for one in busy if one.seconds is not None]
    return [
        *lines,
        words + (f" ({where})" if where else "") + (f", about {format_duration(max(known))}" if known else ""),
    ]


def _busy(found: Sequence[Share]) -> list[Share]:
    return [share for share in found if share.items]


@dataclass(slots=True)
class Pace:
    """How long items take, learnt from those that are done.

    A straight line over size where two sizes or more are known, so that time that does not follow size is not scaled by
    it; neither its slope nor its start-up time is below zero. With one size, lanes are filled as if time
    were proportional to it, and no time is given for other sizes.
    """

    seconds_done: float = 0.0
    items_done: int = 0
    sized: int = 0
    sized_s: float = 0.0
    size_done: float = 0.0
    squares: float = 0.0  # of sizes
    products: float = 0.0  # of sizes and seconds

    def learn(self, item: Item, seconds: float) -> None:
        self.seconds_done += seconds
        self.items_done += 1
        if item.size is not None and item.size > 0:
            self.sized += 1
            self.sized_s += seconds
            self.size_done += item.size
            self.squares += item.size**2
            self.products += item.size * seconds

    def weight(self, item: Item) -> float:
        """A number that grows with how long the item takes; seconds where these are known."""
        if item.size is not None and item.size > 0:
            start_s, slope = self._line()
            return start_s + slope * item.size
        return self.seconds_done / self.items_done if self.items_done else 1.0

    def _line(self) -> tuple[float, float]:
        """Seconds of start-up, and seconds a unit of size."""
        if not self.sized:
            return 0.0, 1.0
        mean_s, mean = self.sized_s / self.sized, self.size_done / self.sized
        if self._one_size:
            return 0.0, mean_s / mean
        slope = max((self.products / self.sized - mean * mean_s) / (self.squares / self.sized - mean**2), 0.0)
        start_s = mean_s - slope * mean
        return (start_s, slope) if start_s >= 0 else (0.0, mean_s / mean)

    @property
    def _one_size(self) -> bool:
        """Whether all that is done had the same size."""
        mean = self.size_done / self.sized
        return self.squares / self.sized - mean**2 <= 1e-9 * mean**2

    def seconds(self, items: Sequence[Item]) -> float | None:
        """Seconds of these items one after the other. None while nothing is known, or only one of several sizes:
        whether time follows size is not known then."""
        if not self.items_done:
            return None
        if self.sized and self._one_size:
            size = self.size_done / self.sized
            if any(item.size and abs(item.size - size) > 1e-6 * size for item in items):
                return None
        return sum(self.weight(item) for item in items)

    @classmethod
    def of(cls, states: Mapping[str, State]) -> Pace:
        pace = cls()
        for state in states.values():
            last = state.attempts[-1] if state.attempts else None
            if state.status == DONE and last is not None and last.runtime_s is not None:
                pace.learn(state.item, last.runtime_s)
        return pace
