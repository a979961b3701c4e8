"""Cumulative energy of a gauge or a counter from its publications, following the sensor's own window.

A power reading is the mean over `window_s` before its publication:

- window = period: the reading is the cell's mean; only a window's edges are uncertain;
- window < period: the sensor looks at a part of each period. What it did not see lies between the reading before and
  this one, unless utilisation says that the load toggled inside: then the two levels of the load, weighted with the
  busy share, count as much as the readings, because readings may beat with such a load for seconds;
- window > period: a moving average, which is undone. With C the cumulative energy, a reading y at time t says
  C(t) = w y + C(t − w). Where the readings of a whole window agree the power was steady and C simply goes on; after a
  change the rule gives C from the steady stretch before it. Each use of the rule on top of itself adds the reading's
  noise and the window's own error once more, so after a few windows without a steady stretch the readings are only
  moved to the middle of their window.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median
from everywatt.energy.curve import LEVEL, Z95, Cells, Curve, place_steps, split_cells
from everywatt.energy.unseen_power import (
    UNSEEN_LIMIT,
    UNSEEN_SWING,
    around,
    followed,
    hidden_levels,
    in_step,
    noise_w,
    otherwise,
    own_swing,
    recurring,
    restlessness,
    unwitnessed_w,
)
from everywatt.energy.utilisation import (
    BUSY,
    IDLE,
    WITNESS_S,
    Array,
    Flags,
    Toggling,
    Witness,
    rest_w,
    sliding,
    toggling,
    unwitnessed,
)

# A stretch longer than this many periods without a publication is a gap.
GAP_PERIODS = 3.0
# Times that differ by less than this are the same.
ROUNDING_S = 1e-6
# Of which less than this share of the period is not seen, it is all seen.
WHOLE = 0.05
# A device that is busy all the time does not draw constant power (decoding a token is a burst of reads): sd of it
# inside a cell, as a share of the mean, for pulses of 20 ms between 150 and 340 W.
BUSY_SWING = 0.4
# What averages of busy pulses leave out is no more than so many times the joules by which they differ, unless the
# pulses' period is near a part of the average.
AS_AVERAGES = 2.0
# Publications stray from their period by no more, this often.
OFTEN = 0.95
# A moving average changes little from one reading to the next where these come often, however much its ripple is: steps
# between readings are looked at a tenth of the averaging window apart.
STEPS_A_WINDOW = 10
# And toggling that it hides is taken to be no faster than that of the usual sensor, once in 100 ms.
TOGGLING_S = 0.1
# Uses of the rule on top of one another, before moving readings is the better choice. Real averages are no perfect
# boxcars: on a recorded card a second use already echoes more than it mends.
DEEPEST = 1
# Readings of a window that agree to this share of the reading are steady.
STEADY = 0.01
# Averaging windows are known to about this share: a nominal second is 1.05 to 1.1 s on recorded cards.
WINDOW_KNOWN = 0.1
# Power of a counter is determined over cells this many times longer than its instants are uncertain.
CLEAR = 20.0
# Three neighbouring slopes differ by up to about this many sd of what their uncertain ends cause.
APPARENT_SDS = 3.0


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is known beside the readings.

    state            what utilisation says of the cells (None: nothing)
    low_w, limit_w   the device's least and most power
    noise_w          sd of the sensor's own noise
    unwitnessed      a part of each period was seen, and utilisation does not say when the device worked
    bounded          readings that stand still may be of a load in step: unless utilisation says that the device always
                     worked, or the averaging window is a guess
    """

    state: Toggling | None
    low_w: float | Array | None = None
    limit_w: float | None = None
    noise_w: float = 0.0
    unwitnessed: bool = False
    bounded: bool = False


class GaugeCurve(Curve):
    """Energy of a power gauge.

    t_s, values    publication times (best estimates, ascending seconds) and readings in watts
    early_s, late_s  earliest and latest possible publication times (default: exact)
    period_s       publication period
    gap_s          a cell that is longer than this is a gap (default: 3 periods), and its reading speaks for `reach_s`
                   before it (default: a period)
    held_s         the longest that each reading speaks for, where that is known (default: back to the one before)
    window_s       averaging window (default: the period); `guessed`: it may be another
    lag_s          where the window is a guess: how far all readings together may lie beside the time they speak of
    quantum_w      smallest step of a reading
    witness        utilisation of the same device
    limit_w        power that the device's limit allows, for levels that readings may never have shown

    >>> curve = GaugeCurve([1.0, 2.0, 3.0], [100.0, 100.0, 100.0], period_s=1.0)
    >>> curve.energy(1.0, 3.0).joules
    array([200.])
    """

    def __init__(
        self,
        t_s: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        period_s: float,
        gap_s: float | None = None,
        reach_s: float | None = None,
        held_s: npt.ArrayLike | None = None,
        window_s: float | None = None,
        guessed: bool = False,
        lag_s: float = 0.0,
        early_s: npt.ArrayLike | None = None,
        late_s: npt.ArrayLike | None = None,
        quantum_w: float = 0.0,
        witness: Witness | None = None,
        limit_w: float | None = None,
    ) -> None:
        t, y = np.asarray(t_s, dtype=np.float64), np.asarray(values, dtype=np.float64)
        if len(t) == 0:
            raise ValueError("a gauge's curve needs at least one publication")
        unsure = _unsure_s(t, early_s, late_s)
        start = _starts(t, period_s if reach_s is None else reach_s, GAP_PERIODS * period_s if gap_s is None else gap_s)
        if held_s is not None:
            held = np.asarray(held_s, dtype=np.float64)
            start = np.where(t - start > held + ROUNDING_S, t - held, start)
        window = period_s if window_s is None else window_s
        silent = unwitnessed(witness, y)
        unseen = silent and (period_s - window) / period_s > WHOLE
        busy = witness is not None and bool(witness.share.max(initial=0.0) >= BUSY)
        beside = _Beside(toggling(witness, t), None, limit_w, noise_w(t, y, witness), unseen, not (guessed or busy))
        if window > 1.2 * period_s:
            cells = _moving(start, t, y, window, unsure, beside)
        else:
            cells = _partial(start, t, y, window, unsure, beside)
        if 0.9 * period_s <= window <= 1.2 * period_s:
            cells = place_steps(cells)
        if silent:
            cells = _doubted(cells)
        super().__init__(cells, quantum_w=quantum_w, shift_s=float(np.hypot(median(unsure), lag_s / Z95)))


class CounterCurve(Curve):
    """Energy of a counter that is exact at its publications; between them only the cell's mean power is known.

    t_s, joules    publication times and the unwrapped count in joules; the other arguments as for GaugeCurve
    low_w          least power of the device, where known, or one for each cell
    """

    def __init__(
        self,
        t_s: npt.ArrayLike,
        joules: npt.ArrayLike,
        *,
        early_s: npt.ArrayLike | None = None,
        late_s: npt.ArrayLike | None = None,
        quantum_j: float = 0.0,
        witness: Witness | None = None,
        low_w: float | Array | None = None,
    ) -> None:
        t, count = np.asarray(t_s, dtype=np.float64), np.asarray(joules, dtype=np.float64)
        if len(t) < 2:
            raise ValueError("a counter's curve needs at least two publications")
        length = np.maximum(np.diff(t), 1e-9)
        mean = np.diff(count) / length
        unsure = _unsure_s(t, early_s, late_s)
        beside = _Beside(toggling(witness, t[1:]), low_w)
        level, swing, restless = _counted_swing(t, count, unsure)
        # The count is exact, its instant is not: power times the instant's error, at either end of the cell.
        slip = level * unsure[1:]
        cells = Cells(
            t[:-1],
            t[1:],
            mean,
            swing / 2,
            restless,
            _toggle(mean, beside, _nearby_w(t, count)),
            False,
            np.zeros(len(mean)),
            np.zeros(len(mean)),
            slip,
            level * unsure[:-1],
        )
        cells = place_steps(cells)
        if unwitnessed(witness, level):
            cells = _doubted(cells)
        super().__init__(cells, quantum_j=quantum_j)


def _counted_swing(t: Array, count: Array, unsure: Array) -> tuple[Array, Array, Array]:
    """Power around each cell, its swing there and its restlessness, without what uncertain instants cause.

    Two reads close together give a wild slope, so power is taken over cells much longer than instants are uncertain;
    and what an uncertain instant takes from one cell it gives to the next, which looks like a swing but is not.
    """
    kept = _spaced(t, CLEAR * median(unsure))
    length = np.maximum(np.diff(t[kept]), 1e-9)
    mean = np.diff(count[kept]) / length
    apparent = np.abs(mean) * np.hypot(unsure[kept][1:], unsure[kept][:-1]) / length
    swing = np.sqrt(np.maximum(own_swing(mean) ** 2 - (APPARENT_SDS * apparent) ** 2, 0.0))
    restless = np.sqrt(np.maximum(restlessness(mean) ** 2 - (APPARENT_SDS * apparent) ** 2, 0.0))
    cell = np.clip(np.searchsorted(t[kept], t[1:], side="left") - 1, 0, len(mean) - 1)
    return mean[cell], swing[cell], restless[cell]


def _spaced(t: Array, least: float) -> npt.NDArray[np.intp]:
    """Numbers of instants that are at least so far apart, with the first and the last; at least two."""
    if least <= 0 or bool(np.all(np.diff(t) >= least)):
        return np.arange(len(t))
    slot = np.floor((t - t[0]) / least)
    first = np.flatnonzero(np.diff(slot, prepend=-1.0) > 0)
    far = np.concatenate(([True], np.diff(t[first]) >= least / 2))
    kept = first[far]
    kept[-1] = len(t) - 1
    return kept if len(kept) > 1 else np.array([0, len(t) - 1])


def _partial(
    start: Array,
    t: Array,
    y: Array,
    window: float,
    unsure: Array,
    beside: _Beside,
) -> Cells:
    """Cells of a sensor that looks at its whole period or at the last part of it."""
    length = t - start
    unseen = np.maximum(length - window, 0.0)
    before = np.concatenate((y[:1], y[:-1]))
    restless = restlessness(y)
    mean = y + (before - y) / 2 * unseen / length
    slip = np.abs(y - before) * unsure
    random = np.hypot(unseen * np.hypot((y - before) / np.sqrt(12), restless), slip)
    random = np.hypot(random, beside.noise_w * length)
    common, toggle, loose, known = (
        np.zeros(len(y)),
        _toggle(mean, beside),
        False,
        np.zeros(len(y), dtype=bool),
    )
    if median(unseen / length) <= WHOLE:
        random = np.hypot(random, _left_out_j(y, length - window, window, unsure, restless, toggle, beside))
        return Cells(start, t, mean, own_swing(y) / 2, restless, toggle, loose, random, common, slip)
    common = recurring(y, random) / np.maximum(length, 1e-9)
    below = above = other = other_half = None
    if beside.state is not None:
        period, seen = median(length), window / median(length)
        jittered = in_step(t, y, beside.state.sure, period, window)
        follows = followed(beside.state, y, period, seen)
        # Both changes of a pulse may fall on the same place of their cells.
        common = np.where(follows, np.sqrt(2), 1.0) * common
        state = replace(beside.state, sure=beside.state.sure & ~follows, maybe=beside.state.maybe & ~follows)
        beside = replace(beside, state=state)
        toggle = _toggle(mean, beside)
        found = hidden_levels(mean, y, state, beside.limit_w, period, common, seen, jittered, beside.noise_w)
        strays = np.sort(np.abs(length - period))[round(OFTEN * (len(length) - 1))]
        other, other_half = otherwise(found.mean, mean, y, state, period, seen, float(strays) / window)
        mean, below, above = found.mean, found.below, found.above
        toggle = np.where(state.maybe, found.toggle, toggle)
        common = np.where(state.sure, found.doubt, common)
        random, loose, known = np.hypot(random, found.either * length), True, state.sure
    if beside.unwitnessed:
        other, other_half, one_level = unwitnessed_w(
            t, mean, y, beside.limit_w, median(length), window, beside.noise_w, beside.bounded
        )
        common = np.hypot(np.sqrt(2) * common, one_level)
    swing = own_swing(y) / 2
    beats = {} if other is None else {"other_w": other, "other_half_w": other_half}
    cells = Cells(start, t, mean, swing, restless, toggle, loose, random, common, slip, None, below, above, **beats)
    return _halves(cells, np.flatnonzero(~known), unseen / 2, before, y)


def _left_out_j(
    y: Array, off_s: Array, window: float, unsure: Array, restless: Array, toggle: Array, beside: _Beside
) -> Array:
    """sd of the joules by which averages of publications that stray, beyond what their instants are uncertain, overlap
    or leave something out; `off_s` is by how much each cell is longer than the average.

    Of a device that is busy all the time power there may be anything up to its limit (Bhatia and Davis: a mean m
    between a and b has a variance of (m − a)(b − m) at most). But pulses that are faster than the average make readings
    differ: what is left out of them has about the joules by which averages over `window` do.
    """
    apparent = APPARENT_SDS * np.hypot(unsure, np.concatenate((unsure[:1], unsure[:-1])))
    strays = np.sqrt(np.maximum(off_s**2 - apparent**2, 0.0))
    found = strays * np.hypot(restless, toggle)
    if beside.state is None:
        return found
    least, limit = rest_w(beside.state, y), max(float(y.max()), beside.limit_w or UNSEEN_LIMIT * float(y.max()))
    swing = np.sqrt(np.maximum(y - least, 0.0) * (limit - y))
    pulses = np.minimum(strays * swing, AS_AVERAGES * window * restless)
    return np.where(beside.state.share >= BUSY, np.maximum(found, pulses), found)


def _halves(cells: Cells, which: npt.NDArray[np.intp], cut_s: Array, before: Array, after: Array) -> Cells:
    """Some cells in two: what was not seen belongs half to the reading before it and half to its own."""
    cut, length = cut_s[which], (cells.end_s - cells.start_s)[which]
    # A load that toggles or is restless does so in the whole cell: what it may take over an edge stays as large.
    one, other = length / np.maximum(cut, 1e-9), length / np.maximum(length - cut, 1e-9)
    restless, toggle = cells.restless_w[which], cells.toggle_w[which]
    # Where in the unseen part power changed adds its doubt evenly from its start to its end.
    random = cells.random_j[which] / np.sqrt(2)
    return split_cells(
        cells,
        which,
        cells.start_s[which] + cut,
        mean_w=(before[which], after[which]),
        restless_w=(one * restless, other * restless),
        toggle_w=(one * toggle, other * toggle),
        random_j=(random, random),
    )


def _doubted(cells: Cells) -> Cells:
    """The same cells where nothing says whether the load toggled inside them: it may have."""
    return replace(cells, toggle_w=np.maximum(cells.toggle_w, UNSEEN_SWING * np.abs(cells.mean_w)))


def _moving(
    start: Array,
    t: Array,
    y: Array,
    window: float,
    unsure: Array,
    beside: _Beside,
) -> Cells:
    """Cells of a moving average, undone."""
    found = unmove(start, t, y, window, unsure)
    # A ripple r that the average almost hides: T σ = √2 π w r for a load of period T, off by T σ / √48 at an edge.
    # A change that passes through the average raises restlessness too, but there the rule has answered already.
    apart = max(1, round(window / STEPS_A_WINDOW / median(t - start)))
    stirred = restlessness(y[::apart])[np.arange(len(y)) // apart]
    restless = np.where(found.moved, stirred, np.minimum(stirred, STEADY * np.abs(y)))
    ripple = np.sqrt(2 / 48) * np.pi * window * restless
    # A load whose period is near the window's shows as a faint ripple, however much it swings.
    reach = max(1, round(window / median(t - start)))
    swing = sliding(np.maximum, y, reach) - sliding(np.minimum, y, reach)
    ripples = swing > LEVEL * np.abs(y)
    busy = ripples if beside.state is None else ripples & (beside.state.share >= BUSY)
    hidden = np.where(found.moved & busy, UNSEEN_SWING * np.abs(y), 0.0)
    if beside.state is not None:
        hidden = np.maximum(hidden, _averaged_out(y, swing, beside.state, reach))
    slip = np.maximum(np.hypot(found.slip_j, ripple), hidden * window / np.sqrt(48))
    zero = np.zeros(len(y))
    toggle = _toggle(y, beside)
    if beside.state is not None:
        pulses = beside.state.swing / 2 * np.maximum(y - float(y.min()), 0.0) / np.clip(beside.state.share, IDLE, 1.0)
        toggle = np.where(beside.state.maybe, np.maximum(toggle, pulses), toggle)
    # Readings of an average do not show how fast the load toggles: in short cells more slowly than once a cell.
    slower = max(1, round(min(window, TOGGLING_S) / median(t - start)))
    swing, toggle, loose = own_swing(found.mean_w) / 2, slower * toggle, slower > 1
    return Cells(start, t, found.mean_w, swing, zero, toggle, loose, zero, found.common_w, slip)


def _averaged_out(y: Array, swing: Array, state: Toggling, reach: int) -> Array:
    """sd of power that changes within an averaging window of `reach` cells, as utilisation does, and hardly in `y`.

    A load whose period is the window's, or a part of it, leaves readings as they are, while it is busy and idle in
    turns; `swing` is how much readings change within a window.
    """
    share = (sliding(np.maximum, state.share, reach) + sliding(np.minimum, state.share, reach)) / 2
    sd = sliding(np.maximum, state.change, reach) / 2 * np.maximum(y - float(y.min()), 0.0) / np.maximum(share, IDLE)
    return np.maximum(sd - swing / 2, 0.0)


def _nearby_w(t: Array, count: Array) -> Array:
    """Mean power around each cell of a counter, over the time of which utilisation speaks."""
    middle = (t[1:] + t[:-1]) / 2
    first, last = np.maximum(middle - 2 * WITNESS_S, t[0]), np.minimum(middle + 2 * WITNESS_S, t[-1])
    return np.asarray((np.interp(last, t, count) - np.interp(first, t, count)) / np.maximum(last - first, 1e-9))


def _toggle(mean: Array, beside: _Beside, nearby: Array | None = None) -> Array:
    """sd of power inside cells busy a share u of the time: (m − low) √((1 − u) / u), whatever the upper level.

    Cells shorter than utilisation's own time may hold one level alone: the upper one follows from power `nearby`.
    """
    state, low = beside.state, beside.low_w
    if state is None:
        return np.zeros(len(mean))
    if low is None:
        low = rest_w(state, mean)
    share = np.clip(state.share, IDLE, 1.0)
    above = np.maximum(mean - low, 0.0)
    sd = above * np.sqrt((1 - share) / share)
    if nearby is not None:
        high = np.maximum(low + 1.2 * np.maximum(nearby - low, 0.0) / share, mean)
        sd = np.minimum(sd, np.sqrt(above * np.maximum(high - mean, 0.1 * above)))
    return np.where(state.maybe, sd, np.where(state.share >= BUSY, BUSY_SWING * np.abs(mean), 0.0))


def _starts(t: Array, period: float, gap: float) -> Array:
    """Where each cell starts: at the publication before, or one period back after a gap."""
    before = np.concatenate(([t[0] - period], t[:-1]))
    return np.where(t - before > gap, t - period, before)


def _unsure_s(t: Array, early: npt.ArrayLike | None, late: npt.ArrayLike | None) -> Array:
    """sd of publication times that lie anywhere between early and late."""
    if early is None or late is None:
        return np.zeros(len(t))
    return np.asarray((np.asarray(late, dtype=np.float64) - np.asarray(early, dtype=np.float64)) / np.sqrt(12))


@dataclass(frozen=True, slots=True)
class Unmoved:
    """Mean power of each cell and how sure it is.

    slip_j     sd of the cumulative energy inside the cell
    common_w   95 % half-width by which a wrong averaging window would shift all means alike
    moved      the reading was only moved to the middle of its window
    """

    mean_w: Array
    slip_j: Array
    common_w: Array
    moved: Flags


def unmove(start: Array, t: Array, y: Array, window: float, unsure: Array) -> Unmoved:
    """Means of cells, each from `start` to `t`, behind readings `y` that average over a longer `window` (seconds)."""
    cell = median(t - start)
    reach = max(1, round(window / cell))
    swing = np.ptp(around(y, reach), axis=1)
    depth, mean = _apply(start, t, y, window, reach)
    noise = np.minimum(restlessness(y), STEADY * np.abs(y))
    moved = depth > DEEPEST
    # Found by the rule: the window's own error, noise, and the instant of each reading, each time it was used.
    ruled = np.sqrt(depth) * np.sqrt(
        (swing * WINDOW_KNOWN * window / np.sqrt(3)) ** 2
        + (noise * window) ** 2
        + (own_swing(y) * window / cell * unsure) ** 2
    )
    # Moved: a step Δ in the window leaves the smoothed curve off by at most Δ w / 8; several may add up to twice that.
    smooth = swing * window / 8
    change = np.abs(np.diff(y, prepend=y[:1]))
    return Unmoved(mean, np.where(moved, smooth, ruled), change * WINDOW_KNOWN * window / (t - start), moved)


def _apply(start: Array, t: Array, y: Array, window: float, reach: int) -> tuple[Array, Array]:
    """How deep the rule was used in each cell (0: steady), and the cells' means."""
    still = calm(y, reach)
    # Whatever the load did, its readings a window earlier and later bound its levels: noise must not leave them far. Of
    # a pulse shorter than the window they show its joules over the window, which may all lie in one cell.
    levels = around(y, reach)
    slack = 0.05 * np.ptp(levels, axis=1) + STEADY * np.abs(y)
    low, high = levels.min(axis=1), levels.max(axis=1)
    pulse = (high - low) * np.maximum(window / np.maximum(t - start, 1e-9), 1.0)
    least, most = np.maximum(high - pulse, float(y.min())) - slack, low + pulse + slack
    later = np.interp((start + t) / 2 + window / 2, t, y)
    depth, mean = np.zeros(len(y)), y.copy()
    total = np.zeros(len(y) + 1)
    knots = np.concatenate((start[:1], t))
    back = 0
    for k in range(len(y)):
        length = t[k] - start[k]
        if not still[k] and t[k] - window > knots[0] and length > 0:
            while knots[back + 1] < t[k] - window:
                back += 1
            share = (t[k] - window - knots[back]) / (knots[back + 1] - knots[back])
            depth[k] = max(depth[back], depth[k - 1] - 1) + 1
            if depth[k] <= DEEPEST:
                origin = total[back] + share * (total[back + 1] - total[back])
                mean[k] = min(max((window * y[k] + origin - total[k]) / length, least[k]), most[k])
            else:
                mean[k] = later[k]
        total[k + 1] = total[k] + mean[k] * length
    return depth, mean


def calm(y: Array, reach: int) -> Flags:
    """Cells whose reading and those of the window before agree."""
    padded = np.concatenate((np.full(reach, y[0]), y))
    past = np.lib.stride_tricks.sliding_window_view(padded, reach + 1)
    return np.asarray(np.ptp(past, axis=1) <= STEADY * np.abs(y))
