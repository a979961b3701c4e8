import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.report.html.packing import Column, pack, packed_bytes, unpack


@settings(deadline=None)
@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=60))
def test_whole_numbers_come_back_as_they_were(numbers):
    values = np.array(numbers, dtype=np.int64)
    assert unpack(pack([Column("t", values, 1.0)]))["t"].tolist() == numbers


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(10**6), 10**6)), min_size=1, max_size=60))
def test_multiples_of_a_step_come_back_with_their_holes(counts):
    values = np.array([np.nan if count is None else count * 0.001 for count in counts])
    found = unpack(pack([Column("a", values, 0.001), Column("b", np.arange(3), 1.0)]))
    assert np.array_equal(np.isnan(found["a"]), np.isnan(values))
    assert found["a"] == pytest.approx(values, abs=1e-9, nan_ok=True)
    assert found["b"].tolist() == [0, 1, 2]


def test_a_constant_costs_next_to_nothing():
    assert packed_bytes(pack([Column("v", np.full(100_000, 35.0), 0.001)])) < 500


def test_numbers_that_a_page_could_not_hold_are_refused():
    with pytest.raises(ValueError, match="more than 7 bytes"):
        pack([Column("v", np.array([0, 2**62]), 1.0)])
