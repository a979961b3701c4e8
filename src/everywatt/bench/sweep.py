"""Energy against time over settings: which are Pareto-optimal, and which is the cheapest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.bench.comparing import Result
from everywatt.bench.figures import Figures, quantity
from everywatt.bench.trials import Candidate
from everywatt.bench.verdict import Comparison, Verdict, change
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import Table, columns_of
from everywatt.core.units import parse_power_w

MOST_SETTINGS = 100  # power limits in a sweep: more are a typing mistake in the step
SETTING_COLUMNS = columns_of("energy [J], above idle [J], time [s], power [W], ratio [], Pareto-optimal")


@dataclass(frozen=True, slots=True)
class Choice(ToDict):
    """The settings that nothing beats in both energy and time, by label, and the one with the lowest mean energy.

    `decided`: it may be recommended; its difference is known, or there is no other.
    """

    JSON = "pareto recommended=best why decided"

    pareto: tuple[str, ...]
    best: str | None
    why: str
    decided: bool = True


@dataclass(frozen=True, slots=True)
class Sweep:
    """A command at several settings, and what to choose."""

    result: Result
    choice: Choice

    @property
    def recommendation(self) -> str:
        """Which setting to choose and why, or why no setting is recommended."""
        choice = self.choice
        if choice.best and not choice.decided:
            return f"no recommendation yet: {choice.best} has the {choice.why}"
        modelled = " (modelled)" if self.result.cpu_columns else ""
        energy, *time = choice.why.split("; ")
        return "; ".join([f"recommended: {choice.best}: {energy}{modelled}", *time]) if choice.best else choice.why

    @property
    def lines(self) -> list[str]:
        """What a terminal shows below the table: the recommendation, after CPU times where energy is modelled."""
        return [*(self.result.verdicts() if self.result.cpu_columns else []), self.recommendation]

    def tables(self) -> list[Table]:
        """One row for each setting, with the recommendation and the verdicts as notes."""
        found = self.result.found
        best = {self.choice.best: "recommended" if self.choice.decided else "lowest mean"}
        words: dict[str | None, str] = {**dict.fromkeys(self.choice.pareto, "yes"), **best}
        rows = [
            [
                *(one.candidate.label, one.trial_count, *self.result.cpu_cells(one)),
                *(one.energy_cell, quantity(one.net, "J")),
                *(one.seconds.time, one.rounded(one.power_w, "W"), one.ratio_beside(found[0])),
                words.get(one.candidate.label, ""),
            ]
            for one in found
        ]
        columns = [*columns_of("setting, trials []"), *self.result.cpu_columns, *SETTING_COLUMNS]
        notes = [self.recommendation, *(line.strip() for line in self.result.verdicts())]
        return [Table.of(*columns, rows=rows, notes=notes)]

    def to_csv(self) -> str:
        """One line for each setting, plain numbers."""
        return self.result.to_csv()

    def to_dict(self) -> dict[str, Any]:
        return {**self.result.to_dict(), "choice": self.choice.to_dict()}


def parse_watts(text: str) -> list[float]:
    """`150W..300W:25W` or `150W,200W`, highest first: the highest is what the others are compared with."""
    if ".." in text:
        first, _, rest = text.partition("..")
        last, _, step = rest.partition(":")
        low, high = sorted((parse_power_w(first), parse_power_w(last)))
        stride = parse_power_w(step) if step else (high - low) / 6
        if stride <= 0 or (high - low) / stride > MOST_SETTINGS:
            raise UsageError(f"'{text}' is not a range of at most {MOST_SETTINGS} steps.")
        count = int((high - low) / stride + 1e-9) + 1
        values = [low + stride * place for place in range(count)]
    else:
        values = [parse_power_w(part) for part in text.split(",")]
    if any(value <= 0 for value in values):
        raise UsageError("A power limit must be above 0 W.")
    return sorted(set(values), reverse=True)


def settings(words: Sequence[str], watts: Sequence[float]) -> tuple[Candidate, ...]:
    """One candidate for each limit, all with the same command."""
    text = " ".join(words)
    return tuple(
        Candidate(place, f"{limit:g} W", text, tuple(words), {"power_limit": f"{limit:g}"})
        for place, limit in enumerate(watts)
    )


def choose(found: Sequence[Figures], *, ignore_failure: bool = False) -> Choice:
    """The Pareto set by mean energy and time, and the cheapest setting with how sure that is.

    A setting whose command failed is not for choosing, unless failures are to be ignored.
    """
    usable = [one for one in found if one.energy is not None and (ignore_failure or not one.failures)]
    if not usable:
        failed = any(one.failures for one in found)
        why = "the command failed at every setting" if failed else "energy is not available for any setting"
        return Choice((), None, why)
    points = {one.candidate.label: (one.energy.value, one.seconds.value) for one in usable if one.energy is not None}
    best_ones = tuple(pareto(points))
    best = min(usable, key=lambda one: one.energy.value if one.energy else 0.0)
    first = found[0]
    if best is first or best.gross is None:
        return Choice(best_ones, best.candidate.label, *_beside_next(best, usable))
    words, time = _distinguished(best.gross, best.candidate.label, first.candidate.label), best.time
    if time is not None and time.answer not in (Verdict.SAME, Verdict.UNDECIDED):
        words += f"; {best.candidate.label} takes {change(time.cell, 'time')}"
    return Choice(best_ones, best.candidate.label, words, best.gross.decided)


def _beside_next(best: Figures, usable: Sequence[Figures]) -> tuple[str, bool]:
    """Why the first setting is the one to take: what is known of the next cheapest beside it, and whether that is
    decided."""
    others = [one for one in usable if one is not best and one.gross is not None and one.energy is not None]
    if not others:
        return "the only setting with an energy", True
    following = min(others, key=lambda one: one.energy.value if one.energy else 0.0)
    gross, label = following.gross, following.candidate.label
    assert gross is not None
    if gross.decided and gross.answer is not Verdict.SAME:
        return gross.text(label, best.candidate.label), True
    return _distinguished(gross, label, label), gross.decided


def _distinguished(gross: Comparison, label: str, other: str) -> str:
    """What is known of the cheapest setting beside another one, which `gross` is about or is compared with."""
    if gross.decided:
        return gross.text(label, other)
    if gross.more_trials is None:
        return f"lowest mean, though not distinguished from {other}"
    return f"lowest mean, but {gross.text(label)} to distinguish it from {other}"


def pareto(points: Mapping[str, tuple[float, ...]]) -> list[str]:
    """Names whose point no other is at least as small as everywhere and smaller somewhere."""

    def beaten(mine: tuple[float, ...], other: tuple[float, ...]) -> bool:
        return other != mine and all(b <= a for a, b in zip(mine, other, strict=True))

    return [name for name, mine in points.items() if not any(beaten(mine, other) for other in points.values())]
