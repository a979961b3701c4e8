"""Why an interval is as wide as it is: the error budget as a table, with what would narrow it and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.format import format_duration, format_percent
from everywatt.core.tables import Cell, Column, Table

CALIBRATED_PCT = 1.5
# What is left of an error that cancels (the offset in a net figure) is rounding.
ROUNDING_J = 1e-9


@dataclass(frozen=True, slots=True)
class Cause:
    """One source of error: its 95 % half-width, its share of the variance, and a cure."""

    source: str
    half_width_j: float
    percent: float | None
    meaning: str
    cure: str


_MEANING = {
    "gain": "the gain of the sensor may be wrong, by the same factor in every window",
    "offset": "the offset of the sensor may be wrong, by the same watts all the time",
    "edges": "power between the sensor's last publication and the window's edge is interpolated",
    "aliasing": "the sensor samples only part of the time, and the load may alias with it",
    "quantum": "the resolution of the sensor",
    "baseline": "scatter of the idle power",
    "gap": "time without readings",
    "wraps": "the counter may have wrapped more than once",
    "model": "no sensor measures power here: watts are modelled from CPU utilisation",
}


def causes(energy: Energy, duration_s: float) -> list[Cause]:
    """The budget of a figure, widest first."""
    if energy.joules is None:
        return []
    widths = energy.budget.by_source()
    found = []
    for source, width in widths.items():
        width = width if width > ROUNDING_J else 0.0
        percent = 100 * width / abs(energy.joules) if energy.joules else None
        cure = _cure(source, width, energy, duration_s)
        found.append(Cause(source, width, percent, _MEANING.get(source, ""), cure))
    return found


@dataclass(frozen=True, slots=True)
class Why:
    """The budget behind a figure of a run."""

    name: str
    energy: Energy
    budget: Sequence[Cause]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        budget = [asdict(cause) for cause in self.budget]
        return {"name": self.name, "energy": self.energy.to_dict(), "budget": budget}

    def tables(self) -> list[Table]:
        """One row for each source of error, widest first."""
        rows = [[c.source, c.half_width_j, _share(c.percent), c.meaning, c.cure] for c in self.budget]
        columns = ("SOURCE", Column("± (95 %)", "J"), Column("OF FIGURE", "%"), "DESCRIPTION", "HOW TO NARROW IT")
        notes = [f"! {note}" for note in self.energy.notes]
        return [Table.lines(str(self.energy)), Table.of(*columns, rows=rows, notes=notes)]


def _share(percent: float | None) -> Cell:
    """Of the figure; what does not matter is not printed to its ninth digit."""
    return None if percent is None else "< 0.01 %" if 0 < percent < 0.01 else percent / 100


def _without(energy: Energy, **changed_j: float) -> float:
    """The half-width in percent that the figure would have with some sources changed."""
    widths = energy.budget.by_source()
    left = {name: width / widths[name] for name, width in changed_j.items() if widths.get(name)}
    terms = [term._replace(joules=term.joules * left.get(term.source, 1.0)) for term in energy.budget.terms]
    bounds = [
        bound._replace(below=bound.below * share, above=bound.above * share)
        for bound in energy.budget.bounds
        for share in (left.get(bound.source, 1.0),)
    ]
    return 100 * max(Budget(tuple(terms), tuple(bounds)).sides()) / abs(energy.joules or 1.0)


def _cure(source: str, width_j: float, energy: Energy, duration_s: float) -> str:
    joules = abs(energy.joules or 0.0)
    if joules == 0:
        return ""
    if source in ("gain", "offset"):
        left_j = CALIBRATED_PCT / 100 * joules / math.sqrt(2)
        if width_j <= left_j:
            return "already small"
        after = _without(energy, gain=left_j, offset=left_j)
        return (
            f"calibrate the sensor against a meter (both to about {CALIBRATED_PCT} %): ± {format_percent(after / 100)}"
        )
    if source == "edges":
        after = _without(energy, edges=width_j / 10)
        return f"measure ten times as long ({format_duration(10 * duration_s)}): ± {format_percent(after / 100)}"
    if source == "aliasing":
        after = _without(energy, aliasing=width_j / math.sqrt(10))
        return f"measure ten times as long ({format_duration(10 * duration_s)}): ± {format_percent(after / 100)}"
    if source == "baseline":
        after = _without(energy, baseline=width_j / 2)
        return f"record idle for four times as long (--idle): ± {format_percent(after / 100)}"
    if source == "model":
        return "a power sensor: everywatt doctor lists those that this machine could have"
    if source in ("gap", "wraps"):
        after = _without(energy, **{source: 0.0})
        return f"a recording without gaps: ± {format_percent(after / 100)}"
    return ""
