"""Which rows repeat an old value: found for all runs of equal readings at once, as a look at each of them says."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.energy import building
from everywatt.energy.building import BY_CHANCE, CATCH_UP, FEW_REPEATS, FEWEST_PAIRS, SAME_LEVEL, SELDOM

GAUGE = Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, pedigree=Pedigree.INTEGRATED,
                facts=Facts(period_s=0.1, window_s=0.1))  # fmt: skip


def runs(still: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], still, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def old_readings(value: np.ndarray, longest: int) -> np.ndarray:
    """The rule, one run after another: how often other readings of that level are the very same, or of lower ones."""
    step, size = np.abs(np.diff(value)), np.abs(value[1:])
    found = np.zeros(len(value), dtype=bool)
    for first, end in runs(step == 0):
        if end - first <= longest:
            continue
        others = (step <= SAME_LEVEL * size) & (np.abs(value[1:] - value[end]) <= SAME_LEVEL * size)
        others[first:end] = False
        pairs, same = int(others.sum()), ((value[1:] == value[end]) & others).sum()
        if pairs < FEWEST_PAIRS:  # lower levels are no noisier
            others = (step <= SAME_LEVEL * size) & (value[1:] - value[end] <= SAME_LEVEL * size)
            others[first:end] = False
            pairs, same = int(others.sum()), 0
        alike = max(((step == 0) & others).sum(), same)
        chance = (alike + 1) / (pairs + 2)
        found[first + 1 : end + 1] = pairs >= FEWEST_PAIRS and chance < SELDOM and chance ** (end - first) < BY_CHANCE
    return found


def old_counts(counts: np.ndarray) -> np.ndarray:
    """A counter that stands still and then steps by more than ever."""
    steps = np.diff(counts, prepend=np.nan)
    found = np.zeros(len(counts), dtype=bool)
    for first, end in runs(steps == 0):
        if end - first > FEW_REPEATS and end < len(counts):
            found[first:end] = steps[end] > CATCH_UP * np.nanmax(np.delete(steps, end), initial=0.0)
    return found


def readings(random: np.random.Generator, rows: int) -> np.ndarray:
    """Levels with noise of some resolution, held for a while now and then, some of them below zero or at it."""
    levels = random.choice([0.0, -20.0, 60.0, 80.0, 200.0, 205.0], rows)[np.cumsum(random.random(rows) < 0.03)]
    quantum = random.choice([0.01, 0.5, 2.0])
    value = np.round((levels + random.normal(0.0, 1.0, rows)) / quantum) * quantum
    for first in random.integers(0, rows - 30, 6):
        value[first : first + random.integers(3, 30)] = value[first]
    return value


@pytest.mark.parametrize("seed", range(30))
def test_a_gauge_that_repeats_itself(seed):
    random = np.random.default_rng(seed)
    value = readings(random, 600)
    at = np.arange(600) * NS // 10
    raw = building.Raw(at, np.zeros(600), value, np.cumsum(value * 1e8), at.astype(np.float64))
    kept = building._without_stalls(raw, GAUGE, None)
    assert np.array_equal(kept.at, at[~old_readings(value, building.LONGEST_STILL)])


@pytest.mark.parametrize("seed", range(30))
def test_a_counter_that_stands_still(seed):
    random = np.random.default_rng(seed)
    steps = random.integers(1, 20, 400).astype(np.float64)
    for first in random.integers(0, 370, 6):
        length = int(random.integers(3, 20))
        steps[first : first + length] = 0.0
        steps[first + length] = random.choice([5.0, 18.0, 40.0, 200.0, 200.0])
    counts = np.cumsum(steps)
    counts[random.integers(0, 400, 3)] = np.nan
    assert np.array_equal(building.stalled(counts), old_counts(counts))
