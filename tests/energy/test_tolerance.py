"""Gain and offset of cards, before and after calibration."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.energy.tolerance import CARDS, fit, student95, tolerance


def test_an_unknown_card():
    found = tolerance()
    assert found.cards == 19
    assert found.gain_pct == pytest.approx(7.73, abs=0.01)
    assert found.offset_w == pytest.approx(12.08, abs=0.01)
    assert tolerance(limit_w=500).offset_w == pytest.approx(2 * found.offset_w)
    assert -0.5 < found.correlation < 0


def test_each_card_is_inside_what_the_others_say():
    held = 0
    for card in CARDS:
        others = tolerance(limit_w=card.limit_w, exclude=(card.name,))
        power = np.array([0.25, 0.5, 1.0]) * card.limit_w
        error = card.offset_w + card.gain_pct / 100 * power
        held += bool(np.all(np.abs(error) <= others.half_width_j(power + error, 1.0)))
    assert held >= 18


def test_a_family_is_left_out_by_name():
    assert tolerance(exclude=("3090",)).cards == 14
    with pytest.raises(ValueError, match="at least three"):
        tolerance(cards=CARDS[:2])


def test_terms_are_the_half_width_and_keep_their_sign():
    found = tolerance()
    gain, offset = found.terms_j(1000.0, 10.0)
    assert np.hypot(gain, offset) == pytest.approx(found.half_width_j(1000.0, 10.0))
    assert gain < 1000 * found.gain_pct / 100


def test_student():
    assert student95(5) == pytest.approx(2.571, rel=0.01)
    assert student95(18) == pytest.approx(2.101, rel=0.001)


def test_fit_finds_gain_and_bias():
    rng = np.random.default_rng(1)
    watts = rng.uniform(50, 300, 200)
    reading = 0.95 * watts - 2 + rng.normal(0, 0.2, 200)
    found = fit(reading, watts)
    assert found.gain == pytest.approx(1 / 0.95, rel=0.002)
    assert found.bias_w == pytest.approx(2 / 0.95, abs=0.3)
    assert found.tolerance.gain_pct == pytest.approx(1.0)


def test_windows_across_a_change_do_not_tilt_the_line():
    watts = np.array([50.0] * 50 + [300.0] * 50 + [175.0] * 50)
    reading = watts.copy()
    reading[100:] = 140.0
    width = np.array([0.1] * 100 + [80.0] * 50)
    assert fit(reading, watts, width).gain == pytest.approx(1.0, rel=1e-3)


def test_one_level_is_no_calibration():
    with pytest.raises(ValueError, match="two or more levels"):
        fit([100.0] * 5, [101.0] * 5)


@pytest.mark.parametrize(("card", "gain", "bias"), [("A100", 1.044, 2.1), ("RTX3090", 1.051, 0.5)])
def test_recorded_cards(recordings, card, gain, bias):
    found = recordings.calibrate(recordings.load(recordings.SENSORS[f"{card}_step"]))
    assert found.gain == pytest.approx(gain, abs=0.003)
    assert found.bias_w == pytest.approx(bias, abs=0.5)
