"""Which domain contains which."""

from __future__ import annotations

import itertools

import pytest

from everywatt.core.channels import Domain
from everywatt.core.domains import Answer, contains, disjoint


def test_disjoint_is_symmetric_and_contradicts_containing():
    for one, other in itertools.product(Domain, Domain):
        assert disjoint(one, other) == disjoint(other, one)
        if one != other and contains(one, other) is not Answer.NO:
            assert not disjoint(one, other)
            assert contains(other, one) is not Answer.YES


def test_what_is_inside_an_inside_is_never_called_outside():
    for a, b, c in itertools.permutations(Domain, 3):
        if contains(a, b) is Answer.YES and contains(b, c) is Answer.YES:
            assert contains(a, c) is not Answer.NO, (a, b, c)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Domain.PACKAGE, Domain.DRAM),
        (Domain.PACKAGE, Domain.GPU),
        (Domain.DRAM, Domain.GPU),
        (Domain.CORE, Domain.UNCORE),
    ],
)
def test_what_chips_may_be_added(one, other):
    assert disjoint(one, other)


@pytest.mark.parametrize(
    ("outer", "inner", "answer"),
    [
        (Domain.PACKAGE, Domain.CORE, Answer.YES),
        (Domain.NODE, Domain.PACKAGE, Answer.YES),
        (Domain.NODE, Domain.GPU, Answer.UNKNOWN),
        (Domain.GPU, Domain.RAIL, Answer.UNKNOWN),
        (Domain.DRAM, Domain.RAIL, Answer.UNKNOWN),
        (Domain.CORE, Domain.PACKAGE, Answer.NO),
    ],
)
def test_three_answers(outer, inner, answer):
    assert contains(outer, inner) is answer
