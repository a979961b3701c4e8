"""Verdicts: sentences for known trials, and error rates over synthetic experiments."""

import math
from itertools import islice

import numpy as np
import pytest

from everywatt.bench.experiment import interleaved
from everywatt.bench.verdict import Comparison, Verdict, compare, outliers


def noisy(mean, noise, n, seed):
    return list(mean * np.exp(np.random.default_rng(seed).normal(0, noise, n)))


def test_a_large_difference_is_seen_in_a_few_trials():
    found = compare(noisy(100, 0.01, 5, 1), noisy(82, 0.01, 5, 2))
    assert found.answer is Verdict.LESS
    assert found.low < 0.82 < found.high
    assert found.text("B").startswith("B uses 18")
    assert found.text("B").endswith("less energy")
    assert found.more_trials is None


def test_twice_as_much_is_more():
    found = compare(noisy(50, 0.01, 4, 1), noisy(100, 0.01, 4, 2))
    assert found.answer is Verdict.MORE
    assert found.low < 2.0 < found.high


def test_the_same_is_said_only_when_it_is_known():
    few = compare(noisy(100, 0.05, 6, 1), noisy(100, 0.05, 6, 2), target=0.02)
    assert few.answer is Verdict.UNDECIDED
    assert few.more_trials is not None
    assert few.text("B") == "undecided: about 110 more trials needed"
    many = compare(noisy(100, 0.01, 60, 1), noisy(100, 0.01, 60, 2), target=0.02)
    assert many.answer is Verdict.SAME
    assert many.text("B") == "no difference in energy larger than 2.0 %"


def test_more_noise_asks_for_more_trials():
    quiet = compare(noisy(100, 0.03, 8, 1), noisy(101, 0.03, 8, 2))
    loud = compare(noisy(100, 0.10, 8, 1), noisy(101, 0.10, 8, 2))
    assert quiet.more_trials is not None
    assert loud.more_trials is not None
    assert loud.more_trials > 2 * quiet.more_trials


def test_what_all_trials_share_widens_the_interval_for_good():
    a, b = noisy(100, 0.001, 30, 1), noisy(101, 0.001, 30, 2)
    assert compare(a, b, target=0.001).answer is Verdict.MORE
    wide = compare(a, b, target=0.001, systematic=0.05)
    assert wide.answer is Verdict.UNDECIDED
    assert wide.more_trials is None  # no number of trials would help
    assert wide.high - wide.low > 0.09


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_trials_say_so(count):
    found = compare([1.0] * count, [1.1] * count)
    assert found.answer is Verdict.UNDECIDED
    assert math.isinf(found.floor)
    assert found.to_dict()["ratio"]["high"] is None


def test_outliers_are_told():
    values = [*noisy(10, 0.01, 20, 4), 15.0]
    assert outliers(values) == [20]
    assert outliers([1.0, 1.0, 1.0, 9.0]) == []  # no spread, no scale to judge by


def test_blocks_turn_around_and_nobody_is_always_first():
    assert list(islice(interleaved(2), 4)) == [(0, 1), (1, 0), (0, 1), (1, 0)]
    three = list(islice(interleaved(3), 6))
    assert all(sorted(block) == [0, 1, 2] for block in three)
    assert {block[0] for block in three} == {0, 1, 2}
    places = np.array([[block.index(c) for c in range(3)] for block in three]).mean(axis=0)
    assert list(places) == [1.0, 1.0, 1.0]


def test_a_fixed_number_of_trials_has_students_interval():
    """With n decided beforehand nobody looks in between: t for n - 1 degrees of freedom, 95 of 100 times."""
    held = []
    for seed in range(400):
        found = compare(noisy(100, 0.05, 3, 2 * seed), noisy(90, 0.05, 3, 2 * seed + 1), anytime=False)
        held.append(found.low <= 0.9 <= found.high)
    assert 0.92 < np.mean(held) < 0.98
    same = compare([1.0, 1.0, 1.0], [0.5, 0.51, 0.49], anytime=False)
    half = 4.302653 * np.std(np.log([0.5, 0.51, 0.49]), ddof=1) / math.sqrt(3)
    assert math.log(same.high / same.low) / 2 == pytest.approx(half, rel=1e-4)
    assert same.answer is Verdict.LESS


def test_what_cannot_be_decided_says_so_instead_of_an_endless_interval():
    found = compare([1.0, 1.0, 1.0], [0.3, 9.0, 1.0])
    assert found.text("B").startswith("not decidable with n = 3")
    assert found.to_dict()["ratio"]["high"] is None and found.to_dict()["ratio"]["low"] is None
    assert compare([1.0], [2.0], anytime=False).text("B").startswith("not decidable with n = 1")


@pytest.mark.parametrize(("more", "shown"), [(123, "130 more trials"), (8671, "8,700 more trials")])
def test_a_large_number_of_further_trials_is_rounded(more, shown):
    undecided = Comparison(1.0, 0.9, 1.1, 5, Verdict.UNDECIDED, 0.02, 0.1, more)
    assert undecided.text("B") == f"undecided: about {shown} needed"
