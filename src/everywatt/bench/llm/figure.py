"""A figure of a language-model run: a number with its interval, unit and formula, or the reason for its absence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from everywatt.core.energy import Energy
from everywatt.core.format import Printed, print_quantity


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
    def none(cls, unit: str, formula: str, why: str) -> Figure:
        """No figure, and here is why."""
        return cls(None, None, None, unit, formula, why)

    def printed(self) -> Printed:
        """The words for value, unit and interval; `refused` where there is no value."""
        if self.value is None:
            return Printed("refused", "")
        if self.low is None:
            return print_quantity(self.value, self.unit)
        high = math.inf if self.high is None else self.high
        return print_quantity(self.value, self.unit, self.value - self.low, high - self.value)

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
