"""A counter's ticks near the two ends of a window: all that its joules and their interval need, in a fraction of the time.

A counter says what was counted between the ends; only where in its cell an end lies is unsure, and that follows from a
few ticks to either side. The ticks further away matter in three ways, each of which is looked at first: how closely
they follow one another, whether the device was ever idle, and whether a clock passes through all of them. Where one of
these could change the answer there is none from here, and all ticks are to be asked.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Kind
from everywatt.core.clocks import NS
from everywatt.energy.building import Raw, joined, kept_rows, moved, raw_of, ticks_of
from everywatt.energy.clockwork import retime_some
from everywatt.energy.median import median
from everywatt.energy.sampling import CLEAR
from everywatt.energy.swing import IDLE, WITNESS_S, Witness, toggling
from everywatt.energy.ticks import WHOLE_ROWS, Flags, Floats, Ints, Ticks
from everywatt.tape.columns import Columns

# Ticks to either side of an end that its cell's error is told from; rows further out that are put on the clock, because
# a tick past the last row goes by the few before it.
REACH = 16
CLOCKED = REACH + 8
# With fewer rows nothing is gained.
FEWEST = 4 * CLOCKED
# sd of an instant anywhere in its bracket, as a share of the bracket.
_SD = 1 / np.sqrt(12)


def ends_of(
    pieces: list[Columns],
    channel: Channel,
    expected_s: float,
    asked_ns: tuple[int, int],
    *,
    tracked: bool,
    witness: Witness | None,
) -> Ticks | None:
    """Ticks for `Ticks.between(*asked_ns)` alone, which then gives what all ticks of `pieces` would.

    None where that is not sure, for gauges, and where few rows or an unknown greatest power make it useless.
    """
    if channel.kind is not Kind.COUNTER or channel.facts.max_w is None or sum(map(len, pieces)) < FEWEST:
        return None
    parts: list[tuple[Raw, Floats, Floats]] = []
    after_ns = -(2**63)
    for columns in pieces:
        keep = kept_rows(columns, channel, tracked, after_ns)
        if not keep.any():
            continue
        part = _part(columns, keep, channel, tracked, asked_ns)
        if part is None:
            return None
        parts.append(part)
        after_ns = int(columns.published[keep][-1])
    raw = joined([part[0] for part in parts])
    if len(raw.at) < FEWEST:
        return None
    least, most = (np.concatenate([part[side] for part in parts]) for side in (1, 2))
    ticks = ticks_of(raw, channel, expected_s)
    near = None if ticks is None else replace(_near(ticks, asked_ns), witness=witness)
    if near is None or not _well_apart(near, least, most, expected_s) or _idle_matters(near, least, most, expected_s):
        return None
    return near


def _part(
    columns: Columns, keep: Flags, channel: Channel, tracked: bool, asked_ns: tuple[int, int]
) -> tuple[Raw, Floats, Floats] | None:
    """Rows of one piece, and between which instants each of them is."""
    raw = raw_of(columns, keep, channel)
    if not tracked or len(raw.at) > WHOLE_ROWS:
        at = raw.at.astype(np.float64)
        return raw, at, at
    wanted = np.zeros(len(raw.at), dtype=np.bool_)
    wanted[_around(raw.at, asked_ns, CLOCKED)] = True
    some = retime_some(columns.read[keep], columns.early[keep], columns.late[keep], wanted)
    return None if some is None else (moved(raw, some.at, some.half, channel.kind), some.least_ns, some.most_ns)


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


def _near(ticks: Ticks, asked_ns: tuple[int, int]) -> Ticks:
    rows = _around(ticks.at_ns, asked_ns, REACH)
    return replace(
        ticks,
        at_ns=ticks.at_ns[rows],
        half_ns=ticks.half_ns[rows],
        joules=ticks.joules[rows],
        observed_ns=ticks.observed_ns[rows],
        watts=ticks.watts[rows],
        real=ticks.real[rows],
    )


def _well_apart(near: Ticks, least: Floats, most: Floats, expected_s: float) -> bool:
    """Ticks are so far apart that power can be told from any two neighbours (`CounterCurve` else takes fewer)."""
    apart = min(float((least[1:] - most[:-1]).min()), expected_s * NS)
    # On its clock a row is unsure by its whole bracket at most. The two ticks at the ends are unsure by two periods.
    brackets = np.concatenate((most - least, [2 * expected_s * NS] * 2))
    own = median(2 * near.half_ns) * _SD
    return bool(apart >= CLEAR * max(2 * median(brackets) * _SD, own))


def _idle_matters(near: Ticks, least: Floats, most: Floats, expected_s: float) -> bool:
    """True where a toggling load's lowest power may have to be taken from a tick far away."""
    witness = near.witness
    state = toggling(witness, near.at_ns[1:] / NS)
    if witness is None or state is None or not state.maybe.any():
        return False
    least, most = (np.append(side, side[-1] + expected_s * NS) for side in (least, most))
    busy = np.zeros(len(least))
    for look in range(3):
        first, last = (
            np.clip(np.searchsorted(witness.t_s, side / NS + look * WITNESS_S, side="right") - 1, 0, None)
            for side in (least, most)
        )
        if (last - first > 1).any():
            return True
        busy += np.minimum(witness.share[first], witness.share[last])
    return bool((busy / 3 <= 1.001 * IDLE).any())
