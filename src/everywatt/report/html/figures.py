"""A figure in the words of a page."""

from __future__ import annotations

from typing import Any

from everywatt.core.energy import Energy
from everywatt.core.format import format_energy, format_percent, print_quantity


def shown_energy(energy: Energy) -> dict[str, Any]:
    """An energy as JSON has it, with the words that a person reads: value, unit and spread apart."""
    data = {**energy.to_dict(), "shown": format_energy(energy)}
    if energy.joules is not None:
        data["big"] = print_quantity(energy.joules, "J", *energy.sides())._asdict()
        data["coverage_shown"] = format_percent(energy.coverage)
    return data
