"""Undo a moving average that is longer than the sensor's period.

With C the cumulative energy, a reading y at time t says C(t) = w y + C(t − w). Where the readings of a whole window
agree the power was steady and C simply goes on; after a change the rule gives C from the steady stretch before it.
Each use of the rule on top of itself adds the reading's noise and the window's own error once more, so after a few
windows without a steady stretch the readings are only moved to the middle of their window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.medians import median
from everywatt.energy.unseen_power import Array, Flags, around, own_swing, restlessness

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
