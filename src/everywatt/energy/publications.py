"""From fast polls of a sensor to what it published, and when.

A poll that repeats the value before carries no information: the sensor has not published yet, or has published the same
value again. The sensor's own clock, which is found from the moments at which the value changed, distinguishes the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from everywatt.core.stats import median, row_medians

Array = npt.NDArray[np.float64]

# A period is only believed where this share of the changes falls on its grid (0: anywhere, 1: all on one instant).
COHERENT = 0.6
# Fewer changes than this do not make a clock.
FEWEST_CHANGES = 8
# Changes to either side that tell the clock's phase.
NEIGHBOURS = 10


@dataclass(frozen=True, slots=True)
class Publications:
    """What a sensor published: best estimates `t_s` of when, the earliest and latest possible times, and the values.

    `period_s` is None where no regular schedule was found; then every change of the value is a publication, and a
    steady value is taken as published at each poll.
    """

    t_s: Array
    early_s: Array
    late_s: Array
    values: Array
    period_s: float | None

    def __len__(self) -> int:
        return len(self.t_s)


def publications(t_s: npt.ArrayLike, values: npt.ArrayLike, period_s: float | None = None) -> Publications:
    """The publications behind polls `values` read at `t_s` (ascending seconds). NaN is a poll without an answer.

    A change between two polls is a publication between them; a value that stays is published again every period. Where
    polls are slower than the sensor every poll is taken as its own publication, at most one period old.
    """
    t, v = np.asarray(t_s, dtype=np.float64), np.asarray(values, dtype=np.float64)
    known = np.isfinite(v)
    t, v = t[known], v[known]
    if len(t) < 2:
        age = period_s or 0.0
        return Publications(t - age / 2, t - age, t, v, period_s)
    period = period_s if period_s is not None else find_period(t, v)
    if period is None:
        early = np.concatenate(([t[0]], t[:-1]))
        return Publications((early + t) / 2, early, t, v, None)
    if median(np.diff(t)) > 0.8 * period:
        return _slow_polls(t, v, period)
    return _on_grid(t, v, period)


def find_period(t_s: Array, values: Array) -> float | None:
    """The period in seconds at which values change, or None where changes are too few or follow no clock."""
    at = _changes(t_s, values)
    if len(at) < FEWEST_CHANGES:
        return None
    middle = (t_s[at - 1] + t_s[at]) / 2
    gaps = np.diff(middle)
    start = _typical_gap(gaps, median(np.diff(t_s)))
    best, period = 0.0, None
    # The commonest gap is close: where many periods pass between changes only a fine grid around it stays in phase.
    fine = start * np.linspace(0.998, 1.002, 161)
    for trial in np.concatenate([fine, *(start / n * np.linspace(0.93, 1.07, 281) for n in (1, 2, 3))]):
        if trial < 1.5 * median(np.diff(t_s)):
            continue
        score = _coherence(middle, gaps, float(trial))
        # A half or a third of the true period fits as well: only clearly better beats longer.
        if score > best * (1.0 if period is None or trial > 0.8 * period else 1.3):
            best, period = score, float(trial)
    return period if best >= COHERENT else None


def _typical_gap(gaps: Array, poll_s: float) -> float:
    """The commonest gap between changes, to the width of a poll."""
    bins = np.round(gaps / max(poll_s, 1e-9)).astype(int)
    bins = bins[bins > 0]
    if len(bins) == 0:
        return median(gaps)
    ordered = np.sort(bins)
    places = np.unique(np.concatenate((ordered - 1, ordered, ordered + 1)))
    near = np.searchsorted(ordered, places + 1, side="right") - np.searchsorted(ordered, places - 1)
    top = int(places[np.argmax(near)])
    chosen = gaps[np.abs(gaps / poll_s - top) <= 1.5]
    return median(chosen)


def _coherence(middle: Array, gaps: Array, period: float) -> float:
    """How well changes follow a clock of that period, over stretches short enough for it not to drift."""
    phase = np.exp(2j * np.pi * (middle - middle[0]) / period)
    stretch = max(FEWEST_CHANGES, min(len(phase), 100))
    starts = np.arange(0, len(phase) - stretch + 1, stretch)
    sums = np.add.reduceat(phase, starts) if len(starts) else np.array([phase.sum()])
    sizes = np.diff(np.append(starts, len(phase))) if len(starts) else np.array([len(phase)])
    return float(np.mean(np.abs(sums) / sizes))


def _changes(t: Array, v: Array) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.diff(v) != 0) + 1


def _slow_polls(t: Array, v: Array, period: float) -> Publications:
    early = np.maximum(t - period, np.concatenate(([-np.inf], t[:-1])))
    return Publications((early + t) / 2, early, t, v, period)


def _on_grid(t: Array, v: Array, period: float) -> Publications:
    """Number the changes on the sensor's clock, follow its drift, and fill in the publications that changed nothing."""
    at = _changes(t, v)
    if len(at) == 0:
        count = max(1, int((t[-1] - t[0]) / period))
        when = t[-1] - period * np.arange(count)[::-1]
        return Publications(when, when - period, when, np.full(count, v[0]), period)
    early, late = t[at - 1], t[at]
    middle = (early + late) / 2
    number = np.concatenate(([0], np.cumsum(np.maximum(1, np.round(np.diff(middle) / period))))).astype(int)
    clock = _follow(number, middle, early, late, period)
    whole = np.arange(number[0] - int((clock[0] - t[0]) / period), number[-1] + int((t[-1] - clock[-1]) / period) + 1)
    when = np.interp(whole, number, clock)
    when = np.where(whole < number[0], clock[0] + (whole - number[0]) * period, when)
    when = np.where(whole > number[-1], clock[-1] + (whole - number[-1]) * period, when)
    jitter = max(median(late - early), 1e-6)
    low, high = when - jitter, when + jitter
    place = number - whole[0]
    low[place], high[place] = early, late
    held = v[np.clip(np.searchsorted(t, when + 1e-9, side="right") - 1, 0, len(v) - 1)]
    held[place] = v[at]
    fill = np.ones(len(whole), dtype=bool)
    fill[place] = False
    last = np.searchsorted(place, np.flatnonzero(fill), side="right") - 1
    held[fill] = np.where(last >= 0, v[at][np.maximum(last, 0)], v[0])
    return Publications(when, low, high, held, period)


def _follow(number: npt.NDArray[np.int_], middle: Array, early: Array, late: Array, period: float) -> Array:
    """Publication times by the clock of each change's neighbourhood, never outside what the polls allow.

    Every change bounds the clock's phase. Where the bounds of the neighbours agree, their common part is far narrower
    than the distance of polls; where they do not, the clock jitters, and the median of the neighbours is taken.
    """
    offset = middle - number * period
    least = _near(early - number * period).max(axis=1)
    most = _near(late - number * period).min(axis=1)
    smooth = np.where(least <= most, (least + most) / 2, row_medians(_near(offset)))
    return np.maximum.accumulate(np.clip(smooth + number * period, early, late))


def _near(values: Array) -> Array:
    """Rows of each value and the ten before and after it, as far as there are any."""
    padded = np.pad(values, NEIGHBOURS, mode="edge" if len(values) <= NEIGHBOURS else "reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURS + 1)
