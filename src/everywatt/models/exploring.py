"""Look before a fit, and into one: lagged correlations, and what each column does to the watts of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everywatt.models.design import correlation
from everywatt.models.features import History
from everywatt.models.form import Model
from everywatt.models.screening import POWER_NAME
from everywatt.models.table import Table

STRONG, SOME = 0.7, 0.3
CHANCE = 3.3  # correlations of noise reach this over √rows once in a thousand


@dataclass(frozen=True)
class Relation:
    """One column: its correlation with the target now and at the best delay (above zero: the column moves first)."""

    name: str
    now: float
    best: float
    lag_s: float
    grade: str
    remark: str


@dataclass(frozen=True)
class Explored:
    """Columns, those that move most with the target first."""

    columns: tuple[Relation, ...]
    warnings: tuple[str, ...]


def explore(table: Table, target: str, lags: int) -> Explored:
    """Correlations of every column with the target at delays of so many rows, both ways."""
    y = table.column(target)
    period_s = table.period_s
    found = []
    for name, values in table.columns.items():
        if name == target:
            continue
        at = {lag: _lagged(values, y, lag) for lag in range(-lags, lags + 1)}
        best = max(at, key=lambda lag: (abs(at[lag]), -abs(lag)))
        found.append(
            Relation(name, at[0], at[best], best * period_s, _grade(at[best], len(y)), _remark(name, at, best, len(y)))
        )
    found.sort(key=lambda one: -abs(one.best))
    return Explored(tuple(found), table.notes)


def _lagged(values: np.ndarray, y: np.ndarray, lag: int) -> float:
    if lag > 0:
        return correlation(values[:-lag], y[lag:])
    return correlation(values[-lag:], y[:lag]) if lag < 0 else correlation(values, y)


def _grade(value: float, rows: int) -> str:
    size = abs(value)
    if size <= CHANCE / np.sqrt(max(rows, 1)):
        return "none"
    return "strong" if size >= STRONG else "some" if size >= SOME else "weak"


def _remark(name: str, at: dict[int, float], best: int, rows: int) -> str:
    if POWER_NAME.search(name):
        return "is itself a power"
    if best < 0 and abs(at[best]) > abs(at[0]) + 0.05 and _grade(at[best], rows) != "none":
        return "moves after the power"
    return ""


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
