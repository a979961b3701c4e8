"""Cells with one decimal as whole tenths: what `int` makes of each, or nothing at all."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everywatt.meters.omegawatt_csv import read_digits

TENTHS = st.integers(-(10**8) + 1, 10**9 - 1)


def written(tenths):
    return f"{'-' if tenths < 0 else ''}{abs(tenths) // 10}.{abs(tenths) % 10}"


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.lists(TENTHS, min_size=n, max_size=n), min_size=1, max_size=9)))
def test_every_cell_is_the_number_that_was_printed(rows):
    text = "".join(",".join(map(written, row)) + "\n" for row in rows).encode()
    found = read_digits(text, len(rows[0]))
    assert found is not None and found.dtype == np.int32
    assert found.T.tolist() == rows


def test_signs():
    assert read_digits(b"-0.5,1.0\n12.0,-3.4\n", 2).tolist() == [[-5, 120], [10, -34]]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"1.0",
        b"1.0\n\n",
        b"1.0,2.0\n",
        b"1.0,2.0,3\n",
        b"1.0,2.0,3.\n",
        b"1.0,2.0,.5\n",
        b"1.0,2.0,3.45\n",
        b"1.0,2.0,-.5\n",
        b"1.0,2.0,3.-\n",
        b"1.0,2.0,--3.0\n",
        b"1.0,2.0,3-1.0\n",
        b"1.0,2.0, 3.0\n",
        b"1.0,2.0,3. \n",
        b"1.0,2.0,+3.0\n",
        b"1.0,2.0,0x3.0\n",
        b"1.0,2.0,1e3.0\n",
        b"1.0,2.0,nan\n",
        b"1.0;2.0;3.0\n",
        b"1.0\n2.0\n3.0\n",
        b"1.0,2.0\n3.0,",
        b"1.0,2.0,3.0\r\n",
        b"1.0,2.0,123456789.0\n",
        b"1.0,2.0," + b"0" * 256 + b"3.0\n",
        "1.0,2.0,\u0663.0\n".encode(),
    ],
)
def test_anything_else_is_left_to_the_careful_way(text):
    assert read_digits(text, 3) is None


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text("0123.,-\n +", max_size=40))
def test_any_text_gives_its_numbers_or_none(text):
    found = read_digits(text.encode(), 2)
    if found is not None:
        rows = [[float(cell) for cell in line.split(",")] for line in text.splitlines()]
        assert np.allclose(found.T / 10, rows)
