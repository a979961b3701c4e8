"""Gauges that see all of their period, some of which stop publishing: drawn at random, and causes of misses one by one.

`python tests/energy/test_stalled_gauges.py SEED COUNT` draws others and prints how many windows hold, by cause.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

HONEST = 0.93
# The least that a true 95 % may show in a few hundred windows, which share their load and so count as fewer.
HONEST_FEW = 0.90
LENGTHS_S = (0.25, 1.0, 5.0)
STALL_AT_S = 20.0  # when simulated sensors stop
A_LENGTH = 4  # windows of each length, at random and again near the stall


def spread(rng, low, high):
    """Anywhere between, evenly by logarithm."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def sawtooth(product, rng, every_s):
    """Ramps of a busy device, in steps of 10 ms."""
    t = np.arange(-5.0, product.SECONDS + 3, 0.01)
    watts = 90.0 + 240.0 * ((t + rng.uniform(0, every_s)) % every_s) / every_s
    rest = (t < product.IDLE_S[0][1]) | ((t >= product.IDLE_S[1][0]) & (t < product.IDLE_S[1][1]))
    return product.Load(t, np.where(rest, 90.0, watts), (~rest).astype(np.float64))


def drawn_load(product, rng):
    low, high = rng.uniform(40, 120), rng.uniform(150, 400)
    kind = rng.choice(["constant", "square", "bursts", "sawtooth", "telegraph"])
    if kind == "constant":
        return product.steady(rng)
    if kind == "sawtooth":
        return sawtooth(product, rng, spread(rng, 0.4, 6.0))
    if kind == "telegraph":
        return product.telegraph(spread(rng, 0.02, 1.0))(rng)
    every_s, on = (
        (spread(rng, 0.15, 8.0), rng.uniform(0.2, 0.8))
        if kind == "square"
        else (spread(rng, 0.015, 0.15), rng.uniform(0.1, 0.5))
    )
    return product.pulses(on * every_s, every_s, low, high)(rng)


def drawn_sensor(product, rng, stalls):
    period_s = float(rng.choice([0.02, 0.05, 0.1, 0.1, 0.1, 0.2]))
    return product.Sensor(
        period_s=period_s,
        window_s=period_s,
        noise_w=float(rng.choice([0.0, 0.5])),
        quantum=float(rng.choice([0.001, 0.01, 0.1, 1.0])),
        stall_s=float(rng.uniform(0.5, 5.0)) if stalls else 0.0,
    )


def near_stall(recorded, stall_s, length, count, rng):
    """Starts of windows that touch the stall."""
    return rng.uniform(STALL_AT_S - length, STALL_AT_S + stall_s, count) + recorded.span_s[0] - 1.0


def answers_of(product, recorded, starts, length):
    figures = [recorded.run.energy(between=(float(a), float(a + length))) for a in starts]
    return product.Answers.of(recorded.truth(starts, starts + length), figures)


def drawn_answers(product, folder, seed, count):
    """Answers by cause: windows anywhere on the tape of a gauge that stalls, near its stall, of one that does not."""
    found = {}
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        sensor = drawn_sensor(product, rng, stalls=number % 5 > 0)
        recorded = product.record(drawn_load(product, rng), sensor, folder / f"{number}.tape", rng)
        noise = f", {sensor.noise_w:g} W of noise"
        for length in LENGTHS_S:
            anywhere = rng.uniform(recorded.span_s[0], recorded.span_s[1] - length, A_LENGTH)
            asked = {("anywhere" if sensor.stall_s else "does not stall") + noise: anywhere}
            if sensor.stall_s:
                asked["near its stall" + noise] = near_stall(recorded, sensor.stall_s, length, A_LENGTH, rng)
            for where, starts in asked.items():
                answers = answers_of(product, recorded, starts, length)
                found[where] = found[where] + answers if where in found else answers
    return found


def test_windows_of_drawn_gauges_hold_whatever_the_cause(product, tmp_path):
    low = {
        where: str(answers)
        for where, answers in drawn_answers(product, tmp_path, 11, 60).items()
        if answers.holds() < HONEST
    }
    assert not low


def touching(product, folder, make, sensor, seeds=range(4), count=8):
    """Answers of windows that touch the stall of one sensor under one load."""
    found = None
    for seed in seeds:
        rng = np.random.default_rng(seed)
        recorded = product.record(make(rng), sensor, folder / f"{seed}.tape", rng)
        for length in LENGTHS_S:
            starts = near_stall(recorded, sensor.stall_s, length, count, rng)
            answers = answers_of(product, recorded, starts, length)
            found = answers if found is None else found + answers
    return found


def test_noise_at_lower_levels_shows_a_stall_at_one_that_is_seen_once(product, tmp_path):
    sensor = product.Sensor(noise_w=0.5, quantum=0.01, stall_s=2.0, utilisation=False)
    answers = touching(product, tmp_path, lambda rng: sawtooth(product, rng, 1.1), sensor)
    assert answers.holds() >= HONEST_FEW, answers


@pytest.mark.parametrize("quantum", [0.001, 1.0])
def test_a_ramp_of_a_busy_device_that_stands_still(product, tmp_path, quantum):
    """Without noise: at idle its readings repeat all the time."""
    sensor = product.Sensor(quantum=quantum, stall_s=2.0)
    answers = touching(product, tmp_path, lambda rng: sawtooth(product, rng, 1.1), sensor)
    assert answers.holds() >= HONEST_FEW, answers


@pytest.mark.parametrize("noise_w", [0.0, 0.5])
def test_a_run_longer_than_all_others_of_a_working_device(product, tmp_path, noise_w):
    """Bursts that a fast sensor resolves: half of its readings repeat, but none for 0.1 s."""
    sensor = product.Sensor(period_s=0.02, window_s=0.02, noise_w=noise_w, quantum=1.0, stall_s=2.0)
    answers = touching(product, tmp_path, product.pulses(0.06, 0.1463, 90.0, 330.0), sensor)
    assert answers.holds() >= HONEST_FEW, answers


def test_utilisation_moves_and_power_does_not(product, tmp_path):
    """Two levels without noise, each for a second: a run of two seconds is none by how often readings repeat."""
    sensor = product.Sensor(stall_s=2.5)
    answers = touching(product, tmp_path, product.pulses(1.0, 2.0, 90.0, 330.0), sensor)
    assert answers.holds() >= HONEST_FEW, answers


@pytest.mark.parametrize("load", ["idle", "steady", "telegraph 400 ms"])
def test_the_noise_of_readings_is_in_the_interval(product, tmp_path, load):
    sensor = product.Sensor(noise_w=2.0, quantum=0.01)
    low = {}
    for length in LENGTHS_S:
        found = None
        for seed in range(6):
            rng = np.random.default_rng(seed)
            recorded = product.record(product.LOADS[load](rng), sensor, tmp_path / f"{length}-{seed}.tape", rng)
            answers = product.by_windows(recorded, length, 20, rng)
            found = answers if found is None else found + answers
        if found.holds() < HONEST:
            low[length] = str(found)
    assert not low


@pytest.mark.parametrize("utilisation", [True, False])
def test_gauges_that_do_not_stall_have_no_gap(product, tmp_path, utilisation):
    gaps = {}
    for number in range(40):
        rng = np.random.default_rng((12, number))
        sensor = product.replace(drawn_sensor(product, rng, stalls=False), utilisation=utilisation)
        recorded = product.record(drawn_load(product, rng), sensor, tmp_path / f"{number}.tape", rng)
        coverage = recorded.run.energy(between=recorded.span_s).coverage
        if coverage < 1.0:
            gaps[number] = coverage
    assert not gaps


@pytest.mark.parametrize("seed", range(6))
def test_an_average_of_steady_power_is_no_stall(product, tmp_path, seed):
    """A second of readings every 20 ms repeats where the load keeps its level for longer, and nowhere else."""
    rng = np.random.default_rng(seed)
    sensor = product.Sensor(period_s=0.02, window_s=1.0)
    recorded = product.record(product.LOADS["telegraph 400 ms"](rng), sensor, tmp_path / "run.tape", rng)
    assert recorded.run.energy(between=recorded.span_s).coverage == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_equal_readings_on_both_sides_of_a_gap_are_no_stall(product, tmp_path, seed):
    rng = np.random.default_rng(seed)
    make, sensor = product.pulses(1.0, 1.5, 90.0, 330.0), product.Sensor(gap_s=3.0)
    recorded = product.record(make(rng), sensor, tmp_path / "run.tape", rng)
    low, high = recorded.span_s
    assert recorded.run.energy(between=recorded.span_s).coverage * (high - low) == pytest.approx(
        high - low - 3.0, abs=0.2
    )


@pytest.mark.parametrize("quantum", [0.001, 1.0])
def test_a_pause_and_a_limit_of_a_working_device_are_no_stalls(product, tmp_path, quantum):
    """Its power varies, then is held at a limit for 6 s, and once it pauses for 2 s: readings repeat there alone."""
    rng = np.random.default_rng(3)
    t = np.arange(-5.0, product.SECONDS + 3, 0.05)
    watts = 200.0 * np.exp(np.cumsum(rng.normal(0.0, 0.008, len(t))) * 0.5)
    watts = np.minimum(watts, np.median(watts))  # half of the time at its limit
    rest = (t < 4.0) | ((t >= 40.0) & (t < 42.0))
    load = product.Load(t, np.where(rest, 60.0, watts), (~rest).astype(np.float64))
    recorded = product.record(load, product.Sensor(quantum=quantum), tmp_path / "run.tape", rng)
    assert recorded.run.energy(between=recorded.span_s).coverage == 1.0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks import product_lab

    with tempfile.TemporaryDirectory() as scratch:
        drawn = drawn_answers(product_lab, Path(scratch), int(sys.argv[1]), int(sys.argv[2]))
    for where, answers in sorted(drawn.items()):
        print(f"{where:36}{answers}")
