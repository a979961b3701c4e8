"""Windows that touch add up to the window over all of them, whatever publishes the values and however it was seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tapes import at, write_tape

from everywatt.api.run import load
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row

ROWS, PERIOD_S = 400, 0.1
END_S = (ROWS - 1) * PERIOD_S


def watts_of(random: np.random.Generator) -> np.ndarray:
    """Mean power of each period: levels that hold for some periods, as a program's phases do."""
    levels = random.uniform(40.0, 350.0, ROWS)
    return levels[np.cumsum(random.random(ROWS) < 0.1)] + random.normal(0.0, 2.0, ROWS)


def jittered_rows(random: np.random.Generator, watts: np.ndarray) -> list[Row]:
    """A clock a little off, brackets of half a millisecond to many, polls that missed a publication now and then."""
    period_s = PERIOD_S * (1 + random.uniform(-2e-4, 2e-4))
    joules = np.cumsum(watts * period_s)
    rows = []
    for number in range(ROWS):
        if 0 < number < ROWS - 1 and random.random() < 0.02:
            continue
        published = at(number * period_s) + int(random.normal(0.0, 50_000))
        width = int(random.choice((500_000, 1_500_000, 5_000_000, 40_000_000), p=(0.4, 0.4, 0.15, 0.05)))
        early = published - int(random.uniform(0.05, 0.95) * width)
        late = early + width
        busy = float(random.integers(0, 101))
        rows.append(Row(late + 1_000_000, early, late, (float(joules[number]), float(watts[number]), busy)))
    return rows


def group_of(window_s: float, counter: bool) -> GroupInfo:
    """A tracked group: a counter with its power beside it, or the power alone, and utilisation."""
    facts = Facts(period_s=PERIOD_S, window_s=window_s, quantum=0.001, max_w=400.0, gain_pct=5.0)
    domain = Domain.GPU if counter else None
    energy = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", domain, facts=facts)
    power = Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, pedigree=Pedigree.INTEGRATED, facts=facts)
    power = replace(power, mirror_of="gpu.0.energy") if counter else power
    busy = Channel("gpu.0.utilisation", "%", Kind.GAUGE, "gpu.0")
    return GroupInfo("nvml.gpu.0", "nvml", "gpu.0", (energy, power, busy), tracked=True)


@pytest.mark.parametrize("counter", [True, False], ids=["counter", "gauge"])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    window_s=st.sampled_from([0.025, 0.1, 1.0]),
    cuts=st.lists(st.floats(0.0, END_S), min_size=3, max_size=12, unique=True),
)
def test_adjacent_windows_of_a_short_tape_add_up(counter, seed, window_s, cuts):
    random = np.random.default_rng(seed)
    rows = jittered_rows(random, watts_of(random))
    times = sorted(cuts)
    spans = [(f"part {i}", a, b, None, {}) for i, (a, b) in enumerate(pairwise(times))]
    with TemporaryDirectory() as folder:
        path = write_tape(Path(folder) / "a.tape", [(group_of(window_s, counter), PERIOD_S, rows)], spans)
        run = load(path)
        whole = run.energy(between=(times[0] - offset(run), times[-1] - offset(run)))
        parts = [run.energy(span=name).joules for name, *_ in spans]
        many = run.energies(np.array(times[:-1]) - offset(run), np.array(times[1:]) - offset(run))
    assert None not in parts
    scale = max(abs(whole.joules), 1.0)
    assert abs(sum(parts) - whole.joules) <= 1e-6 * scale
    assert abs(many.sum() - whole.joules) <= 1e-6 * scale


def offset(run) -> float:
    """Seconds from the tests' origin to the run's first instant, from which `between` counts."""
    return (run.tapes[0].extent_ns()[0] - at(0.0)) / 1e9
