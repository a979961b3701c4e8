"""Find out how a power sensor works from fast polls of it: period, jitter, quantum, and with a known load its window.

The averaging window shows only where the load changes: power is taken as a square that follows the load's marks after a
short lag, readings as its mean over a window that ends at their publication, and the window that fits best is the
sensor's. Levels are fitted for every trial, so neither gain nor offset matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from everywatt.energy.publications import Publications, publications

if TYPE_CHECKING:
    from everywatt.energy.unseen_power import Array

# Trial windows from instantaneous to a moving average of 1.5 s; in steps of 7 %, finer than recordings can tell.
WINDOWS_S = np.concatenate(([0.002, 0.005], np.geomspace(0.01, 1.6, 75)))
# Trial lags from a mark (the host submits or sees the end of work) to the change of power, beside the sensor's own
# delay.
LAGS_S = np.arange(-0.012, 0.0601, 0.004)
# Clocks take up to this long to rise when load arrives.
WARM_UP_S = 0.3
# A window is reported if readings of the best one leave less than this share of the variance unexplained.
EXPLAINED = 0.25
# Averaging over the whole period is the simplest sensor: another window must explain this much more of the variance.
SIMPLER = 0.005
# Windows inside one period need a load that meets them at many phases.
FEWEST_SWITCHES = 8


@dataclass(frozen=True, slots=True)
class Characterisation:
    """What was found of a sensor. None means not found, and `notes` say why.

    period_s    publication period; jitter_s: sd of publications around their clock (polling included)
    window_s    averaging window; window_low_s to window_high_s fit almost as well
    lag_s       from the load's mark to the change of power as the sensor sees it
    quantum     smallest step between values
    polls       how many were used; poll_s their median distance
    confidence  0 to 1: share of the readings' variance that the window explains; without one, 1 where a period is found
    """

    period_s: float | None
    jitter_s: float | None
    window_s: float | None
    window_low_s: float | None
    window_high_s: float | None
    lag_s: float | None
    quantum: float | None
    polls: int
    poll_s: float
    confidence: float
    notes: tuple[str, ...] = ()


def characterise(
    t_s: npt.ArrayLike,
    values: npt.ArrayLike,
    marks_s: npt.ArrayLike | None = None,
    *,
    starts_busy: bool = False,
    period_s: float | None = None,
) -> Characterisation:
    """Period, window and quantum of a sensor from polls `values` at `t_s` (seconds, much faster than it publishes).

    marks_s are the times at which the load was switched, in turn on and off. Before the first and after the last it
    is off (`starts_busy`: on). A mark that is repeated at one time, as an end and a start, counts once.
    """
    t, v = np.asarray(t_s, dtype=np.float64), np.asarray(values, dtype=np.float64)
    known = np.isfinite(v)
    t, v = t[known], v[known]
    if len(t) < 3:
        return Characterisation(None, None, None, None, None, None, None, len(t), 0.0, 0.0, ("too few polls",))
    notes: list[str] = []
    found = publications(t, v, period_s)
    if found.period_s is None:
        notes.append("no regular period: the value changed too rarely, or polls are slower than the sensor")
    jitter = _jitter(found) if found.period_s is not None else None
    fit = None
    if marks_s is None:
        notes.append("no load marks: the averaging window cannot be determined")
    elif found.period_s is not None:
        fit = _fit_window(found, switches(marks_s), starts_busy, notes)
    confidence = fit.explained if fit else float(found.period_s is not None)
    window, low, high, lag = (fit.window_s, fit.low_s, fit.high_s, fit.lag_s) if fit else (None, None, None, None)
    poll = float(np.median(np.diff(t)))
    return Characterisation(
        found.period_s, jitter, window, low, high, lag, _quantum(v), len(t), poll, confidence, tuple(notes)
    )


def switches(marks_s: npt.ArrayLike) -> Array:
    """Marks with repeated times counted once."""
    marks = np.sort(np.asarray(marks_s, dtype=np.float64))
    if len(marks) < 2:
        return marks
    return marks[np.concatenate(([True], np.diff(marks) > 1e-4))]


@dataclass(frozen=True, slots=True)
class _Fit:
    window_s: float
    low_s: float
    high_s: float
    lag_s: float
    explained: float


def _fit_window(found: Publications, marks: Array, busy: bool, notes: list[str]) -> _Fit | None:
    """The window and lag whose averaged square explains the readings best."""
    inside = (found.t_s > marks[0] - 0.5) & (found.t_s < marks[-1] + 1.5)
    t, y = found.t_s[inside], found.values[inside]
    if len(marks) < 2 or len(t) < 10 or np.ptp(y) == 0:
        notes.append("too few load changes or readings: the averaging window cannot be determined")
        return None
    period = found.period_s or 0.0
    windows = np.append(WINDOWS_S, period)
    left = np.array([[_unexplained(t - lag, y, marks, busy, w) for lag in LAGS_S] for w in windows])
    per_window = left.min(axis=1)
    row = int(np.argmin(per_window))
    if per_window[-1] <= per_window[row] + SIMPLER:
        row = len(windows) - 1
    good = windows[per_window <= per_window[row] + SIMPLER]
    if per_window[row] > EXPLAINED:
        notes.append(
            f"no averaging window explains the readings (the best leaves {100 * per_window[row]:.0f} % unexplained)"
        )
        return None
    if windows[row] <= period and len(marks) < FEWEST_SWITCHES:
        notes.append(
            f"the window is at most {good.max():.3f} s; a load that toggles about once per period would determine it"
        )
        return None
    lag = float(LAGS_S[int(np.argmin(left[row]))])
    return _Fit(float(windows[row]), float(good.min()), float(good.max()), lag, float(1 - per_window[row]))


def _unexplained(t: Array, y: Array, marks: Array, busy: bool, window: float) -> float:
    """Share of the readings' variance that fitted levels, averaged over the window, leave over.

    Three levels: load on, load off, and off before the first mark, when clocks were not up yet; and a part of the level
    that comes with the first half second of load, while clocks rise.
    """
    on = (_busy_s(t, marks, busy) - _busy_s(t - window, marks, busy)) / window
    cold = (np.minimum(t, marks[0]) - np.minimum(t - window, marks[0])) / window
    warm = marks[0] + WARM_UP_S
    rising = (np.clip(t, marks[0], warm) - np.clip(t - window, marks[0], warm)) / window
    columns = np.stack((on, cold, rising), axis=1)
    columns = columns - columns.mean(axis=0)
    off = y - y.mean()
    gram = columns.T @ columns + 1e-9 * np.eye(3)
    levels = np.linalg.solve(gram, columns.T @ off)
    if levels[0] <= 0:
        return 1.0
    return float(np.sum((off - columns @ levels) ** 2) / np.sum(off**2))


def _busy_s(t: Array, marks: Array, busy: bool) -> Array:
    """Seconds for which the load was on, up to each time."""
    on = (np.arange(len(marks) - 1) % 2 == 0) != busy
    total = np.concatenate(([0.0], np.cumsum(np.diff(marks) * on)))
    outside = np.maximum(t - marks[-1], 0.0) - np.maximum(marks[0] - t, 0.0)
    return np.asarray(np.interp(t, marks, total) + outside * float(busy))


def _jitter(found: Publications) -> float:
    offset = found.t_s - np.arange(len(found.t_s)) * (found.period_s or 0.0)
    return float(np.std(np.diff(offset)) / np.sqrt(2)) if len(offset) > 2 else 0.0


def _quantum(v: Array) -> float | None:
    """The smallest step between values, None where the value never changed."""
    steps = np.diff(np.unique(np.round(v, 6)))
    return float(np.round(steps.min(), 6)) if len(steps) else None
