"""Finished runs beside each other: ratios from their error budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.verdict import change, of_candidate
from everywatt.core.energy import Energy, Ratio
from everywatt.core.errors import EverywattError, ScopeError
from everywatt.core.format import format_percent
from everywatt.core.tables import Cell, Column, Table, csv_text


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run beside the first one."""

    name: str
    energy: Energy
    net: Energy
    duration_s: float
    gross: Ratio | None = None
    above_idle: Ratio | None = None
    verdict: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "label": self.name,
            "energy": self.energy.to_dict(),
            "energy_net": self.net.to_dict(),
            "duration_s": self.duration_s,
            "ratio": None if self.gross is None else self.gross.to_dict(),
            "ratio_net": None if self.above_idle is None else self.above_idle.to_dict(),
            "verdict": self.verdict,
        }


def folder_of(run: Run) -> Path:
    """The folder of a run, where a benchmark keeps its records."""
    return run.path if run.path.is_dir() else run.path.parent


COLUMNS = (
    "label", "energy_j", "energy_low_j", "energy_high_j", "net_j", "net_low_j", "net_high_j", "ratio", "ratio_low",
    "ratio_high", "ratio_net", "ratio_net_low", "ratio_net_high", "seconds", "verdict",
)  # fmt: skip
SHOWN = (
    *("run", Column("energy", "J"), Column("above idle", "J"), Column("time", "s")),
    *(Column("ratio", ""), Column("ratio above idle", "")),
)


@dataclass(frozen=True, slots=True)
class RunsCompared:
    """Finished runs, each beside the first."""

    found: tuple[RunFigures, ...]
    target: float

    def verdicts(self) -> list[str]:
        """A sentence for each run but the first, and why there is no energy above idle."""
        said = [of_candidate(one.name, one.verdict) for one in self.found[1:]]
        why = dict.fromkeys(one.net.refused for one in self.found if one.energy.joules is not None and one.net.refused)
        return said + [f"above idle: refused: {reason}" for reason in why]

    def tables(self) -> list[Table]:
        """One row for each run, with the verdicts as notes."""
        return [Table.of(*SHOWN, rows=[self._row(one) for one in self.found], notes=self.verdicts())]

    def _row(self, one: RunFigures) -> list[Cell]:
        def ratio(found: Ratio | None, energy: Energy) -> Cell:
            return found if found is not None else 1 if one is self.found[0] and energy.joules is not None else None

        net = None if one.net.joules is None else one.net
        return [one.name, one.energy, net, one.duration_s, ratio(one.gross, one.energy), ratio(one.above_idle, one.net)]

    def to_csv(self) -> str:
        """One line for each run, plain numbers, in the columns of a comparison of commands."""

        def ends(energy: Energy) -> tuple[float | None, ...]:
            return (None,) * 3 if energy.joules is None else (energy.joules, energy.low, energy.high)

        def of(ratio: Ratio | None) -> tuple[float | None, ...]:
            return (None,) * 3 if ratio is None else (ratio.value, ratio.low, ratio.high)

        rows = [
            [
                *(one.name, *ends(one.energy), *ends(one.net)),
                *of(one.gross),
                *of(one.above_idle),
                one.duration_s,
                one.verdict,
            ]
            for one in self.found
        ]
        return csv_text(COLUMNS, rows)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `cli` puts schema and kind around it."""
        return {"candidates": [one.to_dict() for one in self.found], "target": self.target}


def compare_runs(runs: Sequence[Run], *, target: float = 0.02, force: bool = False) -> RunsCompared:
    """Every run beside the first. ScopeError where they cover different things, unless `force`.

    A run is one trial, so the interval is of the measurement alone: how much the program itself varies is not in it.
    """
    found = [RunFigures(run.name, run.energy(), run.energy_net(), run.duration_s) for run in runs]
    first = found[0]
    for place, one in enumerate(found[1:], start=1):
        if one.energy.joules is not None and first.energy.joules is not None and one.energy.scope != first.energy.scope:
            if not force:
                raise ScopeError(
                    f"{one.name} covers '{one.energy.scope}' and {first.name} covers '{first.energy.scope}'.",
                    cure="--force compares them anyway, with a note",
                )
            note = f"scopes differ: {first.energy.scope} and {one.energy.scope}"
        else:
            note = ""
        gross, above_idle = _ratio(one.energy, first.energy), _ratio(one.net, first.net)
        words = _verdict(one.name, first.name, gross, target)
        if gross is None and None not in (one.energy.joules, first.energy.joules):
            words = f"no verdict: the interval of {first.name} holds zero"
        found[place] = replace(one, gross=gross, above_idle=above_idle, verdict="; ".join(filter(None, (words, note))))
    return RunsCompared(tuple(found), target)


def _ratio(one: Energy, first: Energy) -> Ratio | None:
    """None where there is no figure for both, and where the first may be zero: such a ratio has no finite end."""
    if first.low is None or first.low <= 0:
        return None
    try:
        return one.ratio(replace(first, scope=one.scope))
    except EverywattError:
        return None


def _verdict(name: str, first: str, ratio: Ratio | None, target: float) -> str:
    if ratio is None:
        return "no verdict: energy is not available for both"
    if ratio.low >= 1 - target and ratio.high <= 1 + target:
        return f"no difference in energy larger than {format_percent(target)} compared with {first}"
    if ratio.high < 1 or ratio.low > 1:
        word = "less" if ratio.high < 1 else "more"
        return f"{name} used {change(ratio.value, ratio.low, ratio.high)} {word} energy than {first}"
    return f"undecided: {ratio}"
