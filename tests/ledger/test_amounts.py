"""Parts add up to the whole, to the last microjoule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.ledger.engine import apportion, microjoules

weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-9)


@given(st.integers(-(10**12), 10**12), weights)
def test_shares_add_up_and_are_within_one_of_exact(whole, shares):
    amounts = apportion(whole, shares)
    assert sum(amounts) == whole
    for amount, share in zip(amounts, shares, strict=True):
        assert abs(amount - whole * share / sum(shares)) <= 1.01


def test_nothing_goes_to_zero_weight():
    assert apportion(7, [0, 1, 0]) == [0, 7, 0]


def test_equal_remainders_go_to_the_first():
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]


@pytest.mark.parametrize("bad", [[], [0, 0], [-1, 2], [float("nan")]])
def test_weights_that_cannot_share_are_refused(bad):
    with pytest.raises(ValueError, match="weights"):
        apportion(5, bad)


def test_joules_become_the_nearest_microjoule():
    assert microjoules(1.2345678) == 1_234_568
