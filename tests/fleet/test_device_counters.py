"""Counters of devices, fed row by row: their intervals."""

import random

from tapes import at, counter_group

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
