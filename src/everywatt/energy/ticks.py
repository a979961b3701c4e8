"""The ticks of one channel around a window: publications with what had accumulated at each, and joules from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.counters import difference
from everywatt.energy.clockwork import retime
from everywatt.energy.curve import Curve, Sampled
from everywatt.energy.median import median
from everywatt.energy.sampling import CounterCurve, GaugeCurve
from everywatt.energy.straighten import straighten
from everywatt.energy.swing import Witness
from everywatt.tape.columns import Columns, counted_line, load_columns
from everywatt.tape.reader import StoredGroup, Tape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

GAP_PERIODS = 3.0
MARGIN_PERIODS = 64
CONTEXT_PERIODS = 600  # ticks beside a window that tell how restless its power is
WHOLE_ROWS = 200_000
SMALL_ROWS = 20_000
FEW_STEPS = 4
FEW_REPEATS = 5

_keeper: WeakKeyDictionary[Tape, dict[tuple[int, str], Ticks | None]] = WeakKeyDictionary()
_newest: WeakKeyDictionary[Tape, tuple[tuple[int, int, int], list[Columns]]] = WeakKeyDictionary()
# What adding up many numbers leaves open.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Reading:
    """Joules between two instants, and how far sampling alone may be off (95 % half-widths)."""

    joules: float | None
    coverage: float
    start_width_j: float = 0.0
    end_width_j: float = 0.0
    aliasing_j: float = 0.0
    quantum_j: float = 0.0
    most_w: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Ticks:
    """Publications of a channel, in order.

    at_ns        when the value was published (the middle of what is possible), half_ns half of what is possible
    joules       accumulated joules, gain and bias of a calibration applied
    observed_ns  accumulated time that was really observed
    watts        mean power of the cell that ends at the publication
    real         False for one that was put in: one period past the first and the last, where a cell may reach
    hole_ns      a stretch whose rows were not loaded, because only the two ends of a long window matter; (0, 0) if none
    """

    channel: Channel
    expected_s: float
    at_ns: Ints
    half_ns: Floats
    joules: Floats
    observed_ns: Floats
    watts: Floats
    real: Flags
    witness: Witness | None = None
    hole_ns: tuple[int, int] = (0, 0)

    @cached_property
    def period_s(self) -> float:
        """How often the sensor publishes: as seen, unless that is far from what is known of it."""
        known = self.channel.facts.period_s
        steps = np.diff(self.at_ns[self.real])
        seen = float(np.mean(steps[steps < 1.5 * median(steps)])) / NS if len(steps) >= FEW_STEPS else None
        if seen is not None and (known is None or abs(seen - known) < 0.1 * known):
            return seen
        return known or self.expected_s

    @cached_property
    def window_s(self) -> float:
        """What a gauge averages over: as known, else its period."""
        return self.channel.facts.window_s or self.period_s

    @property
    def plain(self) -> bool:
        """True where straight lines between accumulated values are right at publications."""
        return self.channel.kind is Kind.COUNTER or abs(self.window_s - self.period_s) < 0.05 * self.period_s

    @cached_property
    def curve(self) -> Curve:
        """The same ticks as cells with what is not known of each; seconds from `origin_ns`."""
        facts, t = self.channel.facts, self._seconds(self.at_ns)
        half_s = self.half_ns / NS
        if self.channel.kind is Kind.COUNTER:
            quantum_j = facts.quantum or 0.0
            return CounterCurve(
                t,
                self.joules - self.joules[0],
                early_s=t - half_s,
                late_s=t + half_s,
                quantum_j=quantum_j,
                witness=self._shifted_witness(),
            )
        return GaugeCurve(
            t,
            self.watts,
            period_s=self.period_s,
            window_s=self.window_s,
            early_s=t - half_s,
            late_s=t + half_s,
            quantum_w=facts.quantum or 0.0,
            witness=self._shifted_witness(),
        )

    @property
    def origin_ns(self) -> int:
        """The instant from which `curve` counts seconds; near the ticks, so that nothing is lost to rounding."""
        return int(self.at_ns[0])

    def _seconds(self, at_ns: npt.ArrayLike) -> Floats:
        return np.asarray((np.asarray(at_ns) - self.origin_ns) / NS, dtype=np.float64)

    def _shifted_witness(self) -> Witness | None:
        if self.witness is None:
            return None
        return Witness(self.witness.t_s - self.origin_ns / NS, self.witness.share)

    def many(self, starts_ns: npt.ArrayLike, ends_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Joules and coverage of many windows at once; NaN where a window lies outside of everything."""
        return self._many(np.asarray(starts_ns), np.asarray(ends_ns), None)

    def _many(self, starts: Ints, ends: Ints, sampled: Sampled | None) -> tuple[Floats, Floats]:
        """The same, where the curve may have been asked already."""
        if self.plain and len(self.at_ns) > WHOLE_ROWS:
            joules = np.interp(ends, self.at_ns, self.joules) - np.interp(starts, self.at_ns, self.joules)
        else:
            joules = (sampled or self.curve.energy(self._seconds(starts), self._seconds(ends))).joules
        seen = np.interp(ends, self.at_ns, self.observed_ns) - np.interp(starts, self.at_ns, self.observed_ns)
        coverage = np.clip(seen / np.maximum(ends - starts, 1), 0.0, 1.0)
        outside = (ends <= self.at_ns[0]) | (starts >= self.at_ns[-1])
        return np.where(outside, np.nan, joules), np.where(outside, 0.0, coverage)

    def between(self, start_ns: int, end_ns: int) -> Reading:
        """Joules of one window with the sampling error of its edges and of what the sensor does not see."""
        sampled = self.curve.energy(self._seconds([start_ns]), self._seconds([end_ns]))
        joules, coverage = self._many(np.array([start_ns]), np.array([end_ns]), sampled)
        if not np.isfinite(joules[0]):
            return Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the window")
        seen = float(coverage[0]) if coverage[0] < 0.9999 else 1.0
        if self.channel.pedigree is Pedigree.MODELLED:
            return Reading(float(joules[0]), seen, most_w=self.most_w())
        if self.hole_ns[1] > self.hole_ns[0]:
            # The curve knows nothing of the rows in the hole; what had accumulated there does.
            hole = np.interp(self.hole_ns, self.at_ns, self.joules)
            bridged = self.curve.energy(*(self._seconds([edge]) for edge in self.hole_ns)).joules[0]
            joules = joules - bridged + (hole[1] - hole[0])
        return Reading(
            float(joules[0]),
            seen,
            float(sampled.left_j[0]),
            float(sampled.right_j[0]),
            float(sampled.inner_j[0]) * self._unloaded(start_ns, end_ns),
            max(float(sampled.quantum_j[0]), ROUNDING * abs(float(joules[0]))),
            self.most_w(),
        )

    def roughly(self, start_ns: int, end_ns: int) -> tuple[float | None, float]:
        """Joules and coverage of one window without how far they may be off: to check another path against it."""
        if self.hole_ns != (0, 0) and not self.plain:
            reading = self.between(start_ns, end_ns)
            return reading.joules, reading.coverage
        joules, coverage = self.many([start_ns], [end_ns])
        return (float(joules[0]) if np.isfinite(joules[0]) else None), float(coverage[0])

    def by_lines(self, start_ns: int, end_ns: int) -> tuple[float | None, float]:
        """Joules and coverage of one window by straight lines between accumulated values; None where it is outside."""
        if end_ns <= self.at_ns[0] or start_ns >= self.at_ns[-1]:
            return None, 0.0
        first, last = np.interp((start_ns, end_ns), self.at_ns, self.joules)
        before, after = np.interp((start_ns, end_ns), self.at_ns, self.observed_ns)
        return float(last - first), float(np.clip((after - before) / max(end_ns - start_ns, 1), 0.0, 1.0))

    def together(self, starts_ns: Ints, ends_ns: Ints) -> Reading:
        """Joules of many disjoint windows in one reading; an edge that two of them share counts for neither."""
        sampled = self.curve.energy(self._seconds(starts_ns), self._seconds(ends_ns))
        joules, coverage = self._many(starts_ns, ends_ns, sampled)
        known = np.isfinite(joules)
        if not known.any():
            return Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the windows")
        lengths = (ends_ns - starts_ns).astype(np.float64)
        seen = float((coverage * lengths).sum() / max(lengths.sum(), 1.0))
        whole = float(joules[known].sum())
        if self.channel.pedigree is Pedigree.MODELLED:
            return Reading(whole, seen, most_w=self.most_w())
        shared = np.isin(starts_ns, ends_ns), np.isin(ends_ns, starts_ns)
        return Reading(
            whole,
            seen if seen < 0.9999 else 1.0,
            float(np.sqrt(np.sum(np.where(shared[0], 0.0, sampled.left_j) ** 2))),
            float(np.sqrt(np.sum(np.where(shared[1], 0.0, sampled.right_j) ** 2))),
            float(sampled.inner_j.sum()),
            float(np.sqrt(np.sum(sampled.quantum_j**2))),
            self.most_w(),
        )

    def _unloaded(self, start_ns: int, end_ns: int) -> float:
        """What the sensor does not see in the loaded ends goes on in the hole between them."""
        hole = self.hole_ns[1] - self.hole_ns[0]
        return (end_ns - start_ns) / max(end_ns - start_ns - hole, 1)

    def most_w(self) -> float | None:
        """The most power that was seen, with half as much again."""
        finite = self.watts[np.isfinite(self.watts)]
        return float(finite.max() * 1.5) if len(finite) else None


def load_ticks(
    tape: Tape,
    group: StoredGroup,
    channel: Channel,
    start_ns: int,
    end_ns: int,
    *,
    whole: bool = False,
    also: Sequence[str] = (),
) -> Ticks | None:
    """The ticks around a window: all of them where it is short or `whole` is set, else those near its two ends.

    Ticks carry what accumulated since the tape's start, so two ends are enough. None where the channel gave nothing.
    `also` names channels of the group that are asked next (`rough_energy`): their rows are read along.
    """
    if group.info.tracked and not whole and _small(tape, group):
        return _kept(tape, group, channel)
    return _load(tape, group, channel, start_ns, end_ns, whole, also)


def rough_energy(
    tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int
) -> tuple[float | None, float]:
    """Joules and coverage of one window without how far they may be off: to check another path against it.

    By straight lines between publications as they were recorded, where lines are right (`Ticks.plain`).
    """
    if not _surely_plain(channel) or (group.info.tracked and _small(tape, group)):
        ticks = load_ticks(tape, group, channel, start_ns, end_ns)
        return (None, 0.0) if ticks is None else ticks.roughly(start_ns, end_ns)
    pieces = _pieces(tape, group, [channel.name], start_ns, end_ns)
    ticks = build_ticks(pieces, [], channel, group.expected_period_s)
    return (None, 0.0) if ticks is None else ticks.by_lines(start_ns, end_ns)


def _surely_plain(channel: Channel) -> bool:
    window_s, period_s = channel.facts.window_s, channel.facts.period_s
    if channel.kind is Kind.COUNTER or window_s is None:
        return True
    return period_s is not None and abs(window_s - period_s) < 0.01 * period_s


def _small(tape: Tape, group: StoredGroup) -> bool:
    first_ns, last_ns = tape.extent_ns()
    return (last_ns - first_ns) / NS < SMALL_ROWS * group.expected_period_s


def _kept(tape: Tape, group: StoredGroup, channel: Channel) -> Ticks | None:
    """All ticks of a short tape, read once: publication times follow from all of them, so windows add up exactly."""
    if not tape.sealed:
        return _load(tape, group, channel, *tape.extent_ns(), False)
    known = _keeper.setdefault(tape, {})
    key = (group.id, channel.name)
    if key not in known:
        known[key] = _load(tape, group, channel, *tape.extent_ns(), False)
    return known[key]


def _load(
    tape: Tape,
    group: StoredGroup,
    channel: Channel,
    start_ns: int,
    end_ns: int,
    whole: bool,
    also: Sequence[str] = (),
) -> Ticks | None:
    expected_s = group.expected_period_s
    margin_ns = _margin_ns(group, channel)
    rows = _rows(group, start_ns, end_ns)
    hole = (0, 0)
    beside = [] if whole or rows >= WHOLE_ROWS else [n for n in _utilisation(channel) if n in _names(group)]
    wanted = [channel.name, *beside]
    if whole:
        pieces = [load_columns(tape, group.id, wanted, start_ns - margin_ns, end_ns + margin_ns)]
    else:
        pieces = _pieces(tape, group, wanted, start_ns, end_ns, also)
    if len(pieces) == 2:
        hole = (int(pieces[0].published[-1]), int(pieces[1].published[0]))
    edges = _edges(tape, group, channel, start_ns - margin_ns, end_ns + margin_ns)
    ticks = build_ticks(
        pieces, edges, channel, expected_s, tracked=group.info.tracked, asked_ns=() if whole else (start_ns, end_ns)
    )
    if ticks is None:
        return None
    witness = None
    if beside and len(pieces[0]):
        witness = Witness.of_percent(pieces[0].read / NS, pieces[0].values[beside[0]])
    elif not whole:
        context_ns = _context_ns(group)
        witness = _witness(tape, channel, start_ns - context_ns, end_ns + context_ns, rows)
    return replace(ticks, witness=witness, hole_ns=hole if hole[1] > hole[0] else (0, 0))


def _margin_ns(group: StoredGroup, channel: Channel) -> int:
    return int((MARGIN_PERIODS * group.expected_period_s + (channel.facts.window_s or 0.0)) * NS)


def _context_ns(group: StoredGroup) -> int:
    """Time beside a window whose rows are looked at; the same for all channels of a group, which share them."""
    longest_s = max((channel.facts.window_s or 0.0 for channel in group.info.channels), default=0.0)
    return int(
        max(CONTEXT_PERIODS * group.expected_period_s, MARGIN_PERIODS * group.expected_period_s + longest_s) * NS
    )


def _rows(group: StoredGroup, start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / NS / max(group.expected_period_s, 1e-6)


def _pieces(
    tape: Tape, group: StoredGroup, wanted: list[str], start_ns: int, end_ns: int, also: Sequence[str] = ()
) -> list[Columns]:
    """Rows around a window, or around its two ends where it is long. The newest are kept, for the next channel."""
    key = (group.id, start_ns, end_ns)
    newest = _newest.get(tape)
    if newest is not None and newest[0] == key and all(name in newest[1][0].values for name in wanted):
        return newest[1]
    context_ns = _context_ns(group)
    names = [*wanted, *(name for name in also if name not in wanted)]
    if _rows(group, start_ns, end_ns) < WHOLE_ROWS:
        spans = [(start_ns - context_ns, end_ns + context_ns)]
    else:
        spans = [(edge - context_ns, edge + context_ns) for edge in (start_ns, end_ns)]
    pieces = [_around(tape, group, names, *span) for span in spans]
    if also and tape.sealed:
        _newest[tape] = (key, pieces)
    return pieces


def _around(tape: Tape, group: StoredGroup, wanted: list[str], start_ns: int, end_ns: int) -> Columns:
    """Rows between two instants and one on either side: a frame may hold hours, and its rest is not looked at."""
    return load_columns(tape, group.id, wanted, start_ns, end_ns, tight=True).between(start_ns, end_ns)


def _utilisation(channel: Channel) -> list[str]:
    return [f"{channel.device}.utilisation"]


def _names(group: StoredGroup) -> set[str]:
    return {channel.name for channel in group.info.channels}


def load_line(
    tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int
) -> tuple[Ints, Floats] | Ticks | None:
    """All instants around a window and the joules accumulated at each, between which straight lines hold.

    The ticks where lines are not all there is to it (`Ticks.plain`), None where the channel gave nothing. For many
    windows: what only an interval needs is left out.
    """
    if group.info.tracked and _small(tape, group):
        return _kept(tape, group, channel)
    margin_ns = _margin_ns(group, channel)
    edges = _edges(tape, group, channel, start_ns - margin_ns, end_ns + margin_ns)
    if channel.kind is Kind.COUNTER and not edges and not channel.facts.bias_w:
        found = counted_line(tape, group, channel.name, start_ns - margin_ns, end_ns + margin_ns)
        if found is not None and len(found[0]) > 8:
            return _line(*found, channel, group.expected_period_s)
    ticks = load_ticks(tape, group, channel, start_ns, end_ns, whole=True)
    return (ticks.at_ns, ticks.joules) if ticks is not None and ticks.plain else ticks


def _line(at: Ints, counts: Floats, channel: Channel, expected_s: float) -> tuple[Ints, Floats]:
    """As `build_ticks`, with its ends extended by one period, and nothing but times and joules."""
    period_ns = int(expected_s * NS)
    joules = counts * (channel.scale * channel.facts.gain)
    first_w = median(_slopes(at[:5], joules[:5])[:4])
    last_w = median(_slopes(at[-5:], joules[-5:])[1:])
    return (
        np.concatenate(([at[0] - period_ns], at, [at[-1] + period_ns])),
        np.concatenate(([joules[0] - first_w * expected_s], joules, [joules[-1] + last_w * expected_s])),
    )


def _witness(tape: Tape, channel: Channel, start_ns: int, end_ns: int, rows: float) -> Witness | None:
    """Utilisation of the same device, where the tape has it and the window is not too long to look."""
    if rows >= WHOLE_ROWS:
        return None
    name = _utilisation(channel)[0]
    for group in tape.groups:
        if any(other.name == name for other in group.info.channels):
            columns = load_columns(tape, group.id, [name], start_ns, end_ns)
            return Witness.of_percent(columns.read / NS, columns.values[name]) if len(columns) else None
    return None


def _edges(tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int) -> list[tuple[Row, float]]:
    if not group.info.inline or channel.kind is not Kind.COUNTER:
        return []
    index = group.info.channels.index(channel)
    return [(row, row.values[index]) for row in tape.edges(group.id, start_ns, end_ns)]


@dataclass(frozen=True, slots=True)
class _Raw:
    """Finite rows of one channel, raw."""

    at: Ints
    half: Floats
    value: Floats
    accumulated: Floats
    observed: Floats


def _finite(pieces: list[Columns], channel: Channel, tracked: bool) -> _Raw:
    parts: list[_Raw] = []
    last = -(2**63)
    for columns in pieces:
        keep = np.isfinite(columns.values[channel.name]) & (columns.published > last)
        if tracked and channel.kind is Kind.COUNTER:
            keep &= ~_repeated(columns.values[channel.name])
        if keep.any():
            last = int(columns.published[keep][-1])
            part = _Raw(
                columns.published[keep],
                (columns.late - columns.early)[keep] / 2.0,
                columns.values[channel.name][keep],
                columns.accumulated[channel.name][keep],
                columns.observed_ns[channel.name][keep].astype(np.float64),
            )
            if tracked and len(part.at) <= WHOLE_ROWS:
                part = _moved(part, *retime(columns.read[keep], columns.early[keep], columns.late[keep]), channel.kind)
            parts.append(part)
    if not parts:
        nothing = np.array([])
        return _Raw(np.array([], dtype=np.int64), nothing, nothing, nothing, nothing)
    return _Raw(
        *(
            np.concatenate([getattr(part, field) for part in parts])
            for field in ("at", "half", "value", "accumulated", "observed")
        )
    )


def _repeated(values: Floats) -> Flags:
    """True where a counter stands still for a few rows and then goes on: publications that were lost, and no news.

    One that stands still for longer has nothing to count, or has lost more than can be told.
    """
    still = np.diff(values, prepend=np.nan) == 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], still, [False])).astype(np.int8)))
    found = np.zeros(len(values), dtype=np.bool_)
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        found[first:end] = end - first <= FEW_REPEATS and end < len(values)
    return found


def _moved(raw: _Raw, at: Ints, half: Floats, kind: Kind) -> _Raw:
    """The same rows at better publication times: a gauge's reading covers a little more or less time then."""
    by = (at - raw.at).astype(np.float64)
    accumulated = raw.accumulated
    if kind is Kind.GAUGE:
        accumulated = accumulated + np.cumsum(raw.value * np.diff(by, prepend=0.0))
    return _Raw(at, half, raw.value, accumulated, raw.observed + by)


def build_ticks(
    pieces: list[Columns],
    edges: list[tuple[Row, float]],
    channel: Channel,
    expected_s: float,
    *,
    tracked: bool = False,
    asked_ns: tuple[int, ...] = (),
) -> Ticks | None:
    """Ticks from rows of frames and inline reads; those of a tracked group at the times that its clock says.

    Inline reads at the instants `asked_ns` are placed as well as their neighbours allow.
    """
    raw = _finite(pieces, channel, tracked)
    if edges:
        raw = _straightened(_merged(raw, edges, channel), asked_ns)
    if len(raw.at) < (2 if channel.kind is Kind.COUNTER else 1):
        return None
    facts = channel.facts
    unit = channel.scale * facts.gain
    joules = raw.accumulated * (unit if channel.kind is Kind.COUNTER else unit / NS) + facts.bias_w * raw.observed / NS
    watts = _slopes(raw.at, joules) if channel.kind is Kind.COUNTER else raw.value * unit + facts.bias_w
    ticks = Ticks(channel, expected_s, raw.at, raw.half, joules, raw.observed, watts, np.ones(len(raw.at), dtype=bool))
    return _extended(_stepped(ticks))


def _merged(raw: _Raw, edges: list[tuple[Row, float]], channel: Channel) -> _Raw:
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
        if step == step:
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
    return _Raw(
        at[order][keep],
        half[keep],
        values[keep],
        np.maximum.accumulate(accumulated)[keep],
        np.maximum.accumulate(observed)[keep],
    )


def _straightened(raw: _Raw, asked_ns: tuple[int, ...]) -> _Raw:
    near = [np.flatnonzero(np.abs(raw.at + raw.half - asked) <= 2 * raw.half) for asked in asked_ns]
    which = np.unique(np.concatenate(near)) if near else np.array([], dtype=np.intp)
    if len(which) == 0 or len(which) > 16:
        return raw
    # Only the neighbourhood of the edges: microseconds since its start keep every digit.
    origin = int(raw.at[which[0]])
    middle = (raw.at - origin).astype(np.float64)
    times, halves = straighten(raw.accumulated - raw.accumulated[which[0]], middle - raw.half, middle + raw.half, which)
    at, half = raw.at.copy(), raw.half.copy()
    at[which], half[which] = origin + np.round(times).astype(np.int64), halves
    return raw if np.any(np.diff(at) <= 0) else replace(raw, at=at, half=half)


def _slopes(at: Ints, joules: Floats) -> Floats:
    watts = np.full(len(at), np.nan)
    watts[1:] = np.diff(joules) / (np.diff(at) / NS)
    watts[0] = watts[1]
    return watts


def _stepped(ticks: Ticks) -> Ticks:
    """A gauge after a gap speaks for one period before its publication: accumulation is flat until there."""
    if ticks.channel.kind is Kind.COUNTER or len(ticks.at_ns) < 2:
        return ticks
    period_ns = int(ticks.expected_s * NS)
    late = np.flatnonzero(np.diff(ticks.at_ns) > GAP_PERIODS * period_ns) + 1
    if not len(late):
        return ticks
    return replace(
        ticks,
        at_ns=np.insert(ticks.at_ns, late, ticks.at_ns[late] - period_ns),
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
    period_ns = int(ticks.expected_s * NS)
    first_w, last_w = _end_w(ticks, 1), _end_w(ticks, -1)
    before_j, after_j = ticks.joules[0] - first_w * ticks.expected_s, ticks.joules[-1] + last_w * ticks.expected_s
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
    """Watts near one end: the median of a few cells, because two reads close together give a wild slope."""
    few = ticks.watts[:4] if side > 0 else ticks.watts[-4:]
    few = few[np.isfinite(few)]
    return median(few) if len(few) else 0.0
