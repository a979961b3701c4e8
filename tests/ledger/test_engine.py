"""The engine: intervals give what arrays give; it can be asked at any time, stopped, continued and merged."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.ledger.engine import DeviceAccount, Level, apportion, saturating
from everywatt.ledger.split.split import Uses, accumulate, split

OWNERS = 5
amounts = st.floats(0, 100)
shares = st.dictionaries(st.integers(0, OWNERS - 1), st.floats(0, 8), max_size=OWNERS)
intervals = st.lists(st.tuples(amounts, st.floats(0, 2), shares, shares), min_size=1, max_size=12)
levels = st.builds(Level, st.floats(0, 60), st.floats(0, 20), st.floats(0, 5), st.floats(0, 2))


def fed(level, rows, account=None):
    account = account or DeviceAccount()
    for joules, seconds, uses, holders in rows:
        account.add(joules, seconds, level, uses, holders)
    return account


def arrays(level, rows):
    def sparse(place):
        found = [(n, owner, amount) for n, row in enumerate(rows) for owner, amount in row[place].items()]
        columns = list(zip(*found, strict=True)) or [(), (), ()]
        kinds = (np.int64, np.int64, np.float64)
        return Uses(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))

    joules, seconds = (np.array([row[place] for row in rows]) for place in (0, 1))
    return joules, seconds, level, sparse(2), sparse(3), OWNERS


def in_microjoules(account):
    """Whole microjoules of each owner, idle (-1) and none (-2), in one order whoever came first; and of all."""
    whole_uj = round(account.whole_j * 1e6)
    joules = dict(sorted(account.close().by_owner(-1, -2).items()))
    if whole_uj <= 0 or not any(joules.values()):
        return {**dict.fromkeys(joules, 0), -1: whole_uj}, whole_uj
    return dict(zip(joules, apportion(whole_uj, joules.values()), strict=True)), whole_uj


@settings(max_examples=300, deadline=None)
@given(levels, intervals)
def test_arrays_and_intervals_give_the_same_microjoules(level, rows):
    one, many = fed(level, rows), accumulate(*arrays(level, rows))
    alone, together = in_microjoules(one), in_microjoules(many)
    assert {k: v for k, v in alone[0].items() if v} == {k: v for k, v in together[0].items() if v}
    done = split(*arrays(level, rows))
    assert done.active_j.sum() + done.held_j.sum() == pytest.approx(
        sum(one.close().active_j.values()) + sum(one.close().held_j.values()), abs=1e-9
    )
    for owner, row in one.owners.items():
        assert done.owned_s[owner] == pytest.approx(row[-1], abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(levels, intervals)
def test_owners_add_up_to_the_microjoule_after_every_interval(level, rows):
    account = DeviceAccount()
    for row in rows:
        fed(level, [row], account)
        found, whole_uj = in_microjoules(account)
        assert sum(found.values()) == whole_uj
        assert all(amount >= 0 for amount in found.values())


@settings(max_examples=200, deadline=None)
@given(levels, intervals, st.integers(0, 12))
def test_an_account_that_was_written_down_goes_on_as_if_nothing_had_happened(level, rows, cut):
    before = fed(level, rows[:cut])
    again = DeviceAccount.from_list(json.loads(json.dumps(before.to_list())), int)
    assert again == before
    assert fed(level, rows[cut:], again) == fed(level, rows)


@settings(max_examples=200, deadline=None)
@given(levels, intervals, st.integers(0, 12))
def test_segments_are_merged_to_the_whole(level, rows, cut):
    merged = fed(level, rows[:cut])
    merged.merge(fed(level, rows[cut:]))
    whole = fed(level, rows)
    assert merged.whole_j == pytest.approx(whole.whole_j)
    for owner, row in whole.owners.items():
        assert merged.owners[owner] == pytest.approx(row)


def test_grouped_owners_have_what_their_members_had():
    account = fed(Level(10.0), [(50.0, 1.0, {0: 1.0, 1: 1.0, 2: 2.0}, {})])
    assert account.by(lambda owner: "even" if owner % 2 == 0 else "odd").close().active_j == {"even": 30.0, "odd": 10.0}


def test_the_noise_of_an_idle_machine_is_charged_to_no_owner():
    chance, account = random.Random(1), DeviceAccount()
    for _ in range(3600):
        account.add(chance.gauss(50, 5), 1.0, Level(50.0, noise_w=5.0), {"small": 0.001})
    # An hour at 50 W is 180 kJ. Clipping each second at zero would charge 0.4 sigma of it, 7.2 kJ.
    assert sum(account.close().active_j.values()) < 3 * 5 * 60


# Packages whose power saturates.

owned = st.tuples(st.integers(0, 4), st.integers(0, 2))
# Numbers so small that they have few digits cannot be halved exactly.
parts = st.dictionaries(owned, st.floats(0, 8, allow_subnormal=False), min_size=1, max_size=9)


@settings(max_examples=300, deadline=None)
@given(parts, st.floats(0, 40))
def test_weights_add_up_to_the_use_and_stay_near_it(uses, cores_s):
    found = saturating(uses, cores_s)
    assert sum(found.values()) == pytest.approx(sum(uses.values()))
    for owner, amount in found.items():
        used = sum(seconds for (one, _), seconds in uses.items() if one == owner)
        assert 0.5 * used <= amount * (1 + 1e-9) and amount <= 2.5 * used * (1 + 1e-9)


@settings(max_examples=300, deadline=None)
@given(parts, st.floats(0.1, 40), st.floats(0, 1))
def test_an_owner_that_is_told_as_two_owes_what_both_owe(uses, cores_s, share):
    whole = saturating(uses, cores_s)
    halves = {(("first", owner), load): share * used for (owner, load), used in uses.items()}
    halves |= {(("second", owner), load): (1 - share) * used for (owner, load), used in uses.items()}
    apart = saturating(halves, cores_s)
    for owner, amount in whole.items():
        assert apart.get(("first", owner), 0.0) + apart.get(("second", owner), 0.0) == pytest.approx(amount, abs=1e-9)


def test_a_workload_on_few_cores_owes_more_for_each_second():
    # 16 and 32 threads on 32 cores: 1/3 by CPU time, 0.75 / 1.75 by what each would draw alone.
    found = saturating({("a", "a"): 16.0, ("b", "b"): 32.0}, 32.0)
    assert found["a"] / 48.0 == pytest.approx((1 / 3 + 0.75 / 1.75) / 2)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 40), parts), min_size=1, max_size=6))
def test_arrays_and_intervals_weigh_the_same(rows):
    columns = [(n, owner, used, load) for n, (_, uses) in enumerate(rows) for (owner, load), used in uses.items()]
    stretch, owner, used, load = (np.array(column) for column in zip(*columns, strict=True))
    many = Uses(stretch, owner, used.astype(np.float64), workload=load).saturating(np.array([row[0] for row in rows]))
    for n, (cores_s, uses) in enumerate(rows):
        there = many.stretch == n
        found = np.bincount(many.owner[there], many.amount[there], 5)
        one = saturating(uses, cores_s)
        assert found == pytest.approx([one.get(number, 0.0) for number in range(5)], abs=1e-9)
