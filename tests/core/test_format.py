"""How numbers are printed: what is parsed back from the text holds what was printed."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core import format as fmt
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy

FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3, "µ": 1e-6, "n": 1e-9}
NUMBER = r"[−+]?\d+(?:\.\d+)?"
SLACK = 0.5501  # of the last digit: rounding to nearest, and the twentieth that rounding up may drop


def parsed(text, unit):
    """(value, low, high, size of the last digit) of a printed quantity."""
    prefix = r"(?P<p>[kMGmµn]?)" + re.escape(unit)
    forms = (
        rf"(?P<v>{NUMBER}) {prefix}",
        rf"(?P<v>{NUMBER}) {prefix} ± (?P<half>{NUMBER})",
        rf"(?P<v>{NUMBER}) {prefix} −(?P<below>{NUMBER})/\+(?P<above>{NUMBER})",
        rf"≈ (?P<v>{NUMBER}) {prefix} \((?P<low>{NUMBER}) … (?P<high>{NUMBER}) (?P<q>[kMGmµn]?){re.escape(unit)}\)",
    )
    found = next(m.groupdict() for form in forms if (m := re.fullmatch(form, text)))
    found = {name: number and number.replace("−", "-") for name, number in found.items()}
    factor = FACTORS[found["p"]]
    if found.get("q", found["p"]) != found["p"]:  # the value is 0 in the unit of its interval, and has its own
        value, ends = float(found["v"]) * factor, [float(found[name]) * FACTORS[found["q"]] for name in ("low", "high")]
        step = 10.0 ** -len(found["low"].partition(".")[2]) * FACTORS[found["q"]]
        assert abs(value) <= 0.5 * max(step, (ends[1] - ends[0]) / 20)
        return value, *ends, max(step, 10.0 ** (math.floor(math.log10((ends[1] - ends[0]) / 2)) - 1))
    value = float(found["v"])
    if found.get("half"):
        low, high = value - float(found["half"]), value + float(found["half"])
    elif found.get("below"):
        low, high = value - float(found["below"]), value + float(found["above"])
    elif found.get("low"):
        low, high = float(found["low"]), float(found["high"])
    else:
        low = high = value
    decimals = {len(number.partition(".")[2]) for key, number in found.items() if number and key not in "pq"}
    assert len(decimals) == 1, f"{text}: value and interval end at the same digit"
    step = 10.0 ** -decimals.pop()
    if step == 1 and high > low:  # 5000 J ± 1300 ends at the hundreds
        step = max(1.0, 10.0 ** (math.floor(math.log10((high - low) / 2)) - 1))
    return value * factor, low * factor, high * factor, step * factor


sizes = st.floats(1e-6, 1e12)
signs = st.sampled_from([1.0, -1.0])


@given(sizes, signs, st.floats(2e-6, 50.0), st.floats(0.0, 4.0))
def test_what_is_printed_holds_what_was_measured(size, sign, share, skew):
    value, below = size * sign, size * share
    above = below * skew
    text = fmt.format_joules(value, below, above)
    shown, low, high, step = parsed(text, "J")
    assert abs(shown - value) <= 0.501 * step + 1e-9, text
    assert low <= value - below + SLACK * step + 1e-9, text
    assert high >= value + above - SLACK * step - 1e-9, text
    # and it is not blown up either: half a digit for the value, one for the side, the tolerance for nearly equal sides
    assert low >= value - max(below, above if above >= 0.95 * below else 0) - 1.6 * step - 1e-9, text
    assert high <= value + max(above, below if below >= 0.95 * above else 0) + 1.6 * step + 1e-9, text
    assert text.startswith("≈") == ((below + above) / 2 > 0.5 * abs(value)), text


@given(sizes, st.floats(2e-6, 0.5))
def test_the_half_width_has_two_significant_digits(size, share):
    text = fmt.format_joules(size, size * share, size * share)
    digits = text.rpartition(" ")[2].replace(".", "").lstrip("0")
    assert len(digits.rstrip("0")) <= 2 and len(digits) >= 2, text
    shown = parsed(text, "J")
    assert (shown[2] - shown[1]) / 2 == pytest.approx(size * share, rel=0.1)


@given(sizes, signs)
def test_without_an_interval_there_are_four_digits(size, sign):
    assert parsed(fmt.format_watts(size * sign), "W")[0] == pytest.approx(size * sign, rel=6e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "below", "above", "text"),
    [
        (412.3, 6.1, 6.1, "412.3 J ± 6.1"),
        (412.34, 6.14, 6.14, "412.3 J ± 6.2"),
        (13798.827079, 242.0, 242.0, "13.80 kJ ± 0.25"),
        (12_410, 200, 910, "12.41 kJ −0.20/+0.91"),
        (43.2, 34.0, 84.3, "≈ 43 J (9 … 128 J)"),
        (5012.0, 1234.0, 1234.0, "5000 J ± 1300"),
        (1000.0, 10.47, 10.47, "1000 J ± 11"),
        (1000.0, 28.05, 28.05, "1000 J ± 28"),
        (1000.0, 9.97, 9.97, "1000 J ± 10"),
        (100.0, 0.0, 20.0, "100 J −0/+20"),
        (4405.4, 4405.4, 0.0, "≈ 4400 J (0 … 4500 J)"),
        (68.0, 11.1, 11.9, "68 J ± 12"),  # not −12/+12
        (-0.2, 5.8, 26.2, "≈ 0 J (−6 … 26 J)"),
        (20.5, 2e-11, 2e-11, "20.50 J"),
        (0.0, 0.0, 0.0, "0 J"),
        (1e-12, 0.0, 0.0, "0 J"),
        (0.0, 1.0, 1.0, "≈ 0.0 J (−1.0 … 1.0 J)"),
        (100.0, 0.0, math.inf, "≈ 100.0 J (100.0 … ∞ J)"),
        (100.0, math.inf, math.inf, "≈ 100.0 J (−∞ … ∞ J)"),
        (math.nan, 0.0, 0.0, "nan J"),
        (math.inf, 0.0, 0.0, "inf J"),
    ],
)
def test_examples(value, below, above, text):
    assert fmt.format_joules(value, below, above) == text


def test_energies_with_level_and_refusals():
    energy = Energy(412.3, Budget((Term("gain", "g", 6.1),)), "cpu")
    assert fmt.format_energy(energy) == "412.3 J ± 6.1"
    assert fmt.format_energy(energy, level="95 %") == "412.3 J ± 6.1 (95 %)"
    wide = Energy(43.0, Budget((Term("gain", "g", 40.0),)), "cpu")
    assert fmt.format_energy(wide, level="95 %") == "≈ 43 J (3 … 83 J, 95 %)"
    assert fmt.format_energy(Energy.refuse("no sensor")) == "refused: no sensor"


def test_rates_and_plain_numbers():
    assert fmt.format_quantity(21.3, "J/item") == "21.30 J/item"
    assert fmt.format_quantity(0.01234, "J/token", 0.0005, 0.0005) == "12.34 mJ/token ± 0.50"
    assert fmt.format_quantity(3.4, "items/s") == "3.400 items/s"
    assert fmt.format_quantity(31_400.0, "items/s") == "31400 items/s"
    assert fmt.format_number(12) == "12"
    assert fmt.format_number(0.12341, "", 0.01, 0.01) == "0.123 ± 0.010"
    assert fmt.format_number(2.5, "points", 1.0, 1.0, signed=True) == "+2.5 points ± 1.0"
    assert fmt.format_number(-0.2, "points", 1.7, 1.6, signed=True) == "≈ −0.2 points (−1.9 … +1.4 points)"
    assert (fmt.format_count(1, "item"), fmt.format_count(3, "item")) == ("1 item", "3 items")
    assert fmt.shared_unit(12_345.0, "J") == (1e3, "kJ")


@given(st.integers(0, 1000))
def test_percentages_are_exact_to_a_tenth(tenths):
    assert fmt.format_percent(tenths / 1000) == ("100 %" if tenths == 1000 else f"{tenths / 10:.1f} %")


@given(st.floats(1e-9, 1.0, exclude_min=True, exclude_max=True))
def test_less_than_all_is_never_all_and_more_than_nothing_never_nothing(share):
    text = fmt.format_percent(share)
    assert 0 < float(text.removesuffix(" %")) < 100
    assert float(text.removesuffix(" %")) == pytest.approx(share * 100, abs=0.1)


def test_percentages_with_intervals():
    assert fmt.format_percent(0.18, 0.031, 0.031) == "18.0 % ± 3.1"
    assert fmt.format_percent(0.04, 0.03, 0.05) == "≈ 4.0 % (1.0 … 9.0 %)"
    assert fmt.format_percent(0.032, signed=True) == "+3.2 %"
    assert fmt.format_percent(1.5) == "150.0 %"


def test_rounding_errors_of_sums_are_zero_percent():
    assert fmt.format_percent(-3e-15) == fmt.format_percent(1e-12) == "0.0 %"


UNITS_S = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@given(st.floats(1e-9, 1e7))
def test_durations_come_back(seconds):
    text = fmt.format_duration(seconds)
    found = re.findall(r"(\d+(?:\.\d+)?) (\w+)", text)
    back = sum(float(number) * UNITS_S[unit] for number, unit in found)
    last, unit = found[-1]
    step = 10.0 ** -len(last.partition(".")[2]) * UNITS_S[unit]
    assert back == pytest.approx(seconds, abs=0.51 * step), text
    assert back == pytest.approx(seconds, rel=0.01), text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.052, "52.0 ms"),
        (0.00561, "5.61 ms"),
        (0.1, "100 ms"),
        (0.9996, "1.00 s"),
        (12.34, "12.3 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (245, "4 min 05 s"),
        (11_220, "3 h 07 min"),
        (7199.6, "2 h 00 min"),
        (200_000, "2 d 08 h"),
        (-3.0, "−3.00 s"),
    ],
)
def test_durations_for_people(seconds, text):
    assert fmt.format_duration(seconds) == text


def test_durations_with_intervals():
    assert fmt.format_duration(1.2301, 0.041, 0.041) == "1.230 s ± 0.041"
    assert fmt.format_duration(0.0123, 0.0004, 0.0004) == "12.30 ms ± 0.40"


@given(st.floats(0.501, 1.0), st.floats(0.0, 0.3), st.floats(0.0, 0.3))
def test_ratios_hold_their_interval(value, below, above):
    text = fmt.format_ratio(value, value - below, value + above)
    found = re.fullmatch(rf"({NUMBER}) \(({NUMBER}) … ({NUMBER})\)", text)
    shown, low, high = (float(number) for number in found.groups())
    step = 10.0 ** -len(found[1].partition(".")[2])
    assert abs(shown - value) <= 0.501 * step
    assert low <= value - below + 0.051 * step and high >= value + above - 0.051 * step, text


def test_ratio_examples():
    assert fmt.format_ratio(0.8231, 0.79, 0.856) == "0.823 (0.790 … 0.856)"
    assert fmt.format_ratio(2.0, 2.0, 3.0) == "2.00 (2.00 … 3.00)"
    assert fmt.format_ratio(1.0, 1.0, 1.0) == "1.000 (1.000 … 1.000)"
    assert fmt.format_ratio(0.823, -math.inf, math.inf) == "0.8230"


def test_ratio_without_an_upper_end():
    assert fmt.format_ratio(0.823, 0.0, math.inf) == "0.82 (0.00 … ∞)"


@pytest.mark.parametrize(
    ("count", "text"),
    [(812, "812 B"), (1023.6, "1.0 KiB"), (1024, "1.0 KiB"), (3_355_443, "3.2 MiB"), (5 * 2**40, "5.0 TiB")],
)
def test_bytes_for_people(count, text):
    assert fmt.format_bytes(count) == text


def test_ranges_and_money():
    assert fmt.format_rounded("W", 0.0, 99.8, 300.0) == "99.8 … 300.0 W"
    assert fmt.format_rounded("J", 0.0, 8000.0, 12_500.0) == "8.00 … 12.50 kJ"
    assert fmt.format_watts(99.996) == "100.0 W"
    assert fmt.format_money(5.6e-12) == "< 0.000001" and fmt.format_money(1.2e-6, "EUR") == "0.0000012 EUR"
    assert [fmt.format_money(x, "EUR") for x in (12.4, 0.0, 0.0034, -3.5)] == [
        *("12.40 EUR", "0.00 EUR", "0.0034 EUR", "−3.50 EUR"),
    ]


def test_values_have_the_digits_that_their_interval_leaves():
    assert fmt.format_rounded("W", 0.0, 0.0, 0.0) == "0 W"
    assert fmt.format_rounded("W", 2.6, 6.23) == "6.2 W"
    assert fmt.format_rounded("W", 2.6, 6.02, 6.23) == "6.0 … 6.2 W"
    assert fmt.format_rounded("W", 0.0009, 35.0) == "35.00 W"
    assert fmt.format_rounded("W", 11_000.0, 12_500.0, 44_000.0) == "12 … 44 kW"


def test_every_sign_of_a_printed_quantity_has_an_ascii_form():
    shown = "≈ 43 J (9 … 128 J) · 12.41 kJ −0.20/+0.91 · 5 µJ ± 1 · 41 °C"
    assert fmt.in_ascii(shown) == "~ 43 J (9 ... 128 J) | 12.41 kJ -0.20/+0.91 | 5 uJ +/- 1 | 41 C"


def test_negative_numbers_have_a_minus_sign():
    assert fmt.format_joules(120, 130, 140) == "≈ 120 J (−10 … 260 J)"
    assert fmt.format_joules(-12.34, 1.5, 1.5) == "−12.3 J ± 1.5"
    assert fmt.format_percent(-0.123, signed=True) == "−12.3 %"
    assert fmt.format_number(-3) == "−3"
    assert fmt.format_duration(-12.3) == "−12.3 s"
    assert fmt.in_ascii(fmt.format_joules(-12.34)) == "-12.34 J"


@pytest.mark.parametrize(
    ("value", "below", "above", "text"),
    [
        (31_400.0, 31_400.0, 71e9, "≈ 31 kJ (0 … 71 GJ)"),
        (0.0, 0.0, 71e9, "≈ 0 J (0 … 71 GJ)"),
        (-12.34, 5e9, 71e9, "≈ 0 GJ (−5 … 71 GJ)"),
    ],
)
def test_a_value_that_its_interval_rounds_away_has_a_unit_of_its_own(value, below, above, text):
    assert fmt.format_joules(value, below, above) == text


def test_a_column_has_one_unit_and_no_rounding_of_sums():
    cells = [(0.022, 0.02), None, (2.4e-14, 2.4e-14), (0.0, 0.0), (0.0031, 0.0)]
    assert fmt.format_column("W", cells) == ["22 mW", None, "0 mW", "0 mW", "3.100 mW"]
    assert fmt.format_column("J", [(12_500.0, 600.0), (99.6, 50.0)]) == ["12.50 kJ", "0.100 kJ"]
    assert fmt.format_column("", []) == []
