"""How far off a model is where deployment differs from training: folds left out in turn, and faulty columns.

A fold is a part of the rows that a model is tested on after it was fitted on the others: a stretch of time, a load, or
the rows in which a column is above or below most of its values. Each stands for one way in which deployment differs
from training. Neighbouring rows leak, so rows are never shuffled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from everywatt.models.design import Ints, clusters, ranks
from everywatt.models.features import TINY, Feature
from everywatt.models.form import Form, Stuck
from everywatt.models.intervals import (
    LEAST_WIDTH,
    NOWHERE,
    SHAPES,
    Map,
    Shape,
    Witnesses,
    map_of,
    strain,
    stuck_of,
    widening,
    widths_at,
)
from everywatt.models.learners import Candidate, fit_form, hedged, predict_form
from everywatt.models.table import Floats, Table

LOADS = 6
STRETCH = 20  # rows, or fewer in a short table: that long a load lasts
BLOCKS = 5
LONG = 0.3  # of the time: the longer stretches that are left out at the start and at the end
LOW, HIGH = 0.3, 0.7  # quantiles of a column: rows beyond them are left out
MOST_COLUMNS = 4  # columns whose range is cut, those that move most with power
LEAST_ROWS = 10
MOST_LEFT_OUT = 0.75  # of the rows


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that are left out together, and for people what they are."""

    kind: str
    name: str
    rows: Ints


def folds_of(loads: Sequence[str] | NDArray[np.str_], columns: Mapping[str, Floats]) -> list[Fold]:
    """Every fold of a table: by time, by load, and by the range of each column, strongest columns first."""
    rows = len(loads)
    found = [Fold("time", f"block {n + 1} of {BLOCKS}", part) for n, part in enumerate(blocks(rows))]
    cut = round(LONG * rows)
    every = np.arange(rows, dtype=np.int64)
    found += [Fold("time", f"first {LONG:.0%}", every[:cut]), Fold("time", f"last {LONG:.0%}", every[rows - cut :])]
    names = np.asarray(loads)
    if len(np.unique(names)) > 1:
        found += [Fold("load", str(name), np.flatnonzero(names == name)) for name in np.unique(names)]
    for name, values in list(columns.items())[:MOST_COLUMNS]:
        low, high = np.quantile(values, [LOW, HIGH]).tolist()
        found.append(Fold("range", f"{name} above {high:.3g}", np.flatnonzero(values > high)))
        found.append(Fold("range", f"{name} below {low:.3g}", np.flatnonzero(values < low)))
    least, most = min(LEAST_ROWS, rows // 6), MOST_LEFT_OUT * rows
    return [one for one in found if one.kind == "time" or least <= len(one.rows) <= most]


def blocks(rows: int, count: int = BLOCKS) -> list[Ints]:
    """So many stretches of time, one after another."""
    return [part for part in np.array_split(np.arange(rows, dtype=np.int64), count) if len(part)]


def found_loads(table: Table, names: Sequence[str]) -> NDArray[np.str_]:
    """Loads of a table that names none: groups of stretches of time with similar mean use (k-means over ranks).

    Not of rows, whose neighbours would remain: rows in which a load begins or ends belong to that load.
    """
    rows = len(table)
    usable = [name for name in names if np.isfinite(table.column(name)).any()]
    if not usable or rows < 4 * LOADS:
        return np.array([f"part {place + 1}" for place in np.arange(rows) * 2 // max(rows, 1)])
    x = np.column_stack([_share(table.column(name)) for name in usable])
    starts = np.arange(0, rows, min(STRETCH, rows // (4 * LOADS)))
    lengths = np.diff(starts, append=rows)
    found = clusters(np.add.reduceat(x, starts) / lengths[:, None], LOADS)[1]
    return np.array([f"load {place + 1}" for place in np.repeat(found, lengths).tolist()])


def _share(values: Floats) -> Floats:
    known = np.isfinite(values)
    return ranks(np.where(known, values, np.median(values[known]))) / max(len(values) - 1, 1)


KINDS = ("time", "load", "range", "column")
FROZEN = "frozen"
FAULTS = ((FROZEN, 0.0), ("a quarter higher", 1.25), ("a fifth lower", 0.8))
LEAST_ERROR = 0.1  # percent: smaller errors are alike
COMPARABLE = 1.25  # times the least worst error: of models within it, least squares decides (docs/model.md)
ALIKE = 1.05  # times: models that are as much farther off than least squares are distinguished by their mean error
SPARED = 1.1  # times closer: what it takes to do without a column that is stuck
HELD_BELOW = 0.02  # of the level: each fold is held by at least the level less this
MOST_WIDER = 4.0  # times: where folds demand more, one of them has nothing in common with the others
# Times: faults that rows do not show would make every interval as wide as the worst of them. So wide at most if that
# holds every fault, and so wide if it does not.
MOST_FOR_FAULTS, PART_FOR_FAULTS = 2.5, 2.0
SEEN = 0.95  # quantile of the distance of rows that are left out by time


@dataclass(frozen=True)
class Held:
    """Predictions of one fold while it was left out: rows, watts, novelty, and what is added outside the range."""

    kind: str
    name: str
    rows: Ints
    watts: Floats
    novelty: Floats
    widening: Floats


@dataclass(frozen=True)
class Score:
    """One candidate: what it predicted of each fold, and how far off that was in percent.

    `without` are columns that had better not be used while they are stuck, rather than counted at their median.
    """

    candidate: Candidate
    held: tuple[Held, ...]
    errors_pct: tuple[float, ...]
    blocked_w: float
    without: tuple[str, ...] = ()

    def worst(self, kind: str = "") -> tuple[float, str]:
        """The largest error of the folds (of a kind), and the fold's name."""
        found = [(e, one.name) for e, one in zip(self.errors_pct, self.held, strict=True) if kind in ("", one.kind)]
        return max(found, default=(float("nan"), ""))

    @property
    def blocks(self) -> list[Held]:
        """The five blocks of time, which are every row once."""
        return [one for one in self.held if one.name.startswith("block ")]

    @property
    def blocks_pct(self) -> tuple[float, ...]:
        """The error of each block of time."""
        return tuple(e for e, one in zip(self.errors_pct, self.held, strict=True) if one.name.startswith("block "))

    @property
    def blocked_pct(self) -> float:
        """The mean error over the blocks of time."""
        return float(np.average(self.blocks_pct, weights=[len(one.rows) for one in self.blocks]))

    @property
    def loads_pct(self) -> float:
        """The mean error over loads that were left out; over blocks of time where there is one load."""
        found = [(e, len(one.rows)) for e, one in zip(self.errors_pct, self.held, strict=True) if one.kind == "load"]
        return sum(e * rows for e, rows in found) / sum(rows for _, rows in found) if found else self.blocked_pct


def mape(watts: Floats, truth: Floats) -> float:
    """Mean absolute error in percent of the truth."""
    return float(100 * np.mean(np.abs(watts - truth) / truth))


def score(
    candidate: Candidate, x: Floats, y: Floats, folds: Sequence[Fold], hedges: Sequence[Candidate] = ()
) -> list[Score]:
    """Fit without each fold in turn and predict it; the blocks of time once more with each column at fault.

    The `hedges` are that candidate with least squares beside it. While a column is stuck that the candidate then does
    without, so do they.
    """
    family = (candidate, *hedges)
    held: list[list[Held]] = [[] for _ in family]
    faulty: list[dict[str, list[Held]]] = [{} for _ in family]
    spare: dict[str, list[Held]] = {}
    for fold in folds:
        train = np.setdiff1d(np.arange(len(y)), fold.rows)
        made = fit_form(family[-1], x[train], y[train])
        forms = [replace(made, near=one.near, lift=one.lift) for one in family]
        where = NOWHERE if candidate.baseline else map_of(forms[0], x[train])
        for found, one in zip(held, _held(fold.kind, fold.name, fold.rows, forms, where, x[fold.rows]), strict=True):
            found.append(one)
        if fold.name.startswith("block "):
            for column, how, broken in _faults(candidate.features, x[train], x[fold.rows]):
                name = f"{column} {how}"
                parts = _held("column", name, fold.rows, forms, where, broken)
                for at_fault, one in zip(faulty, parts, strict=True):
                    at_fault.setdefault(name, []).append(one)
                if how == FROZEN and made.kind == "rising" and sum(curve is not None for curve in made.curves) > 1:
                    watts = predict_form(fit_form(candidate, x[train], y[train], without=column), broken)
                    spare.setdefault(column, []).append(replace(parts[0], watts=watts))
    without = tuple(column for column in spare if _choose(faulty[0], column, spare[column], y))
    spared = {name: faulty[0][name] for column in without if (name := f"{column} {FROZEN}")}
    return [
        _scored(one, [*found, *(_joined(parts) for parts in (at_fault | spared).values())], y, without)
        for one, found, at_fault in zip(family, held, faulty, strict=True)
    ]


def _scored(candidate: Candidate, held: Sequence[Held], y: Floats, without: tuple[str, ...]) -> Score:
    errors = tuple(mape(one.watts, y[one.rows]) for one in held)
    off = np.concatenate([np.abs(one.watts - y[one.rows]) for one in held if one.name.startswith("block ")])
    return Score(candidate, tuple(held), errors, float(off.mean()), without)


def _choose(faulty: dict[str, list[Held]], column: str, spare: Sequence[Held], y: Floats) -> bool:
    """Whether a stuck column had better not be used; each block takes what the other blocks say."""
    usual = faulty[f"{column} {FROZEN}"]
    off = np.array([[float(np.abs(one.watts / y[one.rows] - 1).sum()) for one in side] for side in (usual, spare)])
    gain = off[0] - SPARED * off[1]
    faulty[f"{column} {FROZEN}"] = [
        b if gain.sum() - mine > 0 else a for a, b, mine in zip(usual, spare, gain.tolist(), strict=True)
    ]
    return bool(gain.sum() > 0)


def _held(kind: str, name: str, rows: Ints, forms: Sequence[Form], where: Map, x: Floats) -> list[Held]:
    """What each of the forms, which are the first one with least squares beside it, says of rows."""
    watts = predict_form(forms[0], x)
    first = Held(kind, name, rows, watts, where.novelty(x), widening(forms[0], where.places, x))
    return [replace(first, watts=hedged(form, x, watts)) for form in forms]


def _joined(parts: Sequence[Held]) -> Held:
    keys = ("rows", "watts", "novelty", "widening")
    return Held(parts[0].kind, parts[0].name, *(np.concatenate([getattr(p, key) for p in parts]) for key in keys))


def _faults(features: Sequence[Feature], train: Floats, x: Floats) -> Iterator[tuple[str, str, Floats]]:
    """Column, fault and the rows with it: stuck at its median (as a missing one is filled) or scaled.

    Ratios and changes follow.
    """
    places = {feature.column: p for p, feature in enumerate(features) if feature.kind == "value"}
    for (name, place), (how, factor) in itertools.product(places.items(), FAULTS):
        broken = x.copy()
        broken[:, place] = broken[:, place] * factor if factor else np.median(train[:, place])
        for p, feature in enumerate(features):
            if feature.kind == "change" and feature.column == name:
                broken[:, p] *= factor
            if feature.kind == "log-ratio" and name in feature.columns:
                above, below = (np.maximum(broken[:, places[column]], TINY) for column in feature.columns)
                broken[:, p] = np.log(above / below)
        yield name, how, broken


def column_of(fault: str) -> str:
    """The column of a fault by the fault's name, which a column with spaces in its name does not end."""
    return next(fault.removesuffix(f" {how}") for how, _ in FAULTS if fault.endswith(f" {how}"))


def chosen_of(scores: Sequence[Score], kinds: Sequence[str] = KINDS, but: str = "") -> Score:
    """Of the models whose worst error over rows left out is within COMPARABLE of the least, those that are nowhere
    farther off than least squares, or by the smallest factor (within ALIKE); of these the one with the least mean.

    Columns at fault, which may never happen, rule out no model; they count in what follows. A fold of the name `but`
    does not count at all: what is said of a fold must not depend on it.
    """

    def errors(one: Score, of: Sequence[str] = kinds) -> Floats:
        pairs = zip(one.errors_pct, one.held, strict=True)
        found = [error for error, held in pairs if held.kind in of and held.name != but]
        return np.maximum(found or [one.blocked_pct], LEAST_ERROR)

    def worst(one: Score) -> float:
        return float(errors(one, [kind for kind in kinds if kind != "column"]).max())

    def farther(one: Score) -> float:
        return max(1.0, float((errors(one) / squares).max()))

    squares = errors(next((one for one in scores if one.candidate.kind == "least squares"), scores[0]))
    tried = [one for one in scores if not one.candidate.baseline] or list(scores)
    most = COMPARABLE * min(map(worst, tried))
    tried = [one for one in tried if worst(one) <= most]
    most = ALIKE * min(map(farther, tried))
    return min((one for one in tried if farther(one) <= most), key=lambda one: float(errors(one).mean()))


@dataclass(frozen=True)
class Shift:
    """One fold as deployment would meet it: the model was chosen, and its interval made, without that fold."""

    kind: str
    name: str
    model: str
    rows: int
    error_pct: float
    baseline_pct: float
    coverage: float


def shifts(
    scores: Sequence[Score], y: Floats, level: float, kinds: Sequence[str] = KINDS
) -> tuple[list[Shift], Shape, float]:
    """Every fold, nested: error and coverage of what would have been chosen without it, beside least squares.

    And which shape the interval has, and how many times wider it has to be than the other folds say, so that each fold
    is held. The coverage is with both, which are the same for all folds.
    """
    squares = next((one for one in scores if one.candidate.kind == "least squares"), None)
    reference = {} if squares is None else dict(zip([h.name for h in squares.held], squares.errors_pct, strict=True))
    found: list[Shift] = []
    needs: list[dict[Shape, Floats]] = []
    chosen = chosen_of(scores, kinds)
    for name in [held.name for held in chosen.held]:
        best = chosen_of(scores, kinds, but=name)
        held, error = next(pair for pair in zip(best.held, best.errors_pct, strict=True) if pair[0].name == name)
        other = reference.get(name, float("nan"))
        found.append(Shift(held.kind, name, best.candidate.name, len(held.rows), error, other, 0.0))
        needs.append(_needs(best, held, y, level))
    faults = [one.kind == "column" for one in found]
    shape, factor = _narrowest(chosen, needs, faults, y, level)
    pairs = zip(found, needs, strict=True)
    return [replace(one, coverage=float((need[shape] <= factor).mean())) for one, need in pairs], shape, factor


def _needs(best: Score, held: Held, y: Floats, level: float) -> dict[Shape, Floats]:
    """For each row of a fold how many times the width that the other folds say it needs, by the shape of widths."""
    errors = np.log(y[held.rows] / held.watts)
    others = witnesses(best, y, without=held)
    widths = {shape: others.widths(NOWHERE, level, shape) for shape in SHAPES}
    made = {shape: strain(one, held.novelty, errors, held.widening) for shape, one in widths.items()}
    if held.name.endswith(FROZEN):  # which is seen where it happens
        stuck = _strain_while_stuck(best, held, errors, level)
        made = {shape: np.minimum(needs, stuck) for shape, needs in made.items()}
    return made


def _narrowest(
    chosen: Score, needs: Sequence[dict[Shape, Floats]], faults: Sequence[bool], y: Floats, level: float
) -> tuple[Shape, float]:
    """The shape whose intervals are narrowest over the blocks of time once every fold is held, and its factor.

    For faults, which a row need not show, intervals become wider by MOST_FOR_FAULTS at most, or by PART_FOR_FAULTS if
    that is not enough.
    """
    every = witnesses(chosen, y)
    usual = np.concatenate([one.novelty for one in chosen.blocks])
    sound, all_held = [], []
    for shape in SHAPES:
        size = float(np.sum([side.mean() for side in widths_at(every.widths(NOWHERE, level, shape), usual)]))
        wanted = [float(np.quantile(one[shape], level - HELD_BELOW, method="higher")) for one in needs]
        least = max([1.0, *(need for need, fault in zip(wanted, faults, strict=True) if not fault)])
        sound.append((least > MOST_WIDER, least * size, least, shape))
        most = max(least, *wanted)
        all_held.append((most > MOST_WIDER, most * size, most, shape))
    _, narrow, least, plain = min(sound)
    _, wide, most, shape = min(all_held)
    if most <= MOST_WIDER and wide <= MOST_FOR_FAULTS * narrow:
        return shape, most
    return plain, min(PART_FOR_FAULTS * least, MOST_WIDER)


def stuck_columns(found: Score, y: Floats, level: float, still: Mapping[str, int]) -> dict[str, Stuck]:
    """Widths for each column in case it has no value or stays as it is for more than `still` rows."""
    return {
        name: stuck_of(still[name], _by_block(found, held, np.log(y[held.rows] / held.watts)), level)
        for held in found.held
        if held.kind == "column" and (name := held.name.removesuffix(f" {FROZEN}")) in still
    }


def _by_block(found: Score, held: Held, errors: Floats) -> list[Floats]:
    return [part for block in found.blocks if len(part := errors[np.isin(held.rows, block.rows)])]


def _strain_while_stuck(found: Score, held: Held, errors: Floats, level: float) -> Floats:
    """For each row how many times the widths for that column it needs, which were made without its block."""
    needs = np.full(len(errors), np.inf)
    for block in found.blocks:
        mine = np.isin(held.rows, block.rows)
        others = _by_block(found, replace(held, rows=held.rows[~mine]), errors[~mine])
        if others:
            made = stuck_of(0, others, level)
            wide = np.maximum(np.where(errors[mine] < 0, made.below, made.above), LEAST_WIDTH)
            needs[mine] = np.abs(errors[mine]) / wide
    return needs


def witnesses(found: Score, y: Floats, without: Held | None = None) -> Witnesses:
    """What was held out, without the rows of one fold (and without all faults of the same column).

    An error counts as far as the widening outside the training range does not cover it already.

    Of rows with a scaled column, those count that are farther out than nearly all rows of the blocks of time: a fault
    that leaves a row among what was learnt cannot be seen from the row, and no honest width follows from it. A frozen
    column is seen, and has widths of its own (`stuck_columns`).
    """
    fold, novelty, errors = [], [], []
    usual = float(np.quantile(np.concatenate([one.novelty for one in found.blocks]), SEEN))
    for number, held in enumerate(found.held):
        frozen = held.kind == "column" and held.name.endswith(FROZEN)
        if frozen or (without is not None and (held.name == without.name or _same_column(held, without))):
            continue
        kept = held.novelty > usual if held.kind == "column" else np.ones(len(held.rows), dtype=bool)
        # Faults concern every row, so that rows are left out for time, load and range only.
        if without is not None and without.kind != "column":
            kept = kept & ~np.isin(held.rows, without.rows)
        fold.append(np.full(int(kept.sum()), number))
        novelty.append(held.novelty[kept])
        error = np.log(y[held.rows[kept]] / held.watts[kept])
        errors.append(np.sign(error) * np.maximum(np.abs(error) - held.widening[kept], 0.0))
    return Witnesses(np.concatenate(fold), np.concatenate(novelty), np.concatenate(errors))


def _same_column(one: Held, other: Held) -> bool:
    return one.kind == other.kind == "column" and column_of(one.name) == column_of(other.name)
