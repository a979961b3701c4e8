"""Shapes reach their ends, last as long as asked, and come out the same from the same seed."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.core.errors import UsageError
from everywatt.stress import parse_shape


def levels(text, time_s=10.0, **more):
    return parse_shape(text).sampled(time_s, **more)


def test_a_ramp_reaches_both_ends():
    assert levels("ramp:0..100") == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert levels("ramp:0..50", steps=10)[-1] == 50, "the old program stopped at 45"
    assert levels("ramp:100..20:40") == [100, 60, 20]
    assert levels("ramp:0..100:30") == [0, 25, 50, 75, 100], "steps of at most 30, all alike"


@settings(deadline=None)
@given(low=st.floats(0, 100), high=st.floats(0, 100), steps=st.integers(2, 50))
def test_every_ramp_starts_and_ends_where_it_says(low, high, steps):
    found = parse_shape(f"ramp:{low:.6f}..{high:.6f}").sampled(10.0, steps=steps)
    assert len(found) == steps
    assert found[0] == pytest.approx(low, abs=1e-6) and found[-1] == pytest.approx(high, abs=1e-6)


def test_constant_and_steps():
    assert levels("50") == levels("constant:50") == [50.0]
    assert levels("steps:0,25,100") == [0, 25, 100]


def test_a_sine_goes_around_its_middle_as_often_as_asked():
    found = levels("sine:20..80,5s", 20.0)
    assert len(found) == 48 and min(found) >= 20 and max(found) <= 80
    assert sum(found) / len(found) == pytest.approx(50, abs=0.01)
    crossings = sum((a < 50) != (b < 50) for a, b in pairwise(found))
    assert crossings == 7, "four periods change sides seven times inside"
    expected = 50 + 30 * math.sin(2 * math.pi * 0.5 / 12)
    assert found[0] == pytest.approx(expected)


@pytest.mark.parametrize("text", ["random:10..90", "walk:10..90,20", "latin:10..90"])
def test_the_same_seed_is_the_same_load(text):
    assert levels(text, steps=40, seed=7) == levels(text, steps=40, seed=7)
    assert levels(text, steps=40, seed=7) != levels(text, steps=40, seed=8)
    assert all(10 <= level <= 90 for level in levels(text, steps=40, seed=7))


def test_a_walk_moves_by_at_most_its_step():
    found = levels("walk:0..100,10", steps=200, seed=1)
    assert max(abs(b - a) for a, b in pairwise(found)) <= 10
    assert levels("walk:30..30", steps=3) == [30, 30, 30]


def test_latin_takes_each_part_of_the_range_once():
    found = levels("latin:0..100", steps=20, seed=3)
    assert sorted(int(level // 5) for level in found) == list(range(20))
    assert found != sorted(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zigzag:0..100", "no shape 'zigzag:0..100'"),
        ("ramp:0-100", "'0-100' in the shape 'ramp:0-100' is not a range"),
        ("ramp:0..120", "120 % in the shape"),
        ("ramp:0..100:0", "step size of 0"),
        ("constant:much", "'much' in the shape"),
        ("constant:nan", "outside 0 … 100"),
        ("steps:1,,2", "'' in the shape"),
        ("sine:0..100,0s", "period of 0s"),
        ("sine:0..100,often", "not a duration"),
        ("random:0..100,7", "'7' is not valid"),
        ("replay:", "names no run"),
        ("", "no shape ''"),
    ],
)
def test_bad_shapes_say_what_is_wrong(text, says):
    with pytest.raises(UsageError, match=says):
        parse_shape(text)


def test_a_ramp_of_one_step_cannot_be():
    with pytest.raises(UsageError, match="both ends"):
        levels("ramp:0..100", steps=1)
