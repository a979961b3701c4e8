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

from everywatt.energy.median import median, row_medians

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
# Brackets that contradict one another show about half of the jitter.
SEEN_OF_IT = 2.0
# A period may differ by this share from the first guess of it.
PERIOD_OFF = 0.02
# Without a publication for this many periods the count is lost.
LONGEST_SILENCE = 24
SLOPES = 33
ZOOMS = 5
SPREAD = np.linspace(-1, 1, SLOPES)
# Passes over the brackets of a stretch to find the few that bound its line.
PRUNINGS = 6
# Stretches that are fitted together, to keep what is tried small in memory.
TOGETHER = 16


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
        rise = self.steps[:, None] * k
        high = (self.highs[:, None] + rise).max(axis=0)
        low = np.add(rise, self.lows[:, None], out=rise).min(axis=0)
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
    return _in_order(origin + np.round(best).astype(np.int64), width, at, half)


def _in_order(found: Ints, width: Floats, at: Ints, half: Floats) -> tuple[Ints, Floats]:
    """Rows that follow one another. Two of one publication, and their neighbours, are left as they were recorded."""
    for reach in (1, 2, 4, 8):
        same = np.flatnonzero(np.diff(found) <= 0)
        if len(same) == 0:
            return found, width
        left = np.unique(np.clip(same[:, None] + np.arange(1 - reach, reach + 1), 0, len(found) - 1))
        found[left], width[left] = at[left], half[left]
    return (found, width) if np.all(np.diff(found) > 0) else (at, half)


def _period(early: Floats, late: Floats) -> float | None:
    """The period of which all steps between neighbours are multiples, as far as brackets tell."""
    middle, width = (early + late) / 2, late - early
    typical = median(np.diff(middle))
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
            return median(steps[counts >= 1] / counts[counts >= 1])
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
    starts = np.arange(0, count, stretch // 2)
    firsts = np.clip(starts - stretch // 4, 0, max(0, count - stretch))
    # Every stretch has as many rows as the others, so that many can be fitted at once.
    pieces = [rows[first : first + stretch] for first in firsts]
    lines: list[Line | None] = []
    for at in range(0, len(pieces), TOGETHER):
        some = np.stack(pieces[at : at + TOGETHER])
        lines += fit_lines(early[some], late[some], period)
    placed: list[tuple[Line, npt.NDArray[np.intp]]] = []
    for start, piece, line in zip(starts, pieces, lines, strict=True):
        own = rows[start : start + stretch // 2]
        low = own[0] if start else max(own[0] - LONGEST_SILENCE, 0)
        high = rows[start + stretch // 2] if start + stretch // 2 < count else min(own[-1] + LONGEST_SILENCE, len(best))
        placed += _halved(line, piece, np.arange(low, high), early, late, period)
    if placed:
        _place(placed, read, early, late, period, best, width)


def _halved(
    line: Line | None,
    piece: npt.NDArray[np.intp],
    own: npt.NDArray[np.intp],
    early: Floats,
    late: Floats,
    period: float,
) -> list[tuple[Line, npt.NDArray[np.intp]]]:
    """Lines and the rows they are for: halves of a stretch through which no line passes are tried by themselves."""
    if line is not None:
        return [(line, own)]
    if len(piece) < 2 * FEWEST:
        return []
    found = []
    cut = len(piece) // 2
    for part in (piece[:cut], piece[cut:]):
        half = fit_lines(early[part][None, :], late[part][None, :], period)[0]
        found += _halved(half, part, own[(own >= part[0]) & (own <= part[-1])], early, late, period)
    return found


def _place(
    placed: list[tuple[Line, npt.NDArray[np.intp]]],
    read: Floats,
    early: Floats,
    late: Floats,
    period: float,
    best: Floats,
    width: Floats,
) -> None:
    """Put rows on their lines. A row shows the last publication before it was read, whatever its own bracket says."""
    own = np.concatenate([rows for _, rows in placed])
    sizes = [len(rows) for _, rows in placed]
    start = np.repeat([line.start_ns for line, _ in placed], sizes)
    step = np.repeat([line.step_ns for line, _ in placed], sizes)
    first, last, seen = early[own], late[own], read[own]
    narrow = last - first < WIDE * period
    k = np.where(narrow, np.round(((first + last) / 2 - start) / step), np.floor((seen - start) / step))
    ends = np.cumsum(sizes)[:-1]
    lines = [line.at(part) for (line, _), part in zip(placed, np.split(k, ends), strict=True)]
    when, off = (np.concatenate(parts) for parts in zip(*lines, strict=True))
    possible = (when > first - off) & (when < last + off)
    sure = narrow | ((seen - when > off) & (off < VAGUE * step))
    use = possible & sure
    low = np.where(narrow, np.maximum(first, when - off), when - off)
    high = np.where(narrow, np.minimum(last, when + off), when + off)
    # A line that passes beside the bracket says no more than that the publication lies on that side of it.
    on = (when >= low) & (when <= high)
    found = np.where(on, when, (low + high) / 2)
    best[own[use]] = found[use]
    width[own[use]] = np.maximum(high - found, found - low)[use]


def fit_lines(early: Floats, late: Floats, period: float) -> list[Line | None]:
    """For each row of brackets the line through the middle of the widest corridor between them.

    None where publications stray too far from any line.
    """
    middle = (early + late) / 2
    k = np.zeros_like(middle)
    np.cumsum(np.round(np.diff(middle, axis=1) / period), axis=1, out=k[:, 1:])
    steps, lows, highs = _search(k, early, late, period)
    gap = highs - lows
    tops = np.argmax(gap, axis=1)
    different = 1 + np.count_nonzero(np.diff(k, axis=1), axis=1)
    unseen = UNSEEN * row_medians(late - early) / 2
    found: list[Line | None] = []
    for place, top in enumerate(tops):
        most = float(gap[place, top])
        jitter = max(0.0, -most / 2)
        if different[place] < FEWEST or jitter > MOST_JITTER * period:
            found.append(None)
            continue
        fits = gap[place] >= min(0.0, most)
        low, high = lows[place][fits], highs[place][fits]
        found.append(
            Line(
                float((lows[place, top] + highs[place, top]) / 2),
                float(steps[place, top]),
                steps[place][fits],
                np.minimum(low, high),
                np.maximum(low, high),
                SEEN_OF_IT * jitter + float(unseen[place]),
            )
        )
    return found


def _search(k: Floats, early: Floats, late: Floats, period: float) -> tuple[Floats, Floats, Floats]:
    """Slopes that were tried, and for each the lowest and highest start. Their gap is concave in the slope."""
    count = len(k)
    # Only corners of the brackets' hull ever bound a line: a dozen of hundreds. They are the first axis, which is
    # reduced fastest.
    corner_k, corner = _corners(np.concatenate((k, k)), np.concatenate((early, -late)))
    away = np.concatenate((corner_k[:count], -corner_k[count:])).T[:, :, None].copy()
    bound = corner.T[:, :, None].copy()
    centre, reach = np.full((count, 1), period), PERIOD_OFF * period
    tried: list[tuple[Floats, Floats, Floats]] = []
    for _ in range(ZOOMS):
        steps = centre + reach * SPREAD
        ends = (bound - np.concatenate((steps, steps)) * away).max(axis=0)
        lows, highs = ends[:count], -ends[count:]
        tried.append((steps, lows, highs))
        centre = steps[np.arange(count), np.argmax(highs - lows, axis=1)][:, None]
        reach *= 2.5 / (SLOPES - 1) * 2
    return tuple(np.concatenate(parts, axis=1) for parts in zip(*tried, strict=True))  # type: ignore[return-value]


def _corners(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """For each row of points, x ascending, those that lie on the upper side of its hull; some others may be left.

    Rows are filled up with their last point. A point below the line between its neighbours is no corner, and a corner
    is never below a line between others, so all of them can be dropped at once, again and again.
    """
    count, size = x.shape
    row = np.repeat(np.arange(count), size)
    flat_x, flat_y = x.ravel(), y.ravel()
    for _ in range(PRUNINGS):
        right, up = flat_x[1:] - flat_x[:-1], flat_y[1:] - flat_y[:-1]
        above = up[:-1] * right[1:] > up[1:] * right[:-1]
        forward = right > 0  # the first and last point of each row stay, and so do points above one another
        keep = np.ones(len(flat_x), dtype=bool)
        keep[1:-1] = above | ~(forward[:-1] & forward[1:])
        if keep.all():
            break
        left = np.flatnonzero(keep)
        flat_x, flat_y, row = flat_x.take(left), flat_y.take(left), row.take(left)
    sizes = np.bincount(row, minlength=count)
    at = (np.cumsum(sizes) - sizes)[:, None] + np.minimum(np.arange(sizes.max()), sizes[:, None] - 1)
    return flat_x[at], flat_y[at]
