import pytest

from everywatt.bench.precision.layers import Sensitivity, correlated, plan, ranked, savings


def row(name, kl, saved):
    return Sensitivity(name, kl, None, 0.1, saved)


ROWS = [row("harmful", 1.0, 0.3), row("good", 0.1, 0.2), row("slower", 0.0, -0.1), row("fair", 0.2, 0.2)]


def test_the_most_saved_for_the_least_harm_comes_first():
    assert [one.layer for one in ranked(ROWS)] == ["good", "fair", "harmful", "slower"]


def test_a_plan_stays_within_the_harm_and_takes_nothing_that_saves_nothing():
    assert plan(ROWS, 0.5) == ["good", "fair"]
    assert plan(ROWS, 1.0) == ["good", "fair", "harmful"]
    assert plan(ROWS, 0.05) == []


def test_savings_are_measured_where_int8_was():
    base = [{"layer": "a", "seconds": 0.04}, {"layer": "b", "seconds": 0.02}]
    found = savings(base, [{"layer": "a", "seconds": 0.01}, {"layer": "b", "seconds": 0.03}], 0.1)
    assert found["a"] == pytest.approx((0.4, 0.3)) and found["b"] == pytest.approx((0.2, -0.1))
    assert savings(base, [], 0.1)["a"] == pytest.approx((0.4, 0.3))


def test_shares_are_never_more_than_the_whole():
    """With hooks the layers took 0.06 s, the batch without them 0.03."""
    base = [{"layer": "a", "seconds": 0.04}, {"layer": "b", "seconds": 0.02}]
    found = savings(base, [{"layer": "a", "seconds": 0.01}, {"layer": "b", "seconds": 0.03}], 0.03)
    assert found["a"] == pytest.approx((2 / 3, 1 / 2)) and found["b"] == pytest.approx((1 / 3, -1 / 6))


def test_energy_and_harm_are_correlated_by_rank():
    """Ranks 1 2 3 4 beside 2 1 4 3: 1 - 6 * 4 / (4 * 15) = 0.6."""
    energy = {"a": 1.0, "b": 2.0, "c": 30.0, "d": 400.0, "only here": 5.0}
    found = correlated(energy, {"a": 0.2, "b": 0.1, "c": 9.0, "d": 0.3})
    assert (found.value, found.layers) == (pytest.approx(0.6), 4)
    assert str(found).startswith("energy and harm of 4 layers: rank correlation +0.60 (Spearman")
    assert correlated(energy, {"a": 0.2, "b": 0.1}) is None
    assert correlated(energy, {"a": 0.2, "b": 0.2, "c": 0.2}) is None
