"""A publisher's clock with hindsight: when each value of a tracked group was published.

While it records, the recorder knows a publication only from what it saw before. Afterwards all brackets of a stretch
speak for all its publications: publication k happens at `start + k·period`, and one straight line has to pass through
every bracket. The widest corridor between them is found for stretches of up to 40 s, short enough for clocks not to
bend. Brackets through which no line passes show the publisher's jitter, or a clock that was set anew: then the stretch
is cut in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Seconds and rows that are fitted together at most; the line is used for the middle half of them.
STRETCH_S = 40.0
STRETCH_ROWS = 1024
# Fewer rows do not make a line.
FEWEST = 6
# A bracket wider than this share of the period says nothing of the phase.
WIDE = 0.5
# A line that leaves more than this share of the period open does not say which publication a row shows.
VAGUE = 0.2
# Publications that stray further from the line than this share of the period have another phase.
MOST_JITTER = 1 / 30
# What reads themselves leave open.
FLOOR_NS = 20_000.0
# Jitter that is smaller than the brackets cannot be seen; up to this share of their half-width it is expected.
UNSEEN = 0.5
# A period may differ by this share from the first guess of it.
PERIOD_OFF = 0.02
# Without a publication for this many periods the count is lost.
LONGEST_SILENCE = 24
SLOPES = 33
ZOOMS = 5
# Brackets that a line is searched through at most, and slopes that stand for all that fit.
BINDING = 96
SHOWN = 9


@dataclass(frozen=True, slots=True)
class Line:
    """Publication k at `start_ns + k·step_ns`; `low` and `high` slopes and offsets of all lines that fit as well."""

    start_ns: float
    step_ns: float
    steps: Floats
    lows: Floats
    highs: Floats
    jitter_ns: float

    def at(self, k: Floats) -> tuple[Floats, Floats]:
        """Best times of publications k, and how far they may be off."""
        best = self.start_ns + k * self.step_ns
        high = (self.highs[:, None] + self.steps[:, None] * k).max(axis=0)
        low = (self.lows[:, None] + self.steps[:, None] * k).min(axis=0)
        return best, np.maximum(high - best, best - low) + self.jitter_ns + FLOOR_NS


def retime(read_ns: Ints, early_ns: Ints, late_ns: Ints) -> tuple[Ints, Floats]:
    """Best publication times, and half of what is possible, from when rows were read and their brackets (in order)."""
    at = early_ns + (late_ns - early_ns) // 2
    half = (late_ns - early_ns) / 2.0
    if len(at) < FEWEST or not half.any():
        return at, half
    origin = int(at[0])
    read, early, late = ((times - origin).astype(np.float64) for times in (read_ns, early_ns, late_ns))
    period = _period(early, late)
    if period is None:
        return at, half
    best, width = (early + late) / 2, half.copy()
    narrow = np.flatnonzero(late - early < WIDE * period)
    for rows in _unbroken(narrow, best, period):
        _fit_stretches(rows, read, early, late, period, best, width)
    found = origin + np.round(best).astype(np.int64)
    if np.any(np.diff(found) <= 0):  # two rows of one publication: leave them as they were recorded
        return at, half
    return found, width


def _period(early: Floats, late: Floats) -> float | None:
    """The period of which all steps between neighbours are multiples, as far as brackets tell."""
    middle, width = (early + late) / 2, late - early
    typical = float(np.median(np.diff(middle)))
    for parts in range(1, 11):
        period = typical / parts
        narrow = width < WIDE * period
        both = narrow[1:] & narrow[:-1]
        if both.sum() < FEWEST - 1:
            return None
        steps, slack = np.diff(middle)[both], (width[1:] + width[:-1])[both] / 2
        counts = np.round(steps / period)
        off = np.abs(steps - counts * period)
        if np.mean((counts >= 1) & (off <= slack + 0.01 * steps)) >= 0.9:
            return float(np.median(steps[counts >= 1] / counts[counts >= 1]))
    return None


def _unbroken(rows: npt.NDArray[np.intp], middle: Floats, period: float) -> list[npt.NDArray[np.intp]]:
    breaks = np.flatnonzero(np.diff(middle[rows]) > LONGEST_SILENCE * period) + 1
    return [part for part in np.split(rows, breaks) if len(part) >= FEWEST]


def _fit_stretches(
    rows: npt.NDArray[np.intp], read: Floats, early: Floats, late: Floats, period: float, best: Floats, width: Floats
) -> None:
    """Better times for all rows from the first to the last of `rows`, stretch by stretch, where a line fits."""
    count = len(rows)
    stretch = int(np.clip(STRETCH_S * 1e9 * count / max(best[rows[-1]] - best[rows[0]], 1.0), 4 * FEWEST, STRETCH_ROWS))
    for start in range(0, count, stretch // 2):
        first = max(0, min(start - stretch // 4, count - stretch))
        piece = rows[first : first + stretch]
        own = rows[start : start + stretch // 2]
        low = own[0] if start else max(own[0] - LONGEST_SILENCE, 0)
        high = rows[start + stretch // 2] if start + stretch // 2 < count else min(own[-1] + LONGEST_SILENCE, len(best))
        _fit(piece, np.arange(low, high), read, early, late, period, best, width)


def _fit(
    piece: npt.NDArray[np.intp],
    own: npt.NDArray[np.intp],
    read: Floats,
    early: Floats,
    late: Floats,
    period: float,
    best: Floats,
    width: Floats,
) -> None:
    line = _line(early[piece], late[piece], period)
    if line is None:
        if len(piece) >= 2 * FEWEST:
            cut = len(piece) // 2
            for part in (piece[:cut], piece[cut:]):
                _fit(part, own[(own >= part[0]) & (own <= part[-1])], read, early, late, period, best, width)
        return
    # A row shows the last publication before it was read, whatever its own bracket says.
    narrow = late[own] - early[own] < WIDE * period
    middle = (early[own] + late[own]) / 2
    k = np.where(
        narrow,
        np.round((middle - line.start_ns) / line.step_ns),
        np.floor((read[own] - line.start_ns) / line.step_ns),
    )
    when, off = line.at(k)
    possible = (when > early[own] - off) & (when < late[own] + off)
    sure = narrow | ((read[own] - when > off) & (off < VAGUE * line.step_ns))
    use = possible & sure
    low = np.where(narrow, np.maximum(early[own], when - off), when - off)
    high = np.where(narrow, np.minimum(late[own], when + off), when + off)
    # A line that passes beside the bracket says no more than that the publication lies on that side of it.
    on = (when >= low) & (when <= high)
    found = np.where(on, when, (low + high) / 2)
    best[own[use]] = found[use]
    width[own[use]] = np.maximum(high - found, found - low)[use]


def _line(early: Floats, late: Floats, period: float) -> Line | None:
    """The line through the middle of the widest corridor; None where publications stray too far from any line."""
    middle = (early + late) / 2
    k = np.concatenate(([0.0], np.cumsum(np.round(np.diff(middle) / period))))
    if len(np.unique(k)) < FEWEST:
        return None
    tight = _tightest(late - early)
    steps, lows, highs = _search(k[tight], early[tight], late[tight], period)
    gap = highs - lows
    top = int(np.argmax(gap))
    jitter = max(0.0, -float(gap[top]) / 2)
    if jitter > MOST_JITTER * period:
        return None
    fits = np.flatnonzero(gap >= min(0.0, float(gap[top])))
    fits = fits[np.argsort(steps[fits])]
    fits = fits[np.unique(np.linspace(0, len(fits) - 1, SHOWN).astype(int))]
    start = (lows[top] + highs[top]) / 2
    return Line(
        float(start),
        float(steps[top]),
        steps[fits],
        np.minimum(lows[fits], highs[fits]),
        np.maximum(lows[fits], highs[fits]),
        jitter + UNSEEN * float(np.median(late - early)) / 2,
    )


def _tightest(width: Floats) -> npt.NDArray[np.intp]:
    """Numbers of the tightest brackets of each part of a stretch: the others hardly ever bind."""
    share = max(1, len(width) // BINDING)
    parts = np.arange(len(width)) // share
    order = np.lexsort((width, parts))
    first = np.flatnonzero(np.diff(parts[order], prepend=-1))
    return np.sort(order[first])


def _search(k: Floats, early: Floats, late: Floats, period: float) -> tuple[Floats, Floats, Floats]:
    """Slopes that were tried, and for each the lowest and highest start. Their gap is concave in the slope."""
    centre, reach = period, PERIOD_OFF * period
    tried: list[tuple[Floats, Floats, Floats]] = []
    for _ in range(ZOOMS):
        steps = centre + reach * np.linspace(-1, 1, SLOPES)
        lows = (early - steps[:, None] * k).max(axis=1)
        highs = (late - steps[:, None] * k).min(axis=1)
        tried.append((steps, lows, highs))
        centre = float(steps[int(np.argmax(highs - lows))])
        reach *= 2.5 / (SLOPES - 1) * 2
    return tuple(np.concatenate(parts) for parts in zip(*tried, strict=True))  # type: ignore[return-value]
