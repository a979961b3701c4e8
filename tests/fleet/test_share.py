"""The agent's splitter: adds up to the microjoule, is the ledger's rule, and does not rectify noise."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from everywatt.fleet.share import IDLE, METER, NOBODY, Level, Owner, apportion, share
from everywatt.ledger.split import split as ledger

A, B = Owner("user", "a"), Owner("user", "b")
amounts = st.floats(0, 100)


@given(
    st.integers(0, 10**9), st.floats(0.1, 10), amounts, amounts, st.lists(amounts, max_size=5),
    st.lists(st.sampled_from([0.0, 1.0]), max_size=3), st.floats(-100, 0),
)  # fmt: skip
def test_owners_add_up_to_the_microjoule(whole_uj, seconds, idle_w, held_w, uses, holders, debt_j):
    used = {Owner("user", str(i)): use for i, use in enumerate(uses)}
    kept = {Owner("user", str(i)): one for i, one in enumerate(holders)}
    shares, debt = share(whole_uj, seconds, Level(idle_w, held_w), used, kept, debt_j)
    assert sum(shares.values()) == whole_uj
    assert all(amount >= 0 for amount in shares.values())
    assert debt <= 0


@given(
    st.floats(0, 500), st.floats(0.5, 2), st.floats(0, 300), st.floats(0, 50),
    st.lists(st.floats(0.01, 50), max_size=4), st.booleans(),
)  # fmt: skip
def test_it_is_the_ledgers_rule(joules, seconds, idle_w, held_w, uses, held):
    whole_uj = round(joules * 1e6)
    owners = [Owner("user", str(i)) for i in range(len(uses))]
    kept = dict.fromkeys(owners, 1.0) if held else {}
    shares, _ = share(whole_uj, seconds, Level(idle_w, held_w), dict(zip(owners, uses, strict=True)), kept)
    zeros = np.zeros(len(uses), dtype=np.int64)
    sparse = ledger.Uses(zeros, np.arange(len(uses)), np.array(uses, dtype=float))
    holders = ledger.Uses(zeros, np.arange(len(uses)), np.ones(len(uses))) if held else ledger.Uses.none()
    level = ledger.Level(idle_w, held_w)
    truth = ledger.split(np.array([whole_uj / 1e6]), np.array([seconds]), level, sparse, holders, len(uses))
    for i, owner in enumerate(owners):
        assert abs(shares.get(owner, 0) / 1e6 - truth.active_j[i] - truth.held_j[i]) < 3e-6
    assert abs(shares.get(IDLE, 0) / 1e6 - truth.idle_j) < 3e-6
    assert abs(shares.get(NOBODY, 0) / 1e6 - truth.nobody_j) < 3e-6


def test_the_noise_of_an_idle_machine_is_charged_to_nobody():
    chance, debt, charged = random.Random(1), 0.0, 0
    for _ in range(3600):
        shares, debt = share(round(chance.gauss(50, 5) * 1e6), 1.0, Level(50.0), {METER: 0.001}, {}, debt)
        charged += shares.get(METER, 0)
    # An hour at 50 W is 180 kJ. Clipping each second at zero would charge 0.4 sigma of it, 7.2 kJ.
    assert charged / 1e6 < 600


def test_remainders_go_to_the_largest():
    assert apportion(10, {A: 1, B: 1, METER: 1}) == {A: 4, B: 3, METER: 3}
    assert apportion(1, {A: 1, B: 2}) == {A: 0, B: 1}


def test_a_debt_ends_where_a_level_was_far_too_high():
    debt = 0.0
    for _ in range(1000):
        _, debt = share(10**6, 1.0, Level(100.0), {A: 1.0}, {}, debt)
    assert debt == -3000.0
