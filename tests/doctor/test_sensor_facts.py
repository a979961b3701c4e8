"""Sensors characterised from recordings and from a closed form."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import DATA, marks, polls

from everywatt.doctor.characterise import characterise, switches


def _recorded(name, column):
    t, columns = polls(DATA / name / "nvidia_smi.csv.gz")
    return characterise(t, columns[column], marks(name))


@pytest.mark.parametrize(
    ("name", "column", "period", "window", "within"),
    [
        ("A100_square", "power.draw", 0.1, 0.025, 0.15),
        ("A100_square", "power.draw.instant", 0.1, 0.025, 0.15),
        ("RTX3090_square", "power.draw.instant", 0.1, 0.1, 0.05),
        ("RTX3090_square", "power.draw", 0.1, 1.0, 0.15),
        ("RTX3090_step", "power.draw", 0.1, 1.0, 0.15),
    ],
)
def test_recorded_windows(name, column, period, window, within):
    found = _recorded(name, column)
    assert found.period_s == pytest.approx(period, rel=0.02)
    assert found.window_s == pytest.approx(window, rel=within)
    assert found.window_low_s <= found.window_s <= found.window_high_s
    assert found.confidence > 0.95
    assert found.quantum == pytest.approx(0.01)


def test_one_step_does_not_tell_a_window_inside_the_period():
    found = _recorded("A100_step", "power.draw")
    assert found.window_s is None
    assert "toggles about once per period" in found.notes[0]


@pytest.mark.parametrize(("card", "period"), [("A100", 0.1), ("V100", 0.02)])
def test_recorded_periods(card, period):
    t, columns = polls(DATA / "update_period" / f"{card}_nvidia_smi.csv.gz")
    found = characterise(t, columns["power.draw"])
    assert found.period_s == pytest.approx(period, rel=0.02)
    assert found.window_s is None
    assert "no load marks" in found.notes[0]


@pytest.mark.parametrize(("period", "window"), [(0.1, 0.1), (0.1, 0.05), (0.02, 0.01), (0.1, 0.5), (0.05, 0.05)])
def test_simulated_windows(product, period, window):
    """Polls every millisecond of a load that is switched at known times, as `doctor` makes it."""
    rng = np.random.default_rng(3)
    marks = 1 + np.cumsum(rng.uniform(0.05, 0.6, 40))
    t_s = np.concatenate(([-5.0], marks))
    power = product.Load(t_s, np.where(np.arange(len(t_s)) % 2 == 0, 60.0, 250.0))
    at = 0.0137 + np.arange(0, 18, period)
    value = np.round(power.energy(at - window, at) / window + rng.normal(0, 0.3, len(at)), 2)
    polls = np.arange(0.1, 16, 0.001)
    found = characterise(polls, value[np.searchsorted(at, polls, side="right") - 1], marks)
    assert found.period_s == pytest.approx(period, rel=0.01)
    assert found.window_s == pytest.approx(window, rel=0.15)
    assert found.lag_s == pytest.approx(0.0, abs=0.009)


def test_nothing_to_go_by():
    assert characterise([0.0, 1.0], [5.0, 5.0]).notes == ("too few polls",)
    flat = characterise(np.arange(0, 5, 0.01), np.full(500, 80.0), [1.0, 2.0, 3.0])
    assert flat.period_s is None
    assert flat.quantum is None
    assert flat.confidence == 0.0


def test_repeated_marks_count_once():
    assert switches([2.0, 1.0, 1.0, 2.0]).tolist() == [1.0, 2.0]
