"""A RAPL counter whose updates do not come every millisecond: on Ice Lake servers after 0.7 to 1.0 or 1.2 to 1.6 ms."""

from __future__ import annotations

import numpy as np
import pytest
from tapes import at, counter_group, write_tape

from everywatt.api.run import load
from everywatt.core.channels import Row
from everywatt.sim.curves import parse_curve

SECONDS = 8.0
# Recorded with 10,000 updates in a row: about 5 in 7 are short ones, and the mean is 1.000 ms.
SHORT_MS, LONG_MS, SHORT_SHARE = (0.68, 1.0), (1.2, 1.6), 5 / 7


def updates(random: np.random.Generator) -> np.ndarray:
    count = int(1.1e3 * SECONDS)
    short = random.random(count) < SHORT_SHARE
    steps = np.where(short, random.uniform(*SHORT_MS, count), random.uniform(*LONG_MS, count)) / 1e3
    return np.cumsum(steps)


@pytest.mark.parametrize("curve", ["constant:150W", "square:60W,240W,0.7s", "telegraph:60W,240W,0.05s,3"])
def test_short_spans_hold_the_truth(tmp_path, curve):
    random = np.random.default_rng(3)
    published = updates(random)
    grid = np.arange(0.0, 1.2 * SECONDS, 5e-4)
    power = parse_curve(curve)
    drawn = np.array([power.energy_j(0.0, t) for t in grid])

    def joules(t: float) -> float:
        return float(np.interp(t, grid, drawn))

    def row(read_s: float) -> Row:
        newest = published[np.searchsorted(published, read_s, side="right") - 1]
        return Row(at(read_s), at(read_s - 0.001), at(read_s), (joules(newest),))

    starts = np.arange(1.0, SECONDS - 1.0, 0.173) + random.uniform(0, 0.1)
    spans = [(a, a + length_s) for a, length_s in zip(starts, np.resize((0.01, 0.05), len(starts)), strict=True)]
    info = counter_group(inline=True, period_s=0.001, quantum=6.1e-5, max_w=300.0, gain_pct=0.0)
    rows = [row(t) for t in np.arange(0.1, SECONDS, 0.1) + random.uniform(0.0, 0.003)]
    named = [(f"part {n}", a, b, None, {}) for n, (a, b) in enumerate(spans)]
    run = load(write_tape(tmp_path / "a.tape", [(info, 0.1, rows)], named, [(0, row(t)) for s in spans for t in s]))
    figures = [run.energy(f"part {n}") for n in range(len(spans))]
    held = [f.low <= joules(b) - joules(a) <= f.high for f, (a, b) in zip(figures, spans, strict=True)]
    assert np.mean(held) >= 0.9, held
