"""Units at the border."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100", 100),
        ("7 B", 7),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("500mb", 5 * 10**8),
        ("3k", 3000),
        ("3Mi", 3 * 2**20),
        ("50MB/s", 50e6),
    ],
)
def test_sizes(text, size):
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "3 apples", "-1", "1e400", "nan", "2GBs"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match=f"'{text}' is not a size"):
        units.parse_bytes(text)
