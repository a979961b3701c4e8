"""From a table to the matrix of features, and which columns are worth one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from everywatt.models.features import Feature, History
from everywatt.models.table import Floats, Table

Ints = NDArray[np.int64]

MOST_VALUES = 12
MOST_IN_RATIOS = 4
USEFUL, FALLS = 0.1, -0.3  # rank correlations with power
WILD = 20.0  # times the range of all but the highest hundredth of the rows


def design(table: Table, features: Sequence[Feature], fill: Mapping[str, float], period_s: float) -> Floats:
    """One row for each instant, one column for each feature, as a sensor makes them (`History`).

    `fill` stands in where a column has no value.
    """
    history = History(features, period_s)
    names = dict.fromkeys(name for feature in features for name in feature.columns)
    columns = [table.column(name) for name in names]
    filled = [np.where(np.isfinite(c), c, fill.get(n, 0.0)).tolist() for n, c in zip(names, columns, strict=True)]
    rows = zip(table.times_s.tolist(), *filled, strict=True)
    made = [history.row(at_s, dict(zip(names, values, strict=True))) for at_s, *values in rows]
    return np.array(made, dtype=np.float64).reshape(len(table), len(features))


def still_rows(values: Floats) -> NDArray[np.int64]:
    """The length in rows of the run of equal values around each row; 1 where the value is 0, 0 where it is missing."""
    known = np.isfinite(values)
    same = np.concatenate([[False], (values[1:] == values[:-1]) & (values[1:] != 0)]) if len(values) else known
    stretch = np.cumsum(~same) - 1
    return np.where(known, np.bincount(stretch)[stretch], 0) if len(values) else np.zeros(0, dtype=np.int64)


def ranks(values: Floats) -> Floats:
    """Ranks, ties sharing their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(((ends - counts) + (ends - 1))[place] / 2.0)


def correlation(a: Floats, b: Floats, *, by_rank: bool = True) -> float:
    """Spearman's (or Pearson's) correlation over rows in which both have a value; 0 where one stands still."""
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if len(a) < 3:
        return 0.0
    if by_rank:
        a, b = ranks(a), ranks(b)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 0.0


def automatic(
    table: Table, target: str, names: Sequence[str], *, asked: bool = False
) -> tuple[list[Feature], list[Feature], list[str]]:
    """Columns that watts may follow, strongest first; ratios of them whose range is watched; and those left out.

    Left out unless they were `asked` for: a column that falls while power rises, which is no use of the machine; one
    with values far beyond all others, which has no range to learn in; and one that hardly moves with power and stands
    still most of the time, which marks events instead of use.
    """
    y = table.column(target)
    strength = {name: correlation(table.column(name), y) for name in names}
    fit = [
        name for name in names if asked or (strength[name] > FALLS and not _no_use(table.column(name), strength[name]))
    ]
    kept = sorted(fit or names, key=lambda name: -strength[name])[:MOST_VALUES]
    strong = kept[:MOST_IN_RATIOS]
    values = [Feature("value", name) for name in kept]
    ratios = [Feature("log-ratio", a, b) for place, a in enumerate(strong) for b in strong[place + 1 :]]
    return values, ratios, [name for name in names if name not in kept]


def _no_use(values: Floats, strength: float) -> bool:
    known = values[np.isfinite(values)]
    usual = float(np.quantile(known, 0.99))
    wild = float(known.max()) - usual > WILD * max(usual - float(known.min()), 1e-300)
    still = float((known == np.median(known)).mean()) > 0.5
    return wild or (still and strength < USEFUL)


def clusters(x: Floats, count: int) -> tuple[Floats, Ints]:
    """So many centres that represent the rows, and the nearest centre of each row; the same every time."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        made = KMeans(min(count, len(np.unique(x, axis=0))), n_init=1, random_state=0).fit(x)
    return made.cluster_centers_, made.labels_.astype(np.int64)
