"""Gain and offset of cards, before and after calibration."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.energy.tolerance import DRIFT_GAIN, DRIFT_OFFSET, fit
from everywatt.sensors.nvidia.gpu_known import CARDS, spread


def test_each_card_is_inside_what_the_others_say():
    held = 0
    for card in CARDS:
        others = spread(card.model)
        power = np.array([0.25, 0.5, 1.0]) * card.limit_w
        error = card.offset_w + card.gradient_pct / 100 * power
        gain, offset = (power + error) * others.gain_pct / 100, others.offset_w
        held += bool(np.all(error**2 <= gain**2 + offset**2 + 2 * others.correlation * gain * offset))
    assert held >= 17


def test_fit_finds_gain_and_bias():
    rng = np.random.default_rng(1)
    watts = rng.uniform(50, 300, 200)
    reading = 0.95 * watts - 2 + rng.normal(0, 0.2, 200)
    found = fit(reading, watts)
    assert found.gain == pytest.approx(1 / 0.95, rel=0.002)
    assert found.bias_w == pytest.approx(2 / 0.95, abs=0.3)
    assert found.tolerance.gain_pct == pytest.approx(100 * 1.97 * DRIFT_GAIN, rel=0.1)


def test_windows_across_a_change_do_not_tilt_the_line():
    watts = np.array([50.0] * 50 + [300.0] * 50 + [175.0] * 50)
    reading = watts.copy()
    reading[100:] = 140.0
    width = np.array([0.1] * 100 + [80.0] * 50)
    assert fit(reading, watts, np.diag((width / 1.96) ** 2)).gain == pytest.approx(1.0, rel=1e-3)


def test_one_level_is_no_calibration():
    with pytest.raises(ValueError, match="two or more levels"):
        fit([100.0] * 5, [101.0] * 5)


@pytest.mark.parametrize("heat", [0.0, 0.003, 0.006])
def test_a_sensor_that_drifts_stays_inside_its_tolerance(heat):
    """Its offset changes with heat, the same way each time, which shows as a misfit; and by another hour with both."""
    rng = np.random.default_rng(1)
    watts, hot = np.repeat([60.0, 300.0, 70.0, 180.0], 20), np.repeat([0.0, 0.5, 1.0, 0.7], 20)
    held = []
    for _ in range(200):
        steady = watts + rng.normal(0, heat * 300) * hot
        found = fit(steady + rng.normal(0, 0.1, 80), watts, 0.1**2 * np.eye(80))
        later = steady * (1 + rng.normal(0, DRIFT_GAIN)) + rng.normal(0, DRIFT_OFFSET * 300)
        left = found.tolerance
        gain_w = left.gain_pct / 100 * watts
        width_w = np.sqrt(gain_w**2 + left.offset_w**2 + 2 * left.correlation * gain_w * left.offset_w)
        held.append(np.mean(np.abs(found.gain * later + found.bias_w - watts) <= width_w))
    assert np.mean(held) >= 0.93
