"""Longest first, spread as free lanes would take them."""

import pytest

from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, Attempt, State
from everywatt.batch.plan import Pace, in_order, plan_lines, plan_table, shares


def items(*sizes):
    return [Item(i, f"i{i}", f"i{i}", {}, size) for i, size in enumerate(sizes)]


def test_longest_first_and_unknown_before_that():
    assert [i.index for i in in_order(items(1, 5, None, 3))] == [2, 1, 3, 0]
    assert [i.index for i in in_order(items(None, None))] == [0, 1]


def test_lanes_are_balanced():
    found = shares(items(8, 7, 6, 5, 4, 3, 2, 1), ["gpu.0", "gpu.1"])
    assert [share.size for share in found] == [18, 18]
    assert found[0].seconds is None


def test_time_follows_from_what_was_done():
    states = {}
    for item in items(10, 20):
        attempt = Attempt(1, "gpu.0", 0, status=DONE, ended={"runtime_s": item.size / 10})
        states[item.id] = State(item, DONE, [attempt])
    pace = Pace.of(states)
    assert pace.seconds(items(30, 30)) == 6.0
    assert shares(items(30, 30), ["gpu.0", "gpu.1"], pace)[0].seconds == 3.0


def test_a_plan_of_very_many_lanes_is_summed_up():
    found = shares(items(1, 1, 1), ["cpu"] * 100_000)
    assert [row[:3] for row in plan_table(found).cells()] == [[str(n), "cpu", "1"] for n in range(3)]
    assert plan_lines(found) == ["99,997 lanes of 100,000 get no items", "3 items on 3 lanes (cpu)"]
    many = shares(items(*[1] * 200), [f"gpu.{n % 16}" for n in range(100)])
    assert len(plan_table(many).rows) == 40
    assert plan_lines(many)[0] == "and 60 more lanes with 120 items"
    assert plan_lines(many)[-1].startswith("200 items on 100 lanes (gpu.0, gpu.1, ") and "…" in plan_lines(many)[-1]


def test_one_of_each_is_told_in_the_singular():
    pace = Pace()
    pace.learn(items(None)[0], 90.0)
    assert plan_lines(shares(items(None), ["gpu.0", "gpu.1"], pace)) == [
        "1 lane of 2 gets no items",
        "1 item on 1 lane (gpu.0), about 90.0 s",
    ]


def test_time_that_does_not_follow_size_is_not_scaled_by_it():
    pace = Pace()
    for item, seconds in zip(items(1000, 900, 500), (2.0, 2.0, 2.0), strict=True):
        pace.learn(item, seconds)
    assert pace.seconds(items(1, 2, 3)) == pytest.approx(6.0)


def test_time_that_follows_size_from_a_start_up_time_is_extrapolated_so():
    pace = Pace()
    for item, seconds in zip(items(100, 200, 300), (6.0, 7.0, 8.0), strict=True):
        pace.learn(item, seconds)
    assert pace.seconds(items(10)) == pytest.approx(5.1)


def test_with_one_size_time_is_taken_to_be_proportional():
    pace = Pace()
    pace.learn(items(100)[0], 5.0)
    assert pace.weight(items(20)[0]) == pytest.approx(1.0)


def test_no_time_is_promised_for_other_sizes_than_the_one_that_is_known():
    pace = Pace()
    pace.learn(items(1000)[0], 2.0)
    assert pace.seconds(items(10, 20)) is None, "whether time follows size is not known"
    assert pace.seconds(items(1000, 1000)) == 4.0
    pace.learn(items(900)[0], 2.0)
    assert pace.seconds(items(10, 20)) == pytest.approx(4.0)
