"""Widths of prediction intervals: what left-out rows demand, and more where a row is new."""

import numpy as np
import pytest

from everywatt.models.form import Widths
from everywatt.models.intervals import Map, cautious, covered, factors, graded, widths_of
from everywatt.models.learners import Candidate
from everywatt.models.validation import MOST_CAUTION, Held, Score, caution, checked_coverage

NOWHERE = Map((), (), (), np.zeros((0, 0)))
STEPS = Widths(0.9, (), (), (), (), (0.0, 1.0, 2.0), (0.1, 0.2, 0.4), (0.1, 0.1, 0.3))


def test_widths_hold_the_share_that_was_asked_for():
    random = np.random.default_rng(1)
    novelty, errors = random.random(2000), random.standard_normal(2000)
    widths = widths_of(NOWHERE, novelty[:1000], errors[:1000] * (0.1 + novelty[:1000]), 0.9)
    inside = covered(widths, novelty[1000:], errors[1000:] * (0.1 + novelty[1000:]))
    assert 0.86 <= inside.mean() <= 0.94
    assert widths.below[-1] > 2 * widths.below[0]


def test_caution_is_for_new_rows():
    assert graded((3.0, 4.0, 5.0)) == (0.0, 2.0, 5.0)
    wide = cautious(STEPS, 1.5)
    assert wide.below == pytest.approx((0.1, 0.25, 0.6)) and wide.above == pytest.approx((0.1, 0.125, 0.45))
    assert cautious(STEPS, 1.0) == STEPS


def test_the_factor_of_a_row_puts_it_just_inside():
    novelty, errors = np.array([2.0, 1.0, 0.5, 3.0]), np.array([-0.7, 0.11, -0.2, 1.0])
    for place, factor in enumerate(factors(STEPS, novelty, errors).tolist()):
        row = slice(place, place + 1)
        assert covered(cautious(STEPS, factor + 1e-9), novelty[row], errors[row]).all()
        assert not covered(cautious(STEPS, factor - 1e-6), novelty[row], errors[row]).any()


def held(fold, off, novelty):
    """Rows of 100 W that were told `off` times as much."""
    rows = np.arange(len(off))
    return Held(rows, fold, 100.0 * np.exp(-off), novelty, np.zeros(len(off)))


def world(bias):
    """Five blocks and five loads of 100 rows; errors of 1 %, and each load is `bias` off to its own side when new."""
    random = np.random.default_rng(4)
    noise = 0.01 * random.standard_normal(500)
    fold = np.repeat(np.arange(5), 100)
    # Loads and blocks lie across each other.
    load = np.tile(np.arange(5), 100)
    sides = np.array([1, -1, 1, -1, 1])[load]
    blocked = held(fold, noise, random.random(500))
    loaded = held(load, noise + bias * (1 + load) * sides, 1 + random.random(500))
    return Score(Candidate("c", "linear", ()), 1.0, 1.0, (1.0,) * 5, 1.0, blocked, loaded), np.full(500, 100.0)


def test_loads_that_err_alike_ask_for_caution_and_others_do_not():
    found, y = world(0.0)
    assert caution(found, y, 0.9) == pytest.approx(1.0, abs=0.15)
    found, y = world(0.02)
    assert 1.2 < caution(found, y, 0.9) <= MOST_CAUTION
    assert checked_coverage(found, y, 0.9) >= 0.85
