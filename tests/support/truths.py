"""Figures of the real clock against the truth: right in any schedule, because the interval says how late things were.

How near a figure comes to the truth on a machine that is never late is tested in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everywatt.core.energy import Energy


def holds(energy: Energy | Mapping[str, Any], truth_j: float) -> bool:
    """Whether the truth is inside the interval of a figure (also of one read from JSON, or of a mean of some).

    One 95 % interval in twenty misses; by three times its half-width, none does by chance.
    """
    joules, low, high = (
        (energy.joules, energy.low, energy.high)
        if isinstance(energy, Energy)
        else (energy.get("joules", energy.get("value")), energy["low"], energy["high"])
    )
    assert joules is not None, energy
    inside = joules - 3 * (joules - low) <= truth_j <= joules + 3 * (high - joules)
    assert inside, f"{truth_j:.6g} J is not in {joules:.6g} J ({low:.6g} … {high:.6g})"
    return True
