"""The statistics of a language-model benchmark: Wilson's interval, a joint bootstrap, percentiles, a regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
RESAMPLES = 2000
SEED = 20261115
PERCENTILES = (50, 90, 95, 99)


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
    return Share(p, max(0.0, middle - half), min(1.0, middle + half), n)


def joint_bootstrap(
    right: Sequence[bool], joules: Sequence[float], groups: Sequence[str] = (), *, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """95 % interval of Σright / Σjoules, items drawn together with their energies.

    Where items belong to two or more groups whole groups are drawn, since items of one group are alike. None for fewer
    than two, or without energy.
    """
    hits, cost = np.asarray(right, dtype=np.float64), np.asarray(joules, dtype=np.float64)
    names = sorted(set(groups)) if len(groups) == len(hits) else []
    if len(names) >= 5:
        number = np.array([names.index(group) for group in groups])
        hits, cost = np.bincount(number, hits).astype(np.float64), np.bincount(number, cost).astype(np.float64)
    if len(hits) < 2 or not cost.sum() > 0:
        return None
    chance = np.random.default_rng(SEED)
    found = np.empty(resamples)
    for turn in range(resamples):
        drawn = chance.integers(0, len(hits), len(hits))
        total = cost[drawn].sum()
        found[turn] = hits[drawn].sum() / total if total > 0 else np.nan
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return float(low), float(high)


def percentiles(values: npt.ArrayLike) -> dict[str, float] | None:
    """Mean, p50, p90, p95, p99 and how many; None of nothing."""
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found)]
    if not len(found):
        return None
    named = {f"p{p}": float(np.percentile(found, p)) for p in PERCENTILES}
    return {"mean": float(found.mean()), **named, "n": len(found)}


def regression(columns: dict[str, Sequence[float]], target: Sequence[float]) -> dict[str, Any] | None:
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
