"""Which rows of a tape a window needs, read once: around a window, around its two ends, or a short tape as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Kind, Row
from everywatt.core.clocks import NS
from everywatt.core.stats import median
from everywatt.energy.building import (
    NONE,
    Raw,
    comparable,
    merged_rows,
    near_reads,
    placed,
    slopes,
    stalled,
    ticks_of,
)
from everywatt.energy.counter_ends import Around, idle_w, readings_by_ends
from everywatt.energy.sampling import GAP_PERIODS
from everywatt.energy.sources import UNEVEN, Source
from everywatt.energy.ticks import WHOLE_ROWS, Reading, Ticks
from everywatt.energy.utilisation import Witness
from everywatt.tape.accumulate import energy_channels
from everywatt.tape.columns import Columns, Flags, Floats, Ints, grown_columns, load_columns, ticks_by_frame
from everywatt.tape.reader import StoredGroup, Tape

CROSS_CHECK_MIN_S = 2.0
# Of a window as much has to be observed to hold one path against another.
MOSTLY = 0.9
MARGIN_PERIODS = 64
CONTEXT_PERIODS = 600  # ticks beside a window that tell how restless its power is
# A counter's ends need less: one stretch of `clockwork` around each, whose middle half they are in.
ENDS_PERIODS = 256
# A tape is short where a group has fewer rows; it is kept as a whole.
SMALL_ROWS = 20_000
# Ticks to either side of an instant that its joules depend on: those of its cell and of two cells beside it. More rows
# than this are not placed by their neighbours, which would take two seconds.
BESIDE = 4
MOST_PLACED = 4096
# Rows with some of them in place that are kept: those for no read or for all, and for the newest windows.
KEPT_TICKS = 4
# A counter's tape of so many rows has a frame every few seconds, which is as fine as cells of power need.
MANY_ROWS = 2_000_000


_keeper: WeakKeyDictionary[Tape, dict[tuple[int, Channel, tuple[int, int]], _Rows]] = WeakKeyDictionary()
_newest: WeakKeyDictionary[Tape, tuple[tuple[int, int], dict[tuple[int, bool], list[Columns]]]] = WeakKeyDictionary()


def source_ticks(source: Source, start_ns: int, end_ns: int) -> Ticks | None:
    """The publications behind the figures between two instants, and some beside them; None if there are none.

    For callers that do not know their windows beforehand, or need more than joules: charts of power, windows that
    are cut where owners change, the covariance of adjacent windows.
    """
    if _keeps(source):
        return _kept(source).ticks()
    return _read(source, start_ns, end_ns, whole=True).ticks()


def load_readings(asked: Sequence[Source], start_ns: int, end_ns: int) -> list[Reading | None]:
    """What all ticks say of one window of several channels, in a fraction of the time; None where one gave nothing.

    Ticks carry what accumulated since the tape's start, so those near the two ends are enough.
    """
    found = [
        _kept(one) if _keeps(one) else _read(one, start_ns, end_ns, ends=one.channel.kind is Kind.COUNTER)
        for one in asked
    ]
    plain = [rows for one, rows in zip(asked, found, strict=True) if not _keeps(one) and not rows.around.edges]
    by_ends = readings_by_ends([rows.around for rows in plain], start_ns, end_ns) if plain else []
    known = dict(zip(map(id, plain), by_ends, strict=True))
    readings: list[Reading | None] = []
    for rows in found:
        reading = known.get(id(rows))
        ticks = rows.ticks((start_ns, end_ns)) if reading is None else None
        readings.append(reading if ticks is None else ticks.between(start_ns, end_ns))
    return readings


def checked_by(source: Source, start_ns: int, end_ns: int) -> Sequence[tuple[StoredGroup, Channel]]:
    """Other paths to the same joules; none for a window so short that its edges decide."""
    return source.mirrors if (end_ns - start_ns) / NS >= CROSS_CHECK_MIN_S else ()


def load_joules(asked: Sequence[Source], starts_ns: Ints, ends_ns: Ints) -> Floats:
    """Joules of many windows over all of these channels, NaN where one gave nothing; no intervals.

    On a long tape counters are read off straight lines between publications as they were recorded.
    """
    lookup = _Lookup(starts_ns, ends_ns)
    joules = np.zeros(len(starts_ns))
    for one in asked:
        line = _counted(one, lookup)
        if line is None:
            joules += _ticks_joules(one, lookup)[0]
        else:
            lookup.add(*line)
    return joules + lookup.joules()


def stretch_joules(one: Source, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
    """Joules and observed seconds of many windows of one device, without intervals; NaN and 0 where it gave nothing.

    A counter counts across a gap, so its joules there are real and the time counts; a gauge's gap is left out. On a
    long tape counters are read off straight lines between publications as they were recorded.
    """
    lookup = _Lookup(starts_ns, ends_ns)
    line = _counted(one, lookup)
    at_ns: Floats | Ints
    if line is not None:
        lookup.add(*line)
        joules, at_ns = lookup.joules(), line[0]
    else:
        joules, at_ns, coverage = _ticks_joules(one, lookup)
    if one.channel.kind is not Kind.COUNTER:
        observed_s = coverage * (ends_ns - starts_ns) / NS
    else:
        first_ns, last_ns = at_ns[[0, -1]] if len(at_ns) else (0, 0)
        observed_s = (np.minimum(ends_ns, last_ns) - np.maximum(starts_ns, first_ns)) / NS
    return joules, np.where(np.isfinite(joules), observed_s, 0.0)


def cell_joules(one: Source, edges_ns: Ints) -> tuple[Floats, Floats]:
    """Joules and observed seconds of adjoining cells, zero of both where it gave nothing: for the power in each.

    As `stretch_joules`, but where instants of a counter are off by much of a cell, readings that cannot be compared
    with the others are left out: the joules of one that came late would be put where they were not drawn. Long tapes
    are read by the heads of frames.
    """
    found = _head_joules(one)
    ticks = _kept(one).ticks() if one.channel.kind is Kind.COUNTER and _keeps(one) and found is None else None
    if ticks is not None and np.ptp(ticks.half_ns[ticks.real]) > UNEVEN * (edges_ns[1] - edges_ns[0]):
        kept = comparable(ticks.at_ns, ticks.half_ns, ticks.real)
        found = (ticks.at_ns[kept], ticks.joules[kept]) if 1 < len(kept) < len(ticks.at_ns) else None
    if found is None:
        joules, observed_s = stretch_joules(one, edges_ns[:-1], edges_ns[1:])
        return np.nan_to_num(joules), observed_s
    inside = np.clip(edges_ns, found[0][0], found[0][-1])
    return np.diff(np.interp(inside, *found)), np.diff(inside) / NS


def _head_joules(one: Source) -> tuple[Ints, Floats] | None:
    """What a counter had accumulated at the first row of each frame: no row is decoded. None where that is coarse."""
    tape, group, channel = one.tape, one.group, one.channel
    first_ns, last_ns = tape.extent_ns()
    few = _rows(group, first_ns, last_ns) < MANY_ROWS
    if few or not tape.sealed or channel.kind is not Kind.COUNTER or channel.facts.bias_w:
        return None
    place = energy_channels(group.info).index(group.info.channels.index(channel))
    heads = [(frame.first_ns, frame.cum[place][0]) for frame in tape.iter_frames(group.id)]
    at_ns, counts = np.array([head[0] for head in heads]), np.array([head[1] for head in heads])
    return (at_ns, counts * channel.scale * channel.facts.gain) if len(heads) > 1 else None


def _ticks_joules(one: Source, windows: _Lookup) -> tuple[Floats, Ints, Floats]:
    """Joules by all ticks, the instants of these, and coverage."""
    starts, ends = windows.starts_ns, windows.ends_ns
    ticks = source_ticks(one, *windows.extent_ns()) if len(starts) else None
    if ticks is None:
        return np.full(len(starts), np.nan), np.array([], dtype=np.int64), np.zeros(len(starts))
    joules, coverage = ticks.many(starts, ends)
    return joules, ticks.at_ns, coverage


class _Lookup:
    """Many windows, put in order once: looking up instants in order is several times faster than at random.

    What had accumulated at their starts and ends is added up in that order, one device after the other.
    """

    def __init__(self, starts_ns: Ints, ends_ns: Ints) -> None:
        self.starts_ns, self.ends_ns = starts_ns, ends_ns
        self._order = np.argsort(starts_ns), np.argsort(ends_ns)
        self._sorted = starts_ns[self._order[0]].astype(np.float64), ends_ns[self._order[1]].astype(np.float64)
        self._found = np.zeros(len(starts_ns)), np.zeros(len(starts_ns))

    def extent_ns(self) -> tuple[int, int]:
        """The first start and the last end."""
        return int(self.starts_ns.min(initial=2**62)), int(self.ends_ns.max(initial=0))

    def add(self, at: Floats, joules: Floats) -> None:
        """One more device, by straight lines; NaN where a window lies outside of everything."""
        for found, edges in zip(self._found, self._sorted, strict=True):
            found += np.interp(edges, at, joules)
        before, after = self._found
        before[np.searchsorted(self._sorted[0], at[-1]) :] = np.nan
        after[: np.searchsorted(self._sorted[1], at[0], side="right")] = np.nan

    def joules(self) -> Floats:
        """Joules of every window, all devices together."""
        result = np.empty(len(self.starts_ns))
        result[self._order[1]] = self._found[1]
        result[self._order[0]] -= self._found[0]
        return result


def line_joules(source: Source, start_ns: int, end_ns: int) -> float | None:
    """Joules of one window by straight lines between the rows around its two ends, as they were recorded.

    Four rows, to see at once whether another path agrees. None where one is missing, or much of the time between.
    """
    channel = source.channel
    if _keeps(source):
        pieces = _kept(source).around.pieces
    else:
        pieces = _pieces(source, [channel.name], start_ns, end_ns, ends=True)
    first, last = (
        _on_line(piece, source.group, channel, at) for piece, at in ((pieces[0], start_ns), (pieces[-1], end_ns))
    )
    if first is None or last is None or last[1] - first[1] < MOSTLY * (end_ns - start_ns):
        return None
    unit = channel.scale * channel.facts.gain / (1 if channel.kind is Kind.COUNTER else NS)
    return (last[0] - first[0]) * unit + channel.facts.bias_w * (last[1] - first[1]) / NS


def lines_are_right(source: Source) -> bool:
    """Whether straight lines are the whole figure, but for its edges: of a counter, or of means over whole periods."""
    facts = source.channel.facts
    if source.channel.kind is Kind.COUNTER or facts.window_s is None or facts.period_s is None:
        return source.channel.kind is Kind.COUNTER
    every_s = source.group.expected_period_s
    return abs(facts.window_s - facts.period_s) < 0.01 * facts.period_s and every_s < 1.5 * facts.period_s


def _on_line(piece: Columns, group: StoredGroup, channel: Channel, at_ns: int) -> tuple[float, float] | None:
    """What had accumulated at an instant between two rows, raw, and the time observed; None where a row is missing."""
    after = int(np.searchsorted(piece.published, at_ns))
    if not 0 < after < len(piece):
        return None
    two = slice(after - 1, after + 1)
    first_ns, last_ns = piece.published[two].tolist()
    lost = last_ns - first_ns > GAP_PERIODS * group.expected_period_s * NS
    if lost or not np.isfinite(piece.values[channel.name][two]).all():
        return None
    share = (at_ns - first_ns) / (last_ns - first_ns)
    (count, more), (observed, later) = (
        columns[channel.name][two].tolist() for columns in (piece.accumulated, piece.observed_ns)
    )
    return count + share * (more - count), observed + share * (later - observed)


def _keeps(source: Source) -> bool:
    """True where all ticks of a group are read once and kept, because the tape is short.

    Every figure then comes from the same ticks, so one window has one figure however it is asked for. On a tape that
    still grows this is worth its time only where publication times follow from all ticks.
    """
    tape, group = source.tape, source.group
    if not (tape.sealed or group.info.tracked):
        return False
    first_ns, last_ns = tape.extent_ns()
    return (last_ns - first_ns) / NS < SMALL_ROWS * group.expected_period_s


def _kept(source: Source) -> _Rows:
    tape = source.tape
    known = _keeper.setdefault(tape, {})
    key = (source.group.id, source.channel, tape.version)
    if not tape.sealed:
        for old in [old for old in known if old[:2] == key[:2] and old != key]:
            del known[old]
    if key not in known:
        known[key] = _read(source, *tape.extent_ns())
    return known[key]


class _Rows:
    """Rows of one channel: all of a short tape, or those around a window of a long one; and the ticks that they are.

    Rows that a program read itself are placed by their neighbours, which takes time: those near the instants that are
    asked for, or all. A row's place follows from what was recorded around it and not from what is asked.
    """

    def __init__(self, around: Around) -> None:
        self.around = around
        self._ticks: dict[bytes, Ticks | None] = {}

    @cached_property
    def _raw(self) -> Raw:
        rows = self.around
        return merged_rows(rows.pieces, rows.edges, rows.channel, rows.tracked, rows.witness)

    @cached_property
    def _near(self) -> npt.NDArray[np.intp]:
        """Numbers of the rows to place by their neighbours."""
        edges = self.around.edges
        near = near_reads(self._raw, [row.read_ns for row, _ in edges]) if edges else NONE
        return near if len(near) <= MOST_PLACED else NONE

    def ticks(self, asked_ns: tuple[int, ...] | None = None) -> Ticks | None:
        """The ticks, with those in place that windows between the instants `asked_ns` need (None: all), and no others:
        intervals look further than joules, and must not depend on what was asked before."""
        which = self._near if asked_ns is None else self._near[_beside(self._near, self._raw, asked_ns)]
        key = which.tobytes()
        if key not in self._ticks:
            if len(self._ticks) == KEPT_TICKS:
                del self._ticks[next(iter(self._ticks))]
            self._ticks[key] = self._finished(placed(self._raw, which) if len(which) else self._raw)
        return self._ticks[key]

    def _finished(self, raw: Raw) -> Ticks | None:
        """Ticks of rows whose times are settled."""
        rows = self.around
        ticks = ticks_of(raw, rows.channel, rows.expected_s)
        low_w = idle_w(rows) if rows.wide else None
        return ticks and replace(ticks, witness=rows.witness, hole_ns=_hole(rows.pieces), low_w=low_w)


def _beside(near: npt.NDArray[np.intp], raw: Raw, asked_ns: tuple[int, ...]) -> Flags:
    """On which of the rows near reads windows between these instants depend."""
    places = np.searchsorted(raw.at, asked_ns)
    return np.asarray((np.abs(near - places[:, None]) <= BESIDE).any(axis=0))


def _read(source: Source, start_ns: int, end_ns: int, *, whole: bool = False, ends: bool = False) -> _Rows:
    """Rows around a window: all (`whole`), or those near its two ends where it is long; with `ends` only what a counter
    needs there."""
    tape, group, channel = source.tape, source.group, source.channel
    rows = _rows(group, start_ns, end_ns)
    witnessed = whole or rows < WHOLE_ROWS
    name = _utilisation(channel)
    beside = witnessed and any(other.name == name for other in group.info.channels)
    wanted = [channel.name, name] if beside else [channel.name]
    margin_ns = _margin_ns(group, channel)
    if whole:
        context_ns = _context_ns(group)
        pieces = [load_columns(tape, group.id, wanted, start_ns - context_ns, end_ns + context_ns)]
    else:
        pieces = _pieces(source, wanted, start_ns, end_ns, ends=ends)
    asked = [(start_ns, end_ns)] if len(pieces) == 1 else [(start_ns, start_ns), (end_ns, end_ns)]
    witness = None
    if beside and any(map(len, pieces)):
        witness = _joined_witness([(piece.read, piece.values[name]) for piece in pieces])
    elif witnessed:
        context_ns = _context_ns(group)
        witness = _witness(tape, channel, [(first - context_ns, last + context_ns) for first, last in asked])
    edges = [
        edge for first, last in asked for edge in _edges(tape, group, channel, first - margin_ns, last + margin_ns)
    ]
    wide = pieces if ends else []
    if ends:
        pieces = _near(group, pieces, start_ns, end_ns)
    return _Rows(Around(pieces, channel, group.expected_period_s, group.info.tracked, witness, edges, wide))


def _near(group: StoredGroup, wide: list[Columns], start_ns: int, end_ns: int) -> list[Columns]:
    """Of rows around a window those that a counter's ends need."""
    reach_ns = _ends_ns(group)
    if end_ns - start_ns <= 2 * reach_ns:
        return [wide[0].between(start_ns - reach_ns, end_ns + reach_ns)]
    ends = ((wide[0], start_ns), (wide[-1], end_ns))
    return [piece.between(edge_ns - reach_ns, edge_ns + reach_ns) for piece, edge_ns in ends]


def _hole(pieces: list[Columns]) -> tuple[int, int]:
    """The stretch between two pieces whose rows were not loaded."""
    if len(pieces) != 2 or not len(pieces[0]) or not len(pieces[1]):
        return 0, 0
    hole = (int(pieces[0].published[-1]), int(pieces[1].published[0]))
    return hole if hole[1] > hole[0] else (0, 0)


def _margin_ns(group: StoredGroup, channel: Channel) -> int:
    return int((MARGIN_PERIODS * group.expected_period_s + (channel.facts.window_s or 0.0)) * NS)


def _context_ns(group: StoredGroup) -> int:
    """Time beside a window whose rows are looked at; the same for all channels of a group, which share them."""
    longest_s = max((channel.facts.window_s or 0.0 for channel in group.info.channels), default=0.0)
    return int(
        max(CONTEXT_PERIODS * group.expected_period_s, MARGIN_PERIODS * group.expected_period_s + longest_s) * NS
    )


def _ends_ns(group: StoredGroup) -> int:
    """Time beside an end of a window whose rows a counter's joules need."""
    return int(ENDS_PERIODS * group.expected_period_s * NS)


def _long(group: StoredGroup, start_ns: int, end_ns: int) -> bool:
    """True where the rows around one end of a window are not those around the other."""
    return end_ns - start_ns > 2 * _context_ns(group) + 8 * group.expected_period_s * NS


def _rows(group: StoredGroup, start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / NS / max(group.expected_period_s, 1e-6)


def _pieces(source: Source, wanted: list[str], start_ns: int, end_ns: int, *, ends: bool = False) -> list[Columns]:
    """Rows around a window, or around its two ends where it is long or `ends` says that these are enough.

    Channels of the same group that the figure is checked against are read along, and kept for the newest window.
    """
    tape, group = source.tape, source.group
    also = [channel.name for other, channel in checked_by(source, start_ns, end_ns) if other.id == group.id]
    newest = _newest.get(tape)
    if newest is None or newest[0] != (start_ns, end_ns):
        newest = ((start_ns, end_ns), {})
    key = (group.id, ends)
    kept = newest[1].get(key)
    if kept is not None and all(name in kept[0].values for name in wanted):
        return kept
    names = [*wanted, *(name for name in also if name not in wanted)]
    pieces = _loaded(tape, group, names, start_ns, end_ns, ends)
    if also and tape.sealed:
        newest[1][key] = pieces
        _newest[tape] = newest
    return pieces


def _around(tape: Tape, group: StoredGroup, names: list[str], start_ns: int, end_ns: int) -> Columns:
    """Rows between two instants and one on either side: a frame may hold hours, and its rest is not looked at."""
    if not tape.sealed:
        return grown_columns(tape, group.id, names, start_ns, end_ns)
    return load_columns(tape, group.id, names, start_ns, end_ns, tight=True).between(start_ns, end_ns)


def _loaded(tape: Tape, group: StoredGroup, names: list[str], start_ns: int, end_ns: int, ends: bool) -> list[Columns]:
    """Rows around a window, or around its two ends where it is long; with `ends` those of the frames around these."""
    reach_ns, context_ns = _ends_ns(group), _context_ns(group)
    long = _long(group, start_ns, end_ns) if ends else _rows(group, start_ns, end_ns) >= WHOLE_ROWS
    edges = [(start_ns, start_ns), (end_ns, end_ns)] if long else [(start_ns, end_ns)]
    if not ends or not tape.sealed:
        return [_around(tape, group, names, a - context_ns, b + context_ns) for a, b in edges]
    loaded = [load_columns(tape, group.id, names, a - reach_ns, b + reach_ns, tight=True) for a, b in edges]
    # What else is in these frames says more of the device, up to where a gauge would look.
    return [piece.between(a - context_ns, b + context_ns) for piece, (a, b) in zip(loaded, edges, strict=True)]


def _utilisation(channel: Channel) -> str:
    return f"{channel.device}.utilisation"


def _counted(one: Source, windows: _Lookup) -> tuple[Floats, Floats] | None:
    """Publications of a counter around windows, and its joules; None where these are not all there is to it."""
    if _keeps(one) or one.channel.kind is not Kind.COUNTER or one.channel.facts.bias_w:
        return None
    margin_ns, (start_ns, end_ns) = _margin_ns(one.group, one.channel), windows.extent_ns()
    span = start_ns - margin_ns, end_ns + margin_ns
    if _edges(one.tape, one.group, one.channel, *span):
        return None
    found = ticks_by_frame(one.tape, one.group, [one.channel.name], *span)
    if found is None or len(found[0]) <= 8:
        return None
    at, counts = found[0], found[2][one.channel.name]
    old = stalled(counts)
    if old.any():
        at, counts = at[~old], counts[~old]
    return _line(at, counts, one.channel, one.group.expected_period_s)


def _line(at: Ints, counts: Floats, channel: Channel, expected_s: float) -> tuple[Floats, Floats]:
    """As `ticks_of`, with its ends extended by one period, and nothing but times (ns) and joules. `counts` are lost."""
    joules = np.multiply(counts, channel.scale * channel.facts.gain, out=counts)
    first_w = median(slopes(at[:5], joules[:5])[:4])
    last_w = median(slopes(at[-5:], joules[-5:])[1:])
    period_ns = int(expected_s * NS)
    return (
        np.concatenate(([at[0] - period_ns], at, [at[-1] + period_ns]), dtype=np.float64),
        np.concatenate(([joules[0] - first_w * expected_s], joules, [joules[-1] + last_w * expected_s])),
    )


def _witness(tape: Tape, channel: Channel, spans: Sequence[tuple[int, int]]) -> Witness | None:
    """Utilisation of the same device in these times, where another group of the tape has it."""
    name = _utilisation(channel)
    for group in tape.groups:
        if any(other.name == name for other in group.info.channels):
            parts = [load_columns(tape, group.id, [name], *span) for span in spans]
            return _joined_witness([(part.read, part.values[name]) for part in parts])
    return None


def _joined_witness(parts: Sequence[tuple[Ints, Floats]]) -> Witness | None:
    """A witness from reads and percents of pieces in order, which may overlap."""
    read, percent = (np.concatenate(side) for side in zip(*parts, strict=True))
    if len(parts) > 1:
        keep = np.diff(np.maximum.accumulate(read), prepend=read[:1] - 1) > 0
        read, percent = read[keep], percent[keep]
    return Witness.of_percent(read / NS, percent) if len(read) else None


def _edges(tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int) -> list[tuple[Row, float]]:
    if not group.info.inline or channel.kind is not Kind.COUNTER:
        return []
    index = group.info.channels.index(channel)
    return [(row, row.values[index]) for row in tape.edges(group.id, start_ns, end_ns)]
