"""Prediction intervals by conformal calibration: as wide as left-out truths demand, wider where a row is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from everywatt.core.stats import conformal_quantile
from everywatt.models.form import LEAST_WIDENING, Form, Widths, along, distance, rank_in
from everywatt.models.learners import importances
from everywatt.models.loads import centres_of
from everywatt.models.table import Floats

LEVEL = 0.9
KNOTS = 17
CENTRES = 48
MOST_COUNTED = 8
LEAST_IMPORTANCE = 0.01
STEPS = 5
LEAST_IN_STEP = 40
LEAST_OUTSIDE = 10


@dataclass(frozen=True)
class Map:
    """Where the rows that were learnt lie: what novelty is measured against."""

    places: tuple[int, ...]
    weights: tuple[float, ...]
    knots: tuple[tuple[float, ...], ...]
    centres: Floats

    def novelty(self, x: Floats) -> Floats:
        """How far each row is from all that was learnt."""
        if not self.places:
            return np.zeros(len(x))
        points = self.points(x)
        weights = np.array(self.weights)
        apart = ((points[:, None, :] - self.centres[None, :, :]) ** 2 * weights).sum(axis=2)
        return np.asarray(np.sqrt(apart.min(axis=1)))

    def points(self, x: Floats) -> Floats:
        """Rows as ranks of the features that count."""
        columns = [
            [rank_in(knots, value) for value in x[:, place].tolist()]
            for place, knots in zip(self.places, self.knots, strict=True)
        ]
        return np.array(columns).T


def map_of(form: Form, x: Floats) -> Map:
    """The map of the rows that a form was fitted to."""
    share = importances(form, x) if form.features else np.zeros(0)
    best = [int(p) for p in np.argsort(-share)[:MOST_COUNTED] if share[p] >= LEAST_IMPORTANCE]
    if not best:
        return Map((), (), (), np.zeros((0, 0)))
    knots = tuple(tuple(float(k) for k in np.quantile(x[:, p], np.linspace(0, 1, KNOTS))) for p in best)
    weights = tuple(float(w) for w in share[best] / share[best].sum())
    bare = Map(tuple(best), weights, knots, np.zeros((0, len(best))))
    return Map(bare.places, weights, knots, centres_of(bare.points(x), CENTRES))


def widths_of(place: Map, novelty: Floats, errors: Floats, level: float = LEVEL) -> Widths:
    """Widths from the left-out rows: their novelty and log(truth / prediction)."""
    count = max(1, min(STEPS, len(errors) // LEAST_IN_STEP))
    order = np.argsort(novelty, kind="stable")
    at, below, above = [], [], []
    for part in np.array_split(order, count):
        at.append(float(np.median(novelty[part])))
        below.append(max(0.0, -conformal_quantile(errors[part].tolist(), (1 - level) / 2)))
        above.append(max(0.0, conformal_quantile(errors[part].tolist(), (1 + level) / 2)))
    below, above = np.maximum.accumulate(below).tolist(), np.maximum.accumulate(above).tolist()
    at = np.maximum.accumulate(at).tolist()
    centres = tuple(tuple(float(f"{v:.4g}") for v in centre) for centre in place.centres)
    return Widths(level, place.places, place.weights, place.knots, centres, tuple(at), tuple(below), tuple(above))


def cautious(widths: Widths, factor: float) -> Widths:
    """Widths times a factor at the newest rows, and the less of it the less new a row is."""
    return replace(
        widths,
        below=tuple(v + (factor - 1) * more for v, more in zip(widths.below, graded(widths.below), strict=True)),
        above=tuple(v + (factor - 1) * more for v, more in zip(widths.above, graded(widths.above), strict=True)),
    )


def graded(values: Sequence[float]) -> tuple[float, ...]:
    """Values times 0 at the first, 1 at the last, and evenly between."""
    last = max(len(values) - 1, 1)
    return tuple(value * place / last for place, value in enumerate(values))


def factors(widths: Widths, novelty: Floats, errors: Floats) -> Floats:
    """The factor of `cautious` that each row needs to be inside; below 1 where it is so anyhow."""
    needs = []
    for new, error in zip(novelty.tolist(), errors.tolist(), strict=True):
        side = widths.above if error > 0 else widths.below
        lacking = abs(error) - along(widths.novelty, side, new)
        more = along(widths.novelty, graded(side), new)
        needs.append(1.0 + lacking / max(more, 1e-12))
    return np.array(needs)


def widened(widths: Widths, folds: Sequence[tuple[Floats, Floats, Floats]]) -> Widths:
    """Widths that know how much more is needed outside: from (novelty, errors, excess) of parts that were left out.

    Rows of one part err alike, so each part says how steeply intervals must widen to hold its rows, and nine of ten
    parts are heeded; to which side the next one errs is not known. As they are where no part was outside.
    """
    needs = []
    for novelty, errors, excess in folds:
        out = np.flatnonzero(excess > 0)
        if len(out) >= LEAST_OUTSIDE:
            inner = np.array([widths.logs(new, 0.0) for new in novelty[out].tolist()])
            far = np.array([distance(value) for value in excess[out].tolist()])
            lacking = np.maximum(-errors[out] - inner[:, 0], errors[out] - inner[:, 1])
            needs.append(conformal_quantile((lacking / far).tolist(), widths.level))
    if not needs:
        return widths
    return replace(widths, out=max(conformal_quantile(needs, widths.level), LEAST_WIDENING))


def covered(widths: Widths, novelty: Floats, errors: Floats, excess: Floats | None = None) -> Floats:
    """For each left-out row whether the truth is inside, as 1 or 0."""
    inside = []
    for place, (new, error) in enumerate(zip(novelty.tolist(), errors.tolist(), strict=True)):
        below, above = widths.logs(new, 0.0 if excess is None else float(excess[place]))
        inside.append(-below <= error <= above)
    return np.array(inside, dtype=np.float64)
