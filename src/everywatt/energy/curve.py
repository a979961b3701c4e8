"""Energy of windows from what a sensor published, and the error that comes from how it samples.

A power reading belongs to the averaging window that ends at its publication, a counter's value to that instant. Between
publications nothing is known but the cell's mean, so a window's edges, which fall anywhere in a cell, are uncertain by
the swing possible inside it; and where a sensor looks at only a part of each period, the rest is uncertain too.

All half-widths are 95 %, in joules. Two windows that share an edge share its error with opposite
sign; the inner error is common to all windows of one load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from everywatt.energy.utilisation import Array

Z95 = 1.96
# Edge errors are bounded, not normal: 95 % of a uniform one lies within 1.65 sd, of the sum of two equal ones within
# 1.90; and the sd of the model is that of the load that is worst for the sensor.
Z95_EDGE = 1.7
# A toggling load in loose cells may be slower than they are, up to the 0.2 s of utilisation: its period in cells.
SLOWER = 1.25

# Two readings are level if they differ by less than this share of the step.
LEVEL = 0.05
# How far the course inside the cell may be from a sharp step, as a share of what it would be off without placing it.
BLUNT = 1 / 3


@dataclass(frozen=True, slots=True)
class Sampled:
    """Joules of windows and the 95 % half-widths of their sampling error, by part; arrays, one entry a window.

    left_j, right_j   the edges: unknown distribution inside the cell in which the window starts or ends
    inner_j           the part of each period at which the sensor does not look (correlated over windows of one load)
    quantum_j         steps of the value, and jitter that is common to all publications
    below_j, above_j  what readings that keep pace with the load cannot exclude: bounds, not half-widths (None: nothing)
    """

    joules: Array
    left_j: Array
    right_j: Array
    inner_j: Array
    quantum_j: Array
    below_j: Array | None = None
    above_j: Array | None = None

    @property
    def half_width_j(self) -> Array:
        """All parts together, in quadrature."""
        return np.sqrt(self.left_j**2 + self.right_j**2 + self.inner_j**2 + self.quantum_j**2)

    def ends(self) -> tuple[Array, Array]:
        """Lower and upper ends of the intervals, bounds included."""
        below, above = (0.0 if side is None else side for side in (self.below_j, self.above_j))
        return self.joules - self.half_width_j - below, self.joules + self.half_width_j + above


@dataclass(frozen=True, slots=True)
class Cells:
    """Stretches of time with a mean power each, and what is not known of them.

    swing_w     sd of the power inside a cell where it holds one change at an unknown place (edge error x(1 − x))
    restless_w  sd of readings of a load that changes faster than the sensor publishes (edge error √(x(1 − x)))
    toggle_w    sd of a load that toggles about once a cell or faster
    loose       the cell's own energy is not known either, so a toggling edge is not pinned at the cell's ends
    random_j    sd of the cell's energy that is independent from cell to cell
    common_w    95 % half-width of the cell's mean that is common to neighbouring cells
    slip_j      sd of energy that publication jitter moves over the cell's end
    slip_start_j  the same over its start, where that is not the end of the cell before (None: as `slip_j`)
    below_w, above_w  how much less or more the cell's mean may be where readings cannot tell (None: nothing)
    other_w     the cells' means if readings beat with the load, all of them or none (None: they do not)
    other_half_w  95 % half-width of those, common to neighbouring cells
    """

    start_s: Array
    end_s: Array
    mean_w: Array
    swing_w: Array
    restless_w: Array
    toggle_w: Array
    loose: bool
    random_j: Array
    common_w: Array
    slip_j: Array
    slip_start_j: Array | None = None
    below_w: Array | None = None
    above_w: Array | None = None
    other_w: Array | None = None
    other_half_w: Array | None = None


class Curve:
    """Cumulative energy over time, made of cells; `energy` answers any number of windows at once."""

    def __init__(self, cells: Cells, *, quantum_j: float = 0.0, quantum_w: float = 0.0, shift_s: float = 0.0) -> None:
        self.cells = cells
        self._quantum_j, self._quantum_w, self._shift_s = quantum_j, quantum_w, shift_s
        length = cells.end_s - cells.start_s
        self._length = length
        self._times = np.stack((cells.start_s, cells.end_s), axis=1).ravel()
        self._energy = _knots(cells.mean_w * length)
        self._observed = _knots(length)
        self._random = _knots(cells.random_j**2)
        self._common = _knots(cells.common_w * length)
        self._hidden = [
            None if side is None or not side.any() else _knots(side * length) for side in (cells.below_w, cells.above_w)
        ]
        self._other: tuple[Array, Array] | None = None
        if cells.other_w is not None and cells.other_half_w is not None:
            self._other = _knots((cells.other_w - cells.mean_w) * length), _knots(cells.other_half_w * length)

    def energy(self, a_s: npt.ArrayLike, b_s: npt.ArrayLike) -> Sampled:
        """Energy between `a_s` and `b_s` (arrays or numbers, seconds), with its sampling error by part."""
        a, b = np.atleast_1d(np.asarray(a_s, dtype=np.float64)), np.atleast_1d(np.asarray(b_s, dtype=np.float64))
        observed = self._look(b, self._observed) - self._look(a, self._observed)
        random = np.maximum(self._look(b, self._random) - self._look(a, self._random), 0.0)
        common = np.maximum(self._look(b, self._common) - self._look(a, self._common), 0.0)
        # A steady reading is rounded the same way every time, so the rounding of power does not average out.
        quantum = np.hypot(self._quantum_j, self._quantum_w / 2 * observed)
        inner = np.hypot(Z95 * np.sqrt(random), common)
        # All publications a little late by the same amount: what enters at one end less what leaves at the other.
        shift = Z95 * self._shift_s * np.abs(self._power(b) - self._power(a))
        return Sampled(
            self.joules(a, b),
            *self._edges(a, b),
            inner,
            np.hypot(quantum, shift),
            *self._bounds(a, b, inner),
        )

    def joules(self, a_s: npt.ArrayLike, b_s: npt.ArrayLike) -> Array:
        """Energy between `a_s` and `b_s` as `energy` gives it, without its error."""
        return self._look(b_s, self._energy) - self._look(a_s, self._energy)

    def _bounds(self, a: Array, b: Array, inner: Array) -> list[Array | None]:
        """How much less and how much more readings cannot exclude, beyond the half-width `inner`."""
        hidden = [None if knots is None else self._look(b, knots) - self._look(a, knots) for knots in self._hidden]
        if self._other is None:
            return hidden
        more, half = (self._look(b, knots) - self._look(a, knots) for knots in self._other)
        sides = zip((half - more, half + more), hidden, strict=True)
        return [np.maximum(further - inner, 0.0 if side is None else side) for further, side in sides]

    def edge_half_width(self, t_s: npt.ArrayLike) -> Array:
        """95 % half-width in joules of the cumulative energy at these instants, from inside their cells."""
        t = np.atleast_1d(np.asarray(t_s, dtype=np.float64))
        c = self.cells
        k = self._cell(t)
        x = np.minimum(np.maximum((t - c.start_s[k]) / np.maximum(self._length[k], 1e-12), 0.0), 1.0)
        room = x * (1 - x)
        change = 2 / np.sqrt(3) * c.swing_w[k] * room
        restless = c.restless_w[k] * np.sqrt(room)
        toggle = c.toggle_w[k] * (SLOWER / np.sqrt(48) if c.loose else np.sin(np.pi * x) / np.sqrt(12))
        # Three accounts of one course: what is left out of it is as large as by the one that says most, and no larger.
        inside = np.maximum(np.maximum(change, restless), toggle) * self._length[k]
        # An edge near a publication is as sure as that publication, not as the one at the cell's other end.
        slip = c.slip_j[k] if c.slip_start_j is None else c.slip_start_j[k] * (1 - x) + c.slip_j[k] * x
        return np.asarray(Z95_EDGE * np.hypot(inside, slip))

    def _edges(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Both edges; inside one cell neither can be off by more than the window itself may swing."""
        left, right = self.edge_half_width(a), self.edge_half_width(b)
        c = self.cells
        k = self._cell(a)
        length = np.maximum(self._length[k], 1e-12)
        # Of what jitter moves over the ends of a cell, a part of the cell has its part.
        start = c.slip_j[k] if c.slip_start_j is None else c.slip_start_j[k]
        slip = np.hypot(start, c.slip_j[k]) / length
        # The sum of the three accounts, not the largest: the ledger knows a span inside a cell by its two edges alone.
        most = np.hypot(c.swing_w[k] + c.restless_w[k] + c.toggle_w[k], slip)
        most = Z95_EDGE * most * np.maximum(b - a, 0.0) / np.sqrt(2)
        most = np.where(self.inside(a, b), most, np.inf)
        return np.minimum(left, most), np.minimum(right, most)

    def inside(self, a_s: npt.ArrayLike, b_s: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which windows are shorter than the cell in which they start."""
        a, b = np.atleast_1d(np.asarray(a_s, dtype=np.float64)), np.atleast_1d(np.asarray(b_s, dtype=np.float64))
        return np.asarray(b - a < self._length[self._cell(a)])

    def _cell(self, t: Array) -> npt.NDArray[np.intp]:
        ends = self.cells.end_s
        return np.minimum(ends.searchsorted(t, side="left"), len(ends) - 1)

    def _power(self, t: Array) -> Array:
        return np.asarray(self.cells.mean_w[self._cell(t)])

    def _look(self, t_s: npt.ArrayLike, knots: Array) -> Array:
        return np.asarray(np.interp(np.asarray(t_s, dtype=np.float64), self._times, knots))


class AnyOf(Curve):
    """One of several curves, and nothing says which: the first one's answers, bounded by the intervals of all."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.__dict__.update(curves[0].__dict__)
        self._first, self._others = curves[0], curves[1:]

    def energy(self, a_s: npt.ArrayLike, b_s: npt.ArrayLike) -> Sampled:
        """Energy by the likeliest curve; the bounds reach to the ends of the others' intervals."""
        first = self._first.energy(a_s, b_s)
        low, high = first.ends()
        lows, highs = zip((low, high), *(one.energy(a_s, b_s).ends() for one in self._others), strict=True)
        below, above = (0.0 if side is None else side for side in (first.below_j, first.above_j))
        return replace(
            first,
            below_j=below + low - np.min(lows, axis=0),
            above_j=above + np.max(highs, axis=0) - high,
        )

    def edge_half_width(self, t_s: npt.ArrayLike) -> Array:
        """The widest of all."""
        return np.asarray(np.max([one.edge_half_width(t_s) for one in (self._first, *self._others)], axis=0))


class PartTime(Curve):
    """A counter that adds up readings of a part of each period: what it counted, and what its sensor did not see.

    part, whole  its increments as readings of a gauge that looks at that part of each period, and at all of it. Where
                 the two differ, one of them is nearer to the truth, and nothing says which: that much is a bound.
    gap_s        what it counts over a cell that is longer than this is one look times all that it missed: the device
                 may have drawn anything from the least that was counted to `limit_w`
    """

    def __init__(self, counted: Curve, part: Curve, whole: Curve, *, gap_s: float, limit_w: float) -> None:
        self.__dict__.update(counted.__dict__)
        self._counted, self._part, self._whole = counted, part, whole
        mean, length = counted.cells.mean_w, counted.cells.end_s - counted.cells.start_s
        self._missed = length > gap_s
        open_w = mean - mean.min(), np.maximum(limit_w - mean, 0.0)
        self._open = [_knots(np.where(self._missed, side * length, 0.0)) for side in open_w]

    def energy(self, a_s: npt.ArrayLike, b_s: npt.ArrayLike) -> Sampled:
        """Energy as it was counted, with the sampling error of the sensor behind it."""
        counted, part = self._counted.energy(a_s, b_s), self._part.energy(a_s, b_s)
        more = part.joules - self._whole.energy(a_s, b_s).joules
        sides = zip((part.below_j, part.above_j), self._open, strict=True)
        below, above = ((0.0 if side is None else side) + self._look(b_s, k) - self._look(a_s, k) for side, k in sides)
        # Where an edge lies in a cell that was missed, the bounds hold all that it may cut off.
        left, right = (np.where(self._missed[self._cell(np.atleast_1d(at))], 0.0, 1.0) for at in (a_s, b_s))
        return replace(
            counted,
            left_j=left * np.maximum(counted.left_j, part.left_j),
            right_j=right * np.maximum(counted.right_j, part.right_j),
            inner_j=part.inner_j,
            below_j=np.maximum(below - more, 0.0),
            above_j=np.maximum(above + more, 0.0),
        )

    def edge_half_width(self, t_s: npt.ArrayLike) -> Array:
        """The wider of the counter's own and its sensor's."""
        return np.maximum(self._counted.edge_half_width(t_s), self._part.edge_half_width(t_s))


def _knots(amounts: Array) -> Array:
    """Cumulative values at each cell's start and end."""
    after = np.cumsum(amounts)
    return np.stack((after - amounts, after), axis=1).ravel()


def place_steps(cells: Cells) -> Cells:
    """The same cells, those that hold an isolated step split at it. For sensors that see the whole of their period.

    Where readings are level before a cell and level after it, and the cell's own mean lies between, power stepped from
    one level to the other inside it, and the mean says when: no load that is steady on both sides has a simpler course.
    """
    found = _isolated(cells)
    if len(found) == 0:
        return cells
    before, after = cells.mean_w[found - 1], cells.mean_w[found + 1]
    length = cells.end_s[found] - cells.start_s[found]
    share = (cells.mean_w[found] - after) / (before - after)
    at = cells.start_s[found] + share * length
    blunt = BLUNT * np.abs(before - after) * share * (1 - share) * length

    slip = np.hypot(cells.slip_j[found], blunt)
    zero = np.zeros(len(found))
    starts = {} if cells.slip_start_j is None else {"slip_start_j": (cells.slip_start_j[found], slip)}
    return split_cells(
        cells,
        found,
        at,
        mean_w=(before, after),
        swing_w=(zero, zero),
        random_j=(cells.random_j[found], zero),
        slip_j=(slip, slip),
        **starts,
    )


def split_cells(cells: Cells, which: npt.NDArray[np.intp], at_s: Array, **halves: tuple[Array, Array]) -> Cells:
    """The same cells, those numbered `which` in two at `at_s`; `halves` has the fields that differ between the two."""
    halves |= {"start_s": (cells.start_s[which], at_s), "end_s": (at_s, cells.end_s[which])}
    order = np.sort(np.concatenate((np.arange(len(cells.mean_w)), which)))
    first = which + np.arange(len(which))
    columns: dict[str, Any] = {}
    for each in fields(cells):
        column = getattr(cells, each.name)
        if isinstance(column, np.ndarray):
            columns[each.name] = column[order]
            if each.name in halves:
                columns[each.name][first], columns[each.name][first + 1] = halves[each.name]
    return replace(cells, **columns)


def _isolated(cells: Cells) -> npt.NDArray[np.intp]:
    """Numbers of the cells between two levels, in an unbroken stretch of cells."""
    y = cells.mean_w
    if len(y) < 5:
        return np.array([], dtype=np.intp)
    a2, a, m, b, b2 = y[:-4], y[1:-3], y[2:-2], y[3:-1], y[4:]
    step = np.abs(b - a)
    level = (np.abs(a - a2) <= LEVEL * step) & (np.abs(b2 - b) <= LEVEL * step)
    between = (m - a) * (b - m) > 0
    whole = np.abs(cells.start_s[1:] - cells.end_s[:-1]) < 1e-9
    unbroken = whole[:-3] & whole[1:-2] & whole[2:-1] & whole[3:]
    # Where the load toggles by more than the step, the step is only the beat of its phase.
    clear = step > cells.toggle_w[2:-2]
    return np.flatnonzero(level & between & unbroken & clear) + 2
