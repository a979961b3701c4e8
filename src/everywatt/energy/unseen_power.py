"""How much power may swing where a sensor does not look: inside a cell between two publications.

Everything here comes from the readings and from utilisation, nothing from a fixed percentage:

- own swing: a cell whose neighbours read differently holds a change at an unknown place;
- restlessness: where readings jump about, so does what lies between them;
- utilisation, the second witness: strictly between 0 and 100 % the device was busy part of the time, so it toggled
  inside the cell even if every reading looks the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median, row_medians
from everywatt.energy.curve import LEVEL, SLOWER, Z95
from everywatt.energy.utilisation import (
    BUSY,
    IDLE,
    MOVED,
    NEAR_CELLS,
    WITNESS_S,
    Array,
    Flags,
    Toggling,
    Witness,
    rest_w,
    sliding,
)

# sd of readings whose neighbouring differences have this median (normal law: 1 / (0.6745 √2)).
SD_OF_MEDIAN_STEP = 1.05
# And where none within a slow beat do, the load is faster than that.
STILL_SHARE = 0.2
# So many steps between readings of an idle device tell the sensor's noise; else blocks of so many readings that differ
# by less than this share of the highest, and the sd of readings whose second differences have this median (normal law:
# 1 / (0.6745 √6)).
FEWEST_STEPS = 10
QUIET_CELLS = 16
QUIET = 0.1
SD_OF_MEDIAN_BEND = 0.605

# Readings are looked at in blocks of so many for a pattern that comes back (12.8 s at 100 ms); the correlation below
# which they have changed, and the one that random loads reach by chance at some lag.
BLOCK = 128
APART = 0.3
BY_CHANCE = 0.5
# Neighbours in the order of their places in the sensor's period differ by less than this share of what unrelated
# readings do where they are of a load in step with it; and by so many sd less, as the share scatters by 1 / √n.
IN_STEP = 0.7
UNRELATED_SD = 3.0
# Where in a cell a change recurs is anywhere, once: 95 % of a uniform law in sd, as for edges.
Z95_RECURRING = 1.7

# A load that toggles once a period may beat with the sensor; both its levels are looked for this far to either side.
BEAT_S = 2.5
# Where the beat is slower, this far.
SLOW_BEAT_S = 10.0
# Readings whose mean over so long to either side, and so many cells, changes by more than this share of what they
# themselves do, in the time of such a beat, follow it. (Unrelated readings of two levels, 20 of them: by 0.35.)
COURSE_S = 1.0
COURSE_CELLS = 10
WANDERS = 0.6
# A turn alone crosses the mean twice, as a whole beat does: it has come and gone where readings cross it three times.
# Of a load that lasts for less than half of the time that is looked at, a beat that slow would show no turn.
FULL_BEAT = 1.5
# Cells that are looked at together, to keep their neighbourhoods small in memory.
CHUNK = 4096
# Busy shares are whole percents over the driver's own window of 0.2 s, and power takes up to 5 ms of it to rise and to
# fall: how far a mean that is weighted with a busy share may be off, as a part of the swing between the levels (sd).
SHARE_ERROR = 0.02
# Readings nearby that span less than this share of all readings of the tape show one level only; and how far a mean may
# then be off, as a part of the swing (sd).
LONE = 0.3
LONE_ERROR = 0.1
# Where the mean of readings is above the weighted one by more sd than this, over so many beats, pulses are too short
# for the sensor to show their level.
BLURRED = 2.0
FEWEST_BEATS = 10
# What the sensors see of their period for which PULSE_EDGE was found.
PULSE_SEEN = 0.5
# Readings of one beat from which on they show how slow the load is.
RESOLVED = 3.0
# Readings of each level in one beat from which on they may show the load's own course; they do where those between its
# levels (by more than a tenth of the range) are fewer than so many times what a slow load's would be.
FOLLOWED = 2.0
BETWEEN = 0.1
SHARP = 1.5
# Steps from one reading to the next, as a part of those that a beat makes at most, up to which it may be a beat.
RAMP = 2.0
# Where a load begins or ends its three looks are a mean over 0.6 s that may lie 0.1 s beside it.
BEGINS = 1 / 6
# Range of up to a thousand readings of one level, in sd of the noise (normal law: up to 7.3 in 19 of 20), which a few
# dozen readings of an idle device tell to a tenth.
NOISE_RANGE = 8.0
# The upper level of a load that readings keep pace with, where no limit is known: so many times the highest reading.
UNSEEN_LIMIT = 1.5
# A device that never draws less than this share of its limit is not idle: idle cards draw 10 to 22 % of theirs.
WORKING = 0.3
# Without a witness a load may toggle inside a cell: on recorded cards between about half and one and a half times its
# mean (sd 0.49 and 0.52 of it).
UNSEEN_SWING = 0.5


def own_swing(y: Array) -> Array:
    """Largest minus smallest reading of a cell and its two neighbours."""
    padded = np.concatenate((y[:1], y, y[-1:]))
    three = np.stack((padded[:-2], padded[1:-1], padded[2:]))
    return np.asarray(np.ptp(three, axis=0))


def restlessness(y: Array) -> Array:
    """The sd of readings around a cell, from the median step between neighbours: a single change does not raise it."""
    steps = np.abs(np.diff(y))
    if len(steps) == 0:
        return np.zeros(len(y))
    size = 2 * NEAR_CELLS
    padded = np.pad(steps, (NEAR_CELLS, NEAR_CELLS), mode="reflect" if len(steps) > NEAR_CELLS else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[: len(y)]
    # No sd is more than half of the range.
    most = (sliding(np.maximum, y, NEAR_CELLS) - sliding(np.minimum, y, NEAR_CELLS)) / 2
    return np.asarray(np.minimum(SD_OF_MEDIAN_STEP * row_medians(windows), most))


def noise_w(t_s: Array, y: Array, witness: Witness | None) -> float:
    """sd of the sensor's own noise: what readings scatter by while the device is idle.

    Where it never was, or nothing says so: what they scatter by around a straight line in the quietest quarter of the
    blocks in which they keep to one level; 0 if there are no such blocks.
    """
    if witness is not None and len(witness.share):
        idle = witness.about(t_s).max(axis=0) <= IDLE
        steps = np.abs(np.diff(y))[idle[1:] & idle[:-1]]
        if len(steps) >= FEWEST_STEPS:
            return SD_OF_MEDIAN_STEP * median(steps)
    blocks = y[: len(y) // QUIET_CELLS * QUIET_CELLS].reshape(-1, QUIET_CELLS)
    level = blocks[np.ptp(blocks, axis=1) <= QUIET * np.abs(y).max(initial=0.0)]
    if not len(level):
        return 0.0
    scatter = row_medians(np.abs(np.diff(level, 2, axis=1)))
    return SD_OF_MEDIAN_BEND * float(np.sort(scatter)[len(scatter) // 4])


def around(values: Array, cells: int, beyond: Literal["edge", "constant"] = "edge") -> npt.NDArray[np.float64]:
    """Rows of the values `cells` to either side of each; `beyond` the ends these are repeated, or 0 ("constant")."""
    padded = np.pad(values, (cells, cells), mode=beyond)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * cells + 1)


def recurring(y: Array, sd: Array) -> Array:
    """95 % half-width of each cell's energy that comes back with the load, in joules, from the sd of each cell alone.

    A load in step with the sensor (a square of seven periods) changes at the same place of a cell every time, so what
    is not seen of it does not average out: over a window it grows as the number of recurrences. For cells of sd `sd`
    that recur after m cells it is the root mean square of them, divided by √m, in each cell.
    """
    found = np.zeros(len(y))
    for first in range(0, len(y), BLOCK // 2):
        part = slice(max(0, min(first, len(y) - BLOCK)), first + BLOCK)
        strength, cells = _recurrence(y[part])
        if strength > 0:
            size = np.sqrt(np.mean(sd[part] ** 2)) / np.sqrt(cells)
            found[part] = np.maximum(found[part], Z95_RECURRING * strength * size)
    return found


def _recurrence(y: Array) -> tuple[float, int]:
    """How clearly readings come back after a number of cells (0: not, 1: they repeat), and that number."""
    off = y - y.mean()
    power = float(off @ off)
    if len(y) < BLOCK // 2 or power <= len(y) * (MOVED * float(np.abs(y).max())) ** 2 / 4:
        return 0.0, 1
    lags = len(y) // 2
    alike = np.array([off[lag:] @ off[:-lag] / (len(y) - lag) for lag in range(1, lags)]) * len(y) / power
    apart = np.flatnonzero(alike < APART)
    if not len(apart):
        return 0.0, 1
    later = alike[apart[0] :]
    best = float(later.max())
    if best <= BY_CHANCE:
        return 0.0, 1
    cells = int(apart[0] + np.flatnonzero(later >= 0.95 * best)[0]) + 1
    return min((best - BY_CHANCE) / (1 - BY_CHANCE), 1.0), cells


def in_step(t: Array, y: Array, flags: Flags, period: float, window: float) -> Flags:
    """Which cells of a toggling load (`flags`) readings that differ by their publications' jitter alone are of.

    A load whose period is the sensor's, or a part of it, shows the same part of its cycle in every reading, give or
    take what publications stray: then readings are one function of where in the period they were published, and say
    nothing of the rest of the cycle, however many they are. Of any other load those published at the same place differ
    as much as all do. Publications that stray by more than half of the period are left out.
    """
    found = np.zeros(len(y), dtype=bool)
    cells = np.cumsum(np.round(np.diff(t, prepend=t[0]) / period))
    for first in range(0, len(y), BLOCK // 2):
        start = max(0, min(first, len(y) - BLOCK))
        part = start + np.flatnonzero(flags[start : first + BLOCK])
        if len(part) > UNRELATED_SD**2 and _by_place(t[part], cells[part], y[part], period, window):
            found[part] = True
    return found


def _by_place(t: Array, cells: Array, y: Array, period: float, window: float) -> bool:
    """Whether readings follow from where in the period they were published, which is new each time and confined."""
    off = cells - cells.mean()
    if not off.any():
        return False
    place = t - t.mean() - off * float(off @ t) / float(off @ off)
    spread = float(np.ptp(place))
    if not BETWEEN * window < spread < period - window or _unlike(place) < IN_STEP:
        return False
    # Times that keep to a clock tie, and stand in the order of time: neighbours in both orders say nothing.
    order = np.argsort(place, kind="stable")
    apart = np.abs(np.diff(cells[order])) > NEAR_CELLS
    pairs = int(np.count_nonzero(apart))
    if pairs <= max(len(y) / 2, UNRELATED_SD**2):
        return False
    return _unlike(y[order], apart) < min(IN_STEP, 1 - UNRELATED_SD / math.sqrt(pairs))


def _unlike(values: Array, pairs: Flags | slice = slice(None)) -> float:
    """How much neighbours (of some pairs) differ: about 1 for unrelated values, near 0 for those of a smooth course."""
    spread = float(values.var())
    return float(np.mean(np.diff(values)[pairs] ** 2)) / (2 * spread) if spread > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Levels:
    """Cells of a load that toggles out of the sensor's sight.

    mean     power by two levels and the busy share
    doubt    95 % half-width of that mean, common to all cells of the load
    toggle   sd of the power inside
    either   sd of cells of which utilisation does not say clearly whether they toggled
    below, above   how much less or more the mean may be where readings keep pace with the load and show one level
    """

    mean: Array
    doubt: Array
    toggle: Array
    either: Array
    below: Array
    above: Array


def followed(state: Toggling, y: Array, period: float, seen: float) -> npt.NDArray[np.bool_]:
    """Which cells of a toggling load readings follow, so that they are its own course.

    Several readings a beat are of a slow load, or of a fast one that beats with them. From level to level a slow one
    shows a reading in between as often as the sensor's look falls on the change, for a share `seen` of its changes. A
    beat comes as slowly through the look as it passes the levels: with `seen` times its length in readings, or more.
    Utilisation shows a load that is slower than its own 0.2 s: where it stands still, slow readings are of a beat.
    """
    found = np.zeros(len(y), dtype=bool)
    moves = sliding(np.maximum, state.change, max(1, round(SLOW_BEAT_S / period))) > STILL_SHARE
    for part, rows, weight in _surroundings(y, state.sure, np.flatnonzero(state.maybe), period):
        _, _, beats = _plain(rows, weight)
        low, size = _range(rows, weight)
        off = (rows - low[:, None]) / np.maximum(size, 1e-9)[:, None]
        flags = (off > BETWEEN) & (off < 1 - BETWEEN), off > 0.5, off <= 0.5
        between, above, below = ((flag & (weight > 0)).sum(axis=1) for flag in flags)
        clear = (between <= SHARP * seen * 2 * beats) & (size > LONE * np.ptp(y))
        clear &= moves[part] | (weight.sum(axis=1) * period < 2 * WITNESS_S * beats)
        found[part] = clear & (beats >= FEWEST_BEATS) & (np.minimum(above, below) >= FOLLOWED * beats)
    return found


def otherwise(
    mean: Array, own: Array, y: Array, state: Toggling, period: float, seen: float, jitter: float
) -> tuple[Array, Array]:
    """What cells draw by the other explanation of their readings, and its 95 % half-width; else `mean`.

    Readings that rise and fall as slowly as the sensor's look passes over a pulse may be of pulses near the sensor's
    period (or a part of it): then a cell draws what all of a beat do, also that of a device that is always busy.
    Readings that step at once may be of a slow load: then those of a toggling device, too, are its `own` course.
    `jitter` is what publications stray by, as a share of the sensor's look: so much of its swing a beat may step too.
    """
    found, half = mean.copy(), np.zeros(len(y))
    busy = state.share >= BUSY
    # Where the load begins and ends utilisation speaks of the time beside it too, and readings show another level.
    beside = max(1, round(3 * WITNESS_S / period))
    # There a busy device that beats draws what its share says, between idle and the beat's mean.
    begins = state.maybe & ~state.sure & (sliding(np.maximum, busy.astype(np.float64), beside) > 0)
    least = float(y.min())
    for flags, cells in ((busy, busy | begins), (state.sure, state.sure)):
        inner = sliding(np.minimum, flags.astype(np.float64), beside) > 0
        for part, rows, weight in _surroundings(y, inner, np.flatnonzero(cells), period):
            plain, plain_sd, beats = _plain(rows, weight)
            _, size = _range(rows, weight)
            step = (np.abs(np.diff(rows)) * weight[:, 1:] * weight[:, :-1]).max(axis=1)
            ramp = RAMP * np.maximum(beats, 1.0) / (seen * np.maximum(weight.sum(axis=1), 1.0))
            beating = step <= (ramp + jitter) * size
            if flags is busy:
                maybe = beating & (beats >= 1) & (size > LEVEL * plain)
                share = np.where(busy[part], 1.0, state.share[part])
                unsure = np.where(busy[part], 0.0, BEGINS * np.maximum(plain - least, 0.0))
                found[part] = np.where(maybe, least + share * (plain - least), found[part])
                half[part] = np.where(maybe, np.hypot(Z95 * share * plain_sd, unsure), 0.0)
            else:
                found[part] = np.where(beating, found[part], own[part])
    return found, half


def unwitnessed_w(
    t: Array, mean: Array, y: Array, limit_w: float | None, period: float, window: float, noise: float, bounded: bool
) -> tuple[Array, Array, Array]:
    """What cells may draw where utilisation does not say when the device worked: the middle of that range and half of
    it, which are bounds, and a 95 % half-width common to neighbouring cells.

    Readings that stand still above idle may be of a load in step with the sensor, if `bounded`: what it does not see is
    anywhere from the least that the tape shows to the device's limit. Readings that come and go may be of a load that
    beats with them, so that a cell draws what all of a beat do.
    """
    least, most = float(y.min()), float(y.max())
    limit = max(most, UNSEEN_LIMIT * most if limit_w is None else limit_w)
    swing = max(float(_beyond_noise(most - least, noise)), LONE * most)
    idle = (y <= least + LONE * swing) & (limit_w is None or least <= WORKING * limit_w)
    least = least if idle.any() else 0.0
    alike, steady = (
        _beyond_noise(sliding(np.maximum, y, cells) - sliding(np.minimum, y, cells), noise) < LONE * swing
        for cells in (max(COURSE_CELLS, round(COURSE_S / period)), max(1, round(SLOW_BEAT_S / period)))
    )
    plain, low, high = mean.copy(), np.full(len(y), np.inf), np.full(len(y), -np.inf)
    # Readings that stand still at idle are no load beside those that come and go, or a part of the same slow beat.
    for those in (np.ones(len(y), dtype=bool), ~(idle & alike)):
        for part, rows, weight in _surroundings(y, those, np.flatnonzero(those & ~steady), period):
            plain[part], sd, beats = _plain(rows, weight)
            half = np.where(beats >= 1, Z95 * sd, -np.inf)
            low[part], high[part] = (
                np.minimum(low[part], plain[part] - half),
                np.maximum(high[part], plain[part] + half),
            )
    beating = low < high
    locked = in_step(t, y, ~alike, period, window)
    still = alike | locked | ~beating
    hides = still & (locked | ~idle) & bounded
    level, unseen = np.where(locked & beating, plain, mean), 1 - window / period
    low = np.where(hides, np.minimum(low, level - unseen * np.maximum(level - least, 0.0)), low)
    high = np.where(hides, np.maximum(high, level + unseen * np.maximum(limit - level, 0.0)), high)
    low, high = (np.where(low < high, side, mean) for side in (low, high))
    return (low + high) / 2, (high - low) / 2, np.where(still & ~hides, UNSEEN_SWING / 2 * np.abs(mean), 0.0)


def _surroundings(
    y: Array, flags: npt.NDArray[np.bool_], cells: npt.NDArray[np.intp], period: float
) -> Iterator[tuple[npt.NDArray[np.intp], Array, Array]]:
    """Readings of SLOW_BEAT_S to either side of these cells, some cells at a time, and weight 1 for those flagged."""
    reach = max(1, round(SLOW_BEAT_S / period))
    rows, weight = around(y, reach), around(flags.astype(np.float64), reach, "constant")
    for part in np.array_split(cells, max(1, len(cells) // CHUNK)):
        if len(part):
            yield part, rows[part], weight[part]


def _range(rows: Array, weight: Array) -> tuple[Array, Array]:
    """The least reading of each row with weight, and how much more the most is; 0 and 0 for none."""
    low = np.where(weight > 0, rows, np.inf).min(axis=1)
    high = np.where(weight > 0, rows, -np.inf).max(axis=1)
    return np.where(low <= high, low, 0.0), np.maximum(high - low, 0.0)


def hidden_levels(
    mean: Array,
    y: Array,
    state: Toggling,
    limit_w: float | None,
    period: float,
    recurring_w: Array,
    seen: float,
    jittered: Flags,
    noise: float,
) -> Levels:
    """Where a load toggles out of the sensor's sight: its mean by two levels and the busy share, and what is open.

    `recurring_w` is the 95 % half-width of what comes back in step with the readings, so that their mean keeps it;
    `seen` the share of each period at which the sensor looks; `jittered` where only jitter makes readings differ;
    `noise` the sd of the sensor's own.
    """
    found = Levels(mean.copy(), *(np.zeros(len(y)) for _ in range(5)))
    reach = max(1, round(SLOW_BEAT_S / period))
    near, wide = around(y, max(1, round(BEAT_S / period))), around(y, reach)
    flags = state.sure.astype(np.float64)
    among = around(flags, reach, "constant")
    course = around(_smoothed(y, flags, max(COURSE_CELLS, round(COURSE_S / period))), reach)
    # Where the load begins and ends utilisation speaks of the time beside it too, and readings show another level.
    within = sliding(np.minimum, flags, max(1, round(3 * WITNESS_S / period)))
    inner = around(within, reach, "constant")
    cells = np.flatnonzero(state.maybe)
    least, most = float(y.min()), float(y.max())
    idle = rest_w(state, y)
    limit = max(most, UNSEEN_LIMIT * most if limit_w is None else limit_w)
    parts = np.array_split(cells, max(1, len(cells) // CHUNK))
    lows, highs = y.copy(), y.copy()
    slow, slowest = np.zeros((2, len(y)), dtype=bool)
    for part in parts:
        lows[part], highs[part] = near[part].min(axis=1), near[part].max(axis=1)
        # Readings whose course over seconds is most of what they show are of a slow beat: its levels are further away,
        # and where it does not come and go once, they are wherever the tape shows them.
        low, size = _range(wide[part], among[part])
        slow[part] = state.sure[part] & (_range(course[part], among[part])[1] > WANDERS * np.maximum(size, 1e-9))
        whole = np.where(among[part].sum(axis=1) > reach, FULL_BEAT, 1.0)
        slowest[part] = slow[part] & (_plain(course[part], among[part])[2] < whole)
        lows[part], highs[part] = np.where(slow[part], (low, low + size), (lows[part], highs[part]))
    # Readings that lock on to the load's phase show one of its levels for a long time. That it toggles all the same
    # is known, and the other level is then taken from wherever the tape shows it.
    lones = slowest | state.sure & (_beyond_noise(highs - lows, noise) < LONE * _beyond_noise(most - least, noise))
    lows, highs = np.where(lones, least, lows), np.where(lones, most, highs)
    by_share = lows + state.share * (highs - lows)
    all_by_share = around(by_share, reach)
    for part in parts:
        share, low, high, lone, sure = state.share[part], lows[part], highs[part], lones[part], state.sure[part]
        weighted = by_share[part]
        weighted_sd = np.where(lone, LONE_ERROR, SHARE_ERROR) * (high - low) + 1e-9
        beating = np.where(slow[part][:, None], course[part], wide[part])
        plain, plain_sd, beats = _plain(wide[part], among[part], beating)
        plain_sd = np.where(lone, np.inf, plain_sd)
        # Pulses shorter than the averaging window never show their upper level, pauses shorter than it never the lower
        # one: weighted with the busy share, what they show counts it twice. Where readings do not keep pace with the
        # load, their mean tells by how much.
        same = (all_by_share[part] * among[part]).sum(axis=1) / np.maximum(among[part].sum(axis=1), 1.0)
        beyond = np.where(np.isfinite(plain_sd), (plain - same) / np.hypot(plain_sd, weighted_sd), 0.0)
        blurred = (np.abs(beyond) > BLURRED) & (beats >= FEWEST_BEATS)
        plain_sd = np.hypot(plain_sd, recurring_w[part] / Z95)
        shown = np.where(beyond > 0, least, high)
        off = np.where(np.abs(same - shown) > 1e-9, same - shown, np.inf)
        grown = np.where(blurred, (plain - shown) / off, 1.0)
        weighted = shown + grown * (weighted - shown)
        weighted_sd = np.where(blurred, np.hypot(weighted_sd, plain_sd), weighted_sd)
        # Two estimates that fail in different ways: weighted levels where the averaging window blunts them, the plain
        # mean of readings where they beat with the load. Each counts by its sd; where they disagree by more, both are
        # doubted.
        trust = 1 / (1 + (plain_sd / weighted_sd) ** 2)
        apart = np.abs(plain - weighted) / np.hypot(plain_sd, weighted_sd)
        both_sd = weighted_sd * np.sqrt(1 - trust) * np.maximum(apart, 1.0)
        # A slow beat may show one level only for seconds: then the other is as far as it was seen further away.
        far_low, far_high = wide[part].min(axis=1), wide[part].max(axis=1)
        hidden = np.maximum(share * (far_high - high), (1 - share) * (low - far_low)) * (1 - trust)
        level = weighted + trust * (plain - weighted)
        # A load that is slow enough for readings to follow keeps their shape.
        shape = np.where(state.slow[part], mean[part] - near[part].mean(axis=1), 0.0)
        found.mean[part] = np.where(sure, level + shape, mean[part])
        found.doubt[part] = np.where(sure, np.hypot(Z95 * both_sd, hidden), 0.0)
        # Readings that come so often that they follow the load show how slow it is, up to what utilisation averages.
        beat = np.minimum(among[part].sum(axis=1) / np.maximum(beats, 1.0), WITNESS_S / period)
        slower = np.where(beat >= RESOLVED, beat / SLOWER, 1.0)
        # Of a short pulse readings show its joules over the averaging window: the longer that is, the less.
        rare = (state.pulsed[part] | state.paused[part]) & ~lone
        blunt = np.where(rare, max(seen / PULSE_SEEN, 1.0), 1.0)
        found.toggle[part] = state.swing[part] * (high - low) * slower * blunt
        found.either[part] = np.where(sure, 0.0, np.abs(weighted - mean[part]) / 2)
        # Where all readings of the toggling load are the same, but for jitter and noise, they keep pace with it: its
        # upper level is anywhere from what they show to the board's limit. Readings that keep missing short pauses show
        # the upper level.
        enough = inner[part].sum(axis=1, keepdims=True) >= FEWEST_BEATS
        counts = np.where(enough, inner[part], among[part]) > 0
        top = np.where(counts, wide[part], -np.inf).max(axis=1)
        bottom = np.where(counts, wide[part], np.inf).min(axis=1)
        swing = np.maximum(_beyond_noise(most - least, noise), LONE * most)
        alike = _beyond_noise(top - bottom, noise) < LONE * swing
        locked = sure & (alike | jittered[part])
        shown = idle + share * (top - idle)
        allowed = np.where(state.paused[part], top, least + share * (limit - least))
        # Readings show so much less of the swing of pulses that are shorter than a look: their mean is up to the look's
        # share of what is shown, for loads that come up to twice a period; pauses likewise. Few beats do not tell.
        look = min(2 * seen + SHARE_ERROR, 1.0)
        up, down = (np.maximum(side, look) * (high - low) - found.doubt[part] for side in (share, 1 - share))
        less = np.maximum(np.where(locked, level - shown, 0.0), np.where(slow[part], level - (high - down), 0.0))
        more = np.maximum(np.where(locked, allowed - level, 0.0), np.where(slow[part], low + up - level, 0.0))
        found.below[part], found.above[part] = np.maximum(less, 0.0), np.maximum(more, 0.0)
    return found


def _smoothed(y: Array, flags: Array, cells: int) -> Array:
    """The mean of the flagged readings so many cells to either side of each; else the reading itself."""
    size = 2 * cells + 1
    total, count = (np.convolve(values, np.ones(size))[cells : cells + len(y)] for values in (y * flags, flags))
    return np.where(count > 0.5, total / np.maximum(count, 1.0), y)


def _beyond_noise(size: float | Array, noise: float) -> Array:
    """What of the range of readings is more than noise makes."""
    return np.sqrt(np.maximum(np.square(size) - (NOISE_RANGE * noise) ** 2, 0.0))


def _plain(rows: Array, weight: Array, course: Array | None = None) -> tuple[Array, Array, Array]:
    """Mean of each row of readings, of those with weight 1 only, its sd, and how often readings beat with the load.

    `course` is what shows the beats, where readings scatter around them.

    A load that toggles within 0.2 s leaves readings 0.1 s apart unrelated, or it beats with them. A mean over n
    unrelated readings is as good as 1 / √n of their spread, one over a number of beats as 1 / (π beats), one over
    less than a beat is worth nothing.
    """
    count = np.maximum(weight.sum(axis=1), 1.0)
    mean = (rows * weight).sum(axis=1) / count
    off = (rows - mean[:, None]) * weight
    spread = np.sqrt((off**2).sum(axis=1) / count)
    sides = off if course is None else (course - mean[:, None]) * weight
    beats = (sides[:, 1:] * sides[:, :-1] < 0).sum(axis=1) / 2
    share = np.maximum(count**-0.5, 1 / (np.pi * np.maximum(beats, 1)))
    return mean, np.where(beats >= 1, spread * share, np.inf), beats
