"""From rows of a tape to ticks: publication times with hindsight, old values that a stalled sensor repeats left out,
inline reads merged in, ends and gaps made plain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.counters import difference
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median
from everywatt.energy.publication_times import retime, straighten
from everywatt.energy.sampling import GAP_PERIODS, WHOLE
from everywatt.energy.sources import UNEVEN
from everywatt.energy.ticks import Ticks
from everywatt.energy.utilisation import BUSY, IDLE, WITNESS_S, Witness
from everywatt.tape.accumulate import jump_per_s, jump_slack_s
from everywatt.tape.columns import Columns, Flags, Floats, Ints

MEASURED = (Pedigree.COUNTER, Pedigree.INTEGRATED)
# A counter that is read so seldom is read where spans start and end, and speaks for its own period alone.
SELDOM_READ_S = 3600.0
# Less of a period than this is rounding, and no time that a reading does not speak for.
UNSEEN = 0.05
NONE = np.array([], dtype=np.intp)

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

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Raw:
    """Finite rows of one channel, raw."""

    at: Ints
    half: Floats
    value: Floats
    accumulated: Floats
    observed: Floats

    def take(self, rows: npt.NDArray[np.intp]) -> Raw:
        return Raw(self.at[rows], self.half[rows], self.value[rows], self.accumulated[rows], self.observed[rows])


def kept_rows(columns: Columns, channel: Channel, tracked: bool, after_ns: int) -> Flags:
    """Which rows published after an instant say something new of a channel."""
    values = columns.values[channel.name]
    keep = np.isfinite(values) & (columns.published > after_ns)
    if channel.kind is not Kind.COUNTER:
        return keep
    return keep & ~(repeated(values) | stalled(values) if tracked else stalled(values))


def raw_of(columns: Columns, keep: Flags, channel: Channel) -> Raw:
    """Those rows, as they were recorded."""
    return Raw(
        columns.published[keep],
        (columns.late - columns.early)[keep] / 2.0,
        columns.values[channel.name][keep],
        columns.accumulated[channel.name][keep],
        columns.observed_ns[channel.name][keep].astype(np.float64),
    )


def joined(parts: list[Raw]) -> Raw:
    """Rows of pieces that follow one another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing = np.array([])
        return Raw(np.array([], dtype=np.int64), nothing, nothing, nothing, nothing)
    return Raw(
        *(
            np.concatenate([getattr(part, field) for part in parts])
            for field in ("at", "half", "value", "accumulated", "observed")
        )
    )


def _finite(pieces: list[Columns], channel: Channel, tracked: bool, witness: Witness | None) -> Raw:
    parts: list[Raw] = []
    after_ns = -(2**63)
    for columns in pieces:
        keep = kept_rows(columns, channel, tracked, after_ns)
        if keep.any():
            part = raw_of(columns, keep, channel)
            after_ns = int(part.at[-1])
            if tracked:
                part = moved(part, *retime(columns.read[keep], columns.early[keep], columns.late[keep]), channel.kind)
            parts.append(part)
    raw = joined(parts)
    stalls = channel.kind is Kind.GAUGE and channel.pedigree in MEASURED
    return _without_stalls(raw, channel, witness) if stalls else raw


def _without_stalls(raw: Raw, channel: Channel, witness: Witness | None) -> Raw:
    """A gauge's rows without those that repeat an old value; nothing was observed meanwhile."""
    old = old_readings(raw.at, raw.value, channel, witness)
    if not old.any():
        return raw
    accumulated, observed = (
        side[0] + np.concatenate(([0.0], np.cumsum(np.where(old[1:], 0.0, np.diff(side)))))
        for side in (raw.accumulated, raw.observed)
    )
    return replace(raw, accumulated=accumulated, observed=observed).take(np.flatnonzero(~old))


def moved(raw: Raw, at: Ints, half: Floats, kind: Kind) -> Raw:
    """The same rows at better publication times: a gauge's reading covers a little more or less time then."""
    by = (at - raw.at).astype(np.float64)
    accumulated = raw.accumulated
    if kind is Kind.GAUGE:
        accumulated = accumulated + np.cumsum(raw.value * np.diff(by, prepend=0.0))
    return Raw(at, half, raw.value, accumulated, raw.observed + by)


def merged_rows(
    pieces: list[Columns],
    edges: list[tuple[Row, float]],
    channel: Channel,
    tracked: bool,
    witness: Witness | None = None,
) -> Raw:
    """Rows of frames and inline reads in one order; `witness` is the utilisation of the same device."""
    raw = _finite(pieces, channel, tracked, witness)
    return _merged(raw, edges, channel) if edges else raw


def ticks_of(raw: Raw, channel: Channel, expected_s: float) -> Ticks | None:
    """Ticks from rows whose times are settled; None where they are too few to say anything."""
    if len(raw.at) < (2 if channel.kind is Kind.COUNTER else 1):
        return None
    facts = channel.facts
    unit = channel.scale * facts.gain
    joules = raw.accumulated * (unit if channel.kind is Kind.COUNTER else unit / NS) + facts.bias_w * raw.observed / NS
    watts = slopes(raw.at, joules) if channel.kind is Kind.COUNTER else raw.value * unit + facts.bias_w
    ticks = Ticks(channel, expected_s, raw.at, raw.half, joules, raw.observed, watts, np.ones(len(raw.at), dtype=bool))
    return _extended(_stepped(ticks))


def _merged(raw: Raw, edges: list[tuple[Row, float]], channel: Channel) -> Raw:
    """Inline reads become ticks: accumulated as the tick before, plus what was counted since."""
    facts = channel.facts
    most = None if facts.max_w is None else facts.max_w / channel.scale
    base: tuple[int, float, float, float] | None = None
    extra: list[tuple[int, float, float, float, float]] = []
    for row, value in edges:
        if value != value:
            continue
        when = row.early_ns + (row.late_ns - row.early_ns) // 2
        index = max(int(np.searchsorted(raw.at, when, side="right")) - 1, 0)
        if len(raw.at):
            base = (int(raw.at[index]), raw.value[index], raw.accumulated[index], raw.observed[index])
        elif base is None:
            base = (when, value, 0.0, 0.0)
        gone_ns = when - base[0]
        first, second = (base[1], value) if gone_ns >= 0 else (value, base[1])
        step = difference(
            first,
            second,
            wrap=facts.wrap,
            seconds=abs(gone_ns) / NS,
            most_per_s=most,
            period_s=facts.period_s or 0.0,
        ).count
        if step <= jump_per_s(channel) * (abs(gone_ns) / NS + jump_slack_s(channel)):  # and not missing
            counted = base[2] + (step if gone_ns >= 0 else -step)
            extra.append((when, (row.late_ns - row.early_ns) / 2, value, counted, base[3] + gone_ns))
    if not extra:
        return raw
    added = np.array([entry[1:] for entry in extra], dtype=np.float64)
    at = np.concatenate((raw.at, np.array([entry[0] for entry in extra], dtype=np.int64)))
    order = np.argsort(at, kind="stable")
    fields = (raw.half, raw.value, raw.accumulated, raw.observed)
    half, values, accumulated, observed = (
        np.concatenate((field, added[:, column]))[order] for column, field in enumerate(fields)
    )
    keep = np.concatenate(([True], np.diff(at[order]) > 0))
    # A later tick never holds less than an earlier one: two reads of one publication differ only in what they knew.
    return Raw(
        at[order][keep],
        half[keep],
        values[keep],
        np.maximum.accumulate(accumulated)[keep],
        np.maximum.accumulate(observed)[keep],
    )


def near_reads(raw: Raw, read_ns: Sequence[int]) -> npt.NDArray[np.intp]:
    """Numbers of the rows whose publication may be what was read at these instants, or the one before."""
    asked = np.sort(np.asarray(read_ns, dtype=np.int64))
    first, last = np.searchsorted(asked, raw.at - raw.half), np.searchsorted(asked, raw.at + 3 * raw.half, side="right")
    return np.flatnonzero(first < last)


def placed(raw: Raw, which: npt.NDArray[np.intp]) -> Raw:
    """The same rows with better times for those numbered `which`, each by its neighbours as they were recorded."""
    # Nanoseconds since the first row keep every digit.
    origin = int(raw.at[0])
    middle = (raw.at - origin).astype(np.float64)
    times, halves = straighten(raw.accumulated, middle - raw.half, middle + raw.half, which)
    at, half = raw.at.copy(), raw.half.copy()
    at[which], half[which] = origin + np.round(times).astype(np.int64), halves
    while len(swapped := np.flatnonzero(np.diff(at) <= 0)):
        both = np.concatenate((swapped, swapped + 1))
        at[both], half[both] = raw.at[both], raw.half[both]
    return replace(raw, at=at, half=half)


def slopes(at: Ints, joules: Floats) -> Floats:
    watts = np.full(len(at), np.nan)
    watts[1:] = np.diff(joules) / (np.diff(at) / NS)
    watts[0] = watts[1]
    return watts


def _stepped(ticks: Ticks) -> Ticks:
    """Where a gauge's reading speaks for less than the time since the one before, accumulation is flat until there.

    After a gap it speaks for one period; after rows that had no value, for the time since the last of those. What is a
    gap was decided where rows were accumulated: by better times a stretch of three periods may be a little longer.
    """
    if ticks.channel.kind is Kind.COUNTER or len(ticks.at_ns) < 2:
        return ticks
    period_ns = int(ticks.expected_s * NS)
    gone, seen = np.diff(ticks.at_ns), np.diff(ticks.observed_ns)
    held = np.maximum(seen, 1.0).astype(np.int64)
    late = np.flatnonzero(gone - seen > UNSEEN * period_ns) + 1
    if not len(late):
        return ticks
    return replace(
        ticks,
        at_ns=np.insert(ticks.at_ns, late, ticks.at_ns[late] - held[late - 1]),
        half_ns=np.insert(ticks.half_ns, late, 0.0),
        joules=np.insert(ticks.joules, late, ticks.joules[late - 1]),
        observed_ns=np.insert(ticks.observed_ns, late, ticks.observed_ns[late - 1]),
        watts=np.insert(ticks.watts, late, 0.0),
        real=np.insert(ticks.real, late, False),
    )


def _extended(ticks: Ticks) -> Ticks:
    """One period before the first and after the last tick at the power seen there: a sensor cell is that long.

    Nothing was read there, so these ticks may have been published anywhere in a period.
    """
    period_s = ticks.expected_s
    if ticks.channel.kind is Kind.COUNTER and period_s >= SELDOM_READ_S:
        period_s = ticks.channel.facts.period_s or LONGEST_AVERAGE_S
    period_ns = int(period_s * NS)
    first_w, last_w = _end_w(ticks, 1), _end_w(ticks, -1)
    before_j, after_j = ticks.joules[0] - first_w * period_s, ticks.joules[-1] + last_w * period_s
    return replace(
        ticks,
        at_ns=np.concatenate(([ticks.at_ns[0] - period_ns], ticks.at_ns, [ticks.at_ns[-1] + period_ns])),
        half_ns=np.concatenate(([period_ns], ticks.half_ns, [period_ns])),
        joules=np.concatenate(([before_j], ticks.joules, [after_j])),
        observed_ns=np.concatenate(
            ([ticks.observed_ns[0] - period_ns], ticks.observed_ns, [ticks.observed_ns[-1] + period_ns])
        ),
        watts=np.concatenate(([first_w], ticks.watts, [last_w])),
        real=np.concatenate(([False], ticks.real, [False])),
    )


def _end_w(ticks: Ticks, side: int) -> float:
    """Watts near one end: the median of a few cells. Two reads that are closer together than their instants are known
    give a wild slope, and do not count where there are others."""
    clear = ticks.real.copy()
    clear[1:] &= np.diff(ticks.at_ns) >= ticks.half_ns[1:]
    clear[0] &= bool(clear[1:2].all())  # it has the watts of the next
    few = ticks.watts[clear if clear.any() else ticks.real]
    few = few[:4] if side > 0 else few[-4:]
    few = few[np.isfinite(few)]
    return median(few) if len(few) else 0.0


def comparable(at_ns: Ints, half_ns: Floats, real: Flags) -> npt.NDArray[np.intp]:
    """Which ticks to take slopes between: instants that are known about equally well, compared with their distance.

    A sensor that is read once a second and whose schedule is looked for now and then has instants known to a
    millisecond beside others known to a second. From one kind to the other a slope is wild, along either it is not.
    """
    length, differs = np.diff(at_ns), np.abs(np.diff(half_ns))
    inner = real[1:] & real[:-1]
    if not np.any(inner & (differs > UNEVEN * length)):
        return np.arange(len(at_ns))
    places = np.flatnonzero(real)
    best = int(np.argmin(half_ns[places]))
    after = _walk(places[best:], at_ns, half_ns)
    before = _walk(places[best::-1], at_ns, half_ns)
    return np.array(before[:0:-1] + after, dtype=np.intp)


def _walk(places: npt.NDArray[np.intp], at_ns: Ints, half_ns: Floats) -> list[int]:
    """From the first place on, those whose instant can be compared with the one taken before."""
    kept = [int(places[0])]
    at, half = int(at_ns[kept[0]]), float(half_ns[kept[0]])
    for place, then, width in zip(
        places[1:].tolist(), at_ns[places[1:]].tolist(), half_ns[places[1:]].tolist(), strict=True
    ):
        if abs(width - half) <= UNEVEN * abs(then - at):
            kept.append(place)
            at, half = then, width
    return kept


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
