"""The algebra of error budgets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.stats import student_factor

joules = st.floats(-1e6, 1e6, allow_nan=False)
sizes = st.floats(0, 1e6, allow_nan=False)
terms = st.builds(Term, st.sampled_from(["gain", "edge"]), st.sampled_from(["a", "b", "c"]), joules, st.just(math.inf))
bounds = st.builds(Bound, st.sampled_from(["gap", "wraps"]), st.sampled_from(["x", "y"]), sizes, sizes)
budgets = st.builds(Budget, st.lists(terms, max_size=5).map(tuple), st.lists(bounds, max_size=3).map(tuple))
close = {"rel": 1e-9, "abs": 1e-3}


@given(budgets, budgets)
def test_addition_commutes(one, other):
    assert (one + other).sides() == pytest.approx((other + one).sides(), **close)


@given(budgets, budgets, budgets)
def test_addition_associates(a, b, c):
    assert ((a + b) + c).sides() == pytest.approx((a + (b + c)).sides(), **close)


@given(budgets, budgets)
def test_an_interval_of_a_sum_is_never_wider_than_the_intervals_together(one, other):
    below, above = (one + other).sides()
    assert below <= one.sides()[0] + other.sides()[0] + 1e-3
    assert above <= one.sides()[1] + other.sides()[1] + 1e-3


@given(budgets, st.floats(-100, 100))
def test_a_multiple_has_a_multiple_of_the_interval(budget, factor):
    below, above = budget.sides()
    expected = (below * factor, above * factor) if factor >= 0 else (-above * factor, -below * factor)
    assert budget.scaled(factor).sides() == pytest.approx(expected, **close)


@given(st.lists(terms, max_size=5).map(tuple))
def test_what_is_taken_from_itself_has_no_error_left(some):
    assert (Budget(some) - Budget(some)).sides() == pytest.approx((0.0, 0.0), abs=1e-6)


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_adjacent_windows_share_an_edge(first, shared, last):
    """[t0, t1] and [t1, t2]: the error of t1 makes one longer and the other shorter, so that the sum forgets it."""
    one = Budget((Term("edge", "t0", -first), Term("edge", "t1", shared)))
    two = Budget((Term("edge", "t1", -shared), Term("edge", "t2", last)))
    assert (one + two).sides()[0] == pytest.approx(math.hypot(first, last))


def test_correlated_errors_add_and_independent_ones_do_not():
    gain = Budget((Term("gain", "card-0", 3.0),))
    assert (gain + gain).sides() == (6.0, 6.0)
    assert (gain + Budget((Term("gain", "card-1", 4.0),))).sides() == (5.0, 5.0)


def test_few_degrees_of_freedom_count_by_their_share():
    """Welch and Satterthwaite: u = 3 of 10 degrees of freedom beside u = 4 of a normal law, ν = 5⁴ / (3⁴ / 10) = 77."""
    few, many = Term("gain", "g", 3 * student_factor(10), 10), Term("edge", "e", 4 * student_factor(math.inf))
    assert Budget((few,)).sides()[0] == pytest.approx(few.joules)
    assert Budget((few, many)).sides()[0] == pytest.approx(5 * student_factor(77))


@given(st.floats(0.1, 1e3), st.floats(0.1, 1e3), st.integers(3, 40))
def test_errors_that_were_found_from_one_sample_share_its_freedom(gain, offset, freedom):
    """Of n sensors: any sum of gain and offset has n degrees of freedom, however it is split into independent errors
    (aᵀSa / aᵀΣa of a Wishart matrix S is χ² over n)."""
    both = Budget((Term("gain", "g", gain, freedom), Term("offset", "o", offset, freedom)))
    assert both.sides()[0] == pytest.approx(math.hypot(gain, offset))


def test_a_gain_that_was_found_over_sensors_reaches_further_up():
    """Readings 10 % low at most come from 1 / 0.9 of them at most: with a lean to first order, 11 %."""
    gain = Budget((Term("gain", "g", 10.0, 19),))
    assert gain.sides(100.0) == (pytest.approx(9.0), pytest.approx(11.0))
    assert gain.sides() == (10.0, 10.0)


def test_bounds_are_added_whole_and_turn_round_with_the_sign():
    budget = Budget((Term("gain", "g", 3.0),), (Bound("gap", "x", 1.0, 10.0), Bound("gap", "y", 0.0, 5.0)))
    assert budget.sides() == (4.0, 18.0)
    assert budget.scaled(-1).sides() == (18.0, 4.0)


def test_sources_largest_first():
    budget = Budget(
        (Term("edge", "t0", 3.0), Term("edge", "t1", 4.0), Term("gain", "g", -20.0)), (Bound("gap", "x", 1.0, 7.0),)
    )
    assert list(budget.by_source().items()) == [("gain", 20.0), ("gap", 7.0), ("edge", 5.0)]


@given(st.lists(budgets, max_size=6))
def test_the_sum_is_what_adding_one_after_another_gives(some):
    whole = Budget()
    for budget in some:
        whole = whole + budget
    assert Budget.sum(some) == whole


def test_one_term_seen_twice_counts_twice():
    term = Term("gain", "g", 3.0)
    assert Budget.sum([Budget((term,)), Budget((term, Term("edge", "g", 1.0))), Budget((term,))]).terms == (
        Term("gain", "g", 9.0),
        Term("edge", "g", 1.0),
    )


@pytest.mark.parametrize(
    ("gain_j", "offset_j", "r", "edges_j"), [(7.9, 6.5, -0.39, 11.0), (7.9, 10.9, -0.39, 0.7), (4.0, 2.0, 0.0, 2.0)]
)
def test_closed_form_and_monte_carlo_agree(gain_j, offset_j, r, edges_j):
    """JCGM 101: readings of 100 J by sensors that read (1 + g) E + o + e, with g and o found over 19 of them."""
    rng = np.random.default_rng(1)
    student = rng.standard_t(19, (2, 400_000)) / student_factor(19)
    gain = gain_j / 100 * student[0]
    offset = offset_j * (r * student[0] + math.sqrt(1 - r * r) * student[1])
    energy = (100 - offset - rng.normal(0, edges_j / student_factor(math.inf), 400_000)) / (1 + gain)
    budget = Budget(
        (
            Term("gain", "g", gain_j, 19),
            Term("offset", "g", offset_j * r, 19),
            Term("offset", "o", offset_j * math.sqrt(1 - r * r), 19),
            Term("edges", "e", edges_j),
        )
    )
    below, above = budget.sides(100.0)
    low, high = np.percentile(energy, [2.5, 97.5])
    assert (100 - below, 100 + above) == (pytest.approx(low, abs=0.03 * below), pytest.approx(high, abs=0.03 * above))


DRAWS, BUDGETS = 100_000, 200


def student(law, freedom, count):
    """Draws with a 95 % half-width of 1 that share one estimate of their variance."""
    scale = np.sqrt(freedom / law.chisquare(freedom, DRAWS)) if freedom < math.inf else 1.0
    return law.standard_normal((count, DRAWS)) * scale / student_factor(freedom)


def sensor_budget(random, law):
    """Readings of 100 J by a sensor that reads (1 + g) E + o + e: terms, and energies that would be read so."""
    freedom = float(random.choice([17, 40, 200]))
    gain, offset, r = random.uniform(0.5, 10), random.uniform(0, 50), random.uniform(-0.5, 0)
    rest, edges = math.sqrt(1 - r * r), random.uniform(0, 15, 2)
    g, o = student(law, freedom, 2)
    e = edges @ student(law, math.inf, 2)
    terms = [
        Term("gain", "g", gain, freedom),
        Term("offset", "g", offset * r, freedom),
        Term("offset", "o", offset * rest, freedom),
        *(Term("edges", f"e{number}", width) for number, width in enumerate(edges)),
    ]
    return terms, (100 - offset * (r * g + rest * o) - e) / (1 + gain / 100 * g)


def model_budget(random, law):
    """A model's lopsided interval beside edges."""
    sd, edges = random.uniform(0.05, 0.5), random.uniform(0, 15)
    z = student(law, math.inf, 2)
    below, above = (100 * abs(math.expm1(side * student_factor(math.inf) * sd)) for side in (-1, 1))
    terms = [Term("model", "m", below), Term("edges", "e", edges)]
    energies = 100 * np.exp(sd * student_factor(math.inf) * z[0]) - edges * z[1]
    return terms, energies, [Bound("model", "outside", 0.0, above - below)]


def disagreements(kind, seed=1):
    """By how much the two ends of random figures are further out than those of JCGM 101, in % of its half-width."""
    random, law = (np.random.default_rng((seed, number)) for number in range(2))
    found = []
    for _ in range(BUDGETS):
        terms, energies, limits = model_budget(random, law) if kind == "model" else (*sensor_budget(random, law), [])
        low, high = np.percentile(energies, [2.5, 97.5])
        if kind == "bounds":  # not probabilities: what they allow is added at its ends
            sizes = random.uniform(0, 60, (int(random.integers(1, 4)), 2))
            limits = [Bound("gap", f"b{number}", *size) for number, size in enumerate(sizes)]
            low, high = low - sizes[:, 0].sum(), high + sizes[:, 1].sum()
        low = max(low, 0.0)
        figure = Energy(100.0, Budget(tuple(terms), tuple(limits)))
        found.append((200 * (low - figure.low) / (high - low), 200 * (figure.high - high) / (high - low)))
    return np.array(found)


@pytest.mark.parametrize("kind", ["skew", "bounds", "model"])
def test_no_single_figure_needs_monte_carlo(kind):
    """Ends agree to 5 % of the half-width where skew, bounds or a model dominate."""
    off = np.abs(disagreements(kind))
    assert off.max() < 5.0, (np.percentile(off, 95), off.max())
