"""A figure of a language-model run: a number with its interval, unit and formula, or the reason for its absence; and
what is said of many queries: shares, percentiles, a regression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.energy import Energy
from everywatt.core.format import Printed, format_duration, format_percent, print_quantity
from everywatt.core.jsonio import ToDict
from everywatt.core.stats import wilson

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Share(ToDict):
    """A share with its 95 % interval, of `n`."""

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, hits: int, n: int) -> Share | None:
        """The share `hits` of `n` with Wilson's interval; None of nothing."""
        return cls(hits / n, *wilson(hits, n), n) if n > 0 else None

    def __str__(self) -> str:
        return format_percent(self.value, self.value - self.low, self.high - self.value)


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


def trimmed_mean(values: Sequence[float]) -> float | None:
    """The mean without the smallest and largest twentieth: beside the full mean, never instead of it."""
    if not values:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = len(ordered) // 20
    return float(ordered[cut : len(ordered) - cut].mean())


@dataclass(frozen=True, slots=True)
class Figure(ToDict):
    """A number with its 95 % interval, unit and formula; or None and why."""

    JSON = "value low high unit formula refused?"

    value: float | None
    low: float | None
    high: float | None
    unit: str
    formula: str
    refused: str | None = None

    @classmethod
    def none(cls, unit: str, formula: str, why: str | None) -> Figure:
        return cls(None, None, None, unit, formula, why)

    @classmethod
    def bare(cls, value: float | None, unit: str, formula: str, why: str | None = None) -> Figure:
        """A number without an interval, or the reason why it is missing."""
        return cls(value, None, None, unit, formula, why)

    @classmethod
    def share(cls, share: Share | None, formula: str, why: str) -> Figure:
        """A share with its interval, or the reason why it is missing."""
        return cls.none("", formula, why) if share is None else cls(share.value, share.low, share.high, "", formula)

    def printed(self) -> Printed:
        """The words for value, unit and interval; `refused` where there is no value."""
        if self.value is None:
            return Printed("refused", "")
        if self.low is None and self.unit == "s":
            value, _, unit = format_duration(self.value).rpartition(" ")
            return Printed(value, unit)
        if self.low is None:
            return print_quantity(self.value, self.unit)
        high = math.inf if self.high is None else self.high
        return print_quantity(self.value, self.unit, self.value - self.low, high - self.value)


def over_energy(amount: float, energy: Energy, unit: str, formula: str) -> Figure:
    """An amount for each joule, with the energy's interval."""
    if energy.joules is None or not energy.joules > 0:
        return Figure.none(unit, formula, energy.refused or "no energy was measured")
    value, less, more = amount / energy.joules, *per_joule(energy)
    return Figure(value, *times((value, value, value), less, more), unit, formula)


def per_joule(energy: Energy) -> tuple[float, float]:
    """The factors by which a quotient with this energy below the line may be less and more."""
    value, low, high = energy.value, energy.low or 0.0, energy.high or energy.value
    return value / high, value / low if low > 0 else math.inf


def times(spread: tuple[float, float, float], less: float, more: float) -> tuple[float, float | None]:
    """The interval of a figure (low, value, high) times an independent factor about 1: each side is the root of squares
    of logarithms, since a quotient is as often twice as half of what it should be. None above where it has no end."""
    low, value, high = spread
    if not value > 0:
        return 0.0, high * more if math.isfinite(more) else None
    below = math.hypot(math.log(low / value), math.log(less)) if low > 0 and less > 0 else math.inf
    above = math.hypot(math.log(high / value), math.log(more)) if math.isfinite(more) else math.inf
    return value * math.exp(-below), value * math.exp(above) if math.isfinite(above) else None
