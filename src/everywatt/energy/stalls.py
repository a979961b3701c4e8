"""Which rows of a tape repeat an old value, because the sensor had stopped publishing."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel
from everywatt.core.clocks import NS
from everywatt.energy.medians import median
from everywatt.energy.sampling import GAP_PERIODS, WHOLE
from everywatt.energy.utilisation import BUSY, IDLE, WITNESS_S, Witness

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

FEW_REPEATS = 5
# A step after a standstill that is so many times the largest other one holds what was counted meanwhile.
CATCH_UP = 1.5
# With fewer readings nothing is known of how often a value repeats.
FEWEST_READINGS = 40
FEWEST_PAIRS = 10
# Neighbouring readings that differ by less than this share are of one level.
SAME_LEVEL = 0.05
# Periods for which recorded cards repeat an instant reading; and how rare a longer run by chance must be.
LONGEST_STILL = 6
BY_CHANCE = 1e-4
# Where more readings of a level are the very same, none is known to be old.
SELDOM = 0.3
# What a reading averages at most, where that is not known.
LONGEST_AVERAGE_S = 1.0
# An average over more periods than this is one over several.
LONGER = 1.2
# A run that is so many times as long as any other of a working device is not chance.
HALF_AS_LONG = 2
# Steps of a reading up to this share of it are fine: steady power does not repeat it. Where they are coarser, readings
# that differ by less than the other share may be of power that could be as steady as that of a run.
FINE = 0.001
STEADY_LEVEL = 0.01
# Utilisation that moves by more within two of its publications shows that the load has begun or ended, which power
# follows; of so many such moves at least, all but one in so many have to be followed for others to tell of a stall.
MOVES = 0.5
FEWEST_MOVES = 4
UNFOLLOWED = 0.1


def old_readings(at_ns: Ints, value: Floats, channel: Channel, witness: Witness | None) -> Flags:
    """True where a gauge repeats a value for longer than the sensor can: it had stopped publishing.

    How long it can follows from its averaging window (a moving average changes as long as the load has changed within
    it) and from its other readings: where they seldom are the very same, only a run that chance makes once in 10,000
    times is a stall. Others are those of the same level; where there are few of it, those of lower levels, which are no
    noisier, or those of times in which the device was as busy. And where power follows utilisation, it has stopped if
    it does not.
    """
    none = np.zeros(len(value), dtype=np.bool_)
    if len(value) < FEWEST_READINGS:
        return none
    window_s = LONGEST_AVERAGE_S if channel.facts.window_s is None else channel.facts.window_s
    apart_s = np.diff(at_ns) / NS
    period_s = median(apart_s)
    still = (np.diff(value) == 0) & (apart_s <= GAP_PERIODS * period_s)
    first, end = runs(still)
    long = end - first > max(LONGEST_STILL, np.ceil(window_s / period_s) + 1)
    first, end = first[long], end[long]
    if not len(first):
        return none
    known, old = _by_level(value, still, first, end)
    if witness is not None and len(witness.share) and not old.all():
        at_s = at_ns / NS
        # A part of each period may miss what the rest shows; a longer average repeats where power is steady for longer.
        if (1 - WHOLE) * period_s <= window_s <= LONGER * period_s:
            fine = (channel.facts.quantum or 0.0) <= FINE * np.abs(value[1:])
            alike = np.abs(np.diff(value)) <= np.where(fine, 0.0, STEADY_LEVEL * np.abs(value[1:]))
            old |= _as_busy(at_s, alike, witness, first, end, known)
        if window_s <= WITNESS_S:
            old |= _unfollowed(at_s, still, witness, first, end)
    return flagged(len(value), first[old] + 1, end[old] + 1)


def _rare(repeats: Places, pairs: Places, own: Places) -> Flags:
    """Whether runs of `own` repeats are not of chance where `repeats` of `pairs` others are."""
    by_chance = (repeats + 1) / (pairs + 2)
    return np.asarray((pairs >= FEWEST_PAIRS) & (by_chance < SELDOM) & (by_chance**own < BY_CHANCE))


def _by_level(value: Floats, still: Flags, first: Places, end: Places) -> tuple[Flags, Flags]:
    """Of which runs other readings of the level are known, and which are old by these, or else by lower levels."""
    # Readings of the same level as a run's, its own left out: all readings are put in order once for all runs.
    level = np.abs(np.diff(value)) <= SAME_LEVEL * np.abs(value[1:])
    order = np.argsort(value[1:][level])
    levels, repeats = value[1:][level][order], np.concatenate(([0], np.cumsum(still[level][order])))
    at, own = value[end], end - first
    low, high = np.sort((at / (1 + SAME_LEVEL), at / (1 - SAME_LEVEL)), axis=0)
    start, stop = np.searchsorted(levels, low), np.searchsorted(levels, high, side="right")
    pairs = stop - start - own
    same = np.searchsorted(levels, at, side="right") - np.searchsorted(levels, at)
    old = _rare(np.maximum(repeats[stop] - repeats[start], same) - own, pairs, own)
    known = pairs >= FEWEST_PAIRS
    return known, old | ~known & _rare(repeats[stop] - own, stop - own, own)


def _as_busy(at_s: Floats, alike: Flags, witness: Witness, first: Places, end: Places, known: Flags) -> Flags:
    """Which runs are old by how other readings repeat while the device works all or part of the time.

    Seldom, where no others of the level are `known`; or often, but never for half as long.
    """
    looks = witness.about(at_s[1:])
    least = looks.min(axis=0)
    busy, toggles = least >= BUSY, (least > IDLE) & (least < BUSY)
    log_chance = np.zeros(len(first))
    for state in (busy, toggles):
        pairs, repeats = (np.concatenate(([0], np.cumsum(flags))) for flags in (state, state & alike))
        own = pairs[end] - pairs[first]
        others = pairs[-1] - own
        by_chance = (repeats[-1] - own + 1) / (others + 2)
        tells = ~known & (by_chance < SELDOM) | (own > HALF_AS_LONG * _longest_other(state & alike, first, end))
        log_chance += np.where(tells & (others >= FEWEST_READINGS), own * np.log(by_chance), 0.0)
    # An idle device repeats what no working one does.
    rested = np.concatenate(([0], np.cumsum(least <= IDLE)))
    return np.asarray((log_chance < math.log(BY_CHANCE)) & (rested[end] == rested[first]))


def _longest_other(alike: Flags, first: Places, end: Places) -> Places:
    """For each run the length of the longest one that does not overlap it."""
    start, stop = runs(alike)
    longest = [np.concatenate(([0], np.maximum.accumulate(way))) for way in (stop - start, (stop - start)[::-1])]
    before, after = np.searchsorted(stop, first, side="right"), np.searchsorted(start, end)
    return np.maximum(longest[0][before], longest[1][len(start) - after])


def _unfollowed(at_s: Floats, still: Flags, witness: Witness, first: Places, end: Places) -> Flags:
    """During which runs utilisation moved as it does nowhere else without that power changes."""
    t_s, share = witness.t_s, witness.share
    # Two steps at once: a change in the middle of a look shows in two of them.
    moves = np.flatnonzero(np.abs(share[2:] - share[:-2]) > MOVES) + 2
    if len(moves) < FEWEST_MOVES:
        return np.zeros(len(first), dtype=np.bool_)
    # What is read at an instant is of the driver's window before, which may have ended a publication ago.
    begin, until = t_s[moves - 2] - 2 * WITNESS_S, t_s[moves]
    changed = np.concatenate(([0], np.cumsum(~still)))
    low, high = np.searchsorted(at_s[1:], begin), np.searchsorted(at_s[1:], until, side="right")
    silent = (changed[high] == changed[low]) & (high > low)
    place = np.searchsorted(at_s[first], begin) - 1
    within = silent & (place >= 0) & (until <= at_s[end][place])
    inside = np.bincount(place[within], minlength=len(first))
    others, quiet = len(moves) - inside, np.count_nonzero(silent) - inside
    return np.asarray((inside > 0) & (others >= FEWEST_MOVES) & (quiet <= UNFOLLOWED * others))


def repeated(values: Floats) -> Flags:
    """True where a counter stands still for a few rows and then goes on: publications that were lost.

    One that stands still for longer has nothing to count, or has lost an unknown amount.
    """
    first, end = runs(np.diff(values, prepend=np.nan) == 0)
    few = (end - first <= FEW_REPEATS) & (end < len(values))
    return flagged(len(values), first[few], end[few])


def stalled(counts: Floats) -> Flags:
    """True where a counter stands still for many rows and then makes up for it in one: it had stopped publishing."""
    if not (counts[1:] == counts[:-1]).any():
        return np.zeros(len(counts), dtype=np.bool_)
    steps = np.diff(counts, prepend=np.nan)
    first, end = runs(steps == 0)
    many = (end - first > FEW_REPEATS) & (end < len(counts))
    first, end = first[many], end[many]
    if not len(first):
        return np.zeros(len(counts), dtype=np.bool_)
    second, largest = np.partition(np.fmax(steps[1:], 0.0), -2)[-2:]
    others = np.where(steps[end] == largest, second, largest)
    caught = steps[end] > CATCH_UP * others
    return flagged(len(counts), first[caught], end[caught])


def runs(flags: Flags) -> tuple[Places, Places]:
    """Where runs of True begin, and where each has ended."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return edges[::2], edges[1::2]


def flagged(count: int, first: Places, end: Places) -> Flags:
    """True from each of `first` up to its `end`; these do not overlap."""
    change = np.zeros(count + 1, dtype=np.int64)
    change[first] += 1
    change[end] -= 1
    return np.cumsum(change[:-1]) > 0
