"""Fit: screen a table, try every model by blocks of time and by loads left out, choose one, and say how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everywatt.core.errors import UsageError
from everywatt.models.design import automatic, correlation, design
from everywatt.models.features import AVERAGES_S, Feature
from everywatt.models.form import Model, Range
from everywatt.models.intervals import LEVEL, cautious, map_of, widened
from everywatt.models.learners import Candidate, candidates, fit_form, importances
from everywatt.models.loads import beyond, blocks, by_load, found_loads
from everywatt.models.screening import Screened, screen
from everywatt.models.table import Floats, Table
from everywatt.models.validation import (
    NO_ROWS,
    Score,
    caution,
    checked_coverage,
    hold_out,
    parts_of,
    score,
    widths_without,
)

CHOICES = ("blocks", "loads")
LEAST_GAIN = 0.05  # of the mean's error: a model that gains less has found nothing
ALIKE = 1.1
CPU_WORDS = ("cpu_time", "cpu_usage", "cpu_util", "cpu", "util")


@dataclass(frozen=True)
class Fit:
    """What came of it. `model` is None where there is no relation; `scores` has every model that was tried."""

    model: Model | None
    scores: tuple[Score, ...]
    chosen: Score | None
    coverage: float | None
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
    choose: str = "blocks",
    level: float = LEVEL,
    only: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Learn a column from the others.

    features   the columns to use; None: all that can be used
    averages   rolling averages over 1, 5 and 15 s beside them
    choose     by which error the model is chosen: of blocks of time, or of loads that were left out
    only       names of the models to try (the mean always is)
    """
    if choose not in CHOICES:
        raise UsageError(f"A model cannot be chosen by '{choose}'.", cure=f"one of: {', '.join(CHOICES)}")
    seen = screen(table, target, ignore=ignore, features=features)
    table, y = seen.table, seen.table.column(target)
    fill = {name: float(np.nanmedian(table.column(name))) for name in seen.names}
    tried = _candidates(seen, target, averages)
    if only is not None:
        tried = [one for one in tried if one.name in only or one.kind == "mean"]
    loads = table.loads if table.loads is not None else found_loads(table, seen.names)
    folds = by_load(loads) if len(np.unique(loads)) > 1 else blocks(len(y), 2)
    scores, designs = [], {}
    for one in tried:
        tell(f"trying {one.name}")
        designs[one.name] = design(table, one.features, fill, table.period_s)
        scores.append(score(one, designs[one.name], y, blocks(len(y)), folds))
    best = chosen_of(scores, choose)
    why = no_relation(best, scores[0])
    told = tuple(dict.fromkeys(str(name) for name in loads))
    if why:
        return Fit(None, tuple(scores), None, None, seen.warnings, told, table.times_s, y, why)
    coverage = checked_coverage(best, y, level)
    model = _finish(best, designs[best.candidate.name], y, seen, target, scores, level, choose, coverage, told)
    return Fit(model, tuple(scores), best, coverage, seen.warnings, told, table.times_s, y, "")


def chosen_of(scores: Sequence[Score], choose: str) -> Score:
    """The model with the least error; by loads, of those within ALIKE of it the one with more of a line."""
    if choose == "blocks":
        return min(scores, key=lambda one: one.blocked_pct)
    least = min(one.loads_pct for one in scores)
    alike = [one for one in scores if one.loads_pct <= ALIKE * least]
    return min(alike, key=lambda one: (-one.candidate.share, one.loads_pct))


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


def _candidates(seen: Screened, target: str, averages: bool) -> list[Candidate]:
    values, ratios, pasts = automatic(seen.table, target, seen.names)
    cpu = _cpu_column(seen, target)
    if averages:
        pasts = [*pasts, *(Feature("mean", f.column, seconds=tau) for f in values[:8] for tau in AVERAGES_S)]
    tried = candidates(values, ratios, pasts, None if cpu is None else Feature("value", cpu))
    return [replace(one, dram="dram" in target.lower()) for one in tried]


def _cpu_column(seen: Screened, target: str) -> str | None:
    """The column that says how busy the CPUs are: by its name, the one that moves most with power."""
    y = seen.table.column(target)
    for word in CPU_WORDS:
        named = [name for name in seen.names if word in name.lower()]
        if named:
            return max(named, key=lambda name: correlation(seen.table.column(name), y))
    return None


def _finish(
    best: Score,
    x: Floats,
    y: Floats,
    seen: Screened,
    target: str,
    scores: Sequence[Score],
    level: float,
    choose: str,
    coverage: float,
    loads: Sequence[str],
) -> Model:
    form = fit_form(best.candidate, x, y)
    where = map_of(form, x)
    share = importances(form, x)
    order = [int(p) for p in np.argsort(-share) if share[p] > 0][:20]
    widths = cautious(widths_without(best, y, NO_ROWS, level, where), caution(best, y, level))
    cuts = beyond([x[:, p] for p in order if form.features[p].kind == "value"])
    if cuts:
        far = hold_out(best.candidate, x, y, cuts)
        widths = widened(widths, [*parts_of(best.loaded, y), *parts_of(far, y)])
    table = seen.table
    needed = dict.fromkeys(name for feature in form.features for name in feature.columns)
    about: dict[str, Any] = {
        "model": best.candidate.name,
        "rows": len(y),
        "seconds": float(table.times_s[-1] - table.times_s[0]),
        "loads": len(loads),
        "watts": {"low": float(y.min()), "median": float(np.median(y)), "high": float(y.max())},
        "validated": "five blocks of time held out in turn, and each load held out in turn; rows are never shuffled",
        "chosen_by": choose,
        "blocked_error_pct": best.blocked_pct,
        "load_out_error_pct": best.loads_pct,
        "interval_level": level,
        "coverage_in_blocks": coverage,
        "importance": {form.features[p].name: round(float(share[p]), 4) for p in order},
        "warnings": list(seen.warnings),
    }
    return Model(
        target=target,
        form=form,
        widths=widths,
        period_s=table.period_s,
        columns={name: _range(table.column(name)) for name in needed},
        units={name: table.units.get(name, "") for name in needed},
        host=table.host,
        errors=[error_row(one, y) for one in scores],
        about=about,
    )


def error_row(one: Score, y: Floats) -> dict[str, Any]:
    """One line of the comparison."""
    return {
        "model": one.candidate.name,
        "baseline": one.candidate.baseline,
        "blocked_pct": one.blocked_pct,
        "blocked_w": one.blocked_w,
        "load_out_pct": one.loads_pct,
        "blocks_pct": list(one.blocks_pct),
    }


def _range(values: Floats) -> Range:
    known = values[np.isfinite(values)]
    return Range(float(known.min()), float(known.max()), float(np.median(known)))
