"""Sensors with a truth in closed form: piecewise linear power, its exact integral, gauges and counters before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from everywatt.energy.publications import publications
from everywatt.energy.sampling import CounterCurve, GaugeCurve
from everywatt.energy.unseen_power import Witness

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_S = 70.0
POLL_SHARE = 0.097


@dataclass(frozen=True)
class Load:
    """Power as straight lines between knots; two knots at one time are a step. Busy where above `busy_w`."""

    t: np.ndarray
    w: np.ndarray
    busy_w: float

    def __post_init__(self):
        steps = (self.w[1:] + self.w[:-1]) / 2 * np.diff(self.t)
        object.__setattr__(self, "total", np.concatenate(([0.0], np.cumsum(steps))))

    def energy(self, a, b):
        return self._c(b) - self._c(a)

    def _c(self, t):
        t = np.clip(t, self.t[0], self.t[-1])
        i = np.clip(np.searchsorted(self.t, t, side="right") - 1, 0, len(self.t) - 2)
        dt = t - self.t[i]
        slope = (self.w[i + 1] - self.w[i]) / np.maximum(self.t[i + 1] - self.t[i], 1e-12)
        return self.total[i] + self.w[i] * dt + slope * dt**2 / 2

    def busy(self, t, back):
        """Share of [t − back, t] above busy_w, in whole percents."""
        fine = np.arange(-0.5, LONG_S, 0.001)
        i = np.clip(np.searchsorted(self.t, fine, side="right") - 1, 0, len(self.t) - 1)
        share = np.concatenate(([0.0], np.cumsum((self.w[i] > self.busy_w) * 0.001)))
        edges = np.append(fine, LONG_S)
        return np.round(100 * (np.interp(t, edges, share) - np.interp(t - back, edges, share)) / back)


def two_levels(flips, low, high) -> Load:
    t = np.repeat(np.concatenate(([-1.5], flips, [LONG_S + 1])), 2)[1:-1]
    w = np.repeat(np.where(np.arange(len(flips) + 1) % 2 == 0, low, high), 2)
    return Load(t, w, (low + high) / 2)


def levels(rng):
    return rng.uniform(50, 120), rng.uniform(200, 400)


def square(period: float) -> Callable:
    def make(rng):
        low, high = levels(rng)
        duty = rng.uniform(0.3, 0.7)
        starts = np.arange(1 + rng.uniform(0, period), LONG_S, period * (1 + rng.uniform(-0.03, 0.03)))
        return two_levels(np.stack((starts, starts + duty * period), axis=1).ravel(), low, high)

    return make


def telegraph(mean_s: float) -> Callable:
    def make(rng):
        flips = 1 + np.cumsum(rng.exponential(mean_s, int(1.3 * LONG_S / mean_s)))
        return two_levels(flips[flips < LONG_S], *levels(rng))

    return make


def steady(rng):
    low, high = levels(rng)
    return two_levels(np.array([0.5]), low, high)


def steps(rng):
    low, high = levels(rng)
    flips = np.sort(rng.uniform(1, LONG_S, 10))
    return two_levels(flips, low, high)


def ramps(rng):
    low, high = levels(rng)
    t = np.concatenate(([-1.5, 1.0], 1 + np.cumsum(rng.uniform(2, 12, 20))))
    return Load(t, np.where(np.arange(len(t)) % 2 == 0, low, high).astype(float), low - 1)


LOADS: dict[str, Callable] = {
    "steady": steady,
    "steps": steps,
    "ramps": ramps,
    **{f"square {p} s": square(p) for p in (0.05, 0.105, 0.3, 0.7, 1.3, 7.0)},
    **{f"telegraph {p} s": telegraph(p) for p in (0.03, 0.2, 1.0)},
}


def gauge(period: float, window: float, witness: bool = True) -> Callable:
    """A power gauge polled ten times a period, with poll jitter."""

    def look(load: Load, rng):
        at = rng.uniform(0, period) + np.arange(-0.3, LONG_S, period)
        value = np.round(load.energy(at - window, at) / window, 2)
        poll = np.arange(-0.2, LONG_S - 0.1, period * POLL_SHARE)
        poll = poll + rng.uniform(0, 0.3 * period * POLL_SHARE, len(poll))
        seen = value[np.searchsorted(at, poll, side="right") - 1]
        found = publications(poll, seen, period)
        return GaugeCurve(
            found.t_s,
            found.values,
            period_s=period,
            window_s=window,
            early_s=found.early_s,
            late_s=found.late_s,
            quantum_w=0.01,
            witness=see(load, rng) if witness else None,
        )

    return look


def counter(period: float, witness: bool = True) -> Callable:
    """An energy counter in millijoules whose publications are known to a twentieth of a period."""

    def look(load: Load, rng):
        at = rng.uniform(0, period) + np.arange(-0.3, LONG_S, period)
        joules = np.floor(load.energy(-1.0, at) * 1000) / 1000
        early = at - rng.uniform(0, period / 20, len(at))
        late = early + period / 20
        seen = see(load, rng) if witness else None
        return CounterCurve((early + late) / 2, joules, early_s=early, late_s=late, quantum_j=0.001, witness=seen)

    return look


def see(load: Load, rng) -> Witness:
    at = rng.uniform(0, 0.2) + np.arange(-0.3, LONG_S, 0.2)
    return Witness.of_percent(at, load.busy(at, 0.2))


SENSORS: dict[str, Callable] = {
    "counter 1 ms": counter(0.001, witness=False),
    "counter 20 ms": counter(0.02),
    "counter 100 ms": counter(0.1),
    "gauge 100 of 100 ms": gauge(0.1, 0.1),
    "gauge 25 of 100 ms": gauge(0.1, 0.025),
    "gauge 1 s every 100 ms": gauge(0.1, 1.0),
    "gauge 20 of 20 ms": gauge(0.02, 0.02),
}


@dataclass(frozen=True)
class Trial:
    """Windows of one load by one sensor: truth, figure and half-width in joules."""

    truth: np.ndarray
    joules: np.ndarray
    half: np.ndarray
    length: np.ndarray


def try_out(load_name: str, sensor_name: str, count: int, rng, sensors=None, lengths=(0.05, 60.0)) -> Trial:
    load = LOADS[load_name](rng)
    curve = (sensors or SENSORS)[sensor_name](load, rng)
    length = np.exp(rng.uniform(np.log(lengths[0]), np.log(lengths[1]), count))
    start = rng.uniform(1.0, LONG_S - 3.0 - length)
    found = curve.energy(start, start + length)
    return Trial(load.energy(start, start + length), found.joules, found.half_width_j, length)


def winkler(error, half, scale) -> float:
    """Interval score at 95 %, in percent of the energy: width, plus 40 times what sticks out."""
    return float(np.mean((2 * half + 40 * np.maximum(np.abs(error) - half, 0)) / scale) * 100)
