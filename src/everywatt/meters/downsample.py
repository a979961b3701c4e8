"""A true smaller copy of a recording: mean, least, most and joules of every second or minute, not every n-th line.

Joules are what the rows cover, cut at the borders of the cells, so the cells of a copy add up to the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from everywatt.core.clocks import NS
from everywatt.meters.block import Block, Bools, Floats, Ints, Stretches, held


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of equal length: where each starts (UTC), rows in it, seconds covered, and by plug joules, least, most."""

    length_ns: int
    start_ns: Ints
    rows: Ints
    observed_s: Floats
    joules: Floats
    low_w: Floats
    high_w: Floats

    def mean_w(self) -> Floats:
        """Mean power of every plug where anything was observed, else NaN."""
        covered = self.observed_s[:, None]
        return np.asarray(np.divide(self.joules, covered, out=np.full_like(self.joules, np.nan), where=covered > 0))

    def __len__(self) -> int:
        return len(self.start_ns)


def downsample(blocks: Iterable[Block], length_s: float) -> Iterator[Cells]:
    """The cells of a recording, in pieces; a cell that two blocks share comes once, whole."""
    length_ns = round(length_s * NS)
    return _finished(_cells(block.plugs, covered, length_ns) for block, covered in held(blocks))


def coarser(pieces: Iterable[Cells], length_s: float) -> Iterator[Cells]:
    """Longer cells from shorter ones, of which each lies within one of them: their joules are the same."""
    return _finished(_together(cells, round(length_s * NS)) for cells in pieces if len(cells))


def gathered_cells(pieces: Iterable[Cells], count: int) -> Iterator[Cells]:
    """The same cells in pieces of at least `count`, but for the last."""
    held: list[Cells] = []
    for cells in pieces:
        held.append(cells)
        if sum(map(len, held)) >= count:
            yield _one(held)
            held = []
    if held:
        yield _one(held)


def _one(pieces: list[Cells]) -> Cells:
    both = ([getattr(cells, name) for cells in pieces] for name in _COLUMNS)
    return Cells(pieces[0].length_ns, *map(np.concatenate, both))


def _finished(pieces: Iterable[Cells]) -> Iterator[Cells]:
    """Cells with one that two pieces share put together."""
    left: Cells | None = None
    for cells in pieces:
        if left is not None:
            cells = _merged(left, cells)
        if len(cells):
            left = _part(cells, slice(-1, None))
            if len(cells) > 1:
                yield _part(cells, slice(None, -1))
    if left is not None and len(left):
        yield left


def _together(cells: Cells, length_ns: int) -> Cells:
    starts_ns = cells.start_ns // length_ns * length_ns
    first = np.flatnonzero(np.concatenate(([True], np.diff(starts_ns) > 0)))
    return Cells(
        length_ns,
        starts_ns[first],
        np.add.reduceat(cells.rows, first),
        np.add.reduceat(cells.observed_s, first),
        np.add.reduceat(cells.joules, first, axis=0),
        np.minimum.reduceat(cells.low_w, first, axis=0),
        np.maximum.reduceat(cells.high_w, first, axis=0),
    )


def _cells(plugs: int, covered: Stretches, length_ns: int) -> Cells:
    rows_ns, watts = covered.end_ns, covered.watts
    if not len(rows_ns):
        none = np.zeros((0, plugs))
        return Cells(length_ns, rows_ns, rows_ns, np.zeros(0), none, none, none)
    first = min(int(covered.start_ns[0]), int(rows_ns[0])) // length_ns
    last = int(rows_ns[-1]) // length_ns
    count = last - first + 1
    edges = (first + np.arange(count + 1)) * length_ns
    steps_s = (covered.end_ns - covered.start_ns) / NS
    # Joules and seconds up to every edge: of the stretches that ended before it, and of the one that it cuts.
    cut = np.searchsorted(rows_ns, edges)
    inside = np.minimum(cut, len(rows_ns) - 1)
    part_s = np.where(cut < len(rows_ns), np.maximum(edges - covered.start_ns[inside], 0) / NS, 0.0)
    seconds = np.diff(_up_to(cut, np.cumsum(steps_s)) + part_s)
    joules = np.diff(_up_to(cut, np.cumsum(steps_s[:, None] * watts, axis=0)) + part_s[:, None] * watts[inside], axis=0)
    place = rows_ns // length_ns - first
    low, high = np.full((count, plugs), np.inf), np.full((count, plugs), -np.inf)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(place) > 0)))
    low[place[starts]] = np.minimum.reduceat(watts, starts, axis=0)
    high[place[starts]] = np.maximum.reduceat(watts, starts, axis=0)
    rows = np.bincount(place, minlength=count).astype(np.int64)
    cells = Cells(length_ns, edges[:-1], rows, seconds, joules, low, high)
    used = (rows > 0) | (seconds > 0)
    return cells if used.all() else _part(cells, used)


def _up_to(count: Ints, gathered: Floats) -> Floats:
    """What the first `count` stretches gathered, 0 for none."""
    found = gathered[np.maximum(count - 1, 0)]
    found[count == 0] = 0.0
    return np.asarray(found)


def _merged(left: Cells, cells: Cells) -> Cells:
    """One cell that is not finished, and those that follow."""
    if not len(cells):
        return left
    if left.start_ns[0] != cells.start_ns[0]:
        return _one([left, cells])
    rows, seconds, joules = cells.rows.copy(), cells.observed_s.copy(), cells.joules.copy()
    low, high = cells.low_w.copy(), cells.high_w.copy()
    rows[0] += left.rows[0]
    seconds[0] += left.observed_s[0]
    joules[0] += left.joules[0]
    low[0], high[0] = np.minimum(low[0], left.low_w[0]), np.maximum(high[0], left.high_w[0])
    return Cells(left.length_ns, cells.start_ns, rows, seconds, joules, low, high)


_COLUMNS = ("start_ns", "rows", "observed_s", "joules", "low_w", "high_w")


def _part(cells: Cells, chosen: slice | Bools) -> Cells:
    return Cells(cells.length_ns, *(getattr(cells, name)[chosen] for name in _COLUMNS))
