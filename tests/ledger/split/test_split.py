"""The splitter: what it conserves and what it never does, over random loads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.ledger.engine import Level
from everywatt.ledger.split.split import Uses, split

NONE = Uses.none()


def uses(*rows):
    stretch, owner, amount = zip(*rows, strict=True)
    return NONE.and_also(stretch, owner, amount)


@st.composite
def loads(draw):
    """Joules, seconds, a level, uses and holders of up to six owners in up to twenty stretches."""
    stretches, owners = draw(st.integers(1, 20)), draw(st.integers(1, 6))
    some = st.floats(0, 1000, allow_nan=False)
    joules = np.array(draw(st.lists(some, min_size=stretches, max_size=stretches)))
    seconds = np.array(draw(st.lists(st.floats(0.01, 2), min_size=stretches, max_size=stretches)))
    level = Level(draw(st.floats(0, 500)), draw(st.floats(0, 100)), draw(st.floats(0, 10)), draw(st.floats(0, 10)))
    use = st.tuples(st.integers(0, stretches - 1), st.integers(0, owners - 1), st.floats(0, 4))
    rows, held = draw(st.lists(use, max_size=30)), draw(st.lists(use, max_size=10))
    return joules, seconds, level, uses(*rows) if rows else NONE, uses(*held) if held else NONE, owners


def whole(done):
    """Joules of all owners, of idle, and of no owner."""
    return float(done.active_j.sum() + done.held_j.sum()) + done.idle_j + done.unattributed_j


def test_less_than_nothing_is_idles():
    """A plug without a load reads a few hundredths of a watt below zero."""
    done = split(np.array([-0.5, 0.25]), np.array([1.0, 1.0]), Level(0.25), NONE, NONE, 1)
    assert (whole(done), done.idle_j, done.unattributed_j) == (-0.25, -0.25, 0.0)


@settings(max_examples=300, deadline=None)
@given(loads())
def test_nothing_is_lost_and_nobody_owes_less_than_nothing(load):
    joules = load[0]
    done = split(*load)
    assert whole(done) == pytest.approx(joules.sum(), rel=1e-9, abs=1e-9)
    assert (done.active_j >= 0).all() and (done.held_j >= 0).all()
    assert done.unattributed_j >= 0 and done.idle_j >= -1e-9 * max(joules.sum(), 1)


@settings(max_examples=200, deadline=None)
@given(loads())
def test_twice_the_power_is_twice_for_every_owner(load):
    joules, seconds, level, used, held, owners = load
    once = split(*load)
    double = Level(2 * level.idle_w, 2 * level.held_w, 2 * level.noise_w, 2 * level.spread_w)
    twice = split(2 * joules, seconds, double, used, held, owners)
    assert twice.active_j == pytest.approx(2 * once.active_j, rel=1e-9, abs=1e-9)
    assert twice.held_j == pytest.approx(2 * once.held_j, rel=1e-9, abs=1e-9)
    assert twice.idle_j == pytest.approx(2 * once.idle_j, rel=1e-9, abs=1e-6)


def test_active_energy_goes_by_use_in_each_stretch():
    done = split(np.array([30.0, 70.0]), np.ones(2), Level(10.0), uses((0, 0, 1.0), (1, 0, 1.0), (1, 1, 3.0)), NONE, 2)
    assert done.active_j == pytest.approx([20 + 15, 45])
    assert done.idle_j == pytest.approx(20)


def test_idle_does_not_vanish_under_load():
    done = split(np.full(100, 500.0), np.ones(100), Level(50.0), uses(*((k, 0, 4.0) for k in range(100))), NONE, 1)
    assert done.idle_j == pytest.approx(5000)


def test_noise_of_an_idle_machine_is_not_charged_to_those_who_are_there():
    rng = np.random.default_rng(7)
    count, owners = 3600, 50
    joules = 50.0 + rng.normal(0, 2.0, count)
    rows = NONE.and_also(np.arange(count), rng.integers(0, owners, count), np.full(count, 0.001))
    done = split(joules, np.ones(count), Level(50.0, noise_w=2.0), rows, NONE, owners)
    # Cutting off what is below idle would charge 0.4 sigma of every second: 2,900 J.
    assert done.active_j.sum() < 3 * 2.0 * np.sqrt(count)
    assert done.idle_j > 0.997 * joules.sum()


def test_a_load_keeps_its_joules_where_the_rest_of_the_time_was_quiet():
    rng = np.random.default_rng(8)
    joules = 50.0 + rng.normal(0, 1.0, 1000)
    joules[100:110] += 200
    rows = NONE.and_also(np.arange(1000), np.arange(1000) % 5, np.full(1000, 0.001))
    rows = rows.and_also(np.arange(100, 110), 5, 1.0)
    done = split(joules, np.ones(1000), Level(50.5, noise_w=1.0), rows, NONE, 6)
    assert done.active_j[5] == pytest.approx(2000, rel=0.02)


def test_holders_without_use_share_what_is_above_idle_by_time():
    joules = np.array([20.0, 120.0, 120.0, 300.0])
    held = uses((1, 0, 1.0), (2, 0, 1.0), (2, 1, 1.0), (3, 0, 1.0), (3, 1, 1.0))
    done = split(joules, np.ones(4), Level(20.0, held_w=100.0), uses((3, 1, 50.0)), held, 2)
    assert done.held_j == pytest.approx([100 + 50 + 50, 50 + 50])
    assert done.active_j == pytest.approx([0, 180])
    assert done.idle_j == pytest.approx(80)


def test_power_above_idle_with_nobody_there_is_nobodys_unless_it_is_noise():
    level = Level(20.0, noise_w=1.0, spread_w=0.5)
    assert split(np.full(9, 50.0), np.ones(9), level, NONE, NONE, 1).unattributed_j == pytest.approx(270)
    quiet = split(np.full(9, 20.4), np.ones(9), level, NONE, NONE, 1)
    assert (quiet.unattributed_j, quiet.idle_j) == (0.0, pytest.approx(9 * 20.4))


def test_a_baseline_that_is_too_high_charges_nobody():
    done = split(np.full(5, 10.0), np.ones(5), Level(50.0), uses((0, 0, 1.0), (3, 1, 1.0)), NONE, 2)
    assert done.active_j.tolist() == [0.0, 0.0]
    assert done.idle_j == pytest.approx(50)


def test_time_that_was_not_observed_costs_no_idle():
    done = split(np.array([50.0, 0.0]), np.array([1.0, 0.0]), Level(20.0), uses((0, 0, 1.0), (1, 0, 1.0)), NONE, 1)
    assert (done.idle_j, done.active_j[0]) == (pytest.approx(20), pytest.approx(30))
