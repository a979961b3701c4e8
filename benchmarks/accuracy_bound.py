"""How good a tool could be that knows every publication of a sensor at its exact time, and interpolates simply.

A counter: straight lines between its publications. A gauge that averages its whole period: each reading held back to
the publication before. Other gauges: the best of four simple rules in each row of the table: readings held back from
their publications, or from half a period after the middle of their averaging window; straight lines between readings,
at their publications or at the middle of their window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy_lab import Sensor
from everywatt.sim.machine import Lab

Array = npt.NDArray[np.float64]


def bound_pct(sensor: Sensor, lab: Lab, device: int, phase_s: float, windows: list[tuple[int, int]]) -> Array:
    """|error| in percent of each window, for each rule (rows): take the rule whose p95 is lowest."""
    name = f"{sensor.prefix}.{device}"
    curve = lab.machine.curves()[name]

    def joules(t_s: float) -> float:
        return curve.energy_j(0.0, t_s)

    edges = np.array([[lab.seconds(a), lab.seconds(b)] for a, b in windows])
    first = math.floor((edges.min() - 3 - phase_s) / sensor.period_s)
    count = math.ceil((edges.max() + 3 - phase_s) / sensor.period_s) - first
    at = phase_s + sensor.period_s * (first + np.arange(count))
    if sensor.counter:  # of a counter only the publications around edges matter
        near = np.unique(np.concatenate([np.searchsorted(at, edges.ravel()) + n for n in (-1, 0)]))
        at = at[near]
    return rules_pct(sensor, at, lambda times: np.array([joules(t) for t in np.atleast_1d(times)]), edges)


def rules_pct(sensor: Sensor, at: Array, joules: Callable[[Array], Array], edges: Array) -> Array:
    """|error| in percent of windows (rows of `edges`) for each rule, from publications at the times `at`."""
    truth = joules(edges[:, 1]) - joules(edges[:, 0])
    if sensor.counter:
        count = joules(at)
        lines = np.interp(edges[:, 1], at, count) - np.interp(edges[:, 0], at, count)
        return np.abs(lines - truth)[None, :] / truth * 100
    readings = (joules(at) - joules(at - sensor.window_s)) / sensor.window_s
    return np.stack([np.abs(rule - truth) / truth * 100 for rule in _rules(sensor, at, readings, edges)])


def _rules(sensor: Sensor, at: Array, readings: Array, edges: Array) -> list[Array]:
    period, window = sensor.period_s, sensor.window_s
    held = np.concatenate(([0.0], np.cumsum(readings[1:] * period)))
    slopes = np.concatenate(([0.0], np.cumsum((readings[1:] + readings[:-1]) / 2 * period)))

    def by(times: Array, cumulative: Array) -> Array:
        return np.asarray(np.interp(edges[:, 1], times, cumulative) - np.interp(edges[:, 0], times, cumulative))

    if window == period:
        return [by(at, held)]
    middle = at - window / 2
    return [by(at, held), by(at, slopes), by(middle + period / 2, held), by(middle, slopes)]
