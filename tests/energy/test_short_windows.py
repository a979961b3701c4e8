"""Windows much shorter than a sensor's cells: what is known of their sum, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.core.channels import Channel, Domain, Facts, Kind
from everywatt.core.clocks import NS
from everywatt.energy.building import Raw, ticks_of
from everywatt.energy.ticks import Ticks

PERIOD_S = 0.1


def counter(half_ns: float) -> Ticks:
    """A card at 200 W on average in every period, published within `half_ns` of when it is thought."""
    facts = Facts(period_s=PERIOD_S, quantum=0.001, max_w=400.0)
    channel = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU, facts=facts)
    at = np.arange(200, dtype=np.int64) * round(PERIOD_S * NS)
    joules = at / NS * 200.0
    ticks = ticks_of(Raw(at, np.full(200, half_ns), joules, joules, at.astype(np.float64)), channel, PERIOD_S)
    assert ticks is not None
    return ticks


def test_many_windows_that_come_when_the_load_does() -> None:
    """100 W and 300 W in turns, ten times in each period. The windows are the times at 300 W, and 200 W is all that the
    card shows: their errors are one error, and do not average out."""
    starts = np.arange(0, 10 * NS, NS // 100) + 5 * NS
    ends = starts + NS // 200
    reading = counter(0.0).together(starts, ends)
    truth_j = 300.0 * 1000 * 0.005
    assert reading.joules == pytest.approx(200.0 * 1000 * 0.005, rel=1e-6)
    assert reading.joules + reading.aliasing_j > truth_j
    assert reading.aliasing_j < 1.0 * reading.joules, "what is in the windows is not more than twice what is thought"
    assert reading.start_width_j == reading.end_width_j == 0.0


def test_unsure_instants_matter_little_to_a_small_part_of_a_cell() -> None:
    """Publications known to ± 20 ms of 100: the power of a cell is unsure by a share, and so is a window of 1 ms."""
    sharp, vague = (counter(half).between(5 * NS + 40_000_000, 5 * NS + 41_000_000) for half in (0.0, 20e6))
    assert vague.joules == pytest.approx(0.2, rel=1e-6)
    assert sharp.start_width_j < vague.start_width_j < 0.2
