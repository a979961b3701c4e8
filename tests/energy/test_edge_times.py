"""Reads of a counter placed by their neighbours, against publications every millisecond."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.energy.publication_times import straighten
from everywatt.sim.curves import parse_curve


def reads(curve: str, seed: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read times, the joules that were read, and when those had been published."""
    power = parse_curve(curve)
    chance = np.random.default_rng(seed)
    read = np.sort(np.concatenate((np.arange(1.0004, 9, 0.1), chance.uniform(1, 9, 60))))
    published = np.floor(read * 1000) / 1000
    return read, np.array([power.energy_j(0.0, t) for t in published]), published


@pytest.mark.parametrize(("curve", "most_us"), [("constant:150W", 150), ("square:100W,300W,7s", 250)])
def test_steady_power_places_a_read_far_better_than_its_bracket(curve: str, most_us: float) -> None:
    read, joules, published = reads(curve)
    inner = np.arange(25, len(read) - 25)
    times, halves = straighten(joules, read - 0.001, read, inner)
    assert np.percentile(np.abs(times - published[inner]), 95) * 1e6 < most_us  # the middle of the bracket: 480
    assert np.mean(np.abs(times - published[inner]) <= halves + 1e-6) > 0.97


@pytest.mark.parametrize("curve", ["ramp:100W,300W,60s", "telegraph:100W,300W,0.05s,3", "square:100W,300W,0.3s"])
def test_power_that_changes_is_left_within_the_bracket(curve: str) -> None:
    read, joules, published = reads(curve)
    inner = np.arange(25, len(read) - 25)
    times, halves = straighten(joules, read - 0.001, read, inner)
    assert np.all((times >= read[inner] - 0.001) & (times <= read[inner]))
    assert np.mean(np.abs(times - published[inner]) <= halves + 1e-6) > 0.93


@pytest.mark.parametrize("curve", ["ramp:100W,300W,60s", "telegraph:100W,300W,0.05s,3", "square:100W,300W,0.3s"])
def test_publications_that_were_seen_to_happen_place_a_read_just_before_them(curve: str) -> None:
    """A read, then 0.2 to 5 ms later two publications one period apart, each to 40 µs."""
    power, chance = parse_curve(curve), np.random.default_rng(4)
    early, late, when, which = [], [], [], []
    for start in np.arange(1.0, 9.0, 0.1):
        read = start + chance.uniform(0, 0.001)
        seen = np.ceil((read + chance.uniform(0.0002, 0.005)) * 1000) / 1000
        which.append(len(when))
        when += [np.floor(read * 1000) / 1000, seen - 0.001, seen]
        off = chance.uniform(0, 0.00004)
        early += [read - 0.001, seen - 0.001 - off - 0.00002, seen - off]
        late += [read, seen - 0.001 - off + 0.00006, seen - off + 0.00004]
    joules, numbers = np.array([power.energy_j(0.0, t) for t in when]), np.array(which)
    times, halves = straighten(joules, np.array(early), np.array(late), numbers)
    truth = np.array(when)[numbers]
    assert np.percentile(np.abs(times - truth), 95) * 1e6 < 40  # the middle of the bracket: 480
    assert np.mean(np.abs(times - truth) <= halves + 1e-6) > 0.95
