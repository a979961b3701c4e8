"""Which rows belong together: blocks of time, and loads. Neighbouring rows leak, so rows are never shuffled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from everywatt.models.design import ranks
from everywatt.models.table import Floats, Table

Ints = NDArray[np.int64]
LOADS = 6
ROUNDS = 50
MOST_CUTS = 8
TOP = 0.8
LEAST_BEYOND = 20
LEAST_BELOW = 0.3


def blocks(rows: int, count: int = 5) -> list[Ints]:
    """So many stretches of time, one after another."""
    return [part for part in np.array_split(np.arange(rows, dtype=np.int64), count) if len(part)]


def by_load(loads: Sequence[str] | NDArray[np.str_]) -> list[Ints]:
    """The rows of each load, in order of name."""
    names = np.asarray(loads)
    return [np.flatnonzero(names == name).astype(np.int64) for name in np.unique(names)]


def beyond(columns: Sequence[Floats]) -> list[Ints]:
    """For each column the rows beyond half of its maximum, else beyond most of its values: where learning might stop.

    A column without enough rows on both sides of either cut is passed over, and the first few are enough.
    """
    found: list[Ints] = []
    for values in columns:
        for cut in (float(values.max()) / 2, float(np.quantile(values, TOP))):
            rows = np.flatnonzero(values > cut).astype(np.int64)
            if len(rows) >= LEAST_BEYOND and len(values) - len(rows) >= LEAST_BELOW * len(values):
                if not any(np.array_equal(rows, other) for other in found):
                    found.append(rows)
                break
    return found[:MOST_CUTS]


def found_loads(table: Table, names: Sequence[str], count: int = LOADS) -> NDArray[np.str_]:
    """Loads that nobody named: groups of rows with like use (k-means over ranks, the same every time)."""
    usable = [name for name in names if np.isfinite(table.column(name)).any()]
    if not usable or len(table) < 4 * count:
        return np.array([f"part {place + 1}" for place in np.arange(len(table)) * 2 // max(len(table), 1)])
    x = np.column_stack([_share(table.column(name)) for name in usable])
    return np.array([f"load {place + 1}" for place in _clusters(x, count)])


def _share(values: Floats) -> Floats:
    known = np.isfinite(values)
    return ranks(np.where(known, values, np.median(values[known]))) / max(len(values) - 1, 1)


def _clusters(x: Floats, count: int) -> Ints:
    centres = centres_of(x, count)
    return np.asarray(np.argmin(_distances(x, centres), axis=1), dtype=np.int64)


def centres_of(x: Floats, count: int) -> Floats:
    """So many points that stand for all rows: the farthest first, then moved to the middle of those nearest to them."""
    chosen = [int(np.argmin(((x - x.mean(axis=0)) ** 2).sum(axis=1)))]
    near = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(count, len(x)):
        chosen.append(int(np.argmax(near)))
        near = np.minimum(near, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
    centres = x[chosen].copy()
    for _ in range(ROUNDS):
        place = np.argmin(_distances(x, centres), axis=1)
        moved = np.array(
            [x[place == c].mean(axis=0) if (place == c).any() else centres[c] for c in range(len(centres))]
        )
        if np.allclose(moved, centres):
            break
        centres = moved
    return centres


def _distances(x: Floats, centres: Floats) -> Floats:
    return np.asarray(((x[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2))
