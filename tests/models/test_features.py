"""Features row by row and all at once; the rolling averages against their formula."""

import math

import numpy as np
import pytest

from everywatt.models.design import averages, correlation, design, past, rolling
from everywatt.models.features import AVERAGES_S, Feature, History, ratio_of
from everywatt.models.table import Table


@pytest.mark.parametrize("tau_s", AVERAGES_S)
@pytest.mark.parametrize("period_s", [0.1, 1.0])
def test_the_answer_to_a_step_is_the_formula(tau_s, period_s):
    times = np.arange(0, 60, period_s)
    values = np.where(times > 0, 100.0, 0.0)
    made = rolling(times, values, tau_s, period_s)
    assert made == pytest.approx(100 * (1 - np.exp(-times / tau_s)), abs=1e-9)


def test_a_rolling_average_is_right_for_uneven_steps_and_starts_anew_after_a_gap():
    times = np.array([0.0, 0.5, 2.0, 2.1, 500.0])
    made = rolling(times, np.array([0.0, 1.0, 1.0, 1.0, 7.0]), 5.0, 1.0)
    assert made[:4] == pytest.approx(1 - np.exp(-times[:4] / 5))
    assert made[4] == 7.0


def test_averages_stand_beside_the_column():
    table = Table(np.arange(5.0), {"gpu": np.array([0.0, 1, 1, 1, 1])})
    made = averages(table, ["gpu"])
    assert list(made.columns) == ["gpu", "gpu over 1 s", "gpu over 5 s", "gpu over 15 s"]
    assert made.columns["gpu over 5 s"][4] == pytest.approx(1 - math.exp(-4 / 5))


def test_the_past_is_by_time_and_not_across_a_gap():
    times = np.array([0.0, 3, 6, 9, 60, 63])
    values = np.array([1.0, 2, 3, 4, 5, 6])
    assert past(times, values, 3.0, 3.0).tolist() == [1, 1, 2, 3, 5, 5]


def test_row_by_row_is_the_same_as_all_at_once():
    random = np.random.default_rng(4)
    times = np.cumsum(random.choice([3.0, 3.0, 3.0, 40.0], 60))
    columns = {"a": random.random(60), "b": random.random(60)}
    features = [
        Feature("value", "a"),
        Feature("ratio", "a", "b"),
        Feature("past", "b", seconds=3.0),
        Feature("past", "b", seconds=6.0),
        Feature("mean", "a", seconds=5.0),
    ]
    whole = design(Table(times, columns), features, {}, 3.0)
    history = History(features, 3.0)
    rows = [history.row(t, {k: v[i] for k, v in columns.items()}) for i, t in enumerate(times)]
    assert np.array(rows) == pytest.approx(whole)


def test_a_ratio_of_nothing_is_zero():
    assert ratio_of(5.0, 0.0) == 0.0
    assert ratio_of(6.0, 3.0) == 2.0


def test_correlation_of_ranks_does_not_mind_a_bent_line():
    x = np.linspace(0, 1, 50)
    assert correlation(x, np.exp(9 * x)) == pytest.approx(1.0)
    assert correlation(x, np.ones(50)) == 0.0
