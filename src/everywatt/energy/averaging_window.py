"""What a GPU's power sensor averages over, where that is not known: the windows that its readings do not rule out."""

from __future__ import annotations

import numpy as np

from everywatt.energy.curve import LEVEL
from everywatt.energy.moving import CLIMB, MOVED_RANGE, calm, climbs
from everywatt.energy.unseen_power import MOVED, PULSED, Array, Toggling

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
