"""Counters of devices, fed row by row: their intervals."""

import random

import pytest
from tapes import at, counter_group, starved_rows

from everywatt.core.channels import Domain, Row
from everywatt.fleet.device_counters import Lines


def test_the_interval_holds_where_it_is_not_known_when_readings_were_published():
    """A card of 100 W and unknown gain, whose readings may be up to a second old: windows of a minute."""
    rng = random.Random(1)
    lines = Lines.of([(counter_group("gpu.0", Domain.GPU), 1.0)])
    line = lines.all[0]
    seen = []
    for second in range(1, 1800):
        published = second - rng.random()
        lines.feed("test.gpu.0.gpu", [Row(at(second), at(second - 1), at(second), (100 * published,))])
        line.settle()
        seen.append((line.settled_ns, line.low_uj / 1e6, line.settled_uj / 1e6, line.high_uj / 1e6))
    windows = list(zip(seen[60:-60:7], seen[120::7], strict=False))
    held = [b[1] - a[1] <= 100 * (b[0] - a[0]) / 1e9 <= b[3] - a[3] for a, b in windows]
    assert sum(held) >= 0.95 * len(held)
    assert seen[-1][3] - seen[-1][1] < 0.03 * seen[-1][2]


@pytest.mark.parametrize("seed", range(20))
def test_a_recorder_that_is_held_up_gives_no_power_that_never_was(seed):
    lines = Lines.of([(counter_group(), 0.1)])
    (line,) = lines.all
    rows, powers = starved_rows(seed, half_s=10.0), []
    for second in range(1, 121):
        lines.feed(counter_group().name, [row for row in rows if at(second - 1) < row.read_ns <= at(second)])
        line.settle()
        powers += [] if line.power_w is None else [line.power_w]
    assert len(set(powers)) >= 10
    assert min(powers) > 100 * 0.92 and max(powers) < 300 * 1.08
