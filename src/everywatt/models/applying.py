"""What a model says: watts of each row of a table with their interval, how far off they are, what each column does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.stats import conformal_quantile
from everywatt.models.design import design, still_rows
from everywatt.models.features import History
from everywatt.models.form import Model
from everywatt.models.learners import predict_form
from everywatt.models.table import Floats, Table
from everywatt.models.validation import blocks, mape

OTHER_UNIT = 200.0
LEAST_TRANSFER = 20
TRANSFER_BLOCKS = 4
MUCH_CLOSER = 0.9


@dataclass(frozen=True)
class Applied:
    """Watts with their interval, and for each row the names of features outside of what was learnt."""

    times_s: Floats
    watts: Floats
    low: Floats
    high: Floats
    outside: tuple[tuple[str, ...], ...]
    missing: Floats
    warnings: tuple[str, ...]

    @property
    def outside_share(self) -> float:
        """The share of rows that are outside of the training range."""
        return sum(map(bool, self.outside)) / max(len(self.outside), 1)


def apply(model: Model, table: Table) -> Applied:
    """Predict every row. UsageError where a column that the model needs is missing or in another unit."""
    lacking = [name for name in model.needs if name not in table.columns]
    if lacking:
        raise UsageError(
            f"The model needs {', '.join(lacking)}; the table has no such column, or no number in it.",
            cure="everywatt model show MODEL",
        )
    warnings = _unit_check(model, table)
    fill = {name: model.columns[name].middle for name in model.needs}
    known = [np.isfinite(table.column(name)) for name in model.needs]
    missing = 1.0 - np.mean(known, axis=0) if known else np.zeros(len(table))
    x = design(table, model.form.features, fill, model.period_s)
    form_w = predict_form(model.form, x).tolist()
    stuck = _stuck(model, table)
    found = [model.around(*one) for one in zip(form_w, x.tolist(), stuck, strict=True)]
    outside = tuple(one.outside for one in found)
    beyond = [set(one) - set(names) for one, names in zip(outside, stuck, strict=True)]
    still = [names if not lacks else [] for names, lacks in zip(stuck, missing.tolist(), strict=True)]
    for odd, words in ((beyond, "are outside the training range"), (still, "have a column that stands still")):
        names = sorted({name for one in odd for name in one})
        if names:
            warnings.append(f"{sum(map(bool, odd))} of {len(odd)} rows {words} ({', '.join(names[:4])})")
    if missing.any():
        warnings.append(
            f"{int((missing > 0).sum())} of {len(missing)} rows lack a value; the training median or the other columns "
            "are used instead"
        )
    watts, low, high = np.array([one[:3] for one in found], dtype=np.float64).reshape(-1, 3).T
    return Applied(table.times_s, watts, low, high, outside, missing, tuple(warnings))


def _stuck(model: Model, table: Table) -> list[list[str]]:
    """For each row the columns that have no value, or the same one for longer than ever in training."""
    found: list[list[str]] = [[] for _ in range(len(table))]
    for name, one in model.widths.stuck.items():
        still = still_rows(table.column(name))
        for place in np.flatnonzero((still == 0) | (still > one.rows)).tolist():
            found[place].append(name)
    return found


def _unit_check(model: Model, table: Table) -> list[str]:
    """A column whose typical value is hundreds of times off what was learnt is in another unit."""
    warnings = []
    for name in model.needs:
        values = np.abs(table.column(name))
        busy = values[np.isfinite(values) & (values > 0)]
        limit = model.columns[name]
        size = max(abs(limit.high), abs(limit.low))
        if len(busy) < 10 or size <= 0:
            continue
        typical, learnt = float(np.median(busy)), abs(limit.middle) or size
        if typical > OTHER_UNIT * size or (limit.low > 0 and float(busy.max()) * OTHER_UNIT < limit.low):
            raise UsageError(
                f"{name} is typically {typical:.3g} here and was {learnt:.3g} in training: is the unit different?",
                cure=f"use the unit of the training data{f' ({model.units[name]})' if model.units.get(name) else ''}",
            )
        if typical > 20 * learnt and typical > 2 * size:
            warnings.append(f"{name} is typically {typical / learnt:.0f} times its value in training")
    return warnings


def scale_warnings(model: Model) -> list[str]:
    """One sentence for each column that may be scaled where the model is used without the interval allowing for it."""
    return [
        f"the interval does not allow for a scaled {name}: a quarter higher or a fifth lower, it holds "
        f"{100 * share:.0f} instead of {100 * model.widths.level:.0f} % of the truths; compare its values where the "
        "model is used with those of training"
        for name, share in model.about.get("scale_unseen", {}).items()
    ]


class Evaluation(TypedDict):
    """How far off a model is on a table with the truth, as it is printed and written as JSON."""

    rows: int
    mape_pct: float
    mae_w: float
    rmse_w: float
    bias_w: float
    r2: float | None
    energy_error_pct: float
    level: float
    coverage: float
    mean_width_pct: float
    outside_share: float
    mape_inside_pct: float | None
    mean_baseline_pct: float
    warnings: list[str]


def evaluate(model: Model, table: Table, target: str) -> Evaluation:
    """How far off a model is on a table with the truth: errors, coverage, rows out of range."""
    truth = table.column(target)
    known = np.isfinite(truth) & (truth > 0)
    if int(known.sum()) < 2:
        raise MeasurementRefused(f"The table has no column {target} to compare with.")
    applied = apply(model, table)
    watts, truth = applied.watts[known], truth[known]
    low, high = applied.low[known], applied.high[known]
    out = np.array([bool(one) for one in applied.outside])[known]
    error = watts - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    return {
        "rows": int(known.sum()),
        "mape_pct": mape(watts, truth),
        "mae_w": float(np.abs(error).mean()),
        "rmse_w": float(np.sqrt((error**2).mean())),
        "bias_w": float(error.mean()),
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else None,
        "energy_error_pct": 100 * float(error.sum() / truth.sum()),
        "level": model.widths.level,
        "coverage": float(((truth >= low) & (truth <= high)).mean()),
        "mean_width_pct": 100 * float(((high - low) / watts.clip(1e-9)).mean()),
        "outside_share": float(out.mean()),
        "mape_inside_pct": mape(watts[~out], truth[~out]) if (~out).any() else None,
        "mean_baseline_pct": mape(np.full(len(truth), model.about.get("watts", {}).get("median", truth.mean())), truth),
        "warnings": list(applied.warnings),
    }


def _gain_and_offset(watts: Floats, truth: Floats) -> tuple[float, float]:
    """From watts of a model to the truth: by a gain alone, or with an offset where left-out blocks of time say so."""

    def off(fitting: Callable[[Floats, Floats], tuple[float, float]]) -> float:
        errors = []
        for test in blocks(len(truth), TRANSFER_BLOCKS):
            train = np.setdiff1d(np.arange(len(truth)), test)
            gain, offset = fitting(watts[train], truth[train])
            errors.append(np.abs(gain * watts[test] + offset - truth[test]) / truth[test])
        return float(np.concatenate(errors).mean())

    line = _line(watts, truth)
    if line[0] > 0 and off(_line) < MUCH_CLOSER * off(_gain):
        return line
    return _gain(watts, truth)


def _gain(watts: Floats, truth: Floats) -> tuple[float, float]:
    return float(np.median(truth / watts.clip(1e-9))), 0.0


def _line(watts: Floats, truth: Floats) -> tuple[float, float]:
    """Least squares of the relative error."""
    rows = np.column_stack([watts, np.ones(len(watts))]) / truth[:, None]
    slope, constant = np.linalg.lstsq(rows, np.ones(len(truth)), rcond=None)[0].tolist()
    return slope, constant


def transfer(model: Model, table: Table, target: str, host: str = "") -> Model:
    """The model on another machine: gain and offset from a few minutes beside any sensor there.

    Both are fitted where that is closer on blocks of time that were left out, else the offset stays 0. The interval is
    recomputed from the residuals.
    """
    truth = table.column(target)
    known = np.isfinite(truth) & (truth > 0)
    if int(known.sum()) < LEAST_TRANSFER:
        raise MeasurementRefused(f"Only {int(known.sum())} rows have {target}; a calibration needs {LEAST_TRANSFER}.")
    bare = replace(model, gain=1.0, offset_w=0.0)
    watts = apply(bare, table).watts[known]
    truth = truth[known]
    gain, offset = _gain_and_offset(watts, truth)
    moved = replace(bare, gain=gain, offset_w=offset)
    made = np.maximum(gain * watts + offset, 1e-9)
    need = conformal_quantile(np.abs(np.log(truth / made)).tolist(), model.widths.level)
    had = max(model.widths.below[0], model.widths.above[0], 1e-6)
    widths = model.widths.scaled(max(1.0, need / had))
    about = {
        **model.about,
        "transferred": {
            "from": model.host,
            "rows": int(known.sum()),
            "error_pct": mape(made, truth),
            "gain": gain,
            "offset_w": offset,
        },
    }
    return replace(moved, widths=widths, host=host or table.host, about=about)


@dataclass(frozen=True)
class Effect:
    """Watts with one column at its low, median and high, the others at their medians."""

    name: str
    low_w: float
    middle_w: float
    high_w: float

    @property
    def swing_w(self) -> float:
        """Watts from its low to its high."""
        return self.high_w - self.low_w


def effects(model: Model) -> tuple[float, list[Effect]]:
    """Watts with everything at its lowest, and what each column does; the strongest first."""

    def watts(values: dict[str, float]) -> float:
        history = History(model.form.features, model.period_s)
        return model.predict(history.row(0.0, values)).watts

    middle = {name: limit.middle for name, limit in model.columns.items()}
    found = [
        Effect(name, watts({**middle, name: r.low}), watts(middle), watts({**middle, name: r.high}))
        for name, r in model.columns.items()
    ]
    lowest = watts({name: limit.low for name, limit in model.columns.items()})
    return lowest, sorted(found, key=lambda one: -abs(one.swing_w))
