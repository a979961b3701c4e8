import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import unpacked

from everywatt.report.html.pyramid import pack, packed_bytes


@settings(deadline=None)
@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=60))
def test_whole_numbers_come_back_as_they_were(numbers):
    values = np.array(numbers, dtype=np.int64)
    assert unpacked(pack({"t": values}))["t"].tolist() == numbers


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(10**6), 10**6)), min_size=1, max_size=60))
def test_values_come_back_with_their_holes(counts):
    values = np.array([np.nan if count is None else count * 0.001 for count in counts])
    found = unpacked(pack({"a": values, "b": np.arange(3)}))
    assert np.array_equal(np.isnan(found["a"]), np.isnan(values))
    assert found["a"] == pytest.approx(values, rel=1e-7, nan_ok=True)
    assert found["b"].tolist() == [0, 1, 2]


def test_a_constant_costs_next_to_nothing():
    assert packed_bytes(pack({"v": np.full(100_000, 35.0)})) < 500
