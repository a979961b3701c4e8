"""The statistics of a language-model benchmark: Wilson's interval, a joint bootstrap, percentiles, a regression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
RESAMPLES = 2000
SEED = 20261115
PERCENTILES = (50, 90, 95, 99)
FEWEST_GROUPS = 5
# 97.5 % points of Student's t for 1, 2, 3, … degrees of freedom.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its 95 % interval, of `n`."""

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def wilson(right: int, n: int) -> Share | None:
    """The share `right` of `n` with Wilson's score interval; None of nothing.

    >>> share = wilson(8, 10)
    >>> round(share.low, 3), round(share.high, 3)
    (0.49, 0.943)
    """
    if n <= 0:
        return None
    p, z2 = right / n, Z95**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At the ends the bound is the share itself, but for the last digit of a sum.
    return Share(p, max(0.0, middle - half) if right else 0.0, min(1.0, middle + half) if right < n else 1.0, n)


def joint_bootstrap(
    right: Sequence[float], joules: Sequence[float], groups: Sequence[str] = (), *, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """95 % interval of Σright / Σjoules, items drawn together with their energies.

    Where items belong to five or more groups whole groups are drawn, since items of one group are alike. None for
    fewer than two, or without energy.
    """
    table = clustered(np.column_stack([right, joules]).astype(np.float64), groups)
    if len(table) < 2 or not table[:, 1].sum() > 0:
        return None
    sums = resampled(table, resamples)
    found = np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] > 0)
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return float(low), float(high)


def clustered(table: npt.NDArray[np.float64], groups: Sequence[str]) -> npt.NDArray[np.float64]:
    """Rows of one group added up, where there are five groups or more; fewer say nothing of how groups differ."""
    if len(groups) != len(table) or len(set(groups)) < FEWEST_GROUPS:
        return table
    _, number = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    return np.column_stack([np.bincount(number, column) for column in table.T]).astype(np.float64)


def resampled(table: npt.NDArray[np.float64], resamples: int = RESAMPLES) -> npt.NDArray[np.float64]:
    """Sums of the columns of as many rows, drawn with replacement, again and again: one row for each time."""
    chance = np.random.default_rng(SEED)
    found = np.empty((resamples, table.shape[1]))
    for turn in range(resamples):
        found[turn] = table[chance.integers(0, len(table), len(table))].sum(axis=0)
    return found


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact test, two-sided: how likely a split of the items that only one got right is, or a more uneven
    one, where neither is better.

    >>> mcnemar(0, 0), round(mcnemar(1, 9), 4)
    (1.0, 0.0215)
    """
    n, k = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    tail = sum(math.exp(_log_choose(n, i) - n * math.log(2)) for i in range(k + 1))
    return min(1.0, 2 * tail)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def over_repeats(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, standard deviation and Student's 95 % interval of a figure of repeated runs; None of fewer than two."""
    if len(values) < 2:
        return None
    found = np.asarray(values, dtype=np.float64)
    mean, sd = float(found.mean()), float(found.std(ddof=1))
    freedom = len(found) - 1
    near = (_STUDENT[freedom - 1] if freedom <= len(_STUDENT) else Z95) * sd / math.sqrt(len(found))
    return {"mean": mean, "sd": sd, "low": mean - near, "high": mean + near, "n": len(found)}


def percentiles(values: npt.ArrayLike) -> dict[str, float] | None:
    """Mean, p50, p90, p95, p99 and how many; None of nothing."""
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found)]
    if not len(found):
        return None
    named = {f"p{p}": float(np.percentile(found, p)) for p in PERCENTILES}
    return {"mean": float(found.mean()), **named, "n": len(found)}


def regression(columns: Mapping[str, Sequence[float]], target: Sequence[float]) -> dict[str, Any] | None:
    """Least squares of a target on columns and a constant, with standard errors; None where there are too few rows."""
    names = [name for name, values in columns.items() if len(set(values)) > 1]
    y = np.asarray(target, dtype=np.float64)
    if not names or len(y) < len(names) + 3:
        return None
    x = np.column_stack([np.ones(len(y)), *(np.asarray(columns[name], dtype=np.float64) for name in names)])
    if np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    rest = y - x @ found
    spread = float(rest @ rest) / (len(y) - x.shape[1])
    errors = np.sqrt(np.maximum(np.diag(np.linalg.inv(x.T @ x)) * spread, 0.0))
    total = float(((y - y.mean()) ** 2).sum())
    return {
        "n": len(y),
        "r2": 1 - float(rest @ rest) / total if total > 0 else None,
        "constant": {"value": float(found[0]), "se": float(errors[0])},
        **{
            name: {"value": float(value), "se": float(error)}
            for name, value, error in zip(names, found[1:], errors[1:], strict=True)
        },
    }


def trimmed_mean(values: Sequence[float], share: float = 0.05) -> float | None:
    """The mean without the smallest and largest `share`: beside the full mean, never instead of it."""
    if not values:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(len(ordered) * share)
    return float(ordered[cut : len(ordered) - cut].mean())
