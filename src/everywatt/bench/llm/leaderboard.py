"""Many runs in one table, best first. Runs whose joules cover something else, or that asked other items, are refused:
a table that mixes them would rank machines by what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import evaluate_folder
from everywatt.core.errors import ScopeError, UsageError

ORDERS: Mapping[str, tuple[str, int]] = {
    "accuracy-per-joule": ("accuracy_per_joule_mean", -1),
    "joules-per-token": ("energy_per_output_token", 1),
    "joules-per-request": ("energy_per_request", 1),
    "joules-per-right-answer": ("energy_per_correct_answer", 1),
    "accuracy": ("accuracy", -1),
    "tokens-per-second": ("output_tokens_per_second", -1),
}
FIGURES = (
    "energy_per_request",
    "energy_per_output_token",
    "energy_per_correct_answer",
    "accuracy_per_joule_mean",
    "output_tokens_per_second",
)


@dataclass(frozen=True)
class Place:
    """One run at one load. `refused` says why it has no energy."""

    run: str
    model: str
    level: str
    queries: int
    answered: int
    pedigree: str
    accuracy: Figure
    figures: Mapping[str, Figure]
    refused: str | None

    def value(self, name: str) -> float | None:
        """A figure by name."""
        return self.accuracy.value if name == "accuracy" else self.figures[name].value

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "run": self.run,
            "model": self.model,
            "level": self.level,
            "queries": self.queries,
            "answered": self.answered,
            "pedigree": self.pedigree,
            "accuracy": self.accuracy.to_dict(),
            **{name: figure.to_dict() for name, figure in self.figures.items()},
            **({} if self.refused is None else {"refused": self.refused}),
        }


@dataclass(frozen=True)
class Board:
    """Places in order, with what all of them have in common."""

    order: str
    dataset: str
    scope: str
    boundary: str
    places: tuple[Place, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "order": self.order,
            "dataset": self.dataset,
            "scope": self.scope,
            "boundary": self.boundary,
            "places": [place.to_dict() for place in self.places],
        }


def leaderboard(runs: Sequence[Run], order: str = "accuracy-per-joule") -> Board:
    """The table. ScopeError where the runs cannot stand in one."""
    if order not in ORDERS:
        raise UsageError(f"Results cannot be sorted by '{order}'.", cure=f"one of: {', '.join(ORDERS)}")
    if not runs:
        raise UsageError("No runs were given.", cure="everywatt bench leaderboard RUN RUN")
    asked: dict[tuple[str, str], str] = {}
    covered: dict[tuple[str, str], str] = {}
    places = []
    for run in runs:
        plan, found = evaluate_folder(run)
        about = plan["dataset"]
        first = f", first {plan['max_queries']}" if plan.get("max_queries") else ""
        asked.setdefault((str(about["name"]), f"{str(about.get('sha256'))[:8]}{first}"), run.name)
        for one in found:
            if one.gross.joules is not None:
                covered.setdefault((one.gross.scope, one.boundary), run.name)
            places.append(_place(run.name, model_name(plan), one))
    _one_only(asked, "The runs used different items", lambda key: f"{key[0]} ({key[1]})")
    _one_only(covered, "The runs' joules do not cover the same scope", lambda key: f"scope {key[0]}, boundary {key[1]}")
    name, sign = ORDERS[order]
    places.sort(key=lambda place: (place.value(name) is None, sign * (place.value(name) or 0.0)))
    scope, boundary = next(iter(covered), ("", ""))
    return Board(order, next(iter(asked))[0], scope, boundary, tuple(places))


def model_name(plan: Mapping[str, Any]) -> str:
    """What to call a model: servers of files call it by the whole path."""
    name = str(plan.get("model") or plan["client"]["client"])
    return name.rpartition("/")[2] or name if name.startswith("/") else name


def _one_only(found: Mapping[tuple[str, str], str], what: str, shown: Any) -> None:
    if len(found) > 1:
        told = "; ".join(f"{run}: {shown(key)}" for key, run in found.items())
        raise ScopeError(f"{what}: {told}.", cure="rank the runs of each group separately")


def _place(run: str, model: str, one: Metrics) -> Place:
    share = one.accuracy
    formula = "correct / scored queries, failed ones included; Wilson"
    accuracy = (
        Figure.none("", formula, "no answer was scored")
        if share is None
        else Figure(share.value, share.low, share.high, "", formula)
    )
    figures = {name: one.figures[name] for name in FIGURES}
    return Place(
        run, model, one.level, one.queries, one.answered, one.gross.pedigree, accuracy, figures, one.gross.refused
    )
