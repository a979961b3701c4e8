"""How far off a model is on rows it has not seen: blocks of time left out in turn, and loads left out in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everywatt.models.form import OUTSIDE, Form, Widths
from everywatt.models.intervals import Map, cautious, covered, factors, map_of, widths_of
from everywatt.models.learners import Candidate, fit_form, predict_form
from everywatt.models.loads import Ints
from everywatt.models.table import Floats

MOST_CAUTION = 2.0
NEARLY = 0.07  # of the rows: what a part may hold less than was asked for
LEAST_PART = 10
NOWHERE = Map((), (), (), np.zeros((0, 0)))
NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Held:
    """What was said of rows while they were left out: watts, novelty and how far outside of the range; by fold."""

    rows: Ints
    fold: Ints
    watts: Floats
    novelty: Floats
    excess: Floats


@dataclass(frozen=True)
class Score:
    """Errors of one candidate: in percent of the watts (mean, and of each fold), in watts, and what was held out."""

    candidate: Candidate
    blocked_pct: float
    blocked_w: float
    blocks_pct: tuple[float, ...]
    loads_pct: float
    blocked: Held
    loaded: Held

    @property
    def worst_pct(self) -> float:
        """The worse of the two errors."""
        return max(self.blocked_pct, self.loads_pct)


def mape(watts: Floats, truth: Floats) -> float:
    """Mean absolute error in percent of the truth."""
    return float(100 * np.mean(np.abs(watts - truth) / truth))


def excess_of(form: Form, x: Floats, places: Sequence[int]) -> Floats:
    """By how many ranges the worst feature that counts is outside; 0 inside."""
    worst = np.zeros(len(x))
    for place in form.counted(places):
        limit = form.ranges[place]
        span = max(limit.high - limit.low, abs(limit.high) * 1e-6, 1e-12)
        out = np.maximum(x[:, place] - limit.high, limit.low - x[:, place]) / span
        worst = np.maximum(worst, np.where(out > OUTSIDE, out, 0.0))
    return worst


def hold_out(candidate: Candidate, x: Floats, y: Floats, folds: Sequence[Ints]) -> Held:
    """Fit without each fold in turn and predict it."""
    rows, numbers, watts, novelty, excess = [], [], [], [], []
    for number, test in enumerate(folds):
        train = np.setdiff1d(np.arange(len(y)), test)
        if len(train) < 2:
            continue
        form = fit_form(candidate, x[train], y[train])
        where = map_of(form, x[train])
        rows.append(test)
        numbers.append(np.full(len(test), number))
        watts.append(predict_form(form, x[test]))
        novelty.append(where.novelty(x[test]))
        excess.append(excess_of(form, x[test], where.places))
    return Held(*(np.concatenate(parts) for parts in (rows, numbers, watts, novelty, excess)))


def parts_of(held: Held, y: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """Novelty, log(truth / prediction) and excess of the rows of each fold."""
    errors = np.log(y[held.rows] / held.watts)
    folds = [held.fold == number for number in np.unique(held.fold)]
    return [(held.novelty[mine], errors[mine], held.excess[mine]) for mine in folds]


def score(candidate: Candidate, x: Floats, y: Floats, blocks: Sequence[Ints], loads: Sequence[Ints]) -> Score:
    """Both errors of one candidate."""
    blocked = hold_out(candidate, x, y, blocks)
    loaded = hold_out(candidate, x, y, loads)
    truth = y[blocked.rows]
    each = tuple(mape(blocked.watts[blocked.fold == k], truth[blocked.fold == k]) for k in np.unique(blocked.fold))
    return Score(
        candidate,
        mape(blocked.watts, truth),
        float(np.mean(np.abs(blocked.watts - truth))),
        each,
        mape(loaded.watts, y[loaded.rows]),
        blocked,
        loaded,
    )


def widths_without(found: Score, y: Floats, rows: Ints, level: float, place: Map = NOWHERE) -> Widths:
    """Widths from what was held out, but for some rows."""
    novelty, errors = [], []
    for held in (found.blocked, found.loaded):
        kept = ~np.isin(held.rows, rows)
        novelty.append(held.novelty[kept])
        errors.append(np.log(y[held.rows[kept]] / held.watts[kept]))
    return widths_of(place, np.concatenate(novelty), np.concatenate(errors), level)


def caution(found: Score, y: Floats, level: float, but: Ints = NO_ROWS) -> float:
    """How much wider new rows must be, so that the loads together hold as many of their rows as was asked for, and nine
    of ten parts nearly as many.

    Parts are blocks and loads, each judged by intervals that were made without it. Rows outside of the training range
    are left to `widened`, and the rows of `but` out of it all.
    """
    needs: list[float] = []
    loads: list[Floats] = []
    for held in (found.blocked, found.loaded):
        for number in np.unique(held.fold):
            part = held.rows[held.fold == number]
            mine = (held.fold == number) & (held.excess <= 0) & ~np.isin(held.rows, but)
            if int(mine.sum()) < LEAST_PART:
                continue
            widths = widths_without(found, y, np.concatenate([part, but]), level)
            each = factors(widths, held.novelty[mine], np.log(y[held.rows[mine]] / held.watts[mine]))
            needs.append(float(np.quantile(each, level - NEARLY)))
            loads += [each] if held is found.loaded else []
    together = float(np.quantile(np.concatenate(loads), level)) if loads else 1.0
    parts = float(np.quantile(needs, level)) if needs else 1.0
    return min(max(1.0, together, parts), MOST_CAUTION)


def checked_coverage(found: Score, y: Floats, level: float) -> float:
    """The share of block rows inside intervals that were made without their block."""
    held = found.blocked
    inside = []
    for number in np.unique(held.fold):
        mine = held.fold == number
        rows = held.rows[mine]
        widths = cautious(widths_without(found, y, rows, level), caution(found, y, level, rows))
        inside.append(covered(widths, held.novelty[mine], np.log(y[rows] / held.watts[mine]), held.excess[mine]))
    return float(np.concatenate(inside).mean())
