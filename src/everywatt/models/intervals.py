"""Prediction intervals by conformal calibration under shift: the farther from the training rows, the wider.

Rows that are left out together err alike, so a fold counts as one witness: each says how wide its rows at a distance
needed the interval to be. How many of them are satisfied at each distance is a `Shape`; whichever is taken, one factor
then holds every fold (`validation.shifts`), and of the shapes the narrowest is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from everywatt.models.design import Ints, clusters
from everywatt.models.form import LEAST_OUT, LEAST_SPAN, LEAST_WIDENING, OUTSIDE, Form, Stuck, Widths
from everywatt.models.learners import figures, importances
from everywatt.models.table import Floats

LEVEL = 0.9
KNOTS = 17
CENTRES = 48
LEAST_ALIKE = 10  # rows for each centre, which needs some to have a spread
MOST_COUNTED = 12
LEAST_IN_STEP = 20  # rows of a fold, or half of a usual one in a short table: with fewer it is no witness there
WATCHED = 0.5  # weight of a ratio beside a column of mean importance
FAR = 5.0  # ranges: values further out count as that far
NEAR = 0.9  # quantile of the distance of the rows that a centre stands for
LEAST_AWAY = 0.01  # ranks: what the mean distance is at least
LEAST_WIDTH = 1e-9  # logarithm: an exact model has some width
LEAST_SPREAD = 0.1  # of the mean distance: rows that are all alike still have some


@dataclass(frozen=True)
class Map:
    """Where the rows that were learnt lie: what distance is measured against."""

    places: tuple[int, ...]
    weights: tuple[float, ...]
    knots: tuple[tuple[float, ...], ...]
    centres: Floats
    scales: Floats

    def novelty(self, x: Floats) -> Floats:
        """How far each row is from all that was learnt."""
        if not self.places:
            return np.zeros(len(x))
        return np.asarray((self.apart(x) / self.scales).min(axis=1))

    def apart(self, x: Floats) -> Floats:
        """The distance of each row from each centre."""
        points = self.points(x)[:, None, :]
        return np.asarray(np.sqrt(((points - self.centres[None, :, :]) ** 2 * np.array(self.weights)).sum(axis=2)))

    def points(self, x: Floats) -> Floats:
        """Rows as ranks of the features that count; the same as `form.rank_in` for each value."""
        return np.column_stack([_rank(knots, x[:, p]) for p, knots in zip(self.places, self.knots, strict=True)])


NOWHERE = Map((), (), (), np.zeros((0, 0)), np.zeros(0))


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
        return NOWHERE
    share = importances(form, x)
    follows = [int(p) for p in np.argsort(-share) if share[p] > 0 and form.features[p].kind != "change"]
    ratios = [p for p, feature in enumerate(form.features) if feature.kind == "log-ratio"]
    places = (*follows[:MOST_COUNTED], *ratios)
    if not places:
        return NOWHERE
    usual = 1 / max(len(follows), 1)
    size = np.array([share[p] if p in follows else WATCHED * usual for p in places])
    knots = tuple(tuple(float(k) for k in np.quantile(x[:, p], np.linspace(0, 1, KNOTS))) for p in places)
    weights = tuple(float(w) for w in size / size.sum())
    bare = Map(places, weights, knots, np.zeros((0, len(places))), np.zeros(0))
    centres, nearest = clusters(bare.points(x) * np.sqrt(size), max(1, min(CENTRES, len(x) // LEAST_ALIKE)))
    bare = replace(bare, centres=centres / np.sqrt(size))
    # A gap beside rows that are all alike (an idle machine) is farther away than one among rows that vary.
    away = bare.apart(x)[np.arange(len(x)), nearest]
    spread = [float(np.quantile(away[nearest == one], NEAR)) for one in range(len(centres))]
    return replace(bare, scales=np.array(spread) + LEAST_SPREAD * max(float(away.mean()), LEAST_AWAY))


def stuck_of(rows: int, witnesses: Sequence[Floats], level: float = LEVEL) -> Stuck:
    """Widths where a column is stuck, from left-out rows in which it was: log(truth / prediction) of each fold."""
    (below,), (above,) = _sides([[np.sort(one) for one in witnesses]], level, 1.0, 0.5)
    return Stuck(rows, below, above)


def widening(form: Form, places: Sequence[int], x: Floats) -> Floats:
    """What is added on both sides for rows outside the training range; the same as `Widths.logs` does for each."""
    counted = form.counted(places)
    if not counted:
        return np.zeros(len(x))
    low, high, _ = np.array([form.ranges[place] for place in counted]).T
    span = np.maximum(np.maximum(high - low, np.abs(high) * LEAST_SPAN[0]), LEAST_SPAN[1])
    worst = np.maximum((x[:, counted] - high) / span, (low - x[:, counted]) / span).max(axis=1)
    return np.where(worst > OUTSIDE, LEAST_WIDENING * np.log1p(np.maximum(worst, LEAST_OUT)), 0.0)


class Shape(NamedTuple):
    """How widths follow from left-out rows.

    steps   of distance, each with a width of its own
    share   of the folds at a step that its width satisfies
    split   of the misses that may be above
    """

    steps: int
    share: float
    split: float


SHAPES = tuple(itertools.starmap(Shape, itertools.product((1, 2, 4), (0.5, 0.75, 0.9), (0.1, 0.5, 0.9))))


class Witnesses:
    """Left-out rows: their fold, their novelty and log(truth / prediction); each fold says what its rows need."""

    def __init__(self, fold: Ints, novelty: Floats, errors: Floats) -> None:
        self._fold, self._novelty, self._errors = fold, novelty, errors
        self._order = np.argsort(novelty, kind="stable")
        self._usual = float(np.median(np.unique(fold, return_counts=True)[1]))
        self._by_step: dict[int, tuple[tuple[float, ...], list[list[Floats]]]] = {}

    def widths(self, place: Map, level: float, shape: Shape) -> Widths:
        """Widths of a shape."""
        steps = max(1, min(shape.steps, int(self._usual / (2 * LEAST_IN_STEP))))  # so that most folds count at each
        if steps not in self._by_step:
            self._by_step[steps] = self._groups(steps)
        at, groups = self._by_step[steps]
        below, above = _sides(groups, level, shape.share, shape.split)
        centres, scales = tuple(tuple(figures(centre, 4)) for centre in place.centres), tuple(figures(place.scales, 4))
        return Widths(
            level, place.places, place.weights, place.knots, centres, at, below, above, LEAST_WIDENING, scales
        )

    def _groups(self, steps: int) -> tuple[tuple[float, ...], list[list[Floats]]]:
        """The median novelty of each step, and the errors of each fold there, rising."""
        parts = np.array_split(self._order, steps)
        found = []
        for part in parts:
            fold, errors = self._fold[part], self._errors[part]
            groups = [np.sort(errors[fold == one]) for one in np.unique(fold)]
            found.append([g for g in groups if len(g) >= min(LEAST_IN_STEP, self._usual / 2)] or [np.sort(errors)])
        return tuple(float(np.median(self._novelty[part])) for part in parts), found


def _sides(
    witnesses: Sequence[Sequence[Floats]], level: float, share: float, split: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Widths below and above at each step, never falling."""
    sides = []
    for sign, misses in ((-1.0, (1 - level) * (1 - split)), (1.0, (1 - level) * split)):
        needs = [[_rising_quantile(sign, one, 1 - misses) for one in groups] for groups in witnesses]
        least = [float(np.quantile(one, share, method="higher")) for one in needs]
        sides.append(tuple(float(width) for width in np.maximum.accumulate(np.maximum(least, 0.0))))
    return sides[0], sides[1]


def _rising_quantile(sign: float, ordered: Floats, share: float) -> float:
    """`conformal_quantile` of sign × values that are in order already, in the upper half."""
    place = min(math.ceil((len(ordered) + 1) * share), len(ordered))
    return float(ordered[place - 1] if sign > 0 else -ordered[-place])


def strain(widths: Widths, novelty: Floats, errors: Floats, more: Floats | float = 0.0) -> Floats:
    """For each left-out row how many times the width it needs, 1 or less where the truth is inside.

    `more` is added on both sides, whatever the width.
    """
    below, above = widths_at(widths, novelty)
    return (np.abs(errors) - more) / np.maximum(np.where(errors < 0, below, above), LEAST_WIDTH)


def widths_at(widths: Widths, novelty: Floats) -> tuple[Floats, Floats]:
    """Widths below and above of rows; the same as `form.along` for each."""
    last = widths.novelty[-1]
    beyond = 1 + np.log1p(np.maximum(novelty - last, 0.0) / max(last, 0.1)) if last > 0 else np.ones(len(novelty))
    below, above = (np.interp(novelty, widths.novelty, side) * beyond for side in (widths.below, widths.above))
    return below, above
