"""The cumulative energy of one channel: its publications as knots, straight lines between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Channel, Facts, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.counters import difference
from everywatt.tape.columns import Columns, load_columns
from everywatt.tape.reader import StoredGroup, Tape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GAP_PERIODS = 3.0
MARGIN_PERIODS = 64
WHOLE_ROWS = 200_000


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


@dataclass(frozen=True, slots=True)
class Curve:
    """Knots of cumulative joules and observed time, in order of publication.

    at_ns        when the knot's value was published (the middle of what is possible)
    half_ns      half of what is possible around it
    joules       accumulated joules, gain and bias of a calibration applied
    observed_ns  accumulated time that was really observed
    watts        mean power of the cell that ends at the knot
    real         False for knots that were put in to end a gap or to reach half a period past the last reading
    """

    channel: Channel
    expected_s: float
    at_ns: Ints
    half_ns: Floats
    joules: Floats
    observed_ns: Floats
    watts: Floats
    real: npt.NDArray[np.bool_]

    @property
    def shift_ns(self) -> int:
        """A reading that averages over longer than its period lags by half of the difference."""
        facts = self.channel.facts
        if self.channel.kind is Kind.COUNTER or not facts.window_s:
            return 0
        return round((facts.window_s - (facts.period_s or self.expected_s)) / 2 * NS)

    def many(self, starts_ns: npt.ArrayLike, ends_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Joules and coverage of many windows at once; NaN where a window lies outside of everything."""
        starts, ends = np.asarray(starts_ns) + self.shift_ns, np.asarray(ends_ns) + self.shift_ns
        joules = np.interp(ends, self.at_ns, self.joules) - np.interp(starts, self.at_ns, self.joules)
        seen = np.interp(ends, self.at_ns, self.observed_ns) - np.interp(starts, self.at_ns, self.observed_ns)
        length = np.maximum(ends - starts, 1)
        coverage = np.clip(seen / length, 0.0, 1.0)
        outside = (ends <= self.at_ns[0]) | (starts >= self.at_ns[-1])
        return np.where(outside, np.nan, joules), np.where(outside, 0.0, coverage)

    def between(self, start_ns: int, end_ns: int) -> Reading:
        """Joules of one window with the sampling error of its edges and of what the sensor does not see."""
        from everywatt.energy.sampling import sampling_error

        joules, coverage = self.many([start_ns], [end_ns])
        if not np.isfinite(joules[0]):
            return Reading(None, 0.0, refused=f"{self.channel.name} has no reading in the window")
        if self.channel.pedigree is Pedigree.MODELLED:
            return Reading(float(joules[0]), float(coverage[0]), most_w=self.most_w())
        error = sampling_error(self, start_ns, end_ns)
        return Reading(
            float(joules[0]),
            float(coverage[0]),
            error.start_j,
            error.end_j,
            error.aliasing_j,
            error.quantum_j,
            self.most_w(),
        )

    def most_w(self) -> float | None:
        """The most power that was seen, with half as much again."""
        finite = self.watts[np.isfinite(self.watts)]
        return float(finite.max() * 1.5) if len(finite) else None


def load_curve(
    tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int, *, whole: bool = False
) -> Curve | None:
    """The knots around a window: all of them where it is short or `whole` is set, else those near its two ends.

    Knots carry what accumulated since the tape's start, so two ends are enough. None where the channel gave nothing.
    """
    expected_s = group.expected_period_s
    margin_ns = int((MARGIN_PERIODS * expected_s + (channel.facts.window_s or 0.0)) * NS)
    rows = (end_ns - start_ns) / NS / max(expected_s, 1e-6)
    if whole or rows < WHOLE_ROWS:
        columns = load_columns(tape, group.id, [channel.name], start_ns - margin_ns, end_ns + margin_ns)
    else:
        head = load_columns(tape, group.id, [channel.name], start_ns - margin_ns, start_ns + margin_ns)
        tail = load_columns(tape, group.id, [channel.name], end_ns - margin_ns, end_ns + margin_ns)
        columns = head.followed_by(tail)
    edges = _edges(tape, group, channel, start_ns - margin_ns, end_ns + margin_ns)
    return build_curve(columns, edges, channel, expected_s)


def _edges(tape: Tape, group: StoredGroup, channel: Channel, start_ns: int, end_ns: int) -> list[tuple[Row, float]]:
    if not group.info.inline or channel.kind is not Kind.COUNTER:
        return []
    index = group.info.channels.index(channel)
    rows = tape.edges(group.id)
    return [(row, row.values[index]) for row in rows if start_ns <= row.read_ns <= end_ns]


def build_curve(
    columns: Columns, edges: list[tuple[Row, float]], channel: Channel, expected_s: float
) -> Curve | None:
    """Knots from rows of a frame and inline reads."""
    at = (columns.early + columns.late) // 2
    half = (columns.late - columns.early) / 2.0
    if len(at):
        value, accumulated = columns.values[channel.name], columns.accumulated[channel.name]
        observed = columns.observed_ns[channel.name].astype(np.float64)
        good = np.isfinite(value)
        at, half, value = at[good], half[good], value[good]
        accumulated, observed = accumulated[good], observed[good]
    else:
        value, accumulated, observed = np.array([]), np.array([]), np.array([])
    if edges:
        at, half, accumulated, observed = _merge(at, half, value, accumulated, observed, edges, channel)
    if len(at) < (2 if channel.kind is Kind.COUNTER else 1):
        return None
    unit = channel.scale * channel.facts.gain
    joules = accumulated * (unit if channel.kind is Kind.COUNTER else unit / NS)
    joules = joules + channel.facts.bias_w * observed / NS
    watts = _watts(at, joules, value * unit + channel.facts.bias_w, channel.kind)
    plain = Curve(channel, expected_s, at, half, joules, observed, watts, np.ones(len(at), dtype=bool))
    return _extended(_stepped(plain))


def _merge(
    at: Ints,
    half: Floats,
    value: Floats,
    accumulated: Floats,
    observed: Floats,
    edges: list[tuple[Row, float]],
    channel: Channel,
) -> tuple[Ints, Floats, Floats, Floats]:
    """Inline reads become knots: accumulated as the knot before plus what was counted since."""
    wrap, facts = channel.facts.wrap, channel.facts
    most = None if facts.max_w is None else facts.max_w / channel.scale
    knots = [(int(t), float(h), float(a), float(o)) for t, h, a, o in zip(at, half, accumulated, observed, strict=True)]
    base: tuple[int, float, float, float] | None = None
    extra: list[tuple[int, float, float, float]] = []
    for row, raw in edges:
        if raw != raw:
            continue
        when = (row.early_ns + row.late_ns) // 2
        index = int(np.searchsorted(at, when, side="right")) - 1
        if index >= 0:
            base = (int(at[index]), float(value[index]), float(accumulated[index]), float(observed[index]))
        elif len(at):
            base = (int(at[0]), float(value[0]), float(accumulated[0]), float(observed[0]))
        elif base is None:
            base = (when, raw, 0.0, 0.0)
        gone_ns = when - base[0]
        first, second = (base[1], raw) if gone_ns >= 0 else (raw, base[1])
        step = difference(first, second, wrap=wrap, seconds=abs(gone_ns) / NS, most_per_s=most).count
        if step == step:
            sign = 1.0 if gone_ns >= 0 else -1.0
            extra.append((when, (row.late_ns - row.early_ns) / 2, base[2] + sign * step, base[3] + gone_ns))
    merged = sorted(knots + extra)
    columns = [np.array(column) for column in zip(*merged, strict=True)] if merged else [np.array([])] * 4
    # A later knot never holds less than an earlier one: two reads of one publication differ only in what they knew.
    return (
        columns[0].astype(np.int64),
        columns[1],
        np.maximum.accumulate(columns[2]) if merged else columns[2],
        np.maximum.accumulate(columns[3]) if merged else columns[3],
    )


def _watts(at: Ints, joules: Floats, gauge_w: Floats, kind: Kind) -> Floats:
    if kind is Kind.GAUGE:
        return gauge_w
    watts = np.full(len(at), np.nan)
    seconds = np.diff(at) / NS
    with np.errstate(divide="ignore", invalid="ignore"):
        watts[1:] = np.where(seconds > 0, np.diff(joules) / seconds, np.nan)
    if len(watts) > 1:
        watts[0] = watts[1]
    return watts


def _stepped(curve: Curve) -> Curve:
    """A gauge after a gap speaks for one period before its publication: the curve is flat until there."""
    if curve.channel.kind is Kind.COUNTER or len(curve.at_ns) < 2:
        return curve
    period_ns = int(curve.expected_s * NS)
    late = np.flatnonzero(np.diff(curve.at_ns) > GAP_PERIODS * period_ns) + 1
    if not len(late):
        return curve
    return replace(
        curve,
        at_ns=np.insert(curve.at_ns, late, curve.at_ns[late] - period_ns),
        half_ns=np.insert(curve.half_ns, late, 0.0),
        joules=np.insert(curve.joules, late, curve.joules[late - 1]),
        observed_ns=np.insert(curve.observed_ns, late, curve.observed_ns[late - 1]),
        watts=np.insert(curve.watts, late, np.nan),
        real=np.insert(curve.real, late, False),
    )


def _extended(curve: Curve) -> Curve:
    """One period before the first and after the last knot at the power seen there: a sensor cell is that long."""
    period_ns = int(curve.expected_s * NS)
    first_w, last_w = _edge_w(curve, 1), _edge_w(curve, -1)
    step_j = curve.expected_s
    return replace(
        curve,
        at_ns=np.concatenate(([curve.at_ns[0] - period_ns], curve.at_ns, [curve.at_ns[-1] + period_ns])),
        half_ns=np.concatenate(([curve.half_ns[0]], curve.half_ns, [curve.half_ns[-1]])),
        joules=np.concatenate(
            ([curve.joules[0] - first_w * step_j], curve.joules, [curve.joules[-1] + last_w * step_j])
        ),
        observed_ns=np.concatenate(
            ([curve.observed_ns[0] - period_ns], curve.observed_ns, [curve.observed_ns[-1] + period_ns])
        ),
        watts=np.concatenate(([first_w], curve.watts, [last_w])),
        real=np.concatenate(([False], curve.real, [False])),
    )


def _edge_w(curve: Curve, side: int) -> float:
    """Watts near one end: the median of a few cells, because two reads close together give a wild slope."""
    few = curve.watts[:4] if side > 0 else curve.watts[-4:]
    few = few[np.isfinite(few)]
    return float(np.median(few)) if len(few) else 0.0


def exact(facts: Facts) -> bool:
    """True where the sensor has neither gain nor offset error."""
    return not facts.gain_pct and not facts.offset_w
