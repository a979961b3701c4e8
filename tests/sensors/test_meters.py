"""Slow meters do not hold anybody up, and what they cannot tell is told."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from everywatt.core.channels import Channel, GroupInfo, Kind
from everywatt.core.clocks import SystemClock
from everywatt.core.errors import SensorError
from everywatt.sensors.meters import PolledGroup

INFO = GroupInfo("slow", "slow", "wall", (Channel("wall.power", "W", Kind.GAUGE, "wall"),))


def until(what, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def test_rows_come_with_the_time_at_which_they_were_asked_for():
    values = iter(range(1000))
    group = PolledGroup(INFO, lambda: (float(next(values)),), SystemClock(), period_s=0.02, age_s=0.5)
    rows = []
    assert until(lambda: rows.extend(group.read()) or len(rows) >= 5)
    group.close()
    assert [row.values[0] for row in rows] == [float(n) for n in range(len(rows))]
    assert all(a.read_ns < b.read_ns for a, b in pairwise(rows))
    assert all(row.late_ns - row.early_ns >= 500_000_000 for row in rows)
    assert group.rows_every_s == 0.02


def test_a_meter_that_hangs_costs_nothing_and_is_told():
    hold = threading.Event()
    group = PolledGroup(INFO, lambda: (hold.wait(30), (1.0,))[1], SystemClock(), period_s=0.02, patience_s=0.5)

    def told():
        try:
            group.read()
        except SensorError as error:
            return str(error)
        return None

    assert "has not responded" in until(told)
    hold.set()
    assert until(lambda: not told())
    group.close()


@pytest.mark.parametrize("error", [SensorError("gone"), OSError("gone"), KeyError("gone")])
def test_a_meter_that_fails_is_lost_and_comes_back(error):
    broken = [True]
    ended = []

    def ask():
        if broken[0]:
            raise error
        return (7.0,)

    group = PolledGroup(INFO, ask, SystemClock(), end=lambda: ended.append(1))
    group.poll()
    group._thread = threading.current_thread()  # asked by hand here
    with pytest.raises(SensorError, match="gone"):
        group.read()
    broken[0] = False
    group.poll()
    assert group.read()[0].values == (7.0,)
    group.close()
    assert ended == [1]


def test_an_answer_without_a_value_is_no_row():
    group = PolledGroup(INFO, lambda: (float("nan"),), SystemClock())
    group.poll()
    group._thread = threading.current_thread()
    with pytest.raises(SensorError, match="without a value"):
        group.read()
