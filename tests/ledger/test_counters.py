"""Counters of owners: they add up to the microjoule, never go back, and stay within bounds."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.core.budget import Budget, Term
from everywatt.ledger.counters import IDLE, METER, REST, UNATTRIBUTED, Counters, OwnerKey
from everywatt.ledger.engine import DeviceAccount, Level

LEVEL = Level(10.0, spread_w=1.0)
A, B = OwnerKey("user", "a"), OwnerKey("user", "b")
shares = st.dictionaries(st.sampled_from([A, B, METER]), st.floats(0, 4), max_size=3)
intervals = st.lists(
    st.tuples(st.integers(0, 10**9), st.floats(0, 2), st.floats(0, 300), shares, shares), min_size=1, max_size=20
)


def fed(rows, counters=None):
    counters = counters or Counters()
    for whole_uj, seconds, idle_w, uses, holders in rows:
        counters.add("d", whole_uj, seconds, Level(idle_w, idle_w / 4), uses, holders, now_ns=0)
    return counters


@settings(max_examples=200, deadline=None)
@given(intervals)
def test_counters_add_up_to_the_microjoule_and_never_go_back(rows):
    counters, whole_uj, before, ends_before = Counters(), 0, {}, {}
    for number, row in enumerate(rows):
        fed([row], counters)
        if number % 3 == 0:
            counters.find_intervals("d", lambda joules, _: Budget((Term("gain", "g", 0.1 * joules),)), LEVEL, 0.2, 4)
        whole_uj += row[0]
        now = {owner: amounts.get("d", 0) for owner, amounts in counters.uj.items()}
        assert counters.device_uj("d") == whole_uj
        assert all(now[owner] >= amount for owner, amount in before.items())
        ends = {(owner, side): counters.bounds_uj[owner]["d"][side] for owner in now for side in (0, 1) if now[owner]}
        assert all(ends[owner, 0] <= now[owner] <= ends[owner, 1] for owner in now if now[owner])
        assert all(ends[key] >= amount for key, amount in ends_before.items())
        before, ends_before = now, ends


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(60_000_000, 10**9), shares), min_size=1, max_size=20))
def test_counters_are_the_engines_amounts_where_none_of_those_sinks(rows):
    """A machine that is above its idle level all the time."""
    counters, account = Counters(), DeviceAccount()
    for uj, uses in rows:
        counters.add("d", uj, 1.0, Level(50.0), uses, now_ns=0)
        account.add(uj / 1e6, 1.0, Level(50.0), uses)
    for owner, joules in account.close().by_owner(IDLE, UNATTRIBUTED).items():
        assert abs(counters.uj.get(owner, {}).get("d", 0) - joules * 1e6) < 2, "rounding"


@settings(max_examples=100, deadline=None)
@given(intervals, st.integers(0, 20))
def test_counters_that_were_written_down_go_on_as_if_nothing_had_happened(rows, cut):
    before, again = fed(rows[:cut]), Counters()
    again.restore(json.loads(json.dumps(before.to_list())), 0)
    again.restore_accounts(json.loads(json.dumps(before.accounts())))
    assert fed(rows[cut:], again).uj == fed(rows).uj


def test_an_account_that_makes_no_sense_is_left_out():
    counters = Counters()
    counters.restore_accounts({"d": [1, 2], "e": ["?", 0.0, []]})
    assert fed([(10, 1.0, 0.0, {A: 1.0}, {})], counters).uj == {A: {"d": 10}}


def test_the_noise_of_an_idle_machine_is_charged_to_no_owner():
    chance, counters = random.Random(1), Counters()
    for _ in range(3600):
        counters.add("d", round(chance.gauss(50, 5) * 1e6), 1.0, Level(50.0), {METER: 0.001}, now_ns=0)
    # An hour at 50 W is 180 kJ. Clipping each second at zero would charge 0.4 sigma of it, 7.2 kJ.
    assert counters.uj[METER]["d"] / 1e6 < 600


def test_what_an_idle_level_that_was_too_high_left_is_forgotten_with_its_account():
    counters = Counters()
    for _ in range(3600):
        counters.add("d", 10**6, 1.0, Level(100.0), {A: 1.0}, now_ns=0)
    assert counters.uj == {IDLE: {"d": 3600 * 10**6}}
    counters.add("d", 10**7, 1.0, Level(1.0), {A: 1.0}, now_ns=0)
    assert counters.uj[A] == {"d": 9 * 10**6}


def test_joules_without_an_idle_level_are_unattributed():
    counters = Counters()
    counters.add("d", 5, 1.0, None, {A: 1.0}, now_ns=0)
    assert counters.uj == {UNATTRIBUTED: {"d": 5}}


def test_beyond_the_cap_owners_are_the_rest_and_nothing_is_lost():
    counters = Counters(most=10)
    for number in range(50):
        counters.charge("cpu.0", {OwnerKey("container", f"c{number}"): 1000 + number}, now_ns=number)
        counters.used({OwnerKey("container", f"c{number}"): 1.0}, now_ns=number)
    before = counters.device_uj("cpu.0")
    counters.tidy([OwnerKey("container", "c0")], now_ns=100, before_ns=0)
    assert len([owner for owner in counters.uj if owner != REST]) == 10
    assert OwnerKey("container", "c0") in counters.uj, "the living stay"
    assert OwnerKey("container", "c49") in counters.uj, "of the others those that owe most"
    assert counters.device_uj("cpu.0") == before
    assert counters.cpu_s[REST] == 40.0


def test_owners_that_ended_become_the_rest():
    counters = Counters()
    counters.charge("cpu.0", {OwnerKey("job", "1"): 5, OwnerKey("job", "2"): 7}, now_ns=10)
    assert counters.tidy([], now_ns=11, before_ns=10) == []
    assert counters.tidy([OwnerKey("job", "2")], now_ns=12, before_ns=11) == [OwnerKey("job", "1")]
    assert counters.uj == {REST: {"cpu.0": 5}, OwnerKey("job", "2"): {"cpu.0": 7}}


def test_what_an_owner_is_still_owed_when_it_ends_is_paid_at_once():
    """B's counter is ahead of what it owes, so there are fewer joules to give to others than they are owed."""
    counters, ended = Counters(), OwnerKey("job", "1")
    for second, (joules, uses) in enumerate([(60, {B: 0.5}), (10, {B: 0.1}), (80, {ended: 1.0}), (20, {}), (20, {})]):
        counters.add("d", joules * 10**6, 1.0, Level(20.0), uses, now_ns=second)
        if second == 3:
            assert counters.uj[ended] == {"d": 60 * 10**6}
    assert ended in counters.tidy([B], now_ns=4, before_ns=4)


def test_accounts_come_back_and_a_gap_is_nobodys():
    counters, again = Counters(), Counters()
    counters.charge("cpu.0", {OwnerKey("job", "1"): 5, OwnerKey("user", "a"): 7}, now_ns=0)
    again.restore(counters.to_list(), 0)
    again.restore([["job", "1", 0.0, {"cpu.0": 3}]], 0)
    assert again.uj == counters.uj
    again.close_gap("cpu.0", 20)
    assert again.device_uj("cpu.0") == 20
    assert again.uj[OwnerKey("unattributed", "unattributed")] == {"cpu.0": 8}


def test_intervals_go_on_over_a_restart_and_into_the_rest():
    counters = Counters(most=1)
    for _ in range(20):
        counters.add("d", 50_000_000, 1.0, LEVEL, {A: 0.6, B: 0.2}, now_ns=1)
        counters.find_intervals("d", lambda joules, _: Budget((Term("gain", "g", 0.1 * joules),)), LEVEL, 0.2)
    again = Counters(most=1)
    again.restore(json.loads(json.dumps(counters.to_list())), 1)
    again.restore_bounds(json.loads(json.dumps(counters.bounds())))
    again.restore_accounts(json.loads(json.dumps(counters.accounts())))
    assert again.bounds_uj == counters.bounds_uj
    assert again.tidy([A], 2, 2) == [B]
    assert again.bounds_uj[REST]["d"] == counters.bounds_uj[B]["d"]
    assert B not in again.bounds_uj
    # What each may be off by: the sensor, the other's share, and the idle level.
    low, high = counters.bounds_uj[A]["d"]
    amount = counters.uj[A]["d"]
    assert 0.1 < (high - amount) / amount < 0.3
    assert 0.1 < (amount - low) / amount < 0.3


def test_no_interval_ends_beyond_what_the_device_drew():
    """An owner that had next to nothing when its interval was found gets most of the joules afterwards."""
    little, other = OwnerKey("job", "1"), OwnerKey("job", "2")
    counters, level = Counters(), Level(10.0, spread_w=40.0)
    counters.add("d", 60_000_000, 1.0, level, {little: 0.001, other: 1.0}, now_ns=0)
    counters.find_intervals("d", lambda joules, _: Budget((Term("gain", "g", 0.1 * joules),)), level, 0.2)
    for second in range(10):
        counters.add("d", 60_000_000, 1.0, level, {little: 1.0}, now_ns=second)
    low, high = counters.bounds_uj[little]["d"]
    assert low <= counters.uj[little]["d"] <= high <= 1.15 * 11 * 60_000_000


@pytest.mark.parametrize("owner", (UNATTRIBUTED, A))
def test_an_owner_that_had_nothing_when_intervals_were_found_is_not_exact(owner):
    """As at the start of an agent: joules above idle come with the first readings whose instants are well known."""
    counters, level = Counters(), Level(60.0, spread_w=0.1)
    counters.add("d", 50_000_000, 1.0, level, {B: 1.0} if owner != A else {A: 1.0, B: 1.0}, now_ns=0)
    counters.find_intervals("d", lambda joules, _: Budget((Term("edges", "e", 0.1 * joules),)), level, 0.2)
    counters.add("d", 200_000_000, 1.0, level, {} if owner == UNATTRIBUTED else {A: 1.0}, now_ns=1)
    low, high = counters.bounds_uj[owner]["d"]
    amount = counters.uj[owner]["d"]
    assert amount > 0 and low < 0.9 * amount and high > 1.02 * amount


def test_an_owner_that_never_used_anything_is_not_remembered():
    counters = Counters()
    for number in range(100):
        counters.tidy([OwnerKey("user", str(number))], number, number)
    assert not counters._seen_ns
