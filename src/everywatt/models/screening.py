"""A table before anything is learnt from it: dead columns, gaps, wrong units, leaks, and which columns move with it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_percent
from everywatt.models.design import correlation
from everywatt.models.table import GAP_PERIODS, Floats, Table

USE_NAME = re.compile(r"cpu|util|busy|load|usage|core", re.I)  # what a machine does, which is no copy of what it draws
# The "watt" of the prefix of our own series is no unit.
POWER_NAME = re.compile(r"(power|(?<!every)watt|energy|joule|_uj$|_mj$|(^|[._])[pw]$)", re.I)
MOST_MISSING = 0.2
LEAST_ROWS = 30
PLAUSIBLE_W = (0.05, 100_000.0)
DOUBTED_W = 10_000.0  # no single node draws that much; 10 W in milliwatts are as many
DEAD_ROWS = 30
LEAK = 0.9995
COPY = 1 - 1e-9
SHIFTS = (0, 1, 2, 3, -1, -2, -3)
LARGEST = 1e100  # products of larger values overflow
MIXED = (300.0, 3000.0)  # watts among milliwatts lie a thousand apart


@dataclass(frozen=True)
class Screened:
    """The rows and columns that can be learnt from, and sentences on what was found."""

    table: Table
    names: tuple[str, ...]
    warnings: tuple[str, ...]


def screen(table: Table, target: str, *, ignore: Sequence[str] = (), features: Sequence[str] | None = None) -> Screened:
    """Look at a table. MeasurementRefused where nothing can be learnt; UsageError for columns that are not there."""
    table.column(target)
    for name in (*ignore, *(features or ())):
        table.column(name)
    warnings: list[str] = list(table.notes)
    table = _rows_with_target(table, target, warnings)
    table = _without_dead_target(table, target, warnings)
    _plausible(table.column(target), target, warnings)
    names = [
        name
        for name in (features if features is not None else table.columns)
        if name != target and name not in ignore and _usable(table, name, target, features is not None, warnings)
    ]
    gaps = int((np.diff(table.times_s) > GAP_PERIODS * table.period_s).sum())
    if gaps:
        warnings.append(f"{gaps} gaps in time: averages and past values do not reach across them")
    if not names:
        raise MeasurementRefused(
            f"No column is left from which {target} could be predicted: "
            f"{'; '.join(warnings[-3:]) or 'the table has no other'}.",
            cure="everywatt model explore TABLE --target " + target,
        )
    return Screened(table, tuple(names), tuple(dict.fromkeys(warnings)))


def _rows_with_target(table: Table, target: str, warnings: list[str]) -> Table:
    y = table.column(target)
    known = np.isfinite(y) & (y > 0)
    if not known.all():
        warnings.append(f"{int((~known).sum())} of {len(y)} rows have no {target} above zero and were dropped")
    if int(known.sum()) < LEAST_ROWS:
        raise MeasurementRefused(f"Only {int(known.sum())} rows have {target}; at least {LEAST_ROWS} are needed.")
    return table.take(known)


def stretches(values: Floats) -> list[tuple[int, int]]:
    """Stretches [start, end) in which a value stands still."""
    edges = np.flatnonzero(np.diff(values) != 0) + 1
    bounds = [0, *edges.tolist(), len(values)]
    return list(itertools.pairwise(bounds))


def _without_dead_target(table: Table, target: str, warnings: list[str]) -> Table:
    """Rows without long stretches in which power stood exactly still while the machine did not."""
    y = table.column(target)
    if float(y.max()) == float(y.min()):
        raise MeasurementRefused(f"{target} never changes ({y[0]:g}): the sensor is dead, or nothing happened.")
    most = max(DEAD_ROWS, len(y) // 50)
    dead: NDArray[np.bool_] = np.zeros(len(y), dtype=bool)
    for start, end in stretches(y):
        if end - start >= most and _busy(table, target, start, end):
            dead[start:end] = True
    if dead.any():
        warnings.append(
            f"{target} was constant for {int(dead.sum())} rows while the machine was not; they were dropped"
        )
        if int((~dead).sum()) < LEAST_ROWS:
            raise MeasurementRefused(f"{target} comes from a dead sensor: it is constant while the machine is not.")
    return table.take(~dead)


def _busy(table: Table, target: str, start: int, end: int) -> bool:
    for name, values in table.columns.items():
        if name != target and not POWER_NAME.search(name):
            whole = float(np.nanstd(values))
            if whole > 0 and float(np.nanstd(values[start:end])) > 0.3 * whole:
                return True
    return False


def _plausible(y: Floats, target: str, warnings: list[str]) -> None:
    middle = float(np.median(y))
    low, high = PLAUSIBLE_W
    if not low <= middle <= high:
        raise UsageError(
            f"The median of {target} is {middle:.3g}, which cannot be the watts of a machine.",
            cure="a column in watts (mW ÷ 1000; a counter of joules whose name ends in _total or _energy)",
        )
    if middle >= DOUBTED_W:
        warnings.append(f"the median of {target} is {middle:.3g} W: is it in milliwatts? Then call it {target}_mw")
    apart = np.maximum(y / middle, middle / y)
    mixed = (apart >= MIXED[0]) & (apart <= MIXED[1])
    if 0 < mixed.mean() < 0.5 and mixed.sum() >= 3:
        raise UsageError(
            f"{int(mixed.sum())} values of {target} differ from the others by a factor of a thousand: two units in one "
            "column.",
            cure="use watts in every row",
        )


def _usable(table: Table, name: str, target: str, asked: bool, warnings: list[str]) -> bool:
    values = table.column(name)
    known = values[np.isfinite(values)]
    missing = 1 - len(known) / len(values)
    if missing > MOST_MISSING:
        warnings.append(f"{name} has no value in {format_percent(missing)} of the rows and was dropped")
        return False
    if len(known) and float(np.abs(known).max()) > LARGEST:
        warnings.append(f"{name} has values too large to compute with and was dropped")
        return False
    if len(known) == 0 or float(known.max()) == float(known.min()):
        warnings.append(f"{name} never changes and was dropped")
        return False
    if missing:
        warnings.append(f"{name} has no value in {format_percent(missing)} of the rows; its median is used there")
    return _honest(table, name, target, asked, warnings)


def _honest(table: Table, name: str, target: str, asked: bool, warnings: list[str]) -> bool:
    """Whether a column does not already hold the answer."""
    if POWER_NAME.search(name):
        fault = "is itself a power or energy, which will not be available where the model is used"
        if not asked:
            warnings.append(f"{name} {fault}: dropped (--features {name} keeps it)")
            return False
        warnings.append(f"{name} {fault}: a machine without that sensor will have a larger error than shown below")
    values, y = table.column(name), table.column(target)
    at = {k: abs(_lagged(values, y, k, by_rank=False)) for k in SHIFTS if len(y) > abs(k) + 3}
    for k, value in at.items():
        if (k == 0 and value >= COPY) or (k != 0 and value >= LEAK and value > at[0]):
            shift = "" if k == 0 else f" {abs(k)} row{'s' if abs(k) > 1 else ''} {'ago' if k < 0 else 'ahead'}"
            if USE_NAME.search(name) and not POWER_NAME.search(name):
                how = f"(correlation {value:.5f}): does it come from a model?"
                warnings.append(f"{target} follows {name}{shift} exactly {how}")
                return True
            warnings.append(f"{name} is {target} itself{shift} (correlation {value:.5f}): leakage")
            return asked
    return True


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


def _lagged(values: Floats, y: Floats, lag: int, *, by_rank: bool = True) -> float:
    """The correlation with a target that comes so many rows later."""
    rows = len(y) - abs(lag)
    return correlation(values[max(-lag, 0) :][:rows], y[max(lag, 0) :][:rows], by_rank=by_rank)


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
