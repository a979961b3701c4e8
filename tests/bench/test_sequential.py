"""The interval that may be looked at after every trial: against closed forms and against many synthetic experiments."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.bench.verdict import PRIORS, Sample, critical_t, interval, log_evidence, trials_for


def test_a_sample_is_its_mean_and_deviation():
    sample = Sample.of([1.0, 2.0, 4.0])
    assert (sample.n, sample.mean) == (3, pytest.approx(7 / 3))
    assert sample.sd == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert math.isnan(Sample.of([1.0]).sd)


@pytest.mark.parametrize(("n", "t"), [(3, 1.0), (10, 2.5), (60, 4.0)])
def test_evidence_is_the_mean_of_the_bayes_factors(n, t):
    factors = [
        (1 + n * g) ** -0.5 * ((1 + t * t / (n - 1)) / (1 + t * t / ((1 + n * g) * (n - 1)))) ** (n / 2) for g in PRIORS
    ]
    assert log_evidence(n, t) == pytest.approx(math.log(sum(factors) / len(factors)))


def test_two_values_never_say_anything_and_three_can():
    assert math.isinf(critical_t(2))
    assert critical_t(3) < 20
    assert interval(Sample(2, 0.0, 1.0)) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [3, 7, 40, 500])
def test_the_critical_statistic_has_just_the_evidence(n):
    assert log_evidence(n, critical_t(n, 0.05)) == pytest.approx(math.log(20), abs=1e-6)


def test_more_values_make_it_narrower_and_it_stays_wider_than_a_single_look():
    widths = [critical_t(n) / math.sqrt(n) for n in range(3, 300)]
    assert widths == sorted(widths, reverse=True)
    assert critical_t(300) > 1.96


def test_it_holds_at_all_times_together():
    random = np.random.default_rng(3)
    critical = [math.inf, math.inf, *(critical_t(n) for n in range(2, 201))]
    missed = 0
    for _ in range(1000):
        values = random.normal(0.0, 1.0, 200)
        sums, squares, n = np.cumsum(values), np.cumsum(values**2), np.arange(1, 201)
        mean = sums / n
        sd = np.sqrt(np.maximum(squares - n * mean**2, 0) / np.maximum(n - 1, 1))
        missed += bool((np.abs(mean[2:]) > np.array(critical[3:]) * sd[2:] / np.sqrt(n[2:])).any())
    assert missed <= 50 + 3 * math.sqrt(50)


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_the_forecast_of_trials_is_the_first_that_suffices(half, sd):
    n = trials_for(half, sd)
    if n < 100_000:
        assert critical_t(n) * sd / math.sqrt(n) <= half
        assert n == 2 or critical_t(n - 1) * sd / math.sqrt(n - 1) > half
