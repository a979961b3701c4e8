"""Which rows are left out together. Neighbouring rows leak, so rows are never shuffled.

A fold is a part of the rows that a model is tested on after it was fitted on the others: a stretch of time, a load, or
the rows in which a column is above or below most of its values. Each stands for one way in which deployment differs
from training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from everywatt.models.design import ranks
from everywatt.models.table import Floats, Table

Ints = NDArray[np.int64]
LOADS = 6
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


def found_loads(table: Table, names: Sequence[str], count: int = LOADS) -> NDArray[np.str_]:
    """Loads of a table that names none: groups of rows with similar use (k-means over ranks)."""
    usable = [name for name in names if np.isfinite(table.column(name)).any()]
    if not usable or len(table) < 4 * count:
        return np.array([f"part {place + 1}" for place in np.arange(len(table)) * 2 // max(len(table), 1)])
    x = np.column_stack([_share(table.column(name)) for name in usable])
    return np.array([f"load {place + 1}" for place in clusters(x, count)[1].tolist()])


def _share(values: Floats) -> Floats:
    known = np.isfinite(values)
    return ranks(np.where(known, values, np.median(values[known]))) / max(len(values) - 1, 1)


def clusters(x: Floats, count: int) -> tuple[Floats, Ints]:
    """So many centres that represent the rows, and the nearest centre of each row; the same every time."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        made = KMeans(min(count, len(np.unique(x, axis=0))), n_init=1, random_state=0).fit(x)
    return made.cluster_centers_, made.labels_.astype(np.int64)
