"""Statistics beside scipy and numpy, and beside their definitions."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core import stats

scipy = pytest.importorskip("scipy")  # its statistics are loaded by the first test that asks, not by every collection

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)
counts = st.integers(0, 200)


@given(st.floats(1e-6, 1 - 1e-6), st.one_of(st.floats(0.5, 1e6), st.integers(1, 200)))
def test_student_is_scipys(p, freedom):
    assert stats.student_quantile(p, freedom) == pytest.approx(scipy.stats.t.ppf(p, freedom), rel=1e-9, abs=1e-9)


@given(st.floats(1e-9, 1 - 1e-9))
def test_normal_is_scipys(p):
    assert stats.normal_quantile(p) == pytest.approx(scipy.stats.norm.ppf(p), rel=1e-9, abs=1e-9)
    assert stats.student_quantile(p, math.inf) == pytest.approx(stats.normal_quantile(p), rel=1e-9)


def test_constants_and_printed_tables():
    assert stats.normal_quantile(0.975) == pytest.approx(stats.Z95, rel=1e-15)
    for freedom, printed in {1: 12.706, 2: 4.303, 7: 2.365, 10: 2.228, 19: 2.093, 30: 2.042}.items():
        assert stats.student_factor(freedom) == pytest.approx(printed, abs=5.1e-4)
    for wrong in ((0.0, 3), (1.0, 3), (0.5, 0), (0.5, math.nan)):
        with pytest.raises(ValueError):
            stats.student_quantile(*wrong)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_the_interval_of_a_mean(values):
    assert stats.mean(values) == pytest.approx(np.mean(values), abs=1e-9)
    assert stats.deviation(values) == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    assert stats.mean_half_width(values) == pytest.approx(half, rel=1e-7, abs=1e-9)


def test_too_few_values():
    assert math.isnan(stats.mean([])) and math.isnan(stats.median([])) and math.isnan(stats.percentile([], 50))
    assert math.isnan(stats.deviation([1.0])) and stats.mean_half_width([1.0]) == math.inf


@given(numbers, st.floats(0, 100))
def test_percentiles_are_numpys(values, percent):
    scale = max(map(abs, values)) + 1
    assert stats.percentile(values, percent) == pytest.approx(np.percentile(values, percent), abs=1e-9 * scale)
    assert stats.median(values) == np.median(values)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_the_conformal_quantile_is_an_order_statistic_that_holds_for_one_more(values, share):
    found = stats.conformal_quantile(values, share)
    assert found in values
    inside = sum(value <= found for value in values)
    if share >= 0.5:
        assert inside >= min((len(values) + 1) * share - 1e-9, len(values))
    else:
        assert sum(value >= found for value in values) >= min((len(values) + 1) * (1 - share) - 1e-9, len(values))


@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
def test_wilson_is_scipys(n, data, level):
    hits = data.draw(st.integers(0, n))
    theirs = scipy.stats.binomtest(hits, n).proportion_ci(level, "wilson")
    low, high = stats.wilson(hits, n, level)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0 <= low <= hits / n <= high <= 1


def test_wilson_of_nothing_and_at_the_ends():
    assert stats.wilson(0, 0) == (0.0, 1.0)
    assert stats.wilson(0, 8)[0] == 0.0 and stats.wilson(8, 8)[1] == 1.0


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(hits, n, low, high):
    """Newcombe (1998), table I."""
    assert stats.wilson(hits, n) == pytest.approx((low, high), abs=5e-5)


@given(counts, counts)
def test_mcnemar_is_the_binomial_test(one, other):
    expected = scipy.stats.binomtest(one, one + other, 0.5).pvalue if one + other else 1.0
    assert stats.mcnemar(one, other) == pytest.approx(expected, rel=1e-9)
    assert stats.mcnemar(one, other) == stats.mcnemar(other, one)


@pytest.mark.parametrize(("one", "other"), [(400, 601), (500, 501), (20_000, 20_500), (0, 1001)])
def test_mcnemar_of_many(one, other):
    assert stats.mcnemar(one, other) == pytest.approx(scipy.stats.binomtest(one, one + other).pvalue, rel=1e-7)


@given(counts, counts, counts)
def test_a_paired_difference_lies_in_its_interval_and_turns_round(first, second, same):
    n = first + second + same
    if not n:
        assert stats.paired_difference(0, 0, 0)[1:] == (-1.0, 1.0)
        return
    change, low, high = stats.paired_difference(first, second, n)
    assert -1 <= low <= change <= high <= 1 and low < high
    assert stats.paired_difference(second, first, n) == pytest.approx((-change, -high, -low), abs=1e-12)


@pytest.mark.parametrize("n", [8, 16, 64])
def test_a_paired_difference_holds_the_truth_as_often_as_it_says(n):
    """Exact coverage over all tables of n paired items, for 300 pairs of models."""
    counts = [(first, second, n - first - second) for first in range(n + 1) for second in range(n + 1 - first)]
    ends = np.array([stats.paired_difference(first, second, n)[1:] for first, second, _ in counts])
    chance = np.random.default_rng(3)
    held = []
    for cells in chance.dirichlet((1, 1, 2), 300):
        truth = cells[1] - cells[0]
        inside = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        held.append(scipy.stats.multinomial.pmf(counts, n, cells)[inside].sum())
    assert 0.94 <= np.mean(held) <= 0.97
    assert min(held) > 0.8


def test_the_bootstrap_is_the_same_each_time_and_holds_the_ratio():
    chance = np.random.default_rng(3)
    bottoms = chance.uniform(1, 2, 60)
    tops = bottoms * chance.normal(0.5, 0.05, 60)
    low, high = stats.bootstrap_ratio(tops, bottoms)
    assert (low, high) == stats.bootstrap_ratio(tops, bottoms)
    assert low < tops.sum() / bottoms.sum() < high
    groups = [str(i // 6) for i in range(60)]
    assert stats.bootstrap_ratio(tops, bottoms, groups) != (low, high)
    assert stats.clustered(np.ones((60, 1)), groups).tolist() == [[6.0]] * 10
    assert len(stats.clustered(np.ones((6, 1)), ["a", "a", "b", "b", "c", "c"])) == 6, "three groups are too few"
    assert stats.bootstrap_ratio([1.0], [1.0]) is None and stats.bootstrap_ratio([1.0, 2.0], [0.0, 0.0]) is None


def test_the_bootstrap_covers_the_truth():
    chance = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        joules = chance.gamma(4, 1.0, 120)
        right = chance.random(120) < 0.7
        low, high = stats.bootstrap_ratio(list(right), list(joules), resamples=400)
        hits += low <= 0.7 / 4 <= high
    assert hits >= 52


def test_items_of_one_group_are_drawn_together():
    right = [True] * 50 + [False] * 50
    groups = [str(n // 10) for n in range(100)]
    alone, grouped = stats.bootstrap_ratio(right, [1.0] * 100), stats.bootstrap_ratio(right, [1.0] * 100, groups)
    assert grouped[1] - grouped[0] > 2 * (alone[1] - alone[0])


def test_importing_loads_neither_numpy_nor_statistics():
    code = "import sys, everywatt.core.stats; print({'numpy', 'scipy', 'statistics'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("columns", [1, 2, 9, 10, 64, 65, 200])
def test_rows_have_the_median_of_numpy(columns):
    rows = np.random.default_rng(columns).normal(size=(50, columns))
    rows[3, columns // 2] = np.nan
    assert np.array_equal(stats.row_medians(rows), np.median(rows, axis=1), equal_nan=True)


def test_medians_of_arrays():
    assert stats.median([3.0, 1.0, 2.0]) == 2.0
    assert stats.median(np.array([4, 1])) == 2.5
    assert np.isnan(stats.median([])) and np.isnan(stats.median([1.0, np.nan, 2.0]))
