"""Longest first, spread as free lanes would take them."""

from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, Attempt, State
from everywatt.batch.plan import Pace, in_order, shares


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
