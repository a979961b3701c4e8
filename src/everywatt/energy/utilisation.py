"""Utilisation, the second witness: what it says of cells between two publications of a sensor.

Strictly between 0 and 100 % the device was busy part of the time, so it toggled inside the cell even if every reading
looks the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Cells to either side that count as the neighbourhood of a cell for restlessness: one second at 100 ms.
NEAR_CELLS = 5
# A driver publishes utilisation every 170 to 200 ms, about the time before, so it speaks of a cell up to that much
# later.
WITNESS_S = 0.2
_LOOKS_S = WITNESS_S * np.array([[0.0], [1.0], [2.0]])
# At or below (above) this share the device was idle (busy) all the time; drivers round to whole percents.
IDLE, BUSY = 0.02, 0.98
# Below this it was not busy at all: half of the least that drivers report.
NOTHING = 0.005
# Below this busy share in every look of the neighbourhood, a device that is busy at all works in short pulses.
PULSED = 0.18
# And below this one where some look shows nothing: pulses that come one by one.
PULSED_APART = 0.3
# Such a pulse lies anywhere in the 0.2 s of a look and is counted as spread over three of them: sd of what an edge cuts
# off wrongly, 0.3 of the pulse, as that of a load that toggles inside a cell (SLOWER / √48 of it), and more than
# twice as much because readings blunt the pulse and may miss it; for a sensor that looks at up to half of its period.
PULSE_EDGE = 10.0
# Longer ones, by the busy share of a look, are blunted and missed less: an edge cuts off no more of them.
UNRESOLVED = 0.15
# Looks that differ by more are of a load that toggles about as fast as they come.
STEADY_SHARE = 0.2
# A witness that has moved less than this has not shown that it can tell busy from idle.
MOVED = 0.05


@dataclass(frozen=True, slots=True)
class Witness:
    """Busy share (0…1) of the device, as read at `t_s`."""

    t_s: Array
    share: Array

    @classmethod
    def of_percent(cls, t_s: npt.ArrayLike, percent: npt.ArrayLike) -> Witness:
        """From utilisation in percent; polls without an answer (NaN) are left out."""
        t, u = np.asarray(t_s, dtype=np.float64), np.asarray(percent, dtype=np.float64) / 100
        known = np.isfinite(u)
        return cls(t[known], np.clip(u[known], 0.0, 1.0))

    def at(self, t_s: Array) -> Array:
        """The share as it stood at these times (the last one read)."""
        return self.share[np.maximum(self.t_s.searchsorted(t_s, side="right") - 1, 0)]

    def about(self, end_s: Array) -> Array:
        """Three looks at each cell that ends at `end_s`: then, one and two publications of utilisation later."""
        return self.at(end_s + _LOOKS_S)


@dataclass(frozen=True, slots=True)
class Toggling:
    """What utilisation says of cells: `share` busy, `sure` (steadily between idle and busy), `maybe` (some look is).

    `change` of the share from look to look; `slow` where it changes all around: readings can follow such a load.
    `pulsed` where it is busy for a little of each look at most, `paused` where idle. `swing` is the sd of power inside
    the cell for levels one watt apart.
    """

    share: Array
    swing: Array
    sure: Flags
    maybe: Flags
    change: Array
    slow: Flags
    pulsed: Flags
    paused: Flags


def tells(witness: Witness | None) -> bool:
    """Whether utilisation has shown that it can tell busy from idle: it has moved, or lies between the two.

    >>> tells(Witness.of_percent([0.0, 1.0], [2.0, 1.0])), tells(Witness.of_percent([0.0, 1.0], [100.0, 100.0]))
    (True, False)
    """
    if witness is None or len(witness.share) == 0:
        return False
    return bool(np.ptp(witness.share) >= MOVED or NOTHING < witness.share.max() < BUSY)


def toggling(witness: Witness | None, end_s: Array) -> Toggling | None:
    """Which cells toggled inside. None without a witness that has shown it can tell busy from idle."""
    if witness is None or not tells(witness):
        return None
    looks = witness.about(end_s)
    # Beside a load that works for longer, a percent or two are its beginning and end; alone they are pulses.
    between = (looks > (IDLE if witness.share.max() >= PULSED else NOTHING)) & (looks < BUSY)
    # A device that is busy for a little of some looks and never for much works in pulses that fall between readings;
    # one that is idle for a little of some makes pauses that do.
    most, least = looks.max(axis=0), looks.min(axis=0)
    top, bottom = sliding(np.maximum, most, 2 * NEAR_CELLS), sliding(np.minimum, least, 2 * NEAR_CELLS)
    pulsed = between.any(axis=0) & (top < np.where(bottom <= IDLE, PULSED_APART, PULSED))
    paused = between.any(axis=0) & (bottom > 1 - np.where(top >= BUSY, PULSED_APART, PULSED))
    sure = np.asarray(between.all(axis=0) | pulsed | paused)
    share, change = looks.mean(axis=0), np.ptp(looks, axis=0)
    return Toggling(
        share,
        np.where(
            pulsed | paused,
            PULSE_EDGE * np.minimum(np.minimum(most, 1 - least), UNRESOLVED),
            np.sqrt(share * (1 - share)),
        ),
        sure,
        np.asarray(between.any(axis=0)),
        change,
        sliding(np.minimum, (sure & (change > STEADY_SHARE)).astype(np.float64), NEAR_CELLS) > 0,
        pulsed,
        paused,
    )


def rest_w(state: Toggling, watts: Array) -> float:
    """The least power of cells in which the device was idle; 0 where it never was."""
    rests = watts[state.share <= IDLE]
    return float(rests.min()) if len(rests) else 0.0


def unwitnessed(witness: Witness | None, y: Array) -> bool:
    """True where nothing says whether a load with readings `y` toggled inside cells.

    A witness that never moves does not help either, unless it says idle, and readings stand still as those of an idle
    device do.
    """
    if witness is None or len(witness.share) == 0:
        return True
    if np.ptp(witness.share) >= MOVED:
        return False
    return bool(witness.share.max() >= BUSY or np.ptp(y) > MOVED * np.abs(y).max())


def sliding(extreme: np.ufunc, values: Array, cells: int) -> Array:
    """The largest or smallest value `cells` to either side of each: of pairs, then of pairs of pairs, all at once."""
    found = np.concatenate((np.repeat(values[:1], cells), values, np.repeat(values[-1:], cells)))
    reach, size = 1, 2 * cells + 1
    while reach < size:
        step = min(reach, size - reach)
        found, reach = extreme(found[:-step], found[step:]), reach + step
    return found
