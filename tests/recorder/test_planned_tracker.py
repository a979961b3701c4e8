"""Reads that are fed together, against the same reads fed one by one."""

from __future__ import annotations

import random

import pytest

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.recorder.phase_lock import Tracker

MS = 1_000_000
S = 1000 * MS
START = 5_000 * S


@pytest.mark.parametrize("phase_ms", [3.0, 48.5, 91.0])
@pytest.mark.parametrize("jitter_ms", [0.0, 0.3])
def test_reads_that_are_fed_together_give_what_they_give_one_by_one(phase_ms: float, jitter_ms: float) -> None:
    rng = random.Random(7)
    channel = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU, facts=Facts(period_s=0.1))
    info = GroupInfo("gpu.0", "fake", "gpu.0", (channel,), tracked=True)
    apart, together = (Tracker(info, 100 * MS, START) for _ in range(2))
    times = [START - S + round((phase_ms + k * 100 + rng.uniform(-1, 1) * jitter_ms) * MS) for k in range(620)]
    values = [float(k - (k % 97 == 0)) for k in range(620)]  # now and then it stands still
    one_by_one, at_once, kept = [], [], []
    now, newest = START, 0
    while now < START + 60 * S:
        now = max(now, sum(apart.due) // 2)
        while times[newest + 1] <= now:
            newest += 1
        read = (now, now + MS // 10, Row(now, now, now, (values[newest],)))
        now = read[1]
        one_by_one += apart.feed(*read)
        kept.append(read)
        if len(kept) == 7:
            at_once += [row for read in kept for row in together.feed(*read)]
            kept = []
            assert (together.due, together.state) == (apart.due, apart.state)
            assert at_once == one_by_one
    assert len(at_once) > 570
