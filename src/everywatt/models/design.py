"""From a table to the matrix of features, all rows at once; the twin of `features.History`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from everywatt.models.features import AVERAGES_S, TINY, Feature, smooth
from everywatt.models.table import GAP_PERIODS, Floats, Table

Ints = NDArray[np.int64]

MOST_VALUES = 12
MOST_IN_RATIOS = 4
USEFUL, FALLS = 0.1, -0.3  # rank correlations with power
WILD = 20.0  # times the range of all but the highest hundredth of the rows


def design(table: Table, features: Sequence[Feature], fill: Mapping[str, float], period_s: float) -> Floats:
    """One row for each instant, one column for each feature; `fill` stands in where a column has no value."""
    columns = {name: _filled(table.column(name), fill.get(name, 0.0)) for f in features for name in f.columns}
    made = [_made(table.times_s, columns, feature, period_s) for feature in features]
    return np.column_stack(made) if made else np.zeros((len(table), 0))


def _filled(values: Floats, fill: float) -> Floats:
    return np.where(np.isfinite(values), values, fill)


def _made(times_s: Floats, columns: Mapping[str, Floats], feature: Feature, period_s: float) -> Floats:
    values = columns[feature.column]
    if feature.kind == "ratio":
        below = columns[feature.other]
        busy = np.abs(below) > TINY
        return np.where(busy, values / np.where(busy, below, 1.0), 0.0)
    if feature.kind == "log-ratio":
        return np.asarray(np.log(np.maximum(values, TINY) / np.maximum(columns[feature.other], TINY)))
    if feature.kind == "past":
        return past(times_s, values, feature.seconds, period_s)
    if feature.kind == "mean":
        return rolling(times_s, values, feature.seconds, period_s)
    return values


def past(times_s: Floats, values: Floats, seconds: float, period_s: float) -> Floats:
    """Values as they stood some seconds ago; the present ones at the start and after a gap."""
    wanted = times_s - seconds
    place = np.searchsorted(times_s, wanted + period_s / 2, side="right") - 1
    known = (place >= 0) & (times_s[place] >= wanted - 1.5 * period_s)
    stretch = np.cumsum(_after_gap(times_s, period_s))
    known &= stretch[np.maximum(place, 0)] == stretch
    return np.where(known, values[np.maximum(place, 0)], values)


def rolling(times_s: Floats, values: Floats, tau_s: float, period_s: float) -> Floats:
    """The rolling average with time constant τ: the answer to a step is 1 − e^(−t/τ). It starts anew after a gap."""
    gaps = _after_gap(times_s, period_s)
    made = np.empty(len(values))
    before: float | None = None
    last_s = 0.0
    for place, (at_s, value) in enumerate(zip(times_s.tolist(), values.tolist(), strict=True)):
        if value != value:
            made[place] = np.nan if before is None else before
            continue
        before = None if gaps[place] else before
        before = smooth(before, value, at_s - last_s, tau_s)
        made[place], last_s = before, at_s
    return made


def still_rows(values: Floats) -> NDArray[np.int64]:
    """For how many rows each value stands still, over the whole stretch; 1 where it is 0, 0 where there is none."""
    known = np.isfinite(values)
    same = np.concatenate([[False], (values[1:] == values[:-1]) & (values[1:] != 0)]) if len(values) else known
    stretch = np.cumsum(~same) - 1
    return np.where(known, np.bincount(stretch)[stretch], 0) if len(values) else np.zeros(0, dtype=np.int64)


def averages(table: Table, names: Sequence[str], taus_s: Sequence[float] = AVERAGES_S) -> Table:
    """The table with rolling averages of some columns beside them: `NAME over 5 s`."""
    columns = dict(table.columns)
    for name in names:
        for tau_s in taus_s:
            feature = Feature("mean", name, seconds=tau_s)
            columns[feature.name] = rolling(table.times_s, table.column(name), tau_s, table.period_s)
    return table.with_columns(columns)


def _after_gap(times_s: Floats, period_s: float) -> NDArray[np.bool_]:
    """True where a row follows a gap."""
    return np.diff(times_s, prepend=times_s[:1] if len(times_s) else []) > GAP_PERIODS * max(period_s, 1.0)


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
