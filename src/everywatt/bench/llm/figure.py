"""A figure of a language-model run: a number with its interval, unit and formula, or the reason for its absence; and
what is said of many queries: shares, repeats, percentiles, a regression.

And what the model had to compute: FLOPs, and how much of the hardware's peak that is; what its tokens cost to buy. A
count of parameters comes from the user or from the server itself; the peak from the user, or from the one GPU whose
name is known. Neither is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.format import Printed, format_percent, print_quantity
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
class Figure:
    """A number with its 95 % interval, unit and formula; or None and why."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    formula: str
    refused: str | None = None

    @classmethod
    def none(cls, unit: str, formula: str, why: str | None) -> Figure:
        """No figure, and here is why."""
        return cls(None, None, None, unit, formula, why)

    @classmethod
    def bare(cls, value: float | None, unit: str, formula: str, why: str | None = None) -> Figure:
        """A number without an interval, or why there is none."""
        return cls(value, None, None, unit, formula, why)

    @classmethod
    def share(cls, share: Share | None, formula: str, why: str) -> Figure:
        """A share with its interval, or why there is none."""
        return cls.none("", formula, why) if share is None else cls(share.value, share.low, share.high, "", formula)

    def printed(self) -> Printed:
        """The words for value, unit and interval; `refused` where there is no value."""
        if self.value is None:
            return Printed("refused", "")
        if self.low is None:
            return print_quantity(self.value, self.unit)
        high = math.inf if self.high is None else self.high
        return print_quantity(self.value, self.unit, self.value - self.low, high - self.value)

    def percent(self) -> str | None:
        """A share of 1 in percent, with its interval; None where there is none."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return format_percent(self.value, self.value - self.low, self.high - self.value)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {"value": self.value, "low": self.low, "high": self.high, "unit": self.unit, "formula": self.formula}
        return data if self.refused is None else {**data, "refused": self.refused}


def over_energy(amount: float, energy: Energy, unit: str, formula: str) -> Figure:
    """An amount for each joule, with the energy's interval."""
    if energy.joules is None or not energy.joules > 0:
        return Figure.none(unit, formula, energy.refused or "no energy was measured")
    low = energy.low or 0.0
    most = amount / low if low > 0 else None
    return Figure(amount / energy.joules, amount / (energy.high or energy.joules), most, unit, formula)


# Dense 16-bit floating-point peak in TFLOP/s, from the makers' data sheets.
PEAK_TFLOPS: Sequence[tuple[str, float]] = (
    ("A100", 312.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("H200", 989.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("A40", 149.7),
    ("V100", 125.0),
    ("Tesla T4", 65.0),
    ("MI300X", 1307.0),
    ("MI250X", 383.0),
)
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
PER_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Facts(ToDict):
    """What is known of model and hardware. `parameters` are those that a token uses: the active ones of a mixture.

    `token_price` is for a million input and a million output tokens. `peak_from` and `parameters_from` say who said so.
    """

    parameters: float | None = None
    parameters_from: str = ""
    peak_flops: float | None = None
    peak_from: str = ""
    token_price: tuple[float, float] | None = None
    currency: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Facts:
        """The inverse of `to_dict`; an older record knows less."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None}
        if "token_price" in known:
            known["token_price"] = (float(known["token_price"][0]), float(known["token_price"][1]))
        return cls(**known)


def parse_count(text: str) -> float:
    """`135M`, `7B`, `1.5T`: a count with its letter.

    >>> parse_count("135M"), parse_count("7.6B")
    (135000000.0, 7600000000.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMGBTP]?)\s*", text)
    if not found or not float(found.group(1)) > 0:
        raise UsageError(f"'{text}' is not a count such as 135M or 7B.")
    return float(found.group(1)) * _SCALES[found.group(2)]


def parse_prices(text: str) -> tuple[float, float, str]:
    """`0.15,0.60 USD`: for a million input tokens, for a million output tokens, and the currency."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found:
        raise UsageError(f"'{text}' is not a pair of prices per million tokens such as '0.15,0.60 USD'.")
    return float(found.group(1)), float(found.group(2)), found.group(3)


def peak_of(names: Sequence[str]) -> tuple[float, str] | None:
    """FLOP/s of the one GPU of a machine by its name, and where that is from; None for several, or an unknown one."""
    if len(names) != 1:
        return None
    for known, tflops in PEAK_TFLOPS:
        words = "[ -]".join(re.escape(word) for word in known.split())
        if re.search(rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])", names[0]):
            return tflops * 1e12, f"data sheet of {known}, dense, 16 bits"
    return None


def compute_figures(
    facts: Facts, inputs: int | None, outputs: int | None, seconds: float, energy: Energy
) -> dict[str, Figure]:
    """FLOPs, FLOPs for a joule, MFU and the price of the tokens; only what was asked for, or can be known."""
    found: dict[str, Figure] = {}
    tokens = None if inputs is None or outputs is None else inputs + outputs
    if facts.parameters is not None:
        formula = (
            f"2 × {facts.parameters:.4g} parameters ({facts.parameters_from}) × (input + output tokens); without "
            "attention; cached input counts"
        )
        if tokens is None:
            found["flops"] = Figure.none("FLOP", formula, "token counts are unknown")
        else:
            flops = 2.0 * facts.parameters * tokens
            found["flops"] = Figure.bare(flops, "FLOP", formula)
            found["flops_per_joule"] = over_energy(flops, energy, "FLOP/J", "FLOPs / gross J")
        found["mfu"] = _mfu(facts, found["flops"], seconds)
    if facts.token_price is not None:
        found["token_cost"] = _token_cost(facts, inputs, outputs)
    return found


def _mfu(facts: Facts, flops: Figure, seconds: float) -> Figure:
    formula = "FLOPs / seconds with a query open / peak FLOP/s"
    if facts.peak_flops is None:
        return Figure.none("", formula, "the peak FLOP/s of the hardware is unknown: --peak-flops")
    formula = f"{formula} ({facts.peak_flops:.4g}, {facts.peak_from})"
    if flops.value is None or not seconds:
        return Figure.none("", formula, flops.refused or "no query took measurable time")
    return Figure.bare(flops.value / seconds / facts.peak_flops, "", formula)


def _token_cost(facts: Facts, inputs: int | None, outputs: int | None) -> Figure:
    assert facts.token_price is not None
    unit = facts.currency or "(price units)"
    formula = f"input tokens × {facts.token_price[0]:g} + output tokens × {facts.token_price[1]:g}, per million"
    if inputs is None or outputs is None:
        return Figure.none(unit, formula, "token counts are unknown")
    cost = (inputs * facts.token_price[0] + outputs * facts.token_price[1]) / PER_MILLION
    return Figure.bare(cost, unit, formula)
