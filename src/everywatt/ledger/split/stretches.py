"""Stretches: windows cut at the instants at which use was read; and CPU time of each process in each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.split.split import Uses
from everywatt.ledger.use.owner_use import Remainder
from everywatt.ledger.use.usage import ProcessUse, Records

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TAIL_PERIODS = 2.0


@dataclass(frozen=True, slots=True)
class Stretches:
    """Ascending, disjoint pieces of the windows. `place` is the piece of the timeline each lies in, -1 before it."""

    starts_ns: Ints
    ends_ns: Ints
    place: Ints

    @property
    def seconds(self) -> Floats:
        """Lengths."""
        return (self.ends_ns - self.starts_ns) / NS

    def __len__(self) -> int:
        return len(self.starts_ns)


def cut(windows: Sequence[tuple[int, int]], edges_ns: Sequence[int]) -> Stretches:
    """The windows (disjoint, in order), cut at the edges of a timeline."""
    edges = np.asarray(edges_ns, dtype=np.int64)
    pieces = []
    for start_ns, end_ns in windows:
        low, high = np.searchsorted(edges, (start_ns, end_ns), side="right")
        inside = edges[low:high]
        inside = inside[inside < end_ns]
        pieces.append(np.concatenate(([start_ns], inside, [end_ns])))
    starts = np.concatenate([piece[:-1] for piece in pieces]) if pieces else np.empty(0, dtype=np.int64)
    ends = np.concatenate([piece[1:] for piece in pieces]) if pieces else np.empty(0, dtype=np.int64)
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    return Stretches(starts, ends, np.searchsorted(edges, starts, side="right") - 1)


def process_use(
    stretches: Stretches,
    use: ProcessUse,
    period_s: float,
    runs: Sequence[tuple[int, int]],
    subject: npt.NDArray[np.bool_],
) -> Uses:
    """CPU seconds of each process (by its number) in each stretch, evenly over the time in which it used them.

    Members of the subject that came or went in the stretch in which the run began or ended did so inside of the run.
    Just after the last read, processes are taken to go on as they were.
    """
    records = use.records
    if not len(records.place) or not len(stretches):
        return Uses.none()
    from_ns, to_ns = _inside(records, runs, subject)
    last = len(use.edges) - 2
    place = np.where(stretches.place > last, last, stretches.place)
    low = np.searchsorted(records.place, place, side="left")
    count = np.searchsorted(records.place, place, side="right") - low
    stretch = np.repeat(np.arange(len(stretches)), count)
    index = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    begin = np.maximum(from_ns[index], stretches.starts_ns[stretch])
    end = np.minimum(to_ns[index], stretches.ends_ns[stretch])
    share = np.clip(end - begin, 0, None) / np.maximum(to_ns[index] - from_ns[index], 1)
    tail = stretches.place[stretch] > last
    if tail.any():
        lasted_s = (use.edges[-1] - use.edges[-2]) / NS
        after_s = (stretches.ends_ns[stretch] - use.edges[-1]) / NS
        goes_on = tail & ~records.last[index] & (after_s <= TAIL_PERIODS * period_s)
        share = np.where(tail, np.where(goes_on, stretches.seconds[stretch] / lasted_s, 0.0), share)
    used = share * records.cpu_s[index]
    known = used > 0
    return Uses(stretch[known], records.number[index][known], used[known], records.cpu[index][known])


def _inside(records: Records, runs: Sequence[tuple[int, int]], subject: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    from_ns, to_ns = records.from_ns, records.to_ns
    if not runs:
        return from_ns, to_ns
    asked = subject[records.number]
    starts, ends = (np.sort(np.array(side, dtype=np.int64)) for side in zip(*runs, strict=True))
    first = starts[np.minimum(np.searchsorted(starts, from_ns, side="right"), len(starts) - 1)]
    began = asked & records.young & (first > from_ns) & (first < to_ns)
    from_ns = np.where(began, first, from_ns)
    final = ends[np.maximum(np.searchsorted(ends, to_ns, side="left") - 1, 0)]
    ended = asked & records.last & (final < to_ns) & (final > from_ns)
    return from_ns, np.where(ended, final, to_ns)


def remainder(whole: Floats, known: Floats, most_owed: float) -> Floats:
    """What `whole` has above `known` in each stretch, by the rule of `Remainder`; 0 where nothing is known."""
    rest, of = np.zeros(len(whole)), Remainder(most_owed)
    for index, above in enumerate((whole - known).tolist()):
        if above == above:
            rest[index] = of.take(above)
    return rest
