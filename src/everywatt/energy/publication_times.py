"""When each value was published, with hindsight: by the publisher's clock, or by the counts around it.

While it records, the recorder knows a publication only from what it saw before. Afterwards all brackets of a stretch
speak for all its publications (`retime`, for a tracked group): publication k happens at `start + k·period`, and one
straight line has to pass through every bracket. The widest corridor between them is found for stretches of up to 40 s,
short enough for clocks not to bend. Brackets through which no line passes show the publisher's jitter, or a clock that
was set again: then the stretch is cut in two.

A read of a RAPL counter says that its value was published within the millisecond before, and there is no clock to
follow (`straighten`). Where power is steady around a read, one straight line of energy over time passes through all
brackets nearby and leaves far less than a millisecond open. As many neighbours are taken as such a line allows; power
that changes ends them. Where the recorder saw the counter publish a moment later (`recorder.read_loop`), its two newest
publications are on the tape with narrow brackets, one period apart: the read before shows one of those, or one a few
periods earlier, and no power has to be steady.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import median, row_medians
from everywatt.tape.columns import Flags, Floats, Ints

Indexes = npt.NDArray[np.intp]

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
# Neighbours on each side at most, and fewer in all than this say nothing.
NEIGHBOURS = 24
FEWEST_NEIGHBOURS = 4
# A bracket this much narrower than that of a read shows a publication that was seen to happen.
NARROW = 0.3
# Periods over which such publications are counted, ticks among which they are looked for, error of the period.
COUNTED = 8
NEAR = 6
PERIOD_KNOWN = 0.01
# Ticks of one publication are put this share of a bracket apart.
ORDER = 1e-5


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


@dataclass(frozen=True, slots=True)
class Rows:
    """When rows of one group were read and the brackets of their publications, in order."""

    read_ns: Ints
    early_ns: Ints
    late_ns: Ints


@dataclass(frozen=True, slots=True)
class Retimed:
    """Rows of which some are at the times that `retime` gives them, the others as they were recorded.

    least_ns, most_ns  between which each row is in `retime`: the same for those that were asked for
    """

    at: Ints
    half: Floats
    least_ns: Floats
    most_ns: Floats


def retime(read_ns: Ints, early_ns: Ints, late_ns: Ints) -> tuple[Ints, Floats]:
    """Best publication times, and half of what is possible, from when rows were read and their brackets (in order)."""
    at, half = _recorded(early_ns, late_ns)
    scene = _scene(Rows(read_ns, early_ns, late_ns), half)
    if scene is None:
        return at, half
    for rows in scene.parts():
        _fit(_stretches(scene, rows))
    return _in_order(int(at[0]) + np.round(scene.best).astype(np.int64), scene.width, at, half)


def _in_order(found: Ints, width: Floats, at: Ints, half: Floats) -> tuple[Ints, Floats]:
    """Rows that follow one another. Two of one publication, and their neighbours, are left as they were recorded."""
    for reach in (1, 2, 4, 8):
        same = np.flatnonzero(np.diff(found) <= 0)
        if len(same) == 0:
            return found, width
        left = np.clip(same[:, None] + np.arange(1 - reach, reach + 1), 0, len(found) - 1).ravel()
        found[left], width[left] = at[left], half[left]
    return (found, width) if np.all(np.diff(found) > 0) else (at, half)


def retime_some(asked: Sequence[tuple[Rows, Flags]]) -> list[Retimed | None]:
    """As `retime`, for some rows of several groups. None where these cannot be found without all the others."""
    scenes = [_scene(rows, _recorded(rows.early_ns, rows.late_ns)[1]) for rows, _ in asked]
    # A row whose bracket says nothing of the phase may go anywhere on its line; the others stay in their brackets.
    flags = [
        wanted if scene is None else wanted | (scene.late - scene.early >= WIDE * scene.period)
        for scene, (_, wanted) in zip(scenes, asked, strict=True)
    ]
    parts = [[] if scene is None else scene.parts() for scene in scenes]
    for turn in range(max(map(len, parts), default=0)):
        # The parts of one group in their order, those of different groups together.
        _fit(
            [
                stretch
                for scene, wanted, own in zip(scenes, flags, parts, strict=True)
                if scene is not None and turn < len(own)
                for stretch in _stretches(scene, own[turn], wanted)
            ]
        )
    return [_bounded(rows, scene, wanted) for (rows, _), scene, wanted in zip(asked, scenes, flags, strict=True)]


def _bounded(rows: Rows, scene: _Scene | None, wanted: Flags) -> Retimed | None:
    at, half = _recorded(rows.early_ns, rows.late_ns)
    if scene is None:
        return Retimed(at, half, at.astype(np.float64), at.astype(np.float64))
    origin, placed = int(at[0]), np.round(scene.best)
    least, most = (np.where(wanted, placed, side) for side in (scene.early, scene.late))
    if not (least[1:] > most[:-1]).all():
        return None
    return Retimed(origin + placed.astype(np.int64), scene.width, origin + least, origin + most)


def _recorded(early_ns: Ints, late_ns: Ints) -> tuple[Ints, Floats]:
    return early_ns + (late_ns - early_ns) // 2, (late_ns - early_ns) / 2.0


@dataclass(frozen=True, slots=True)
class _Scene:
    """Rows in nanoseconds after the first; `best` and `width` are bettered in place."""

    read: Floats
    early: Floats
    late: Floats
    period: float
    best: Floats
    width: Floats

    def parts(self) -> list[Indexes]:
        """Rows whose brackets tell the phase, cut where the clock was silent for too long."""
        rows = np.flatnonzero(self.late - self.early < WIDE * self.period)
        middle = (self.early + self.late) / 2
        breaks = np.flatnonzero(np.diff(middle[rows]) > LONGEST_SILENCE * self.period) + 1
        parts = np.split(rows, breaks) if len(breaks) else [rows]
        return [part for part in parts if len(part) >= FEWEST]


def _scene(rows: Rows, half: Floats) -> _Scene | None:
    """None if no clock is found."""
    if len(half) < FEWEST or not half.any():
        return None
    origin = int(rows.early_ns[0] + (rows.late_ns[0] - rows.early_ns[0]) // 2)
    read, early, late = ((times - origin).astype(np.float64) for times in (rows.read_ns, rows.early_ns, rows.late_ns))
    period = _period(early, late)
    return None if period is None else _Scene(read, early, late, period, (early + late) / 2, half.copy())


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


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows of a scene through which one line is laid, and those that it is used for."""

    scene: _Scene
    piece: Indexes
    own: Indexes

    def halves(self) -> list[_Stretch]:
        """Its two halves, where they are long enough for a line."""
        if len(self.piece) < 2 * FEWEST:
            return []
        cut = len(self.piece) // 2
        parts = (self.piece[:cut], self.piece[cut:])
        return [_Stretch(self.scene, p, self.own[(self.own >= p[0]) & (self.own <= p[-1])]) for p in parts]


def _stretches(scene: _Scene, rows: Indexes, wanted: Flags | None = None) -> list[_Stretch]:
    """All rows from the first to the last of `rows`, in stretches; with `wanted` those that are for such a row."""
    count, best = len(rows), scene.best
    stretch = int(np.clip(STRETCH_S * 1e9 * count / max(best[rows[-1]] - best[rows[0]], 1.0), 4 * FEWEST, STRETCH_ROWS))
    found = []
    for start in range(0, count, stretch // 2):
        first, end = min(max(start - stretch // 4, 0), max(0, count - stretch)), min(start + stretch // 2, count)
        low = int(rows[start]) if start else max(int(rows[0]) - LONGEST_SILENCE, 0)
        high = int(rows[end]) if end < count else min(int(rows[-1]) + LONGEST_SILENCE, len(best))
        if wanted is None or wanted[low:high].any():
            found.append(_Stretch(scene, rows[first : first + stretch], np.arange(low, high)))
    return found


def _fit(stretches: list[_Stretch]) -> None:
    """Better times for the rows of stretches, where a line fits."""
    lines: dict[int, Line | None] = {}
    # Most stretches have as many rows as others, so that many can be fitted at once.
    for size in {len(stretch.piece) for stretch in stretches}:
        alike = [at for at, stretch in enumerate(stretches) if len(stretch.piece) == size]
        for first in range(0, len(alike), TOGETHER):
            some = alike[first : first + TOGETHER]
            lines.update(zip(some, _lines([stretches[at] for at in some]), strict=True))
    placed = [pair for at, stretch in enumerate(stretches) for pair in _halved(lines[at], stretch)]
    if placed:
        _place(placed)


def _lines(stretches: Sequence[_Stretch]) -> list[Line | None]:
    early, late = (np.stack([getattr(s.scene, side)[s.piece] for s in stretches]) for side in ("early", "late"))
    return fit_lines(early, late, np.array([[s.scene.period] for s in stretches]))


def _halved(line: Line | None, stretch: _Stretch) -> list[tuple[Line, _Stretch]]:
    """Lines and what they are for: halves of a stretch through which no line passes are tried by themselves."""
    if line is not None:
        return [(line, stretch)]
    return [pair for half in stretch.halves() for pair in _halved(_lines([half])[0], half)]


def _place(placed: list[tuple[Line, _Stretch]]) -> None:
    """Put rows on their lines. A row shows the last publication before it was read, whatever its own bracket says."""
    sizes = [len(stretch.own) for _, stretch in placed]
    start, step, wide = (
        np.repeat(values, sizes)
        for values in zip(*((line.start_ns, line.step_ns, WIDE * s.scene.period) for line, s in placed), strict=True)
    )
    first, last, seen = (
        np.concatenate([getattr(s.scene, side)[s.own] for _, s in placed]) for side in ("early", "late", "read")
    )
    narrow = last - first < wide
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
    width = np.maximum(high - found, found - low)
    for (_, stretch), at, half, fine in zip(
        placed, np.split(found, ends), np.split(width, ends), np.split(use, ends), strict=True
    ):
        rows = stretch.own[fine]
        stretch.scene.best[rows], stretch.scene.width[rows] = at[fine], half[fine]


def fit_lines(early: Floats, late: Floats, period: Floats) -> list[Line | None]:
    """For each row of brackets, with a period each, the line through the middle of the widest corridor between them.

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
        if different[place] < FEWEST or jitter > MOST_JITTER * period[place, 0]:
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


def _search(k: Floats, early: Floats, late: Floats, period: Floats) -> tuple[Floats, Floats, Floats]:
    """Slopes that were tried, and for each the lowest and highest start. Their gap is concave in the slope."""
    count = len(k)
    # Only corners of the brackets' hull ever bound a line: a dozen of hundreds. They are the first axis, which is
    # reduced fastest.
    corner_k, corner = _corners(np.concatenate((k, k)), np.concatenate((early, -late)))
    away = np.concatenate((corner_k[:count], -corner_k[count:])).T[:, :, None].copy()
    bound = corner.T[:, :, None].copy()
    centre, reach = period, PERIOD_OFF * period
    tried: list[tuple[Floats, Floats, Floats]] = []
    for _ in range(ZOOMS):
        steps = centre + reach * SPREAD
        ends = (bound - np.concatenate((steps, steps)) * away).max(axis=0)
        lows, highs = ends[:count], -ends[count:]
        tried.append((steps, lows, highs))
        centre = steps[np.arange(count), np.argmax(highs - lows, axis=1)][:, None]
        reach = reach * (2.5 / (SLOPES - 1) * 2)
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


def straighten(count: Floats, early: Floats, late: Floats, which: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Better times of the ticks `which` of a counter, and half of what is possible; brackets are ascending seconds."""
    times, halves = np.empty(len(which)), np.empty(len(which))
    for place, tick in enumerate(which.tolist()):
        # Sums from the tick itself are rounded alike, whichever others are asked for.
        near, own = slice(max(tick - NEIGHBOURS, 0), tick + NEIGHBOURS + 1), min(tick, NEIGHBOURS)
        low, high = _placed(count[near] - count[tick], early[near] - early[tick], late[near] - early[tick], own)
        times[place], halves[place] = early[tick] + (low + high) / 2, (high - low) / 2
        if place and tick == which[place - 1] + 1 and count[tick] == count[tick - 1]:
            times[place] = max(times[place], times[place - 1] + ORDER * (late[tick] - early[tick]))
    return times, halves


def _placed(count: Floats, early: Floats, late: Floats, tick: int) -> tuple[float, float]:
    """Earliest and latest time of a tick by all that its neighbours say."""
    near = slice(max(tick - NEAR, 0), tick + NEAR + 1)
    own = float(late[tick] - early[tick])
    if own < NARROW * (late[near] - early[near]).max():
        return float(early[tick]), float(late[tick])
    pair = _pair(early, late, tick)
    if pair is None:
        return _corridor(count, early, late, tick)
    for seen in pair:
        if count[tick] == count[seen]:  # one publication: only the order of its reads is left to tell them apart
            at, doubt = (early[seen] + late[seen]) / 2 + (tick - seen) * ORDER * own, (late[seen] - early[seen]) / 2
            return float(at - doubt), float(at + doubt)
    counted = _counted(count, early, late, tick, pair)
    low, high = _corridor(count, early, late, tick)
    if counted is None:
        return low, high
    both = max(low, counted[0]), min(high, counted[1])
    return both if both[0] < both[1] else counted  # it needs no steady power, so it has the last word


def _pair(early: Floats, late: Floats, tick: int) -> tuple[int, int] | None:
    """The nearest two publications, one period apart, that were seen to happen."""
    own = float(late[tick] - early[tick])
    first, end = max(tick - NEAR, 0), min(tick + NEAR + 1, len(early))
    narrow = [i for i in range(first, end) if late[i] - early[i] < NARROW * own and i != tick]
    pairs = [(i, j) for i, j in pairwise(narrow) if 0.5 * own < early[j] - early[i] < 1.2 * own]
    return min(pairs, key=lambda pair: abs(pair[0] - tick), default=None)


def _counted(
    count: Floats, early: Floats, late: Floats, tick: int, pair: tuple[int, int]
) -> tuple[float, float] | None:
    """Earliest and latest time of a tick, a few periods from a pair of publications; None where it is too far away."""
    first, second = pair
    middle, doubt = (early[first] + late[first]) / 2, (late[first] - early[first]) / 2
    period = (early[second] + late[second]) / 2 - middle
    least = np.ceil((early[tick] - middle) / period - PERIOD_KNOWN * COUNTED)
    steps = np.arange(least, least + 3)
    at = middle + steps * period
    slack = doubt + PERIOD_KNOWN * np.abs(steps) * period
    fits = (at + slack > early[tick]) & (at - slack < late[tick]) & (np.abs(steps) <= COUNTED) & (steps != 0)
    if not fits.any():
        return None
    # At either end of the bracket two may fit: then the power of the pair tells how many periods were counted.
    drawn = (count[tick] - count[first]) / max(count[second] - count[first], 1e-12)
    best = np.flatnonzero(fits)[np.argmin(np.abs(steps[fits] - drawn))]
    return float(max(at[best] - slack[best], early[tick])), float(min(at[best] + slack[best], late[tick]))


def _corridor(count: Floats, early: Floats, late: Floats, tick: int) -> tuple[float, float]:
    """Earliest and latest time of a tick on any line through the brackets of its neighbourhood."""
    left, right = _grown(count, early, late, tick)
    # A bend that brackets just allow pushes the line to their corners: half as far it is a quarter as large.
    if tick - left < NEIGHBOURS:
        left = tick - (tick - left) // 2
    if right - tick < NEIGHBOURS:
        right = tick + (right - tick) // 2
    own, part = (float(early[tick]), float(late[tick])), slice(left, right + 1)
    few = right - left + 1 < FEWEST_NEIGHBOURS
    found = None if few else _through(count[part], early[part], late[part], count[tick])
    if found is None:
        return own
    low, high = max(found[0], own[0]), min(found[1], own[1])
    return (low, high) if low <= high else own


def _grown(count: Floats, early: Floats, late: Floats, tick: int) -> tuple[int, int]:
    """The first and last tick of the longest stretch around a tick through whose brackets a line passes."""
    first, last, step = tick, tick, 8
    while step:
        grown = False
        for left, right in ((first - step, last), (first, last + step)):
            if left < max(tick - NEIGHBOURS, 0) or right > min(tick + NEIGHBOURS, len(count) - 1):
                continue
            part = slice(left, right + 1)
            if _through(count[part], early[part], late[part], count[tick]) is not None:
                first, last, grown = left, right, True
                break
        if not grown:
            step //= 2
    return first, last


def _through(x: Floats, low: Floats, high: Floats, at: float) -> tuple[float, float] | None:
    """Earliest and latest time at `at` of the lines that pass every x between low and high; None if there are none."""
    span = x - at
    apart = x[1:, None] - x[None, :-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(apart > 0, (low[1:, None] - high[None, :-1]) / apart, -np.inf).max()
        most = np.where(apart > 0, (high[1:, None] - low[None, :-1]) / apart, np.inf).min()
    if not (np.isfinite(least) and np.isfinite(most)) or least > most or most <= 0:
        return None
    slopes = np.linspace(max(least, 0.0), most, SLOPES)
    bottom = (low - slopes[:, None] * span).max(axis=1)
    top = (high - slopes[:, None] * span).min(axis=1)
    fits = bottom <= top
    return (float(bottom[fits].min()), float(top[fits].max())) if fits.any() else None
