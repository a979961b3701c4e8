"""A figure in the words of a page."""

from __future__ import annotations

import math
from typing import Any

from everywatt.core.energy import Energy
from everywatt.core.units import format_percent, format_quantity


def shown(energy: Energy) -> str:
    """`412.3 J ± 6.1`, or why there is none."""
    if energy.joules is None:
        return f"refused: {energy.refused}"
    return format_quantity(energy.joules, "J", *energy.sides())


def shown_energy(energy: Energy) -> dict[str, Any]:
    """An energy as JSON has it, with the words that a person reads: value, unit and spread apart."""
    data = {**energy.to_dict(), "shown": shown(energy)}
    if energy.joules is None:
        return data
    head, plus_minus, spread = data["shown"].partition(" ± ")
    if plus_minus:
        spread = f"± {spread}"
    else:
        head, minus, spread = head.partition(" −")
        spread = f"−{spread}" if minus else ""
    value, _, unit = head.rpartition(" ")
    data["big"] = {"value": value, "unit": unit, "spread": spread, "interval": _interval(energy, value, unit)}
    data["coverage_shown"] = format_percent(energy.coverage)
    return data


def _interval(energy: Energy, value: str, unit: str) -> str:
    """`1154 … 1197 J`: both ends in the unit and with the decimals of the value."""
    joules, low, high = energy.joules, energy.low, energy.high
    if not joules or low is None or high is None or float(value) == 0:
        return ""
    exponent = round(math.log10(joules / float(value))) if joules / float(value) > 0 else 0
    factor, decimals = 10.0**exponent, len(value.partition(".")[2])
    return f"{low / factor:.{decimals}f} … {high / factor:.{decimals}f} {unit}"
