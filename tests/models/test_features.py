"""Features by time; the rolling averages against their formula."""

import numpy as np
import pytest

from everywatt.models.design import correlation, design
from everywatt.models.features import AVERAGES_S, Feature, ratio_of
from everywatt.models.table import Table


def made_of(times, values, kind, seconds, period_s):
    """One feature of one column."""
    feature = Feature(kind, "a", seconds=seconds)
    return design(Table(times, {"a": values}), [feature], {}, period_s)[:, 0]


@pytest.mark.parametrize("tau_s", AVERAGES_S)
@pytest.mark.parametrize("period_s", [0.1, 1.0])
def test_the_answer_to_a_step_is_the_formula(tau_s, period_s):
    times = np.arange(0, 60, period_s)
    values = np.where(times > 0, 100.0, 0.0)
    made = made_of(times, values, "mean", tau_s, period_s)
    assert made == pytest.approx(100 * (1 - np.exp(-times / tau_s)), abs=1e-9)


def test_a_rolling_average_is_right_for_uneven_steps_and_starts_anew_after_a_gap():
    times = np.array([0.0, 0.5, 2.0, 2.1, 500.0])
    made = made_of(times, np.array([0.0, 1.0, 1.0, 1.0, 7.0]), "mean", 5.0, 1.0)
    assert made[:4] == pytest.approx(1 - np.exp(-times[:4] / 5))
    assert made[4] == 7.0


def test_the_past_is_by_time_and_not_across_a_gap():
    times = np.array([0.0, 3, 6, 9, 60, 63])
    values = np.array([1.0, 2, 3, 4, 5, 6])
    assert made_of(times, values, "past", 3.0, 3.0).tolist() == [1, 1, 2, 3, 5, 5]


def test_a_change_is_since_the_row_before_and_none_after_a_gap():
    times = np.array([0.0, 3, 6, 9, 60, 63])
    values = np.array([1.0, 2, 5, 4, 5, 6])
    assert made_of(times, values, "change", 3.0, 3.0).tolist() == [0, 1, 3, -1, 0, 1]


def test_a_missing_value_is_filled_before_anything_is_made_of_it():
    table = Table(np.arange(3.0), {"a": np.array([2.0, np.nan, 4.0]), "b": np.array([1.0, 2.0, np.nan])})
    features = [Feature("value", "a"), Feature("ratio", "a", "b"), Feature("log-ratio", "a", "b")]
    made = design(table, features, {"a": 6.0}, 1.0)
    assert made[:, 0].tolist() == [2.0, 6.0, 4.0] and made[:, 1].tolist() == [2.0, 3.0, 0.0]
    assert made[:2, 2] == pytest.approx(np.log([2.0, 3.0])) and np.isfinite(made).all()
    assert design(table, [], {}, 1.0).shape == (3, 0)


def test_a_ratio_of_nothing_is_zero():
    assert ratio_of(5.0, 0.0) == 0.0
    assert ratio_of(6.0, 3.0) == 2.0


def test_correlation_of_ranks_does_not_mind_a_bent_line():
    x = np.linspace(0, 1, 50)
    assert correlation(x, np.exp(9 * x)) == pytest.approx(1.0)
    assert correlation(x, np.ones(50)) == 0.0
