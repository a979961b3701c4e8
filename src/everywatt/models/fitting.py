"""Fit: screen a table, try every model by blocks of time and by loads left out, choose one, and say how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everywatt.core.errors import UsageError
from everywatt.core.jsonio import declared
from everywatt.models.applying import scale_warnings
from everywatt.models.design import automatic, design, still_rows
from everywatt.models.features import AVERAGES_S, Feature
from everywatt.models.form import Model
from everywatt.models.intervals import LEVEL, Shape, map_of
from everywatt.models.learners import Candidate, candidates, fit_form, hedges, importances, range_of
from everywatt.models.screening import Screened, screen
from everywatt.models.table import Floats, Table
from everywatt.models.validation import (
    FROZEN,
    HELD_BELOW,
    KINDS,
    Score,
    Shift,
    chosen_of,
    column_of,
    folds_of,
    found_loads,
    score,
    shifts,
    stuck_columns,
    witnesses,
)

CHOICES = {"worst": KINDS, "blocks": ("time",), "loads": ("load",)}
MOST_CHANGES = 4  # strongest columns whose change trees follow
LEAST_TO_BEND = 60  # rows: with fewer, lines that bend follow chance
LEAST_STUCK = 10  # rows; a column is stuck after that many, and after twice its longest standstill in training
LEAST_GAIN = 0.05  # of the mean's error: a model that gains less has found nothing


@dataclass(frozen=True)
class Fit:
    """The result. `model` is None where there is no relation; `scores` has every model that was tried, `shifts` every
    fold with the error and the coverage of what was chosen without it."""

    model: Model | None
    scores: tuple[Score, ...]
    chosen: Score | None
    coverage: float | None
    shifts: tuple[Shift, ...]
    warnings: tuple[str, ...]
    loads: tuple[str, ...]
    times_s: Floats
    truth: Floats
    why: str


def fit(
    table: Table,
    target: str,
    *,
    ignore: Sequence[str] = (),
    features: Sequence[str] | None = None,
    averages: bool = False,
    choose: str = "worst",
    level: float = LEVEL,
    only: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Learn a column from the others.

    features   the columns to use; None: all that can be used
    averages   rolling averages over 1, 5 and 15 s beside them
    choose     which folds choose the model: the worst of all, or only those of time (blocks) or of loads
    only       names of the models to try (baselines always are)
    """
    if choose not in CHOICES:
        raise UsageError(f"A model cannot be chosen by '{choose}'.", cure=f"one of: {', '.join(CHOICES)}")
    seen = screen(table, target, ignore=ignore, features=features)
    table, y = seen.table, seen.table.column(target)
    fill = {name: float(np.nanmedian(table.column(name))) for name in seen.names}
    tried, unused = _candidates(seen, target, averages, asked=features is not None)
    warnings = seen.warnings
    if unused:
        warnings = (*warnings, f"not used, since they do not rise with {target}: {', '.join(unused)}")
    usual = ("curved", "mixed") if len(y) >= LEAST_TO_BEND else ("linear",)
    wanted = only if only is not None else (*usual, *(one.name for one in tried if one.kind == "plugin"))
    tried = [one for one in tried if one.name in wanted or one.baseline]
    every = max((one.features for one in tried), key=len)
    x = design(table, every, fill, table.period_s)
    columns = {f.column: x[:, p] for p, f in enumerate(every) if f.kind == "value"}
    loads = table.loads if table.loads is not None else found_loads(table, list(columns))
    folds = folds_of(loads, columns)
    rising = [one for one in tried if not one.baseline and one.kind != "plugin"][-1:]
    every_score: list[Score] = []
    for one in tried:
        tell(f"trying {one.name}")
        every_score += score(one, x[:, : len(one.features)], y, folds, hedges(one) if one in rising else ())
    scores = [one for one in every_score if one.candidate in tried]
    best = chosen_of(every_score, CHOICES[choose])
    why = no_relation(best, scores[0])
    load_names = tuple(dict.fromkeys(str(name) for name in loads))
    if why:
        return Fit(None, tuple(scores), None, None, (), warnings, load_names, table.times_s, y, why)
    found, shape, wider = shifts(every_score, y, level, CHOICES[choose])
    looks = len(found) * sum(not one.candidate.baseline for one in every_score)
    scores += [] if best in scores else [best]
    x = x[:, : len(best.candidate.features)]
    model = _finish(best, x, y, seen, target, scores, level, choose, found, shape, wider, load_names, looks)
    warnings = (*warnings, *scale_warnings(model))
    return Fit(model, tuple(scores), best, _held(found), tuple(found), warnings, load_names, table.times_s, y, "")


def _held(found: Sequence[Shift], kind: str = "time") -> float:
    """The share of rows of a kind of folds that were inside their interval."""
    mine = [one for one in found if one.kind == kind]
    return float(np.average([one.coverage for one in mine], weights=[one.rows for one in mine]))


def _scale_unseen(found: Sequence[Shift], level: float) -> dict[str, float]:
    """Columns whose scale the interval does not allow for, with the share of rows that it holds if one is scaled."""
    least: dict[str, float] = {}
    for one in found:
        if one.kind == "column" and not one.name.endswith(FROZEN) and one.coverage < level - HELD_BELOW:
            name = column_of(one.name)
            least[name] = min(one.coverage, least.get(name, 1.0))
    return least


def no_relation(best: Score, mean: Score) -> str:
    """Why there is no relation between use and power here; empty where there is one."""
    if best.candidate.kind == "mean":
        return "no model is closer to the truth than the mean"
    gain = 1 - best.blocked_pct / mean.blocked_pct
    better = sum(a < b for a, b in zip(best.blocks_pct, mean.blocks_pct, strict=True))
    if gain < LEAST_GAIN or better < 0.6 * len(mean.blocks_pct):
        return (
            f"the best model ({best.candidate.name}, {best.blocked_pct:.3g} %) is hardly closer to the truth than the "
            f"mean ({mean.blocked_pct:.3g} %), in {better} of {len(mean.blocks_pct)} blocks of time"
        )
    return ""


def _candidates(seen: Screened, target: str, averages: bool, *, asked: bool) -> tuple[list[Candidate], list[str]]:
    used, ratios, unused = automatic(seen.table, target, seen.names, asked=asked)
    if averages:
        used = [*used, *(Feature("mean", f.column, seconds=tau) for f in used[:8] for tau in AVERAGES_S)]
    changes = [Feature("change", f.column, seconds=seen.table.period_s) for f in used[:MOST_CHANGES]]
    return candidates(used, ratios, changes), unused


def _finish(
    best: Score,
    x: Floats,
    y: Floats,
    seen: Screened,
    target: str,
    scores: Sequence[Score],
    level: float,
    choose: str,
    found: Sequence[Shift],
    shape: Shape,
    wider: float,
    loads: Sequence[str],
    looks: int,
) -> Model:
    form = fit_form(best.candidate, x, y)
    share = importances(form, x)
    names = [f.column for f, moves in zip(form.features, share, strict=True) if f.kind == "value" and moves > 0]
    still = {name: max(LEAST_STUCK, 2 * int(still_rows(seen.table.column(name)).max())) for name in names}
    widths = witnesses(best, y).widths(map_of(form, x), level, shape)
    widths = replace(widths, stuck=stuck_columns(best, y, level, still)).scaled(wider)
    order = [int(p) for p in np.argsort(-share) if share[p] > 0][:20]
    worst = max(found, key=lambda one: one.error_pct)
    least = min(found, key=lambda one: one.coverage)
    table = seen.table
    needed = dict.fromkeys(name for feature in form.features for name in feature.columns)
    about: dict[str, Any] = {
        "model": best.candidate.name,
        "rows": len(y),
        "seconds": float(table.times_s[-1] - table.times_s[0]),
        "loads": len(loads),
        "watts": {"low": float(y.min()), "median": float(np.median(y)), "high": float(y.max())},
        "validated": "held-out stretches of time, loads and ranges of columns in turn, and columns at fault; "
        "the model was selected and the interval made without the fold; rows are never shuffled",
        "chosen_by": choose,
        "blocked_error_pct": best.blocked_pct,
        "load_out_error_pct": best.loads_pct,
        "interval_level": level,
        "coverage_in_blocks": _held(found),
        "worst_error_pct": worst.error_pct,
        "worst_fold": worst.name,
        "least_coverage": least.coverage,
        "widened": wider,
        "looks": looks,
        "importance": {form.features[p].name: round(float(share[p]), 4) for p in order},
        "scale_unseen": _scale_unseen(found, level),
        "warnings": list(seen.warnings),
    }
    return Model(
        target=target,
        form=form,
        widths=widths,
        period_s=table.period_s,
        columns={name: range_of(table.column(name)) for name in needed},
        units={name: table.units.get(name, "") for name in needed},
        host=table.host,
        errors=[error_row(one) for one in scores],
        about=about,
        without={name: fit_form(best.candidate, x, y, without=name) for name in best.without if name in still},
    )


def error_row(one: Score) -> dict[str, Any]:
    """One line of the comparison."""
    known = "model=candidate.name baseline=candidate.baseline blocked_pct blocked_w load_out_pct=loads_pct"
    return {
        **declared(one, known),
        "blocks_pct": list(one.blocks_pct),
        "worst_pct": one.worst()[0],
        "worst_fold": one.worst()[1],
        **{f"{kind}_pct": error for kind in KINDS if not np.isnan(error := one.worst(kind)[0])},
    }
