"""The counter rule against counters whose truth is known."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.counters import Case, difference

NAN = float("nan")
TOP = 262_143_328_850  # microjoules, a common max_energy_range_uj
starts = st.integers(0, TOP - 1)
watts = st.floats(0.001, 399.0)
seconds = st.floats(0.001, 60.0)


@given(starts, watts, seconds)
def test_a_counter_below_its_power_limit_is_always_right(start, power, lapse):
    """At most 400 W: one minute is far from two wraps, so that wrap and plain step give the true joules."""
    counts = round(power * lapse * 1e6)
    step = difference(start, (start + counts) % TOP, wrap=TOP, seconds=lapse, most_per_s=400e6)
    assert step.case is (Case.WRAPPED if start + counts >= TOP else Case.PLAIN)
    assert step.count == counts


@given(st.integers(1_000, TOP), st.integers(0, 999), st.floats(0.0, 60.0))
def test_a_restart_never_yields_more_than_the_hardware_can_count(before, after, lapse):
    step = difference(before, after, wrap=TOP, seconds=lapse, most_per_s=400e6)
    if step.case is Case.RESET:
        assert math.isnan(step.count)
    else:
        assert step.case is Case.WRAPPED
        assert step.count <= 400e6 * lapse * 1.5
        assert step.count * 1e-6 < 1e9


@given(st.integers(0, TOP), st.integers(0, TOP), st.none() | st.just(TOP), st.none() | st.floats(1e6, 5e8), seconds)
def test_no_difference_is_negative_or_absurd(before, after, wrap, most, lapse):
    step = difference(before, after, wrap=wrap, seconds=lapse, most_per_s=most)
    assert math.isnan(step.count) or 0 <= step.count <= TOP
    assert math.isnan(step.count) is (step.case is Case.RESET)


@given(st.integers(1, TOP), st.integers(1, TOP))
def test_without_a_range_a_step_back_is_a_reset(high, drop):
    step = difference(high, max(high - drop, 0), wrap=None, seconds=1.0)
    assert step.case is Case.RESET


def test_many_wraps_are_bounded():
    """200 W for an hour is 720 kJ, 2.7 ranges: the least is known, and the most."""
    step = difference(100.0, 200.0, wrap=TOP, seconds=3600, most_per_s=200e6)
    assert (step.case, step.count) == (Case.MANY_WRAPS, 100.0)
    assert step.most == 200e6 * 3600 * 1.5
    back = difference(200.0, 100.0, wrap=TOP, seconds=3600, most_per_s=200e6)
    assert (back.case, back.count) == (Case.MANY_WRAPS, TOP - 100.0)


def test_two_quick_reads_over_a_wrap_see_one_whole_publication():
    """100 W published every millisecond, read twice 0.1 ms apart: 0.1 J appears at once, and it is no reset."""
    before, after = TOP - 40_000, 60_000
    late = difference(before, after, wrap=TOP, seconds=1e-4, most_per_s=200e6, period_s=1e-3)
    assert (late.case, late.count) == (Case.WRAPPED, 100_000)
    assert difference(before, after, wrap=TOP, seconds=1e-4, most_per_s=200e6).case is Case.RESET


def test_missing_readings_and_counters_above_their_range():
    assert difference(NAN, 1.0, wrap=TOP, seconds=1).case is Case.MISSING
    assert difference(1.0, NAN, wrap=TOP, seconds=1).case is Case.MISSING
    assert difference(TOP + 5.0, 3.0, wrap=TOP, seconds=1).case is Case.RESET


def test_without_a_power_limit_a_wrap_comes_from_near_the_top():
    assert difference(TOP - 10.0, 5.0, wrap=TOP, seconds=1)[:2] == (15.0, Case.WRAPPED)
    assert difference(TOP / 4, 5.0, wrap=TOP, seconds=1).case is Case.RESET
