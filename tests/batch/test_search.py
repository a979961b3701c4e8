"""Doubling and halving find the edge; the refinement finds the bottom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.batch.probe import Largest, Result, SizeFigures, cheapest, largest
from everywatt.core.budget import Budget, Term
from everywatt.core.device import Device
from everywatt.core.energy import Energy
from everywatt.core.format import format_energy


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_the_edge_is_found_from_anywhere(edge, first):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= edge

    found = largest(fits, first, None)
    assert (found.fits, found.fails) == (edge, edge + 1)
    assert len(tried) == len(set(tried)) <= 40


def test_nothing_above_the_most_is_tried():
    tried = []
    found = largest(lambda size: tried.append(size) or True, 3, 50)
    assert (found.fits, found.fails, tried) == (50, None, [3, 6, 12, 24, 48, 50])


def test_a_command_that_never_fails_comes_to_an_end():
    tried = []
    found = largest(lambda size: tried.append(size) or True, 1, None)
    assert (found.fits, found.fails, len(tried)) == (2**30, None, 31)


def test_nothing_fits():
    assert largest(lambda size: False, 8, None).fits is None


def test_a_coarse_step_ends_early():
    found = largest(lambda size: size <= 1000, 1, None, tolerance=100)
    assert found.fits <= 1000 < found.fails and found.fails - found.fits <= 100


@pytest.mark.parametrize("bottom", [1, 3, 10, 100, 1000])
def test_the_cheapest_is_in_the_middle(bottom):
    """a/s + b + c·s is least where s² = a/c."""

    def cost(size):
        return bottom**2 / size + size

    known = {size: cost(size) for size in (2**n for n in range(11))}
    best = cheapest(cost, known, 1, 1024)
    assert cost(best) <= 1.01 * cost(bottom)


def test_sizes_without_a_figure_do_not_count():
    assert cheapest(lambda size: None, {}, 1, 8) is None
    assert cheapest(lambda size: None, {4: 1.0, 8: 2.0}, 1, 8) == 4


def test_joules_per_unit_are_printed_with_their_interval():
    energy = Energy(4.3, Budget((Term("model", "m", 1.5),)), "machine", "modelled")
    size = SizeFigures(10, True, "", 1, 0.1, None, energy)
    (table,) = Result("run", Device("cpu", 0), Largest(10, None), 10, (), (size,)).tables()
    assert format_energy(energy / 10) in table.text() and "0.4300" not in table.text()
