"""Publications behind fast polls."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import DATA, polls

from everywatt.energy.publications import find_period, publications


def _polled(period, value, poll=0.01, long=20.0, seed=1):
    rng = np.random.default_rng(seed)
    at = 0.033 + period * np.arange(-1, long / period)
    values = value(np.arange(len(at)), rng)
    polls = np.arange(0, long - 0.05, poll) + rng.uniform(0, 0.2 * poll, len(np.arange(0, long - 0.05, poll)))
    return at, values, polls, values[np.searchsorted(at, polls, side="right") - 1]


def test_times_and_values_are_found_within_a_poll():
    at, values, polls, seen = _polled(0.1, lambda n, rng: rng.normal(200, 5, len(n)).round(2))
    found = publications(polls, seen)
    assert found.period_s == pytest.approx(0.1, rel=0.005)
    index = np.searchsorted(at, found.t_s + 0.05, side="right") - 1
    inside = (found.t_s > 0.2) & (found.t_s < 19.5)
    assert np.abs(found.t_s - at[index])[inside].max() < 0.012
    assert np.array_equal(found.values[inside], values[index][inside])
    assert np.all((found.early_s <= found.t_s + 1e-9) & (found.t_s <= found.late_s + 1e-9))


def test_a_steady_value_is_published_every_period():
    _, _, polls, seen = _polled(
        0.1, lambda n, rng: np.where((n > 60) & (n < 120), 300.0, rng.normal(100, 3, len(n)).round(2))
    )
    found = publications(polls, seen)
    held = found.values[(found.t_s > 7) & (found.t_s < 11)]
    assert len(held) == pytest.approx(40, abs=1)
    assert set(held) == {300.0}


def test_a_constant_needs_the_period_to_be_given():
    polls = np.arange(0, 5, 0.01)
    assert publications(polls, np.full(500, 42.0)).period_s is None
    given = publications(polls, np.full(500, 42.0), 0.1)
    assert len(given) == 49
    assert set(given.values) == {42.0}


def test_polls_slower_than_the_sensor_are_their_own_publications():
    polls = np.arange(0, 10, 0.1)
    found = publications(polls, np.arange(100.0), 0.02)
    assert len(found) == 100
    assert np.allclose(found.late_s - found.early_s, 0.02)


def test_missing_answers_are_left_out():
    assert publications([0.0, 0.1, 0.2], [1.0, np.nan, 2.0]).values.tolist() == [1.0, 2.0]


def test_noise_without_a_clock_has_no_period():
    rng = np.random.default_rng(0)
    when = np.cumsum(rng.exponential(0.1, 400))
    polls = np.arange(0, when[-1], 0.005)
    assert find_period(polls, np.searchsorted(when, polls).astype(float)) is None


@pytest.mark.parametrize(("card", "period"), [("A100", 0.101), ("V100", 0.020)])
def test_periods_of_recorded_cards(card, period):
    t, columns = polls(DATA / "update_period" / f"{card}_nvidia_smi.csv.gz")
    assert publications(t, columns["power.draw"]).period_s == pytest.approx(period, rel=0.01)
