"""Units at the border."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core import units
from everywatt.core.errors import UsageError

values = st.floats(1e-3, 1e9)


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("10", 10), ("1.5h", 5400), ("2 min", 120), ("3m", 180), ("1e3us", 1e-3)]
)
def test_durations(text, seconds):
    assert units.parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "10x", "1e400s", "nan", "inf", "1 0s", "--3s", "10 W"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError):
        units.parse_duration_s(text)


@pytest.mark.parametrize(
    ("parse", "words"),
    [(units.parse_energy_j, "an energy"), (units.parse_power_w, "a power"), (units.parse_duration_s, "a duration")],
)
def test_what_is_wrong_is_said_in_english(parse, words):
    with pytest.raises(UsageError, match=f"'5 parsecs' is not {words}"):
        parse("5 parsecs")


@given(values)
def test_a_plain_number_comes_back(value):
    assert units.parse_power_w(f"{value!r}W") == value
    assert units.parse_power_w(repr(value)) == value
    assert units.parse_energy_j(f"{value!r} Wh") == value * 3600.0


@given(st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-6))
def test_a_printed_quantity_is_the_quantity_to_its_digits(value):
    text = units.format_joules(value)
    assert units.parse_energy_j(text.replace("GJ", "e3MJ").replace(" e3", "e3")) == pytest.approx(
        value, rel=6e-4, abs=1e-9
    )


@given(st.floats(1e-3, 1e9), st.floats(1e-6, 1e3))
def test_the_interval_is_printed_with_its_size(value, share):
    spread = value * share
    text = units.format_joules(value, spread, spread)
    head, _, tail = text.partition(" ± ")
    unit = head.split(" ")[1]
    assert units.parse_energy_j(f"{tail}{unit}".replace("GJ", "e3MJ")) == pytest.approx(
        spread, rel=0.06, abs=1e-6 * value
    )


def test_examples():
    assert units.format_joules(412.3, 6.1, 6.1) == "412.3 J ± 6.1"
    assert units.format_joules(12_410, 200, 910) == "12.41 kJ −0.20/+0.91"
    assert units.format_watts(35.0) == "35.00 W"
    assert units.format_joules(0) == "0 J"


def test_what_is_not_finite_still_prints():
    assert units.format_joules(100.0, 0.0, math.inf) == "100.0 J −0.0/+inf"
    assert units.format_joules(100.0, math.inf, math.inf) == "100.0 J ± inf"
    assert units.format_joules(math.nan) == "nan J"
    assert units.format_joules(math.inf) == "inf J"


@given(st.integers(0, 1000))
def test_percentages_are_exact_to_a_tenth(tenths):
    assert units.format_percent(tenths / 1000) == ("100 %" if tenths == 1000 else f"{tenths / 10:.1f} %")


@given(st.floats(0.0, 1.0, exclude_max=True))
def test_less_than_all_is_never_all(share):
    assert not units.format_percent(share).startswith("100")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.052, "0.052 s"), (12.34, "12.3 s"), (245, "4 min 05 s"), (11_220, "3 h 07 min"), (7199.6, "2 h 00 min")],
)
def test_durations_for_people(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(812, "812 B"), (3_355_443, "3.2 MiB"), (5 * 2**40, "5120.0 GiB")])
def test_bytes_for_people(count, text):
    assert units.format_bytes(count) == text


def test_nothing_is_shown_as_plus_or_minus_zero():
    assert units.format_joules(20.5, 2e-11, 2e-11) == "20.50 J"
    assert units.format_joules(-0.2, 6.0, 26.0) == "0 J −6/+26"
