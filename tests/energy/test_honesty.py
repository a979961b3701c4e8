"""95 % intervals against an external meter on recorded cards, and against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from everywatt.energy.tolerance import likely_limit_w

HONEST = 93.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calibrated_intervals_hold_the_meter_and_are_narrow(honesty, seed):
    widest = {"A100_square": (15, 8, 6), "RTX3090_square": (12, 4, 2)}
    for (name, length), row in honesty.calibrated(seed=seed).items():
        assert row.coverage >= HONEST, (name, length, row)
        assert row.width <= widest[name][honesty.LENGTHS_S.index(length)], (name, length, row)


def test_the_one_second_average_is_honest_too(honesty, recordings):
    for key, row in honesty.calibrated(recordings.AVERAGES).items():
        assert row.coverage >= HONEST, (key, row)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_uncalibrated_intervals_hold_the_meter_with_the_card_left_out(honesty, seed):
    for (name, length), row in honesty.uncalibrated(seed=seed).items():
        assert row.coverage >= HONEST, (name, length, row)
        assert row.width <= (25, 22, 18)[honesty.LENGTHS_S.index(length)], (name, length, row)


def test_cards_of_which_nothing_is_known(honesty, recordings):
    """Neither averaging window nor limit: both are taken from the readings."""
    unknown = {}
    for name, sensor in recordings.SENSORS.items():
        highest = recordings.load(sensor).values.max()
        unknown[name] = replace(sensor, window_s=None, limit_w=likely_limit_w(highest))
    for key, row in honesty.uncalibrated(unknown).items():
        assert row.coverage >= HONEST, (key, row)


def test_fixed_percentages_are_not_honest_and_score_worse(honesty):
    ours, others = honesty.uncalibrated(), honesty.naive()
    assert all(methods["trapezoid ±5 %"].coverage < 60 for methods in others.values())
    mean_score = sum(row.score for row in ours.values()) / len(ours)
    for method in ("trapezoid ±5 %", "backward hold ±5 %", "backward hold ±(5 % + 4 % limit)"):
        assert mean_score < sum(methods[method].score for methods in others.values()) / len(others), method


def test_simulated_sensors_by_class_of_load_and_of_sensor(honesty):
    rows = honesty.synthetic(runs=4, windows=8)
    assert sum(len(trial.truth) for trial in rows.values()) >= 2000
    for pick in (0, 1):
        for name in {key[pick] for key in rows}:
            row = honesty.score(honesty.pool([trial for key, trial in rows.items() if key[pick] == name]))
            assert row.coverage >= HONEST, (name, row)


def test_without_utilisation_loads_slower_than_the_sensor_are_still_covered(honesty, lab):
    sensors = {"counter": lab.counter(0.1, witness=False), "gauge": lab.gauge(0.1, 0.1, witness=False)}
    hidden = ("square 0.05 s", "square 0.105 s")  # in step with the sensor: every reading is the same
    rows = honesty.synthetic(runs=4, windows=12, sensors=sensors)
    for load in lab.LOADS:
        row = honesty.score(honesty.pool([rows[load, sensor] for sensor in sensors]))
        assert (row.coverage >= HONEST) or load in hidden, (load, row)


def test_a_shorter_period_narrows_a_quarter_second(lab):
    rng = np.random.default_rng(3)
    widths = []
    for period in (0.1, 0.01):
        load = lab.square(0.7)(np.random.default_rng(8))
        curve = lab.gauge(period, period)(load, rng)
        start = np.random.default_rng(4).uniform(2, 60, 400)
        found = curve.energy(start, start + 0.25)
        widths.append(np.mean(found.half_width_j))
    assert widths[0] > 5 * widths[1]


@pytest.mark.parametrize("sensor", ["counter 20 ms", "gauge 100 of 100 ms", "gauge 20 of 20 ms"])
@pytest.mark.parametrize(("load", "length"), [("steady", 1.0), ("ramps", 1.0), ("steps", 1.0), ("square 7.0 s", 5.0)])
def test_accuracy_over_one_and_five_seconds(lab, sensor, load, length):
    rng = np.random.default_rng(2)
    trial = lab.try_out(load, sensor, 400, rng, lengths=(length, length + 1e-6))
    assert np.percentile(np.abs(trial.joules / trial.truth - 1), 95) <= 0.005


@pytest.mark.parametrize("load", ["square 0.3 s", "square 1.3 s", "telegraph 0.2 s"])
@pytest.mark.parametrize("period", [0.02, 0.1])
def test_no_worse_than_perfect_interpolation_between_publications(lab, load, period):
    ours, best = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        power = lab.LOADS[load](rng)
        curve = lab.gauge(period, period)(power, np.random.default_rng(seed + 100))
        phase = np.random.default_rng(seed + 100).uniform(0, period)
        at = phase + np.arange(-0.3, lab.LONG_S, period)
        known = power.energy(-1.0, at)
        start = rng.uniform(1, 60, 300)
        stop = start + rng.choice([0.25, 1.0, 3.0], 300)
        truth = power.energy(start, stop)
        ours.append(np.abs(curve.energy(start, stop).joules / truth - 1))
        best.append(np.abs((np.interp(stop, at, known) - np.interp(start, at, known)) / truth - 1))
    assert np.percentile(ours, 95) <= 1.1 * np.percentile(best, 95)
