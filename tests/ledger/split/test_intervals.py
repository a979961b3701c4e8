"""Budgets of owners: each is plausible, and together they are the device's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.budget import Bound, Budget, Term
from everywatt.ledger.engine import Level
from everywatt.ledger.split.intervals import budgets

WHOLE = Budget(
    (Term("gain", "gain:x", 5.0), Term("offset", "offset:x", 3.0), Term("edges", "edge:1", -2.0)),
    (Bound("gap", "gap:1", 0.0, 4.0),),
)


def owners(charged, idle_j, method="quiet", spread_w=1.0, unsure=0.2, doubt=None, owned_s=None):
    names = [f"o{index}" for index in range(len(charged))]
    doubt = doubt or [0.0] * len(charged)
    owned_s = owned_s or [10.0 if amount else 0.0 for amount in charged]
    level = Level(10.0, spread_w=spread_w, method=method)
    return budgets(WHOLE, "cpu.0", level, names, charged, idle_j, owned_s, doubt, unsure)


amounts = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 5)), min_size=1, max_size=40)


@given(amounts, st.sampled_from(["given", "measured", "prior"]), st.floats(0, 5), st.floats(0, 1))
def test_owners_together_have_the_budget_of_the_device(rows, method, spread_w, unsure):
    charged, idle_j, doubt = (list(column) for column in zip(*rows, strict=True))
    together = Budget()
    for budget in owners(charged, idle_j, method, spread_w, unsure, doubt):
        together = together + budget
    assert together.sides() == pytest.approx(WHOLE.sides(), rel=1e-9)


def test_the_offset_is_idles_where_idle_was_measured_and_the_workers_where_it_was_given():
    idle, work = owners([0.0, 60.0], [40.0, 0.0])
    assert (idle.by_source()["offset"], work.by_source().get("offset")) == (3.0, None)
    idle, work = owners([0.0, 60.0], [40.0, 0.0], "given", spread_w=0.0)
    assert (idle.terms, work.by_source()["offset"], work.by_source()["gain"]) == ((), 3.0, 5.0)


def test_what_is_above_idle_is_off_by_as_much_as_the_edges_where_that_is_much():
    idle, work, lost = owners([0.0, 6.0, 1.0], [400.0, 0.0, 0.0], "measured", spread_w=0.0)
    assert "edges" not in idle.by_source()
    assert (work.by_source()["edges"], lost.by_source()["edges"]) == pytest.approx((2.0 * 6 / 7, 2.0 / 7))
    idle, work = owners([0.0, 60.0], [400.0, 0.0], "measured", spread_w=0.0)
    assert work.by_source()["edges"] == pytest.approx(2.0 * 60 / 460)


def test_one_worker_alone_has_no_doubt_about_its_share():
    _, work = owners([0.0, 60.0], [40.0, 0.0])
    assert "split" not in work.by_source()


def test_two_equal_workers_doubt_by_how_much_a_unit_of_use_costs():
    one, two = owners([50.0, 50.0], [0.0, 0.0], unsure=0.2)
    assert one.by_source()["split"] == pytest.approx(0.2 * 50 * math.sqrt(0.5))
    assert (one + two).by_source()["split"] == pytest.approx(0, abs=1e-12)


def test_a_doubt_about_one_share_is_missing_from_the_others_in_proportion():
    found = owners([60.0, 30.0, 10.0], [0.0] * 3, unsure=0.0, doubt=[0.0, 10.0, 0.0])
    assert [budget.by_source().get("split", 0.0) for budget in found] == pytest.approx([6, 7, 1])


def test_a_thousand_small_owners_do_not_make_the_largest_unsure():
    found = owners([2.0] + [1.0] * 999, [0.0] * 1000, unsure=0.2)
    widths = [budget.by_source()["split"] for budget in found]
    assert max(widths) < 0.5 and min(widths) > 0.15
    assert sum(len(budget.terms) for budget in found) < 6000


def test_the_spread_of_idle_goes_by_time_shared_and_not_by_joules():
    idle, load, other = owners([0.0, 60.0, 1.0], [40.0, 0.0, 0.0], owned_s=[0.0, 2.0, 8.0], spread_w=1.5)
    assert [budget.by_source()["baseline"] for budget in (idle, load, other)] == pytest.approx([15, 3, 12])
    assert (idle + load + other).by_source()["baseline"] == pytest.approx(0, abs=1e-12)


def test_a_spread_is_not_larger_than_what_there_is():
    idle, work = owners([0.0, 60.0], [40.0, 0.0], "prior", spread_w=1000.0)
    assert idle.by_source()["baseline"] == work.by_source()["baseline"] == pytest.approx(100)


def test_with_two_threads_for_each_core_the_smaller_owner_may_owe_more_than_its_cpu_time_says():
    names, charged, idle_j = ["small", "large"], [25.0, 75.0], [0.0, 0.0]
    levels = Level(10.0, method="given"), [10.0, 10.0], [0.0, 0.0]
    made = budgets(Budget(), "cpu.0", levels[0], names, charged, idle_j, levels[1], levels[2], 0.0, [0.125, 0.375])
    # Alone they would draw 1 − 0.75² = 0.4375 and 1 − 0.25² = 0.9375 of the most: shares 0.318 and 0.682.
    small, large = (budget.by_key()["split:cpu.0:saturation"] for budget in made)
    assert small == pytest.approx(1.3 * (100 * 0.4375 / 1.375 - 25))
    assert small + large == pytest.approx(0.0, abs=1e-9)
