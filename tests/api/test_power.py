"""Power of a device at its ticks, where some instants are known far better than others."""

import numpy as np
import pytest

from everywatt.energy.building import comparable
from everywatt.energy.sampling import GaugeCurve

NS = 1_000_000_000


def test_slopes_are_taken_between_instants_that_are_known_equally_well():
    """A card of 200 W that publishes every 0.1 s: read closely for a while, then once a second (half: ±0.5 s)."""
    close = [(10.0 + n / 10, 0.004) for n in range(6)]
    # Read at 11.5, 12.5, …: published just before, but all that is known is "since the read before".
    loose = [(11.0 + n, 0.5) for n in range(5)]
    again = [(15.6 + n / 10, 0.004) for n in range(4)]
    ticks = [*close, *loose, *again]
    published_s = np.array([t if half < 0.1 else t + 0.45 for t, half in ticks])
    at_ns = (np.array([t for t, _ in ticks]) * NS).astype(np.int64)
    half_ns = np.array([half for _, half in ticks]) * NS
    joules = 200.0 * published_s
    every = np.diff(joules) / (np.diff(at_ns) / NS)
    assert every.max() > 370 and every.min() < 60, "wild, if every pair is taken"
    kept = comparable(at_ns, half_ns, np.ones(len(ticks), dtype=bool))
    watts = np.diff(joules[kept]) / (np.diff(at_ns[kept]) / NS)
    assert len(kept) >= 9
    assert watts == pytest.approx(200.0, rel=0.2)
    assert watts[:5] == pytest.approx(200.0)


def test_ticks_that_are_alike_are_all_taken():
    at_ns = np.arange(5, dtype=np.int64) * NS
    assert comparable(at_ns, np.full(5, 0.4 * NS), np.ones(5, dtype=bool)).tolist() == [0, 1, 2, 3, 4]


def test_a_gauge_that_was_read_closely_for_a_while_has_no_gaps_between_slower_reads():
    t_s = np.concatenate((np.arange(0.1, 3.05, 0.1), np.arange(4.0, 6.5)))
    watts = np.full(len(t_s), 200.0)
    assert GaugeCurve(t_s, watts, period_s=0.1, gap_s=3.0).energy(0.0, 6.0).joules == pytest.approx(1200.0)
    lost = GaugeCurve(t_s, watts, period_s=0.1).energy(0.0, 6.0).joules
    assert lost == pytest.approx(200 * 3.3), "three reads after a gap speak for a period each"
