"""How much power may swing where a sensor does not look: inside a cell between two publications.

Everything here comes from the readings and from utilisation, nothing from a fixed percentage:

- own swing: a cell whose neighbours read differently holds a change at an unknown place;
- restlessness: where readings jump about, so does what lies between them;
- utilisation, the second witness: strictly between 0 and 100 % the device was busy part of the time, so it toggled
  inside the cell even if every reading looks the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.medians import row_medians

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Cells to either side that count as the neighbourhood of a cell for restlessness: one second at 100 ms.
NEAR_CELLS = 5
# sd of readings whose neighbouring differences have this median (normal law: 1 / (0.6745 √2)).
SD_OF_MEDIAN_STEP = 1.05
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
# twice as much because readings blunt the pulse and may miss it; for a sensor that looks at a quarter of its period.
PULSE_EDGE = 10.0
# Longer ones, by the busy share of a look, are blunted and missed less: an edge cuts off no more of them.
UNRESOLVED = 0.15
# Looks that differ by more are of a load that toggles about as fast as they come.
STEADY_SHARE = 0.2
# A witness that has moved less than this has not shown that it can tell busy from idle.
MOVED = 0.05

# Readings are looked at in blocks of so many for a pattern that comes back (12.8 s at 100 ms); the correlation below
# which they have changed, and the one that random loads reach by chance at some lag.
BLOCK = 128
APART = 0.3
BY_CHANCE = 0.5
# Where in a cell a change recurs is anywhere, once: 95 % of a uniform law in sd, as for edges.
Z95_RECURRING = 1.7


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

    `slow` where the share changes from look to look, all around: readings can follow such a load. `pulsed` where it is
    busy for a little of each look at most, `paused` where idle. `swing` is the sd of power inside the cell for levels
    one watt apart.
    """

    share: Array
    swing: Array
    sure: Flags
    maybe: Flags
    slow: Flags
    pulsed: Flags
    paused: Flags


def tells(witness: Witness | None) -> bool:
    """Whether utilisation has shown that it can tell busy from idle: it has moved, or is above nothing, but for little.

    >>> tells(Witness.of_percent([0.0, 1.0], [2.0, 1.0])), tells(Witness.of_percent([0.0, 1.0], [100.0, 100.0]))
    (True, False)
    """
    if witness is None or len(witness.share) == 0:
        return False
    return bool(np.ptp(witness.share) >= MOVED or NOTHING < witness.share.max() < PULSED)


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
    share = looks.mean(axis=0)
    return Toggling(
        share,
        np.where(
            pulsed | paused,
            PULSE_EDGE * np.minimum(np.minimum(most, 1 - least), UNRESOLVED),
            np.sqrt(share * (1 - share)),
        ),
        sure,
        np.asarray(between.any(axis=0)),
        sliding(np.minimum, (sure & (np.ptp(looks, axis=0) > STEADY_SHARE)).astype(np.float64), NEAR_CELLS) > 0,
        pulsed,
        paused,
    )


def unwitnessed(witness: Witness | None, y: Array) -> bool:
    """True where nothing says whether a load with readings `y` toggled inside cells.

    A witness that never moves tells nothing either, unless it says idle, and readings stand still as those of an idle
    device do.
    """
    if witness is None or len(witness.share) == 0:
        return True
    if np.ptp(witness.share) >= MOVED:
        return False
    return bool(witness.share.max() >= PULSED or np.ptp(y) > MOVED * np.abs(y).max())


def own_swing(y: Array) -> Array:
    """Largest minus smallest reading of a cell and its two neighbours."""
    padded = np.concatenate((y[:1], y, y[-1:]))
    three = np.stack((padded[:-2], padded[1:-1], padded[2:]))
    return np.asarray(np.ptp(three, axis=0))


def restlessness(y: Array) -> Array:
    """The sd of readings around a cell, from the median step between neighbours: a single change does not raise it."""
    steps = np.abs(np.diff(y))
    if len(steps) == 0:
        return np.zeros(len(y))
    size = 2 * NEAR_CELLS
    padded = np.pad(steps, (NEAR_CELLS, NEAR_CELLS), mode="reflect" if len(steps) > NEAR_CELLS else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[: len(y)]
    # No sd is more than half of the range.
    most = (sliding(np.maximum, y, NEAR_CELLS) - sliding(np.minimum, y, NEAR_CELLS)) / 2
    return np.asarray(np.minimum(SD_OF_MEDIAN_STEP * row_medians(windows), most))


def sliding(extreme: np.ufunc, values: Array, cells: int) -> Array:
    """The largest or smallest value `cells` to either side of each: of pairs, then of pairs of pairs, all at once."""
    found = np.concatenate((np.repeat(values[:1], cells), values, np.repeat(values[-1:], cells)))
    reach, size = 1, 2 * cells + 1
    while reach < size:
        step = min(reach, size - reach)
        found, reach = extreme(found[:-step], found[step:]), reach + step
    return found


def around(values: Array, cells: int) -> npt.NDArray[np.float64]:
    """Rows of the values `cells` to either side of each, edges repeated."""
    padded = np.pad(values, (cells, cells), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * cells + 1)


def recurring(y: Array, sd: Array) -> Array:
    """95 % half-width of each cell's energy that comes back with the load, in joules, from the sd of each cell alone.

    A load in step with the sensor (a square of seven periods) changes at the same place of a cell every time, so what
    is not seen of it does not average out: over a window it grows as the number of recurrences. For cells of sd `sd`
    that recur after m cells it is the root mean square of them, divided by √m, in each cell.
    """
    found = np.zeros(len(y))
    for first in range(0, len(y), BLOCK // 2):
        part = slice(max(0, min(first, len(y) - BLOCK)), first + BLOCK)
        strength, cells = _recurrence(y[part])
        if strength > 0:
            size = np.sqrt(np.mean(sd[part] ** 2)) / np.sqrt(cells)
            found[part] = np.maximum(found[part], Z95_RECURRING * strength * size)
    return found


def _recurrence(y: Array) -> tuple[float, int]:
    """How clearly readings come back after a number of cells (0: not, 1: they repeat), and that number."""
    off = y - y.mean()
    power = float(off @ off)
    if len(y) < BLOCK // 2 or power <= len(y) * (MOVED * float(np.abs(y).max())) ** 2 / 4:
        return 0.0, 1
    lags = len(y) // 2
    alike = np.array([off[lag:] @ off[:-lag] / (len(y) - lag) for lag in range(1, lags)]) * len(y) / power
    apart = np.flatnonzero(alike < APART)
    if not len(apart):
        return 0.0, 1
    later = alike[apart[0] :]
    best = float(later.max())
    if best <= BY_CHANCE:
        return 0.0, 1
    cells = int(apart[0] + np.flatnonzero(later >= 0.95 * best)[0]) + 1
    return min((best - BY_CHANCE) / (1 - BY_CHANCE), 1.0), cells
