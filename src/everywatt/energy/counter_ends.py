"""One window of several counters from the ticks near its two ends: all that joules and their intervals need.

A counter says what was counted between the ends; only where in its cell an end lies is unsure, and that follows from a
few ticks to either side. The ticks further away matter in three ways: how closely they follow one another and whether a
clock passes through all of them, which are looked at first (where one of these could change the answer, all ticks
are asked instead), and what the device draws when it is idle, which is taken from all of them.

The ticks of all counters are then laid one after the other on one line of time, each with its utilisation (those
without on a line of their own), and one curve answers for all. An end of a window looks at its own neighbours only, so
none of them sees another counter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Kind, Row
from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median
from everywatt.energy.building import Raw, joined, kept_rows, moved, raw_of, ticks_of
from everywatt.energy.curve import Sampled
from everywatt.energy.publication_times import Rows, retime_some
from everywatt.energy.sampling import CLEAR, CounterCurve
from everywatt.energy.ticks import Reading, Ticks, part_time
from everywatt.energy.utilisation import BUSY, IDLE, MOVED, Array, Witness, tells, unwitnessed
from everywatt.tape.columns import Columns, Flags, Floats, Ints

# Ticks to either side of an end that give its cell's error; rows further out that are put on the clock, because
# a tick past the last row goes by the few before it.
REACH = 16
# Power is looked at this far around a cell of a load that toggles.
REACH_S = 0.6
BEYOND = 8
# With fewer rows nothing is gained.
FEWEST = 4 * (REACH + BEYOND)
# sd of an instant anywhere in its bracket, as a share of the bracket.
_SD = 1 / np.sqrt(12)
# Between two counters: longer than utilisation speaks for a cell.
APART_S = 1.0


@dataclass(frozen=True, slots=True)
class Around:
    """Rows of one channel around a window, and the utilisation of the same device.

    `edges` are the inline reads among them, `wide` the rows from further around of which `pieces` are a part.
    """

    pieces: list[Columns]
    channel: Channel
    expected_s: float
    tracked: bool
    witness: Witness | None
    edges: list[tuple[Row, float]]
    wide: Sequence[Columns] = ()


def readings_by_ends(asked: Sequence[Around], start_ns: int, end_ns: int) -> list[Reading | None]:
    """For each channel what all its ticks would give, in a fraction of the time; None where that is not sure."""
    near = _near_ticks(asked, (start_ns, end_ns))
    found = iter(_abreast([ticks for ticks in near if ticks is not None], start_ns, end_ns))
    return [None if ticks is None else next(found) for ticks in near]


def _near_ticks(asked: Sequence[Around], asked_ns: tuple[int, int]) -> list[Ticks | None]:
    """For each channel ticks for `Ticks.between(*asked_ns)` alone, which then gives what all its ticks would.

    None where that is not sure, for gauges and counters of part-time sensors, and where few rows or an unknown
    greatest power make it useless.
    """
    parts = [_parts(one) for one in asked]
    clocked = [part for one, own in zip(asked, parts, strict=True) if one.tracked for part in own]
    reaches = [_reach(one) for one, own in zip(asked, parts, strict=True) if one.tracked for part in own]
    flags = [_flags(part.raw.at, asked_ns, reach) for part, reach in zip(clocked, reaches, strict=True)]
    retimed = retime_some([(part.rows, wanted) for part, wanted in zip(clocked, flags, strict=True)])
    for part, some in zip(clocked, retimed, strict=True):
        part.bounds = None
        if some is not None:
            part.raw = moved(part.raw, some.at, some.half, Kind.COUNTER)
            part.bounds = some.least_ns, some.most_ns
    return [_finished(one, own, asked_ns) for one, own in zip(asked, parts, strict=True)]


@dataclass(slots=True)
class _Part:
    """Rows of one piece, and between which instants each of them is (None: not known)."""

    raw: Raw
    rows: Rows
    bounds: tuple[Floats, Floats] | None


def _parts(one: Around) -> list[_Part]:
    if one.channel.kind is not Kind.COUNTER or one.channel.facts.max_w is None or part_time(one.channel):
        return []
    parts: list[_Part] = []
    after_ns = -(2**63)
    for columns in one.pieces:
        keep = kept_rows(columns, one.channel, one.tracked, after_ns)
        if keep.any():
            raw = raw_of(columns, keep, one.channel)
            at = raw.at.astype(np.float64)
            parts.append(_Part(raw, Rows(columns.read[keep], columns.early[keep], columns.late[keep]), (at, at)))
            after_ns = int(raw.at[-1])
    return parts if sum(len(part.raw.at) for part in parts) >= FEWEST else []


def _reach(one: Around) -> int:
    """How many ticks to either side of an end are asked."""
    return max(REACH, math.ceil(REACH_S / one.expected_s) + 2)


def _flags(at: Ints, asked_ns: tuple[int, int], reach: int) -> Flags:
    wanted = np.zeros(len(at), dtype=np.bool_)
    wanted[_around(at, asked_ns, reach + BEYOND)] = True
    return wanted


def _finished(one: Around, parts: list[_Part], asked_ns: tuple[int, int]) -> Ticks | None:
    bounds = [part.bounds for part in parts if part.bounds is not None]
    if not parts or len(bounds) < len(parts):
        return None
    least, most = (np.concatenate([bound[side] for bound in bounds]) for side in (0, 1))
    raw = joined([part.raw for part in parts])
    near = ticks_of(raw.take(_around(raw.at, asked_ns, _reach(one))), one.channel, one.expected_s)
    if near is None or not _well_apart(near, least, most):
        return None
    if one.witness is None:
        return near
    share = one.witness.share
    if np.ptp(share) < MOVED and share.max(initial=0.0) < BUSY and not _steady(raw):
        # Whether utilisation that hardly moves can tell busy from idle follows from all readings.
        return None
    return replace(near, witness=one.witness, low_w=idle_w(one) if tells(one.witness) else None)


def idle_w(one: Around) -> float:
    """The least power of a counter's device while utilisation said idle, by rows as they were recorded; 0 if never.

    What a toggling load draws in its pauses: rows too far away to be ticks of a window know it as well.
    """
    witness, facts = one.witness, one.channel.facts
    if witness is None or not len(witness.share) or witness.share.min() > IDLE:
        return 0.0
    least = math.inf
    for columns in one.wide:
        at_s = columns.published[1:] / NS
        # The mean of three looks is idle only where the first of them nearly is: few ticks have to be looked at again.
        maybe = np.flatnonzero(witness.at(at_s) <= 3.003 * IDLE)
        idle = maybe[witness.about(at_s[maybe]).mean(axis=0) <= IDLE]
        counted = columns.accumulated[one.channel.name]
        joules = (counted[idle + 1] - counted[idle]) * (one.channel.scale * facts.gain)
        seconds = (columns.published[idle + 1] - columns.published[idle]) / NS
        # A row without a value, or of a publication that was lost, counts nothing.
        watts = (joules / seconds)[joules > 0] + facts.bias_w
        least = min(least, float(watts.min(initial=math.inf)))
    return max(least, 0.0) if math.isfinite(least) else 0.0


def _steady(raw: Raw) -> bool:
    """Power that stands still so clearly that any part of the readings says so too."""
    watts = np.diff(raw.accumulated) / np.maximum(np.diff(raw.at) / NS, 1e-9)
    return bool(np.ptp(watts) <= MOVED / 2 * np.abs(watts).max(initial=0.0))


def _around(at: Ints, asked_ns: tuple[int, int], reach: int) -> npt.NDArray[np.intp]:
    """Numbers of the instants next to those that are asked for, in order."""
    first, last = (int(place) for place in np.searchsorted(at, asked_ns))
    if last - reach <= first + reach:
        return np.arange(max(first - reach, 0), min(last + reach, len(at)))
    return np.concatenate(
        (
            np.arange(max(first - reach, 0), first + reach),
            np.arange(last - reach, min(last + reach, len(at))),
        )
    )


def _well_apart(near: Ticks, least: Floats, most: Floats) -> bool:
    """Ticks are so far apart that power follows from any two neighbours (`CounterCurve` else takes fewer)."""
    apart = min(float((least[1:] - most[:-1]).min()), near.expected_s * NS)
    # On its clock a row is unsure by its whole bracket at most. The two ticks at the ends are unsure by two periods.
    brackets = np.concatenate((most - least, [2 * near.expected_s * NS] * 2))
    own = median(2 * near.half_ns) * _SD
    return bool(apart >= CLEAR * max(2 * median(brackets) * _SD, own))


def _abreast(counters: Sequence[Ticks], start_ns: int, end_ns: int) -> list[Reading]:
    """What `Ticks.between` gives for each."""
    groups: dict[object, list[Ticks]] = {}
    for ticks in counters:
        if _surrounds(ticks, start_ns, end_ns):
            groups.setdefault(_fit_group(ticks), []).append(ticks)
    found: dict[int, Reading] = {}
    for group in groups.values():
        found.update(zip(map(id, group), _together(group, start_ns, end_ns), strict=True))
    return [found.get(id(ticks)) or ticks.between(start_ns, end_ns) for ticks in counters]


def _fit_group(ticks: Ticks) -> object:
    """Counters for which this is the same fit on one line: utilisation that moves, or none, or one and the same."""
    if ticks.witness is None or not unwitnessed(ticks.witness, ticks.joules):
        return ticks.witness is not None
    share = ticks.witness.share
    return ("always", float(share[0])) if np.ptp(share) == 0 and share[0] > IDLE else ("alone", id(ticks))


def _surrounds(ticks: Ticks, start_ns: int, end_ns: int) -> bool:
    """Whether a counter has ticks all around the window."""
    margin_ns = round((REACH_S + ticks.expected_s) * NS)
    return bool(ticks.at_ns[0] + margin_ns < start_ns and end_ns < ticks.at_ns[-1] - margin_ns)


def _together(counters: Sequence[Ticks], start_ns: int, end_ns: int) -> list[Reading]:
    """For counters that all have a witness, or all have none."""
    if len(counters) < 2:
        return [ticks.between(start_ns, end_ns) for ticks in counters]
    laid: list[_Laid] = []
    for ticks in counters:
        laid.append(_laid(ticks, laid[-1] if laid else None))
    t, half = (np.concatenate([getattr(one, field) for one in laid]) for field in ("t_s", "half_s"))
    if np.diff(t).min() < CLEAR * median(2 * half / np.sqrt(12)):
        return [ticks.between(start_ns, end_ns) for ticks in counters]
    witness = None
    if counters[0].witness is not None:
        witness = Witness(*(np.concatenate([getattr(one, field) for one in laid]) for field in ("seen_s", "share")))
    curve = CounterCurve(
        t,
        np.concatenate([one.joules for one in laid]),
        early_s=t - half,
        late_s=t + half,
        witness=witness,
        low_w=np.concatenate([np.full(len(one.t_s), one.low_w) for one in laid])[1:],
    )
    starts, ends = (np.array([one.place_s(at) for one in laid]) for at in (start_ns, end_ns))
    sampled = curve.energy(starts, ends)
    window = np.array([start_ns]), np.array([end_ns])
    return [
        ticks.readings(*window, _own(sampled, place, ticks.channel.facts.quantum or 0.0))[0]
        for place, ticks in enumerate(counters)
    ]


@dataclass(frozen=True, slots=True)
class _Laid:
    """Ticks of one counter on the common line, the instant `origin_ns` at `origin_s` of it."""

    t_s: Array
    half_s: Array
    joules: Array
    seen_s: Array
    share: Array
    low_w: float
    origin_ns: int
    origin_s: float

    def place_s(self, at_ns: int) -> float:
        """An instant of the counter's own time on the line."""
        return self.origin_s + (at_ns - self.origin_ns) / NS


def _laid(ticks: Ticks, before: _Laid | None) -> _Laid:
    own_s = (ticks.at_ns - ticks.origin_ns) / NS
    seen_s, share = _seen(ticks, own_s)
    least_s, least_j = (max(before.t_s[-1], before.seen_s[-1]), before.joules[-1]) if before else (0.0, 0.0)
    origin_s = float(least_s + APART_S - seen_s[0])
    joules = least_j + (ticks.joules - ticks.joules[0])
    return _Laid(
        own_s + origin_s,
        ticks.half_ns / NS,
        joules,
        seen_s + origin_s,
        share,
        ticks.low_w or 0.0,
        ticks.origin_ns,
        origin_s,
    )


def _seen(ticks: Ticks, own_s: Array) -> tuple[Array, Array]:
    """Utilisation from before the first tick on; without a witness nothing but the first and the last instant."""
    witness = ticks.witness
    if witness is None:
        return own_s[[0, -1]], np.zeros(2)
    seen_s = witness.t_s - ticks.origin_ns / NS
    return np.append(min(seen_s[0], own_s[0]), seen_s), np.append(witness.share[0], witness.share)


def _own(sampled: Sampled, place: int, quantum_j: float) -> Sampled:
    one = slice(place, place + 1)
    return Sampled(
        sampled.joules[one],
        sampled.left_j[one],
        sampled.right_j[one],
        sampled.inner_j[one],
        np.array([quantum_j]),
    )
