"""When a counter without a clock to follow was published: along a straight line through its neighbours' brackets.

A read of a RAPL counter says that its value was published within the millisecond before. Where power is steady around a
read, one straight line of energy over time passes through all brackets nearby and leaves far less than a millisecond
open. As many neighbours are taken as such a line allows; power that changes ends them.

Where the recorder saw the counter publish a moment later (`recorder.read_loop`), its two newest publications are on the
tape with narrow brackets, one period apart: the read before shows one of those, or one a few periods earlier, and no
power has to be steady.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Neighbours on each side at most, and fewer in all than this say nothing.
REACH = 24
FEWEST = 4
SLOPES = 33
# A bracket this much narrower than that of a read shows a publication that was seen to happen.
NARROW = 0.3
# Periods over which such publications are counted, ticks among which they are looked for, and how well the period is
# known.
COUNTED = 8
NEAR = 6
PERIOD_KNOWN = 0.01
# Ticks of one publication are put this share of a bracket apart.
ORDER = 1e-5


def straighten(count: Floats, early: Floats, late: Floats, which: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Better times of the ticks `which` of a counter, and half of what is possible; brackets are ascending seconds."""
    times, halves = np.empty(len(which)), np.empty(len(which))
    for place, tick in enumerate(which):
        low, high = _placed(count, early, late, int(tick))
        times[place], halves[place] = (low + high) / 2, (high - low) / 2
        if place and tick == which[place - 1] + 1 and count[tick] == count[tick - 1]:
            times[place] = max(times[place], times[place - 1] + ORDER * (late[tick] - early[tick]))
    return times, halves


def _placed(count: Floats, early: Floats, late: Floats, tick: int) -> tuple[float, float]:
    """Earliest and latest time of a tick by all that its neighbours say."""
    near = slice(max(tick - NEAR, 0), tick + NEAR + 1)
    own = float(late[tick] - early[tick])
    if own < NARROW * (late[near] - early[near]).max():
        return float(early[tick]), float(late[tick])
    pair = _pair(early, late, tick)
    if pair is None:
        return _corridor(count, early, late, tick)
    for seen in pair:
        if count[tick] == count[seen]:  # one publication: only the order of its reads is left to tell them apart
            at, doubt = (early[seen] + late[seen]) / 2 + (tick - seen) * ORDER * own, (late[seen] - early[seen]) / 2
            return float(at - doubt), float(at + doubt)
    counted = _counted(count, early, late, tick, pair)
    low, high = _corridor(count, early, late, tick)
    if counted is None:
        return low, high
    both = max(low, counted[0]), min(high, counted[1])
    return both if both[0] < both[1] else counted  # it needs no steady power, so it has the last word


def _pair(early: Floats, late: Floats, tick: int) -> tuple[int, int] | None:
    """The nearest two publications, one period apart, that were seen to happen."""
    own = float(late[tick] - early[tick])
    first, end = max(tick - NEAR, 0), min(tick + NEAR + 1, len(early))
    narrow = [i for i in range(first, end) if late[i] - early[i] < NARROW * own and i != tick]
    pairs = [(i, j) for i, j in pairwise(narrow) if 0.5 * own < early[j] - early[i] < 1.2 * own]
    return min(pairs, key=lambda pair: abs(pair[0] - tick), default=None)


def _counted(
    count: Floats, early: Floats, late: Floats, tick: int, pair: tuple[int, int]
) -> tuple[float, float] | None:
    """Earliest and latest time of a tick, a few periods from a pair of publications; None where it is too far away."""
    first, second = pair
    middle, doubt = (early[first] + late[first]) / 2, (late[first] - early[first]) / 2
    period = (early[second] + late[second]) / 2 - middle
    least = np.ceil((early[tick] - middle) / period - PERIOD_KNOWN * COUNTED)
    steps = np.arange(least, least + 3)
    at = middle + steps * period
    slack = doubt + PERIOD_KNOWN * np.abs(steps) * period
    fits = (at + slack > early[tick]) & (at - slack < late[tick]) & (np.abs(steps) <= COUNTED) & (steps != 0)
    if not fits.any():
        return None
    # At either end of the bracket two may fit: then the power of the pair tells how many periods were counted.
    drawn = (count[tick] - count[first]) / max(count[second] - count[first], 1e-12)
    best = np.flatnonzero(fits)[np.argmin(np.abs(steps[fits] - drawn))]
    return float(max(at[best] - slack[best], early[tick])), float(min(at[best] + slack[best], late[tick]))


def _corridor(count: Floats, early: Floats, late: Floats, tick: int) -> tuple[float, float]:
    """Earliest and latest time of a tick on any line through the brackets of its neighbourhood."""
    left, right = _grown(count, early, late, tick)
    # A bend that brackets just allow pushes the line to their corners: half as far it is a quarter as large.
    if tick - left < REACH:
        left = tick - (tick - left) // 2
    if right - tick < REACH:
        right = tick + (right - tick) // 2
    own = float(early[tick]), float(late[tick])
    if right - left + 1 < FEWEST:
        return own
    found = _through(count[left : right + 1], early[left : right + 1], late[left : right + 1], count[tick])
    if found is None:
        return own
    low, high = max(found[0], own[0]), min(found[1], own[1])
    return (low, high) if low <= high else own


def _grown(count: Floats, early: Floats, late: Floats, tick: int) -> tuple[int, int]:
    """The first and last tick of the longest stretch around a tick through whose brackets a line passes."""
    first, last, step = tick, tick, 8
    while step:
        grown = False
        for left, right in ((first - step, last), (first, last + step)):
            if left < max(tick - REACH, 0) or right > min(tick + REACH, len(count) - 1):
                continue
            part = slice(left, right + 1)
            if _through(count[part], early[part], late[part], count[tick]) is not None:
                first, last, grown = left, right, True
                break
        if not grown:
            step //= 2
    return first, last


def _through(x: Floats, low: Floats, high: Floats, at: float) -> tuple[float, float] | None:
    """Earliest and latest time at `at` of the lines that pass every x between low and high; None if there are none."""
    span = x - at
    apart = x[1:, None] - x[None, :-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(apart > 0, (low[1:, None] - high[None, :-1]) / apart, -np.inf).max()
        most = np.where(apart > 0, (high[1:, None] - low[None, :-1]) / apart, np.inf).min()
    if not (np.isfinite(least) and np.isfinite(most)) or least > most or most <= 0:
        return None
    slopes = np.linspace(max(least, 0.0), most, SLOPES)
    bottom = (low - slopes[:, None] * span).max(axis=1)
    top = (high - slopes[:, None] * span).min(axis=1)
    fits = bottom <= top
    return (float(bottom[fits].min()), float(top[fits].max())) if fits.any() else None
