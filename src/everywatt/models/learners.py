"""The models that are tried, from plain to rich, and the entry point for others.

All of them are idle watts plus what each column adds, and none of them falls while a column rises: a column stands for
use, and use costs power. `linear` adds one slope for each column, `curved` lines that may bend, and `mixed` refines
`curved` by boosted trees, which also follow how much a column has just risen. Outside the training range all of them
continue as `curved` does.

A third-party learner is an entry point of the group `everywatt.models`: an object with `name`,
`fit(x, y, names) -> payload` (plain JSON data) and `predict(payload, x) -> watts`. A model file names the learner and
holds the payload; it is evaluated by the learner that is installed under that name, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from everywatt.core.errors import EverywattError, MissingExtra, UsageError
from everywatt.core.plugins import MODELS, library, load_plugin, registered
from everywatt.models.features import Feature
from everywatt.models.form import LEAST_SHARE, LEAST_SPAN, LIFT_OVER, MOST_LOG, Curve, Form, Range, Tree
from everywatt.models.table import Floats

MOST_ROWS = 20_000  # neither trees nor lines get better by more rows than that, only slower
KNOTS = (0.25, 0.5, 0.75)  # of a column's range: where its line may bend
RIDGE_LINE, RIDGE_BEND = 1e-6, 1e-2  # of the mean square: what slopes and bends have to earn
BAND = 0.98  # of the rows: trees may differ from the curves by as much as they do in so many rows that were learnt
# Ranges beyond the training range: where the worst error of ranges left out is least, if a curve flattens in its range,
# and twice that if it shows no sign of saturation.
SATURATES = {True: 2.0, False: 4.0}
NEAR = (0.02, 0.05, 0.1, 0.2, 0.5)  # logarithms: how far least squares may be from a model that it stands in for
LIFT = 0.2  # logarithm: the same where the strongest column is above its range
MOST_RANGE = 3.0  # watts above idle: at most so many times the largest that was seen


class Learner(Protocol):
    """A third-party model."""

    name: str

    def fit(self, x: Floats, y: Floats, names: Sequence[str]) -> Mapping[str, Any]: ...
    def predict(self, payload: Mapping[str, Any], x: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model to try: its name for people, and its kind. A baseline is compared with and never chosen.

    With `near`, least squares within a factor of e^near of that model; with `lift`, least squares where the strongest
    column is above its range, within a factor of e^lift above that model.
    """

    name: str
    kind: str
    features: tuple[Feature, ...]
    baseline: bool = False
    near: float = 0.0
    lift: float = 0.0


def hedges(candidate: Candidate) -> list[Candidate]:
    """A model with least squares beside it, in each way that is tried."""
    near = [replace(candidate, name=f"{candidate.name} ~ {near:.0%}", near=near) for near in NEAR]
    return [*near, replace(candidate, name=f"{candidate.name} + line", lift=LIFT)]


def candidates(used: Sequence[Feature], watched: Sequence[Feature], changes: Sequence[Feature] = ()) -> list[Candidate]:
    """Everything that is tried, baselines first.

    `used` are the columns that watts follow, `watched` those of which only the range counts (ratios of columns),
    `changes` what only trees follow.
    """
    features = (*used, *watched)
    tried = [
        Candidate("mean", "mean", features, baseline=True),
        Candidate("least squares", "least squares", features, baseline=True),
        Candidate("linear", "linear", features),
        Candidate("curved", "curved", features),
        Candidate("mixed", "mixed", (*features, *changes)),
    ]
    return tried + [Candidate(name, "plugin", tuple(used)) for name in sorted(registered(MODELS))]


def learner(name: str) -> Learner:
    """The installed learner of that name; UsageError if it is not installed."""
    made: Learner | None = load_plugin(MODELS, name)
    if made is None:
        raise UsageError(f"The model was made with the learner '{name}', which is not installed here.")
    return made


def fit_form(candidate: Candidate, x: Floats, y: Floats, *, without: str = "") -> Form:
    """A candidate fitted to rows: x has its features, y watts above zero.

    `without` a column, its curves only, from the others: what is predicted from where that column says nothing.
    """
    if len(x) > MOST_ROWS:
        keep = np.linspace(0, len(x) - 1, MOST_ROWS).astype(int)
        x, y = x[keep], y[keep]
    ranges = tuple(range_of(column) for column in x.T)
    least = LEAST_SHARE * float(y.min())
    features = candidate.features
    if candidate.kind == "mean":
        return Form("mean", (), (), least, idle_w=_central(y))
    if candidate.kind == "plugin":
        payload = dict(learner(candidate.name).fit(x, y, [feature.name for feature in features]))
        return Form("plugin", features, ranges, least, plugin=candidate.name, payload=payload)
    used = [p for p, f in enumerate(features) if f.kind not in ("log-ratio", "change") and f.column != without]
    split = [place for place, feature in enumerate(features) if feature.kind != "log-ratio"]
    if candidate.kind == "least squares":
        return Form("least squares", features, ranges, 0.0, *_least_squares(x, y, used))
    idle_w, curves = _fit_curves(x[:, used], y, () if candidate.kind == "linear" else KNOTS)
    of = dict(zip(used, curves, strict=True))
    form = Form(
        "rising",
        features,
        ranges,
        least,
        idle_w,
        curves=tuple(of.get(place) for place in range(len(features))),
        seen_w=float(y.max()),
        most_w=float(idle_w + MOST_RANGE * max(y.max() - idle_w, 0.0)),
    )
    if without:
        return form
    if candidate.kind == "mixed":
        trees = grow(x, np.log(y), split)
        apart = np.abs(sum_of(trees, x) - np.log(np.maximum(predict_form(form, x), 1e-9)))
        form = replace(form, trees=tuple(trees), band=float(np.quantile(apart, BAND)))
    if candidate.near or candidate.lift:
        base_w, weights = _least_squares(x, y, used)
        form = replace(form, near=candidate.near, lift=candidate.lift, base_w=base_w, weights=weights)
    return form


def range_of(values: Floats) -> Range:
    """The range of the values that are known."""
    known = values[np.isfinite(values)]
    return Range(float(known.min()), float(known.max()), float(np.median(known)))


def _fit_curves(
    x: Floats, y: Floats, knots: Sequence[float], *, relative: bool = True
) -> tuple[float, tuple[Curve, ...]]:
    """Idle watts and a rising curve for each column, by non-negative least squares of the relative error.

    A column's curve is a slope over its whole range plus, for each knot, a slope below and one above it. Slopes are
    not negative; bends are held back by a ridge, so that a line remains where the rows do not demand one.
    """
    nnls = library("scipy.optimize", "models").nnls
    low, high = x.min(axis=0), x.max(axis=0)
    start = np.minimum(low, 0.0)  # use begins at zero, whether or not that was seen
    pieces: list[Floats] = [np.ones(len(y))]
    spans: list[tuple[int, float, float]] = []
    for place in range(x.shape[1]):
        bends = [low[place] + share * (high[place] - low[place]) for share in knots]
        halves = [half for bend in bends for half in ((start[place], bend), (bend, high[place]))]
        for first, last in [(start[place], high[place]), *halves]:
            pieces.append(np.clip(x[:, place], first, last) - first)
            spans.append((place, float(first), float(last)))
    made = np.column_stack(pieces)
    size = np.maximum(np.abs(made).max(axis=0), 1e-300)
    weight = 1 / y if relative else np.full(len(y), 1 / np.median(y))
    per = 1 + 2 * len(knots)
    ridge = np.array([0.0, *(RIDGE_LINE if k % per == 0 else RIDGE_BEND for k in range(len(spans)))])
    hold = np.diag(np.sqrt(ridge * len(y))) / np.median(y)
    rows = np.vstack([made / size * weight[:, None], hold]) if relative else made / size * weight[:, None]
    wanted = np.concatenate([y * weight, np.zeros(len(rows) - len(y))])
    slopes = nnls(rows, wanted, maxiter=100 * rows.shape[1])[0] / size
    curves = []
    for place in range(x.shape[1]):
        mine = [(a, b, s) for (p, a, b), s in zip(spans, slopes[1:].tolist(), strict=True) if p == place]
        at = sorted({edge for a, b, _ in mine for edge in (a, b)})
        points = tuple((edge, sum(s * (min(max(edge, a), b) - a) for a, b, s in mine)) for edge in at)
        (least, idle_w), (most, full_w) = points[0], points[-1]
        flattens = Curve(points).slope * (most - least) < (1 - 1e-9) * (full_w - idle_w)
        curves.append(Curve(points, SATURATES[flattens] * float(high[place] - low[place])))
    return float(slopes[0]), tuple(curves)


def _least_squares(x: Floats, y: Floats, used: Sequence[int]) -> tuple[float, tuple[float, ...]]:
    """Idle watts and a weight for each column of x, not negative; 0 for those that are not used."""
    idle_w, curves = _fit_curves(x[:, used], y, (), relative=False)
    weights = np.zeros(x.shape[1])
    weights[used] = [curve.points[-1][1] / max(curve.points[-1][0], 1e-300) for curve in curves]
    return idle_w, tuple(weights.tolist())


def _central(y: Floats) -> float:
    """The constant with the least relative error: a median in which low watts count more."""
    order = np.argsort(y)
    reached = np.cumsum(1 / y[order])
    return float(y[order][np.searchsorted(reached, reached[-1] / 2)])


def predict_form(form: Form, x: Floats) -> Floats:
    """Watts of many rows; the same as `Form.watts` for each."""
    if form.kind == "plugin":
        return np.asarray(learner(form.plugin).predict(form.payload, x), dtype=np.float64)
    if form.kind == "least squares":
        return np.asarray(form.idle_w + x @ np.array(form.weights))
    if form.kind == "rising":
        return hedged(form, x, _predict_rising(form, x))
    return np.array([form.watts(row) for row in x.tolist()])  # the mean, and files of earlier versions


def _predict_rising(form: Form, x: Floats) -> Floats:
    watts, inside = np.full(len(x), form.idle_w), np.full(len(x), form.idle_w)
    for place, (curve, limit) in enumerate(zip(form.curves, form.ranges, strict=True)):
        if curve is None:
            continue
        at, height = (np.array(values) for values in zip(*curve.points, strict=True))
        watts += np.interp(x[:, place], at, height)
        inside += np.interp(np.clip(x[:, place], limit.low, limit.high), at, height)
        if curve.reach > 0:
            watts += curve.slope * curve.reach * np.tanh(np.maximum(x[:, place] - at[-1], 0.0) / curve.reach)
    if form.trees:
        x = x.copy()
        for place, of in form.changes.items():
            x[:, place] = np.where(x[:, of] < form.ranges[of].low, form.ranges[place].low, x[:, place])
        grown = np.exp(np.minimum(sum_of(form.trees, x), MOST_LOG))
        if form.band:
            grown = np.clip(grown, inside * np.exp(-form.band), inside * np.exp(form.band))
        watts += form.share * (grown - inside)
    room = form.most_w - form.seen_w
    over = np.maximum(watts - form.seen_w, 0.0)
    watts = np.minimum(watts, form.seen_w) + (room * np.tanh(over / room) if room > 0 else 0.0)
    return np.asarray(np.maximum(watts, form.least_w))


def hedged(form: Form, x: Floats, watts: Floats) -> Floats:
    """Watts of rows with least squares beside them, where those of the model alone are `watts`."""
    if form.near:
        line = form.base_w + x @ np.array(form.weights)
        return np.asarray(np.clip(line, watts * np.exp(-form.near), watts * np.exp(form.near)))
    above = np.flatnonzero(x[:, 0] > form.ranges[0].high) if form.lift else ()
    if not len(above):
        return watts
    low, high, _ = np.array(form.ranges).T
    row, inside = x[above].copy(), np.minimum(x[above], high)
    over = (row[:, 0] - high[0]) / max(high[0] - low[0], abs(high[0]) * LEAST_SPAN[0], LEAST_SPAN[1])
    line = form.base_w + np.column_stack([row[:, 0], inside[:, 1:]]) @ np.array(form.weights)
    row[:, 0] = high[0]
    most = watts[above] * np.exp(form.lift * np.minimum(over / LIFT_OVER, 1.0))
    watts = watts.copy()
    watts[above] = np.minimum(np.maximum(line, _predict_rising(form, row)), most)
    return watts


def importances(form: Form, x: Floats) -> Floats:
    """How much each feature moves the prediction over the rows, as shares of the sum; ratios, which do not, have 0."""
    share = np.zeros(len(form.features))
    if form.kind == "plugin":
        return np.full(len(share), 1 / max(len(share), 1))
    middle = np.median(x, axis=0) if len(x) else x
    for place in range(len(share)):
        varied = np.tile(middle, (9, 1))
        varied[:, place] = np.quantile(x[:, place], np.linspace(0, 1, 9))
        share[place] = np.ptp(predict_form(form, varied))
    return share / share.sum() if share.sum() > 0 else share


CHECKED_ROWS = 64
TREES, FEW_TREES = 60, 40
FEW_ROWS = 400
LEAVES = 31
RATE, FAST_RATE = 0.1, 0.15
LEAST_IN_LEAF = 5  # rows, so that a load of a quarter of a minute counts; a twentieth of a small table


def grow(x: Floats, logs: Floats, places: Sequence[int]) -> list[Tree]:
    """Trees whose sum follows `logs` and rises with these columns of `x`; constant outside the range of each."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("scikit-learn", "models") from None
    few = len(x) < FEW_ROWS
    in_leaf = max(1, min(LEAST_IN_LEAF, len(x) // 20))
    growing = HistGradientBoostingRegressor(
        learning_rate=FAST_RATE if few else RATE,
        max_iter=FEW_TREES if few else TREES,
        max_leaf_nodes=LEAVES,
        min_samples_leaf=in_leaf,
        l2_regularization=1.0,
        monotonic_cst=[1] * len(places),
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(limits=1):  # on MOST_ROWS at most threads wait for each other longer than they work
        fitted = growing.fit(x[:, places], logs)
        some = x[:: max(1, len(x) // CHECKED_ROWS)]
        expected = fitted.predict(some[:, places])
    base = float(np.ravel(fitted._baseline_prediction)[0])
    trees = [Tree((-1,), (0.0,), (0,), (0,), (base,))]
    trees += [_plain(stage[0].nodes, np.array(places)) for stage in fitted._predictors]
    # The lists come from inside scikit-learn: a version that keeps them otherwise must not pass unnoticed.
    if not np.allclose(sum_of(trees, some), expected, rtol=1e-4, atol=1e-4):
        raise EverywattError(
            "The trees of this scikit-learn version cannot be exported.", cure="pip install -U everywatt"
        )
    ordered = np.sort(x, axis=0)
    return [_sloped(tree, ordered, in_leaf) for tree in trees]


def _sloped(tree: Tree, ordered: Floats, rows: int) -> Tree:
    """The tree with each step spread over as many rows as a leaf has at least, on either side of it.

    Where rows are dense that is next to nothing; over a gap between two loads it is a straight line.
    """
    first, last = list(tree.threshold), list(tree.threshold)
    for node, place in enumerate(tree.feature):
        if place >= 0:
            values = ordered[:, place]
            step = int(np.searchsorted(values, tree.threshold[node], side="right"))
            first[node] = float(values[max(step - rows, 0)])
            last[node] = float(values[min(step + rows, len(values)) - 1])
    return replace(tree, threshold=tuple(first), until=tuple(last))


def _plain(nodes: Any, places: Any) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        tuple(np.where(leaf, -1, places[np.where(leaf, 0, nodes["feature_idx"])]).tolist()),
        tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
        tuple(np.where(leaf, 0, nodes["left"].astype(np.int64)).tolist()),
        tuple(np.where(leaf, 0, nodes["right"].astype(np.int64)).tolist()),
        tuple(figures(np.where(leaf, nodes["value"], 0.0), 9)),
    )


def figures(values: Floats, digits: int) -> list[float]:
    """Values with so many significant figures, so that the file stays small."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def sum_of(trees: Sequence[Tree], x: Floats) -> Floats:
    """The sum of the trees for each row; the same as `Tree.at` for each."""
    starts = np.cumsum([0, *(len(tree.feature) for tree in trees[:-1])])
    feature, first, value = (
        np.concatenate([getattr(t, key) for t in trees]) for key in ("feature", "threshold", "value")
    )
    last = np.concatenate([tree.until or tree.threshold for tree in trees])
    left, right = (
        np.concatenate([np.add(getattr(tree, side), start) for tree, start in zip(trees, starts, strict=True)])
        for side in ("left", "right")
    )
    # Every walk of a row through a tree, a step at a time; where both sides count, one walk becomes two.
    rows, node = np.tile(np.arange(len(x)), len(trees)), np.repeat(starts, len(x))
    weight, total = np.ones(len(rows)), np.zeros(len(x))
    while len(rows):
        ends = feature[node] < 0
        total += np.bincount(rows[ends], weight[ends] * value[node[ends]], len(x))
        rows, node, weight = rows[~ends], node[~ends], weight[~ends]
        at, low, high = x[rows, feature[node]], first[node], last[node]
        share = np.where(at >= high, 1.0, (at - low) / np.where(high > low, high - low, 1.0))
        share[at <= low] = 0.0
        to_left, to_right = share < 1, share > 0
        rows = np.concatenate([rows[to_left], rows[to_right]])
        weight = np.concatenate([(weight * (1 - share))[to_left], (weight * share)[to_right]])
        node = np.concatenate([left[node[to_left]], right[node[to_right]]])
    return total
