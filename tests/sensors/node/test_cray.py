"""Cray pm_counters, on trees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.core.channels import Domain
from everywatt.core.errors import SensorError
from everywatt.sensors.base import State
from everywatt.sensors.node.cray import Cray, parse_counter


def counters(tree, **values):
    for name, value in values.items():
        tree.write(f"sys/cray/pm_counters/{name}", value)


def test_the_node_counts_and_its_parts_are_beside(tree):
    us = "1734094386462336 us"
    counters(tree, energy=f"10000 J {us}", power=f"100 W {us}", cpu_energy=f"4000 J {us}", accel0_energy=f"3000 J {us}")
    sensor = Cray(tree.request())
    samples = {"node.energy": 10000.0, "node.accel0.energy": 3000.0, "node.cpu.energy": 4000.0}
    assert sensor.probe().samples == samples
    (group,) = sensor.groups()
    assert [channel.domain for channel in group.info.channels] == [Domain.NODE, None, None]
    counters(tree, energy=f"10250 J {us}")
    (row,) = group.read()
    assert row.values == (10250.0, 3000.0, 4000.0) and row.late_ns - row.early_ns == 100_000_000
    counters(tree, energy="")
    with pytest.raises(SensorError):
        group.read()


def test_none_and_broken(tree):
    assert Cray(tree.request()).probe().state is State.ABSENT
    counters(tree, energy="what")
    assert Cray(tree.request()).probe().state is State.UNUSABLE


@given(
    st.text(max_size=40)
    | st.tuples(st.integers(-9, 10**20), st.sampled_from("JWx")).map(lambda p: f"{p[0]} {p[1]} 7 us")
)
@settings(max_examples=200, deadline=None)
def test_only_joules_are_joules(text):
    joules = parse_counter(text)
    assert joules is None or (text.split()[1] == "J" and joules == float(text.split()[0]))
