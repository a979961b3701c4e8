"""The figure: arithmetic, intervals, refusals and how it prints."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import Energy, join_labels, sum_energies, total
from everywatt.core.errors import MeasurementRefused, ScopeError

amounts = st.floats(1.0, 1e6)


def figure(joules, *terms, bounds=(), scope="cpu", pedigree="counter", coverage=1.0):
    return Energy(joules, Budget(terms, bounds), scope, pedigree, coverage)


@given(amounts, amounts, st.floats(0.001, 0.2))
def test_gain_cancels_in_a_ratio(one, other, gain):
    """5 % of one card's gain is in both runs: their ratio does not know it."""
    top = figure(one, Term("gain", "card", one * gain))
    bottom = figure(other, Term("gain", "card", other * gain))
    ratio = top.ratio(bottom)
    assert ratio.value == pytest.approx(one / other)
    assert ratio.high - ratio.low == pytest.approx(0.0, abs=1e-9 * ratio.value)


@given(amounts, amounts, st.floats(0.01, 0.9))
def test_offset_does_not_cancel_in_a_ratio_of_unequal_runs(one, other, share):
    """The same offset weighs more in the smaller run: the ends are the ratios at its own two ends."""
    offset_j = share * min(one, other)
    ratio = figure(one, Term("offset", "card", offset_j)).ratio(figure(other, Term("offset", "card", offset_j)))
    ends = sorted([(one + offset_j) / (other + offset_j), (one - offset_j) / (other - offset_j)])
    assert (ratio.low, ratio.high) == pytest.approx(ends, rel=1e-6)


@given(st.floats(100.0, 1e5), st.floats(1.0, 99.0), st.floats(0.1, 50.0), st.floats(0.0, 0.2))
def test_net_is_gross_less_idle_and_the_offset_is_gone(gross, idle, offset_j, gain):
    """Over one time the offset is in both; the gain is left on the net amount."""
    run = figure(gross, Term("offset", "card", offset_j), Term("gain", "card-gain", gross * gain))
    rest = figure(idle, Term("offset", "card", offset_j), Term("gain", "card-gain", idle * gain))
    net = run - rest
    assert net.joules == pytest.approx(gross - idle)
    assert net.half_width == pytest.approx((gross - idle) * gain, abs=1e-9 * gross)


WIDE = [(0.3, 0.3), (0.5, 0.5), (0.7, 0.7), (0.1, 0.6), (0.6, 0.1)]  # 95 % half-widths as shares, above and below


@pytest.mark.parametrize(("source", "shared"), [("offset", 0.0), ("offset", 0.5), ("model", 0.5)])
def test_a_ratio_of_wide_figures_holds_the_truth(source, shared):
    """Errors drawn as the budgets say that they are; one of both figures is added to them, or is a factor of them."""
    z = np.random.default_rng(3).standard_normal((3, 200_000)) / 1.96
    own = np.sqrt(1 - shared**2)
    for widths in WIDE:
        top, bottom = (
            figure(
                joules, Term("edges", f"{joules}", joules * width * own), Term(source, "both", joules * width * shared)
            )
            for joules, width in zip((200.0, 100.0), widths, strict=True)
        )
        above, below = (
            1 + width * (own * one + shared * z[2])
            if source == "offset"
            else (1 + width * own * one) * (1 + width * shared * z[2])
            for width, one in zip(widths, z[:2], strict=True)
        )
        ratio, truth = top.ratio(bottom), 2 * above / below
        outside = float(np.mean(truth < ratio.low)), float(np.mean(truth > ratio.high))
        assert sum(outside) < 0.055, widths
        assert max(outside) < 0.04, widths


def test_a_ratio_to_what_may_be_zero_has_no_upper_end():
    ratio = figure(20.0).ratio(figure(10.0, Term("model", "m", 11.0)))
    assert (round(ratio.low, 3), ratio.high) == (0.952, float("inf"))
    assert str(ratio) == "2.0 (0.9 … ∞)"
    assert ratio.to_dict()["high"] is None


def test_an_energy_divided_by_an_energy_is_their_ratio():
    assert figure(20.0) / figure(10.0) == figure(20.0).ratio(figure(10.0))
    with pytest.raises(ScopeError):
        figure(1.0) / figure(1.0, scope="wall")


@pytest.mark.parametrize("joules", [0.0, -5.0])
def test_a_ratio_of_nothing_or_less_keeps_its_interval(joules):
    ratio = figure(joules, Term("edge", "t", 2.0)).ratio(figure(10.0))
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx(((joules - 2) / 10, joules / 10, (joules + 2) / 10))


def test_ratio_with_bounds_and_to_zero():
    ratio = figure(20.0, bounds=(Bound("gap", "g", 0.0, 10.0),)).ratio(figure(10.0))
    assert (ratio.low, ratio.high) == (2.0, 3.0)
    assert str(ratio) == "2.00 (2.00 … 3.00)"
    with pytest.raises(MeasurementRefused):
        figure(1.0).ratio(figure(0.0))


def test_scopes_are_not_mixed():
    for action in (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a.ratio(b)):
        with pytest.raises(ScopeError, match="'cpu' with energy of 'wall'"):
            action(figure(1.0), figure(1.0, scope="wall"))


def test_refused_figures_say_why_and_do_no_arithmetic():
    refused = Energy.refuse("no sensor", scope="cpu")
    assert (refused.joules, refused.low, refused.high, refused.half_width) == (None, None, None, None)
    assert str(refused) == "refused: no sensor"
    assert refused.to_dict()["refused"] == "no sensor"
    for action in (lambda: refused + figure(1.0), lambda: refused * 2, lambda: refused.value):
        with pytest.raises(MeasurementRefused, match="no sensor"):
            action()


def test_it_prints_as_promised():
    energy = figure(412.3, Term("gain", "g", 6.1), scope="cpu+gpu")
    assert str(energy) == "412.3 J ± 6.1 (95 %) · cpu+gpu · counter · coverage 100 %"
    assert "<b>412.3 J ± 6.1" in energy._repr_html_()
    assert (energy * 2).low == pytest.approx(812.4)
    assert (energy / 2).half_width == pytest.approx(3.05)


def test_a_prompt_shows_the_line_that_is_printed():
    energy = figure(412.3, Term("gain", "g", 6.1), scope="cpu+gpu")
    assert repr(energy) == str(energy)
    assert repr(Energy.refuse("no sensor")) == "refused: no sensor"
    ratio = energy.ratio(energy * 2)
    assert repr(ratio) == str(ratio)


def test_total_adds_devices_and_names_what_is_missing():
    parts = {
        "cpu.0": figure(100.0, Term("gain", "xeon", 5.0)),
        "cpu.1": figure(50.0, Term("gain", "xeon", 2.5), coverage=0.9),
        "gpu.0": Energy.refuse("the card is lost"),
    }
    energy = total(parts, scope="cpu+gpu")
    assert (energy.joules, energy.half_width, energy.coverage) == (
        150.0,
        7.5,
        pytest.approx(0.6),
    )  # one of three gave nothing
    assert energy.notes == ("gpu.0: the card is lost",)
    assert energy.part("cpu.1").joules == 50.0
    nothing = total({"gpu.0": Energy.refuse("the card is lost")}, scope="gpu")
    assert nothing.joules is None and nothing.refused == "gpu.0: the card is lost"


def test_parts_follow_sums_and_labels_join_once():
    one = total({"cpu.0": figure(10.0), "gpu.0": figure(5.0, pedigree="integrated")}, scope="s")
    two = total({"cpu.0": figure(1.0), "gpu.0": figure(2.0, pedigree="integrated")}, scope="s")
    assert dict((one + two).parts)["gpu.0"].joules == 7.0
    assert (one - two).joules == 12.0
    assert (one + two).pedigree == "counter+integrated"
    assert join_labels(["counter+integrated", "counter", "", "modelled"]) == "counter+integrated+modelled"


def test_sum_adds_energies_up_and_other_things_are_not_added():
    one = Energy(5.0, scope="gpu", parts=(("gpu.0", Energy(5.0, scope="gpu")),))
    two = Energy(9.0, scope="gpu", parts=(("gpu.0", Energy(6.0, scope="gpu")), ("gpu.1", Energy(3.0, scope="gpu"))))
    whole = sum([one, two])
    assert whole.joules == 14.0
    assert {name: part.joules for name, part in whole.parts} == {"gpu.0": 11.0, "gpu.1": 3.0}, "parts add up to it"
    assert {name: part.joules for name, part in (one - two).parts} == {"gpu.0": -1.0, "gpu.1": -3.0}
    for other in (5, 1.5, "x", None):
        with pytest.raises(TypeError):
            one + other
        with pytest.raises(TypeError):
            other + one


def test_a_refused_part_that_one_lacks_does_not_refuse_the_sum():
    one = total({"cpu.0": figure(10.0)}, scope="s")
    two = total({"cpu.0": figure(5.0), "gpu.0": Energy.refuse("lost")}, scope="s")
    whole = one + two
    assert whole.joules == 15.0
    assert whole.part("gpu.0").refused == "lost"
    assert (two + one).part("gpu.0").refused == (one - two).part("gpu.0").refused == "lost"


terms = st.builds(Term, st.sampled_from(["gain", "edge"]), st.sampled_from(["a", "b", "c"]), st.floats(-1e3, 1e3))
bounds = st.builds(Bound, st.just("gap"), st.sampled_from(["x", "y"]), st.floats(0, 10), st.floats(0, 10))
budgets = st.builds(Budget, st.lists(terms, max_size=4).map(tuple), st.lists(bounds, max_size=2).map(tuple))
labels = st.sampled_from(["counter", "integrated", "counter+integrated"])
notes = st.lists(st.sampled_from(["one", "two"]), max_size=2).map(tuple)
devices = st.one_of(
    st.builds(Energy, amounts, budgets, st.just("s"), labels, st.floats(0, 1), st.just(()), notes),
    st.just(Energy.refuse("lost", scope="s")),
)
energies = st.builds(
    Energy,
    amounts,
    budgets,
    st.just("s"),
    labels,
    st.floats(0, 1),
    st.dictionaries(st.sampled_from(["cpu.0", "gpu.0", "gpu.1"]), devices).map(lambda parts: tuple(parts.items())),
    notes,
)


def same(one, other):
    """Budgets, labels and notes are equal; joules to the microjoule."""
    assert one.budget == other.budget
    assert (one.scope, one.pedigree, one.coverage, one.notes, one.refused) == (
        *(other.scope, other.pedigree, other.coverage, other.notes, other.refused),
    )
    assert one.joules == (None if other.joules is None else pytest.approx(other.joules, abs=1e-6))
    assert [name for name, _ in one.parts] == [name for name, _ in other.parts]
    for (_, part), (_, theirs) in zip(one.parts, other.parts, strict=True):
        same(part, theirs)


@given(st.lists(energies, min_size=1, max_size=8))
def test_the_sum_is_what_adding_one_after_another_gives(found):
    one_by_one = found[0]
    for energy in found[1:]:
        one_by_one = one_by_one + energy
    same(sum_energies(found), one_by_one)


def test_a_sum_refuses_what_adding_refuses():
    with pytest.raises(ScopeError):
        sum_energies([figure(1.0), figure(1.0, scope="wall")])
    with pytest.raises(MeasurementRefused, match="lost"):
        sum_energies([figure(1.0), Energy.refuse("lost", scope="cpu")])
    with pytest.raises(ValueError):
        sum_energies([])


def test_sums_take_linear_time():
    """Ten times as many take about ten times as long, where adding one after another would take a hundred times."""

    def seconds(count):
        found = [figure(1.0, Term("gain", "g", 0.1), Term("edge", f"{i}", 0.1)) for i in range(count)]
        start = time.process_time()
        whole = sum_energies(found)
        took = time.process_time() - start
        assert whole.joules == count and len(whole.budget.terms) == count + 1
        return took

    assert min(seconds(20_000) for _ in range(3)) < 40 * max(min(seconds(2_000) for _ in range(3)), 1e-3)


def test_a_ratio_of_amounts_is_not_negative_and_that_of_differences_may_be():
    wide = Energy(3.0, Budget((Term("edges", "a", 4.0),)), "gpu")
    narrow = Energy(2.0, Budget((Term("edges", "b", 0.1),)), "gpu")
    assert wide.ratio(narrow).low == 0.0
    assert (wide - narrow).ratio(narrow).low < 0.0


def test_no_joules_at_all_are_an_amount_whose_interval_ends_at_zero():
    nothing = Energy(0.0, Budget((Term("quantum", "quantum", 1.0),)), "node", "counter")
    assert (nothing.low, nothing.high) == (0.0, 1.0)
    assert str(nothing) == "≈ 0.00 J (0.00 … 1.00 J, 95 %) · node · counter · coverage 100 %"
    assert replace(nothing, signed=True).low == -1.0
