"""Prediction intervals by conformal calibration under shift: the farther from the training rows, the wider.

Rows that are left out together err alike, so a fold counts as one witness: each says how wide its rows at a distance
needed the interval to be, and most of the folds are satisfied (not most of the rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everywatt.core.stats import conformal_quantile
from everywatt.models.folds import Ints, clusters
from everywatt.models.form import LEAST_WIDENING, Form, Widths, along
from everywatt.models.learners import importances
from everywatt.models.table import Floats

LEVEL = 0.9
KNOTS = 17
CENTRES = 48
MOST_COUNTED = 12
STEPS = 6
LEAST_IN_STEP = 20  # rows of a fold, below which it is no witness there
SPLITS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the misses: those above
WATCHED = 0.5  # weight of a ratio beside a column of mean importance
FAR = 5.0  # ranges: values further out count as that far


@dataclass(frozen=True)
class Map:
    """Where the rows that were learnt lie: what distance is measured against."""

    places: tuple[int, ...]
    weights: tuple[float, ...]
    knots: tuple[tuple[float, ...], ...]
    centres: Floats

    def novelty(self, x: Floats) -> Floats:
        """How far each row is from all that was learnt."""
        if not self.places:
            return np.zeros(len(x))
        apart = ((self.points(x)[:, None, :] - self.centres[None, :, :]) ** 2 * np.array(self.weights)).sum(axis=2)
        return np.asarray(np.sqrt(apart.min(axis=1)))

    def points(self, x: Floats) -> Floats:
        """Rows as ranks of the features that count; the same as `form.rank_in` for each value."""
        return np.column_stack([_rank(knots, x[:, p]) for p, knots in zip(self.places, self.knots, strict=True)])


def _rank(knots: Sequence[float], values: Floats) -> Floats:
    low, high = knots[0], knots[-1]
    if high <= low:
        return np.zeros(len(values))
    inside = np.interp(values, knots, np.linspace(0, 1, len(knots)))
    span = high - low
    under = np.maximum((values - low) / span, -FAR + 1)
    over = np.minimum(1 + (values - high) / span, FAR)
    return np.where(values < low, under, np.where(values > high, over, inside))


def map_of(form: Form, x: Floats) -> Map:
    """The map of the rows that a form was fitted to: by the columns that it follows and the ratios that it watches."""
    if not form.features:
        return Map((), (), (), np.zeros((0, 0)))
    share = importances(form, x)
    follows = [int(p) for p in np.argsort(-share) if share[p] > 0]
    ratios = [p for p, feature in enumerate(form.features) if feature.kind == "log-ratio"]
    places = (*follows[:MOST_COUNTED], *ratios)
    if not places:
        return Map((), (), (), np.zeros((0, 0)))
    usual = 1 / max(len(follows), 1)
    size = np.array([share[p] if p in follows else WATCHED * usual for p in places])
    knots = tuple(tuple(float(k) for k in np.quantile(x[:, p], np.linspace(0, 1, KNOTS))) for p in places)
    weights = tuple(float(w) for w in size / size.sum())
    bare = Map(places, weights, knots, np.zeros((0, len(places))))
    centres = clusters(bare.points(x) * np.sqrt(size), CENTRES)[0] / np.sqrt(size)
    return Map(places, weights, knots, centres)


def widths_of(place: Map, fold: Ints, novelty: Floats, errors: Floats, level: float = LEVEL) -> Widths:
    """Widths from left-out rows: their fold, their novelty and log(truth / prediction).

    Misses are allowed on the side with the longer tail: of the splits between above and below the narrowest is taken.
    """
    steps = max(1, min(STEPS, len(errors) // (5 * LEAST_IN_STEP)))
    parts = np.array_split(np.argsort(novelty, kind="stable"), steps)
    at = tuple(float(np.median(novelty[part])) for part in parts)
    witnesses = []
    for part in parts:
        groups = [errors[part[fold[part] == one]] for one in np.unique(fold[part])]
        witnesses.append([group for group in groups if len(group) >= LEAST_IN_STEP] or [errors[part]])
    below, above = min(
        (_sides(witnesses, level, split) for split in SPLITS), key=lambda sides: sum(sides[0]) + sum(sides[1])
    )
    centres = tuple(tuple(float(f"{v:.4g}") for v in centre) for centre in place.centres)
    return Widths(level, place.places, place.weights, place.knots, centres, at, below, above, LEAST_WIDENING)


def _sides(
    witnesses: Sequence[Sequence[Floats]], level: float, split: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Widths below and above at each step, never falling, where `split` of the misses may be above."""
    sides = []
    for sign, misses in ((-1.0, (1 - level) * (1 - split)), (1.0, (1 - level) * split)):
        widths = []
        for groups in witnesses:
            needs = [conformal_quantile((sign * group).tolist(), 1 - misses) for group in groups]
            widths.append(max(0.0, conformal_quantile(needs, level)))
        sides.append(tuple(float(width) for width in np.maximum.accumulate(widths)))
    return sides[0], sides[1]


def covered(widths: Widths, novelty: Floats, errors: Floats) -> Floats:
    """For each left-out row whether the truth is inside, as 1 or 0."""
    found = novelty.tolist()
    below = np.array([along(widths.novelty, widths.below, new) for new in found])
    above = np.array([along(widths.novelty, widths.above, new) for new in found])
    return np.asarray((-below <= errors) & (errors <= above), dtype=np.float64)
