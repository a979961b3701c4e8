"""What a sensor averages over: which window, where that is not known, and how one longer than its period is undone.

With C the cumulative energy, a reading y at time t says C(t) = w y + C(t − w). Where the readings of a whole window
agree the power was steady and C simply goes on; after a change the rule gives C from the steady stretch before it.
Each use of the rule on top of itself adds the reading's noise and the window's own error once more, so after a few
windows without a steady stretch the readings are only moved to the middle of their window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.curve import LEVEL
from everywatt.energy.medians import median
from everywatt.energy.unseen_power import (
    MOVED,
    PULSED,
    Array,
    Flags,
    Toggling,
    around,
    own_swing,
    restlessness,
)

# Uses of the rule on top of one another, before moving readings is the better choice. Real averages are no perfect
# boxcars: on a recorded card a second use already echoes more than it mends.
DEEPEST = 1
# Readings of a window that agree to this share of the reading are steady.
STEADY = 0.01
# Averaging windows are known to about this share: a nominal second is 1.05 to 1.1 s on recorded cards.
WINDOW_KNOWN = 0.1
# The largest step between two readings of an average over ten periods is a tenth of a change of load; a share of the
# whole range that is well above, and the range (of the highest reading) that it takes to say so.
CLIMB = 0.3
MOVED_RANGE = 0.2
# A sensor that looks at a part of its period: the part that is known of such (25 of 100 ms), and how many cells of a
# toggling load it takes to find it out.
PARTIAL = 0.25
# And the most that is known of one that does not see all of it (80 of 100 ms).
MOST = 0.8
FEWEST_TOGGLING = 20
# The share of isolated steps without a reading in between: within 5 % of either level for a whole period, 78 % for a
# quarter of it; and the odds from which one of the two is ruled out (natural logarithm of 20 to 1).
SUDDEN_WHOLE, SUDDEN_PART = 0.1, 0.78
CLEAR_ODDS = 3.0
# What an averaging sensor averages (NVML's documentation of power usage).
AVERAGE_S = 1.0
# What most sensors average, by the table of known cards.
SHORT_AVERAGE_S = 0.1
# Readings that climb are averages of steps where this share of them stands still; else they may be of a ramp.
SOME_CALM = 0.05
# A step of less than this share of all readings says nothing.
LARGE = 0.3


def possible_windows(
    y: Array, period: float, state: Toggling | None, apart_s: Array | None = None
) -> tuple[float, ...]:
    """The averaging windows of a GPU's sensor that readings do not rule out, the likeliest first.

    `apart_s` is the time from each reading to the next: from one side of a gap to the other even an average steps.

    Between two levels a sensor that sees its whole period shows a reading in between, one that looks at a part of it
    mostly does not. A load that toggles faster moves the readings of the first little and those of the second much,
    while it is busy the same share of the time. An average over a second never steps. Readings that stand still are
    taken for steady power.
    """
    if state is None and np.ptp(y) < MOVED * float(np.abs(y).max()):
        return (period,)
    sudden, blurred = _transitions(y)
    odds = sudden * np.log(SUDDEN_PART / SUDDEN_WHOLE) + blurred * np.log((1 - SUDDEN_PART) / (1 - SUDDEN_WHOLE))
    # Rare pulses are swings for either sensor.
    toggles = np.zeros(len(y), dtype=bool) if state is None else state.sure & (state.share > PULSED)
    if abs(odds) < CLEAR_ODDS and toggles.sum() >= FEWEST_TOGGLING:
        seen = y[toggles]
        if float(np.std(seen)) > np.ptp(seen) / 4 and np.ptp(seen) > np.ptp(y) / 2:
            odds = CLEAR_ODDS
    found: tuple[float, ...] = (period, MOST * period, PARTIAL * period)
    if odds >= CLEAR_ODDS:
        found = (PARTIAL * period,)
    elif odds <= -CLEAR_ODDS:
        found = (period, MOST * period)
    steps = np.diff(y) if apart_s is None else np.diff(y)[apart_s < 1.5 * period]
    # A sensor that publishes more often than others averages as long as those do.
    if 1.2 * period < SHORT_AVERAGE_S and climbs(y, steps, max(CLIMB, 1.5 * period / SHORT_AVERAGE_S)):
        found = (*found, SHORT_AVERAGE_S)
    if 1.2 * period >= AVERAGE_S or not climbs(y, steps):
        return found
    moved = np.ptp(y) >= MOVED_RANGE * float(y.max()) and calm(y, round(AVERAGE_S / period)).mean() > SOME_CALM
    return (AVERAGE_S, *found) if moved else (*found, AVERAGE_S)


def _transitions(y: Array) -> tuple[int, int]:
    """How many isolated steps go from level to level at once, and how many over one reading in between."""
    if len(y) < 5:
        return 0, 0
    a2, a, m, b, b2 = y[:-4], y[1:-3], y[2:-2], y[3:-1], y[4:]
    step = np.abs(b - a)
    level = LEVEL * step
    large = step > LARGE * np.ptp(y)
    flat = (np.abs(a - a2) <= level) & (np.abs(b2 - b) <= level) & large
    # A step from a to b with nothing in between: m already is b.
    sudden = flat & ((np.abs(m - b) <= level) | (np.abs(m - a) <= level))
    blurred = flat & ~sudden & ((m - a) * (b - m) > 0)
    # Two windows of five readings see each sudden step: one with m before it, one with m after it.
    return int(sudden.sum()) // 2, int(blurred.sum())


def climbs(watts: npt.ArrayLike, steps: npt.ArrayLike | None = None, most: float = CLIMB) -> bool:
    """True where readings never step as a load does: they are averages over many periods, or power hardly changed.

    `steps` are those between readings that follow one another (default: all), `most` the share of the whole range
    that none of them reaches.
    """
    y = np.asarray(watts, dtype=np.float64)
    y = y[np.isfinite(y)]
    if len(y) < 2 or np.ptp(y) < MOVED_RANGE * float(y.max()):
        return True
    own = np.diff(y) if steps is None else np.asarray(steps, dtype=np.float64)
    return bool(np.abs(own).max(initial=0.0) < most * np.ptp(y))


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
    # Whatever the load did, its readings a window earlier and later bound its levels: noise must not leave them far.
    levels = around(y, reach)
    slack = 0.05 * np.ptp(levels, axis=1) + STEADY * np.abs(y)
    least, most = levels.min(axis=1) - slack, levels.max(axis=1) + slack
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
