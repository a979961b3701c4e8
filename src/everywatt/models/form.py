"""A fitted model as plain values, and how it is evaluated without any library: what the recorder loads."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from everywatt.models.features import Feature

FORMS = ("mean", "rising", "plugin", "linear", "boosted")  # the last two are in files of earlier versions only
REACH = 1.0  # ranges: how far beyond the training range the line of an earlier version goes on
LEAST_SHARE = 0.02  # of the lowest watts that were seen: no prediction is lower
MOST_LOG = 30.0  # of watts: keeps a file from elsewhere from overflowing
MOST_WIDTH = 3.0
OUTSIDE = 0.05  # of the range: values further out than this are flagged
LEAST_SPAN = (1e-6, 1e-12)  # of the highest value, and at all: what a range is at least
LEAST_OUT = 0.25  # ranges: what is outside at all is taken to be that far
LIFT_OVER = 0.25  # ranges above the highest value over which `lift` sets in
LEAST_WIDENING = 0.2  # of log(1 + ranges outside): what saturation may cost if the machine goes on in a line


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in one order: at node n, go `left[n]` where row[feature[n]] ≤ threshold[n], `right[n]` from `until[n]` on.

    Between the two both count, by a straight line: a load between two that were learnt draws watts between theirs.
    Files of earlier versions have no `until`: a step. A leaf has feature −1 and its `value`.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    until: tuple[float, ...] = ()

    def at(self, row: Sequence[float]) -> float:
        """What the tree says of one row."""
        total, todo = 0.0, [(0, 1.0)]
        while todo:
            node, weight = todo.pop()
            while self.feature[node] >= 0:
                value, low = row[self.feature[node]], self.threshold[node]
                if value <= low:
                    node = self.left[node]
                elif not self.until or value >= self.until[node]:
                    node = self.right[node]
                else:
                    share = (value - low) / (self.until[node] - low)
                    todo.append((self.right[node], weight * share))
                    node, weight = self.left[node], weight * (1 - share)
            total += weight * self.value[node]
        return total


class Range(NamedTuple):
    """What a column or feature was while it was learnt."""

    low: float
    high: float
    middle: float

    def excess(self, value: float) -> float:
        """How far outside a value is, in ranges; 0 inside."""
        span = max(self.high - self.low, abs(self.high) * LEAST_SPAN[0], LEAST_SPAN[1])
        return max(0.0, (value - self.high) / span, (self.low - value) / span)


@dataclass(frozen=True, slots=True)
class Curve:
    """Watts of one column: straight lines through points (x, watts) that only rise, from (0, 0) on.

    Beyond the last point watts rise by `slope` and saturate within `reach`.
    """

    points: tuple[tuple[float, float], ...]
    reach: float = 0.0

    @property
    def slope(self) -> float:
        """Watts per unit beyond the last point: as at the end, but no more than on average, since use saturates."""
        (low, least), (before, less), (high, most) = self.points[0], self.points[-2], self.points[-1]
        return min((most - less) / (high - before), (most - least) / (high - low))

    def watts(self, x: float) -> float:
        (low, least), (high, most) = self.points[0], self.points[-1]
        if x >= high:
            return most + (self.slope * self.reach * math.tanh((x - high) / self.reach) if self.reach > 0 else 0.0)
        if x <= low:
            return least
        place = bisect_right(self.points, x, key=lambda point: point[0])
        (a, below), (b, above) = self.points[place - 1], self.points[place]
        return below + (above - below) * (x - a) / (b - a)


@dataclass(frozen=True, slots=True)
class Form:
    """How watts follow from features.

    rising    idle + Σ curve(feature), and of the trees `share` times what they add to that inside the training range:
              watts = idle + Σ curve(x) + share × (e^(Σ trees) − idle − Σ curve(x inside)), never above `most_w`.
              Trees refine the curves by a factor of at most e^`band` (0: no limit): in a gap between the rows that were
              learnt a tree jumps, and a curve does not.
              Trees also rise with the change of a column since the row before; below its range, where nothing was
              learnt of a machine at rest, the change counts as the lowest that was seen.
              With `near`, watts are those of least squares, `base_w` + Σ weight × feature, within a factor of e^`near`
              of all that: where the two agree, the straight line stands.
              With `lift`, the line stands where the first column, the strongest, is above its range: not below the
              watts at the end of that range, and at most a factor of e^`lift` above all that.
              Every part rises with every column, so watts never fall while use rises.
    linear, boosted   (idle + Σ weight × feature)^share × e^(Σ trees)
    """

    kind: str
    features: tuple[Feature, ...]
    ranges: tuple[Range, ...]
    least_w: float
    idle_w: float = 0.0
    weights: tuple[float, ...] = ()
    trees: tuple[Tree, ...] = ()
    share: float = 1.0
    plugin: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    curves: tuple[Curve | None, ...] = ()
    seen_w: float = 0.0
    most_w: float = 0.0
    band: float = 0.0
    near: float = 0.0
    base_w: float = 0.0
    lift: float = 0.0

    @property
    def changes(self) -> dict[int, int]:
        """Places of the changes of columns, each with the place of the column itself."""
        values = {feature.column: place for place, feature in enumerate(self.features) if feature.kind == "value"}
        return {p: values[f.column] for p, f in enumerate(self.features) if f.kind == "change" and f.column in values}

    def counted(self, places: Sequence[int]) -> list[int]:
        """Features whose range matters: these `places`, those with a weight, and every column that trees split."""
        found = {*places, *(place for place, weight in enumerate(self.weights) if weight)}
        if self.kind == "rising":
            found |= {place for place, feature in enumerate(self.features) if feature.kind == "log-ratio"}
        if self.trees or self.plugin:
            found |= {place for place, feature in enumerate(self.features) if feature.kind == "value"}
        return sorted(found)

    def watts(self, row: Sequence[float]) -> float:
        if self.kind == "rising":
            return self._hedged(row, self._rising(row))
        linear = self.idle_w
        for weight, value, limit in zip(self.weights, row, self.ranges, strict=False):
            if weight:
                reach = REACH * (limit.high - limit.low)
                linear += weight * min(max(value, limit.low - reach), limit.high + reach)
        linear = max(linear, self.least_w, 1e-9)
        if not self.trees:
            return linear
        logs = self.share * math.log(linear) + sum(tree.at(row) for tree in self.trees)
        return max(math.exp(min(logs, MOST_LOG)), self.least_w)

    def _rising(self, row: Sequence[float]) -> float:
        watts = self.idle_w
        inside = self.idle_w
        for curve, value, limit in zip(self.curves, row, self.ranges, strict=True):
            if curve is not None:
                watts += curve.watts(value)
                inside += curve.watts(min(max(value, limit.low), limit.high))
        if self.trees:
            row = list(row)
            for place, of in self.changes.items():
                if row[of] < self.ranges[of].low:
                    row[place] = self.ranges[place].low
            grown = math.exp(min(sum(tree.at(row) for tree in self.trees), MOST_LOG))
            if self.band:
                grown = min(max(grown, inside * math.exp(-self.band)), inside * math.exp(self.band))
            watts += self.share * (grown - inside)
        if watts > self.seen_w:
            room = self.most_w - self.seen_w
            watts = self.seen_w + (room * math.tanh((watts - self.seen_w) / room) if room > 0 else 0.0)
        return max(watts, self.least_w)

    def _hedged(self, row: Sequence[float], watts: float) -> float:
        if self.near:
            line: float = self.base_w + sum(map(operator.mul, self.weights, row))
            return min(max(line, watts * math.exp(-self.near)), watts * math.exp(self.near))
        over = self.ranges[0].excess(row[0]) if self.lift and row[0] > self.ranges[0].high else 0.0
        if not over:
            return watts
        inside = [min(value, limit.high) for value, limit in zip(row, self.ranges, strict=True)]
        line = self.base_w + sum(map(operator.mul, self.weights, [row[0], *inside[1:]]))
        most = watts * math.exp(self.lift * min(over / LIFT_OVER, 1.0))
        return min(max(line, self._rising([inside[0], *row[1:]])), most)


@dataclass(frozen=True, slots=True)
class Stuck:
    """Logarithms as in `Widths` where a column has no value, or the same one for more than `rows` rows."""

    rows: int
    below: float
    above: float


@dataclass(frozen=True, slots=True)
class Widths:
    """How wide the interval is: by how new a row is, compared with the rows that were learnt.

    columns   places of the features that count, their `weights`, and for each the `knots` that turn it into a rank
    centres   rows that stand for all that was learnt, in ranks
    novelty   rising; at each, the logarithms below and above the prediction that hold the asked share of truths
    out       what is added on both sides for each unit of log(1 + ranges outside of the training range)
    scales    for each centre how far the rows are that it stands for: distance is counted in these (empty: 1)
    stuck     for each column what is needed where it has no value, or the same one for too long
    """

    level: float
    places: tuple[int, ...]
    weights: tuple[float, ...]
    knots: tuple[tuple[float, ...], ...]
    centres: tuple[tuple[float, ...], ...]
    novelty: tuple[float, ...]
    below: tuple[float, ...]
    above: tuple[float, ...]
    out: float = 1.0
    scales: tuple[float, ...] = ()
    stuck: Mapping[str, Stuck] = field(default_factory=dict)

    def scaled(self, factor: float) -> Widths:
        """So many times as wide, but for what is added outside of the training range and where columns are stuck."""
        below, above = (tuple(factor * width for width in side) for side in (self.below, self.above))
        return replace(self, below=below, above=above)

    def new(self, row: Sequence[float]) -> float:
        """How far a row is from everything that was learnt: 0 is in the midst of it."""
        point = [rank_in(knots, row[place]) for place, knots in zip(self.places, self.knots, strict=True)]
        scales = self.scales or (1.0,) * len(self.centres)
        nearest = min(
            (
                sum(w * (a - b) ** 2 for w, a, b in zip(self.weights, point, centre, strict=True)) / scale**2
                for centre, scale in zip(self.centres, scales, strict=True)
            ),
            default=0.0,
        )
        return math.sqrt(nearest)

    def logs(self, novelty: float, excess: float, stuck: Sequence[str] = ()) -> tuple[float, float]:
        """Logarithms (below, above) at a novelty, wider for a row outside the training range or with columns stuck."""
        more = self.out * distance(excess)
        below = [along(self.novelty, self.below, novelty), *(self.stuck[name].below for name in stuck)]
        above = [along(self.novelty, self.above, novelty), *(self.stuck[name].above for name in stuck)]
        return min(max(below) + more, MOST_WIDTH), min(max(above) + more, MOST_WIDTH)


def distance(excess: float) -> float:
    """How far outside in logarithms, 0 inside: twice the watts are as far from once as once from half."""
    return math.log1p(max(excess, LEAST_OUT)) if excess > 0 else 0.0


def rank_in(knots: Sequence[float], value: float) -> float:
    """Where a value lies among rising knots, 0 to 1, and on beyond them by straight lines."""
    last = len(knots) - 1
    if last < 1 or knots[-1] <= knots[0]:
        return 0.0
    if value < knots[0] or value > knots[-1]:
        span = knots[-1] - knots[0]
        return max(-4.0, (value - knots[0]) / span) if value < knots[0] else min(5.0, 1 + (value - knots[-1]) / span)
    place = min(max(bisect_right(knots, value) - 1, 0), last - 1)
    step = knots[place + 1] - knots[place]
    return (place + ((value - knots[place]) / step if step > 0 else 1.0)) / last


def along(at: Sequence[float], values: Sequence[float], where: float) -> float:
    """A line through points; beyond the last one it rises with the logarithm of how far it is."""
    if where <= at[0]:
        return values[0]
    if where >= at[-1]:
        return values[-1] * (1.0 + math.log1p((where - at[-1]) / max(at[-1], 0.1))) if at[-1] > 0 else values[-1]
    place = bisect_right(at, where) - 1
    step = at[place + 1] - at[place]
    share = (where - at[place]) / step if step > 0 else 1.0
    return values[place] + share * (values[place + 1] - values[place])


class Prediction(NamedTuple):
    """Watts with their interval, and what was odd about the row: columns outside of what was learnt, farthest first."""

    watts: float
    low: float
    high: float
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted model with everything that is known of it.

    target, host   what was learnt, where
    period_s       the usual time between the rows that it was learnt from
    columns        range of each column while it was learnt; `units` where they are known
    gain, offset_w watts here = gain × watts of the model + offset (transferred to another machine)
    errors         every model that was tried, with its blocked and its leave-one-load-out error
    about          rows, seconds, loads, how it was validated, coverage, importances: for people
    without        for a column, the curves of all others: what is predicted from while that column says nothing
    """

    target: str
    form: Form
    widths: Widths
    period_s: float
    columns: Mapping[str, Range]
    units: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    gain: float = 1.0
    offset_w: float = 0.0
    errors: Sequence[Mapping[str, Any]] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Form] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns without which it cannot say anything."""
        return tuple(dict.fromkeys(name for feature in self.form.features for name in feature.columns))

    def predict(self, row: Sequence[float], still: Mapping[str, int] | None = None) -> Prediction:
        """Watts of one row of features (`History` makes them, and counts for how many rows a column stands still)."""
        stuck = [name for name, one in self.widths.stuck.items() if (still or {}).get(name, 0) > one.rows]
        return self.around(self.form.watts(row), row, stuck)

    def around(self, form_w: float, row: Sequence[float], stuck: Sequence[str] = ()) -> Prediction:
        """The prediction where the form says `form_w`, with its interval.

        Columns that are `stuck` are named as outside of what was learnt, and the first of them that `without` has is
        not used.
        """
        spare = next((self.without[name] for name in stuck if name in self.without), None)
        watts = max(self.gain * (form_w if spare is None else spare.watts(row)) + self.offset_w, 0.0)
        outside, excess = self.outside(row)
        below, above = self.widths.logs(self.widths.new(row), excess, stuck)
        named = tuple(dict.fromkeys((*outside, *stuck)))
        return Prediction(watts, watts * math.exp(-below), watts * math.exp(above), named)

    def outside(self, row: Sequence[float]) -> tuple[tuple[str, ...], float]:
        """Features of the row that are outside of their range, farthest first, and by how many ranges the first is."""
        excess = {place: self.form.ranges[place].excess(row[place]) for place in self.form.counted(self.widths.places)}
        places = sorted((place for place in excess if excess[place] > OUTSIDE), key=lambda place: -excess[place])
        return tuple(self.form.features[place].name for place in places), excess[places[0]] if places else 0.0
