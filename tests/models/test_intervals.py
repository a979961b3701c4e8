"""Widths of prediction intervals: what left-out folds demand, and more where a row is far from the training."""

import numpy as np
import pytest

from everywatt.core.stats import conformal_quantile
from everywatt.models.features import Feature
from everywatt.models.form import OUTSIDE, Form, Range, Widths, along, rank_in
from everywatt.models.intervals import NOWHERE, Map, Shape, Witnesses, map_of, strain, widening, widths_at
from everywatt.models.learners import Candidate, fit_form

EVERY_FOLD = Shape(steps=6, share=1.0, split=0.5)


def test_a_shape_may_leave_the_most_demanding_folds_to_the_factor():
    """Nine folds within 1 % and one that needs 30 %: three quarters of them are satisfied without it."""
    random = np.random.default_rng(2)
    errors = 0.01 * random.standard_normal((10, 100))
    errors[9] = 0.3
    rows = Witnesses(np.repeat(np.arange(10), 100), np.zeros(1000), errors.ravel())
    needs = sorted(conformal_quantile(fold.tolist(), 0.95) for fold in errors)
    (most,) = rows.widths(NOWHERE, 0.9, Shape(1, 1.0, 0.5)).above
    (many,) = rows.widths(NOWHERE, 0.9, Shape(1, 0.75, 0.5)).above
    assert (many, most) == (needs[7], needs[9])


def test_widths_of_many_rows_are_those_of_each():
    widths = Widths(0.9, (), (), (), (), (0.5, 1.0, 1.0, 2.0), (0.1, 0.2, 0.3, 0.3), (0.0, 0.2, 0.2, 0.5))
    novelty = np.array([0.0, 0.5, 0.7, 1.2, 2.0, 9.0])
    for found, side in zip(widths_at(widths, novelty), (widths.below, widths.above), strict=True):
        assert found == pytest.approx([along(widths.novelty, side, one) for one in novelty.tolist()])


def test_widths_hold_the_share_that_was_asked_for():
    random = np.random.default_rng(1)
    novelty, errors = random.random(4000), random.standard_normal(4000)
    errors *= 0.1 + novelty
    fold = np.arange(4000) % 10
    widths = Witnesses(fold[:2000], novelty[:2000], errors[:2000]).widths(NOWHERE, 0.9, EVERY_FOLD)
    assert (strain(widths, novelty[2000:], errors[2000:]) <= 1).mean() >= 0.9
    assert widths.below[-1] > 2 * widths.below[0]


def test_a_fold_counts_once_however_many_rows_it_has():
    """Nine quiet folds of 1000 rows and three of 20 that are off: rows say 1 %, folds say 30 %."""
    random = np.random.default_rng(2)
    errors = np.concatenate([0.01 * random.standard_normal(9000), np.full(60, 0.3)])
    fold = np.concatenate([np.repeat(np.arange(9), 1000), np.repeat([9, 10, 11], 20)])
    widths = Witnesses(fold, np.zeros(9060), errors).widths(NOWHERE, 0.9, EVERY_FOLD)
    assert widths.above[-1] == pytest.approx(0.3) and widths.below[-1] < 0.03


def test_distance_sees_a_ratio_that_never_was():
    """Both columns are inside their ranges; that one is busy while the other is not, was never seen."""
    random = np.random.default_rng(3)
    busy = random.random(400) + 0.01
    x = np.column_stack([busy, busy * 100])
    features = (Feature("value", "a"), Feature("value", "b"), Feature("log-ratio", "a", "b"))
    x = np.column_stack([x, np.log(x[:, 0] / x[:, 1])])
    form = fit_form(Candidate("linear", "linear", features), x, 10 + 20 * busy + random.random(400))
    place = map_of(form, x)
    usual, odd = place.novelty(x), place.novelty(np.array([[0.9, 1.5, np.log(0.9 / 1.5)]]))
    assert odd[0] > 3 * usual.max()


def test_ranks_are_the_same_one_by_one():
    knots = (0.0, 0.0, 1.0, 1.0, 1.0, 5.0)
    form = Form("rising", (Feature("value", "a"),), (Range(0, 5, 1),), 0.0)
    place = Map((0,), (1.0,), (knots,), np.zeros((1, 1)), np.ones(1))
    values = np.array([-30.0, -1, 0, 0.5, 1, 2, 5, 7, 99])
    assert place.points(values[:, None])[:, 0].tolist() == pytest.approx([rank_in(knots, v) for v in values.tolist()])
    assert form.counted((0,)) == [0]


def test_a_row_beside_rows_that_are_all_alike_is_farther_than_one_among_rows_that_vary():
    random = np.random.default_rng(4)
    x = np.concatenate([random.normal(1.0, 0.001, 200), random.uniform(5.0, 9.0, 200)])[:, None]
    form = fit_form(Candidate("linear", "linear", (Feature("value", "a"),)), x, 10 + x[:, 0])
    near_idle, among_loads = map_of(form, x).novelty(np.array([[2.5], [7.0]]))
    assert near_idle > 2 * among_loads


def test_the_widening_of_many_rows_is_that_of_each():
    """Validation widens the same rows by as much as a sensor does."""
    features = (Feature("value", "a"), Feature("log-ratio", "a", "b"))
    form = Form("rising", features, (Range(0, 5, 1), Range(2, 2, 2)), 0.0)
    widths = Witnesses(np.zeros(100, dtype=np.int64), np.zeros(100), np.full(100, 0.1)).widths(NOWHERE, 0.9, EVERY_FOLD)
    x = np.array([[3.0, 2.0], [5.2, 2.0], [5.3, 2.0], [99.0, 2.0], [-2.0, 2.0], [1.0, 2.1]])
    found = widening(form, (0,), x)
    for row, more in zip(x.tolist(), found.tolist(), strict=True):
        excess = max(limit.excess(value) for limit, value in zip(form.ranges, row, strict=True))
        usual, wider = (widths.logs(0.0, out)[0] for out in (0.0, excess if excess > OUTSIDE else 0.0))
        assert min(usual + more, 3.0) == pytest.approx(wider)
    assert found[0] == found[1] == 0.0 and 0.0 < found[2] < found[3]
