"""The ticks of one channel around a window: publications with what had accumulated at each, and joules from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.counters import difference
from everywatt.energy.clockwork import retime
from everywatt.energy.curve import Curve
from everywatt.energy.sampling import CounterCurve, GaugeCurve
from everywatt.energy.straighten import straighten
from everywatt.energy.swing import Witness
from everywatt.tape.columns import Columns, load_columns
from everywatt.tape.reader import StoredGroup, Tape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

GAP_PERIODS = 3.0
MARGIN_PERIODS = 64
WHOLE_ROWS = 200_000
FEW_STEPS = 4
FEW_REPEATS = 5
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
        seen = float(np.mean(steps[steps < 1.5 * np.median(steps)])) / NS if len(steps) >= FEW_STEPS else None
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
        starts, ends = np.asarray(starts_ns), np.asarray(ends_ns)
        if self.plain and len(self.at_ns) > WHOLE_ROWS:
            joules = np.interp(ends, self.at_ns, self.joules) - np.interp(starts, self.at_ns, self.joules)
        else:
            joules = self.curve.energy(self._seconds(starts), self._seconds(ends)).joules
        seen = np.interp(ends, self.at_ns, self.observed_ns) - np.interp(starts, self.at_ns, self.observed_ns)
        coverage = np.clip(seen / np.maximum(ends - starts, 1), 0.0, 1.0)
        outside = (ends <= self.at_ns[0]) | (starts >= self.at_ns[-1])
        return np.where(outside, np.nan, joules), np.where(outside, 0.0, coverage)

    def between(self, start_ns: int, end_ns: int) -> Reading:
        """Joules of one window with the sampling error of its edges and of what the sensor does not see."""
        joules, coverage = self.many([start_ns], [end_ns])
        if not np.isfinite(joules[0]):
            return Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the window")
        seen = float(coverage[0]) if coverage[0] < 0.9999 else 1.0
        if self.channel.pedigree is Pedigree.MODELLED:
            return Reading(float(joules[0]), seen, most_w=self.most_w())
        sampled = self.curve.energy(self._seconds([start_ns]), self._seconds([end_ns]))
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

    def together(self, starts_ns: Ints, ends_ns: Ints) -> Reading:
        """Joules of many disjoint windows in one reading; an edge that two of them share counts for neither."""
        joules, coverage = self.many(starts_ns, ends_ns)
        known = np.isfinite(joules)
        if not known.any():
            return Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the windows")
        lengths = (ends_ns - starts_ns).astype(np.float64)
        seen = float((coverage * lengths).sum() / max(lengths.sum(), 1.0))
        whole = float(joules[known].sum())
        if self.channel.pedigree is Pedigree.MODELLED:
            return Reading(whole, seen, most_w=self.most_w())
        sampled = self.curve.energy(self._seconds(starts_ns), self._seconds(ends_ns))
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
    tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int, *, whole: bool = False
) -> Ticks | None:
    """The ticks around a window: all of them where it is short or `whole` is set, else those near its two ends.

    Ticks carry what accumulated since the tape's start, so two ends are enough. None where the channel gave nothing.
    """
    expected_s = group.expected_period_s
    margin_ns = int((MARGIN_PERIODS * expected_s + (channel.facts.window_s or 0.0)) * NS)
    rows = (end_ns - start_ns) / NS / max(expected_s, 1e-6)
    hole = (0, 0)
    if whole:
        pieces = [load_columns(tape, group.id, [channel.name], start_ns - margin_ns, end_ns + margin_ns)]
    elif rows < WHOLE_ROWS:
        pieces = [_rows(tape, group, channel, start_ns - margin_ns, end_ns + margin_ns)]
    else:
        pieces = [
            _rows(tape, group, channel, start_ns - margin_ns, start_ns + margin_ns),
            _rows(tape, group, channel, end_ns - margin_ns, end_ns + margin_ns),
        ]
        hole = (int(pieces[0].published[-1]), int(pieces[1].published[0]))
    edges = _edges(tape, group, channel, start_ns - margin_ns, end_ns + margin_ns)
    ticks = build_ticks(
        pieces, edges, channel, expected_s, tracked=group.info.tracked, asked_ns=() if whole else (start_ns, end_ns)
    )
    if ticks is None:
        return None
    witness = None if whole else _witness(tape, channel, start_ns - margin_ns, end_ns + margin_ns, rows)
    return replace(ticks, witness=witness, hole_ns=hole if hole[1] > hole[0] else (0, 0))


def _rows(tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int) -> Columns:
    """Rows between two instants and one to either side, of frames that may be far longer."""
    columns, name = load_columns(tape, group.id, [channel.name], start_ns, end_ns), channel.name
    first = max(int(np.searchsorted(columns.published, start_ns)) - 1, 0)
    last = int(np.searchsorted(columns.published, end_ns)) + 1
    if first == 0 and last >= len(columns):
        return columns
    part = slice(first, last)
    return replace(
        columns,
        read=columns.read[part],
        early=columns.early[part],
        late=columns.late[part],
        published=columns.published[part],
        breaks=columns.breaks[part],
        values={name: columns.values[name][part]},
        accumulated={name: columns.accumulated[name][part]},
        observed_ns={name: columns.observed_ns[name][part]},
    )


def _witness(tape: Tape, channel: Channel, start_ns: int, end_ns: int, rows: float) -> Witness | None:
    """Utilisation of the same device, where the tape has it and the window is not too long to look."""
    if rows >= WHOLE_ROWS:
        return None
    name = f"{channel.device}.utilisation"
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
    return float(np.median(few)) if len(few) else 0.0
