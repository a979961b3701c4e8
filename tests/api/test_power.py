"""Power of a device at its ticks, where some instants are known far better than others."""

import math

import numpy as np
import pytest
from tapes import at, counter_group, rows, starved_rows, write_tape

from everywatt.api.power import power_line
from everywatt.api.run import load
from everywatt.core.channels import Row
from everywatt.energy.building import comparable
from everywatt.energy.sampling import GaugeCurve
from everywatt.energy.sources import sources

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


def test_a_line_reaches_to_the_last_tick(tmp_path):
    """A counter of 100 W that is read every 0.1 s, and once more 40 ms after the last read."""
    ticks = [*rows(lambda t: 100.0 * t, 0.0, 2.0, 0.1), Row(at(2.04), at(2.04), at(2.04), (204.0,))]
    run = load(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)]))
    line = power_line(sources(run.tapes[0])[0])
    assert line.at_ns[-1] == at(2.04)
    assert line.watts == pytest.approx(100.0)


def line_of(tmp_path, found):
    run = load(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, found)]))
    return power_line(sources(run.tapes[0])[0])


def test_no_power_is_shown_that_only_an_unknown_length_explains(tmp_path):
    """A card of 260 W publishes every 100 ms and is read every 103 ms: now and then two publications come at once."""
    reads_s = [0.097 + 0.1036 * n for n in range(60)]
    published_s = [math.floor(t / 0.1) * 0.1 for t in reads_s]
    steps_s = np.diff(published_s)
    assert steps_s.max() == pytest.approx(0.2) and steps_s.min() == pytest.approx(0.1)
    line = line_of(
        tmp_path,
        [Row(at(t), at(t - 0.1), at(t), (260.0 * p,)) for t, p in zip(reads_s, published_s, strict=True)],
    )
    assert line.watts == pytest.approx(260.0, rel=0.1) and len(line.watts) >= 2
    assert line.at_ns[-1] >= at(reads_s[-1] - 0.05) - 1


@pytest.mark.parametrize("seed", range(8))
def test_no_power_is_shown_that_a_held_up_recorder_cannot_know(tmp_path, seed):
    line = line_of(tmp_path, starved_rows(seed))
    assert line.watts.min() > 90.0 and line.watts.max() < 330.0 and len(line.watts) > 20


def test_a_short_peak_between_instants_that_are_known_well_is_kept(tmp_path):
    """Of 100 W with 100 ms of 400 W, between reads that know nothing of the schedule."""
    known = [(1.0 + n / 10, 0.002) for n in range(10)]
    ticks = [*((n / 10, 0.05) for n in range(10)), *known, *((2.0 + n / 10, 0.05) for n in range(10))]
    found = [
        Row(at(t + half), at(t - half), at(t + half), (100.0 * t + 300.0 * min(max(t - 1.4, 0.0), 0.1),))
        for t, half in ticks
    ]
    line = line_of(tmp_path, found)
    assert line.watts.max() == pytest.approx(400.0) and (line.watts > 150.0).sum() == 1
