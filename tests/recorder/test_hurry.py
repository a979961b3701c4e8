"""A table that wants it is read more often while a run is young, as far as that is cheap."""

from types import SimpleNamespace

import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Cadence, GroupInfo
from everywatt.core.clocks import NS
from everywatt.recorder.source import Source


class Table:
    info = GroupInfo("who", "fake", "gpu", (), Cadence.SLOW, table=True)
    hurry_s = 0.2

    def read_table(self):
        return 0, []

    def ask_all(self):
        pass

    def close(self):
        pass


def source(clock, period_s=0.1, group=None):
    made = Source(group or Table(), clock)
    made.listeners.append(SimpleNamespace(period_ns=int(period_s * NS)))
    return made


@pytest.mark.parametrize(
    ("cost_s", "every_s"),
    [(0.0, 0.2), (0.001, 0.2), (0.0031, 0.4), (0.02, 1.0)],  # never more than 1 % of the time, on steps of 100 ms
)
def test_it_is_read_as_often_as_is_cheap_and_then_once_a_second(cost_s, every_s):
    clock = FakeClock()
    table = source(clock)
    table.usual_cost_ns = round(cost_s * NS)
    assert table.asked_ns() == NS
    table.hurry_ns = clock.monotonic_ns() + 10 * NS
    assert table.asked_ns() == round(every_s * NS)
    clock.advance(10.0)
    assert table.asked_ns() == NS


def test_who_asks_once_a_second_or_less_often_is_not_hurried():
    clock = FakeClock()
    for period_s in (1.0, 2.0):
        table = source(clock, period_s)
        table.hurry_ns = clock.monotonic_ns() + 10 * NS
        assert table.asked_ns() == period_s * NS


def test_other_tables_are_read_once_a_second():
    clock = FakeClock()
    plain = SimpleNamespace(info=Table.info, read_table=lambda: (0, []), close=lambda: None)
    table = source(clock, group=plain)
    table.hurry_ns = clock.monotonic_ns() + 10 * NS
    assert table.asked_ns() == NS
