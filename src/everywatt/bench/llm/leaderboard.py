"""Many runs ranked, best first. Runs whose joules cover different things are ranked in tables of their own: one table
would rank machines by what was left out. Runs that asked other items are refused. Runs whose intervals overlap share a
rank.

Every row follows from its run folder, so a published table can be checked against the runs (`check_board`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import evaluate_folder
from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError, ScopeError, UsageError
from everywatt.core.format import format_duration
from everywatt.core.jsonio import ToDict, plain
from everywatt.core.tables import Cell, Table, csv_of

ORDERS: Mapping[str, tuple[str, int]] = {
    "accuracy-per-joule": ("accuracy_per_joule_mean", -1),
    "joules-per-token": ("energy_per_output_token", 1),
    "joules-per-request": ("energy_per_request", 1),
    "joules-per-right-answer": ("energy_per_correct_answer", 1),
    "accuracy": ("accuracy", -1),
    "tokens-per-second": ("output_tokens_per_second", -1),
}
HEADERS = (
    *("rank", "model", "load", "answered", "accuracy", "correct/J", "accuracy/W", "J/token", "J/request", "TTFT"),
    *("tokens/s", "hardware", "scope", "provenance", "run"),
)
FIGURES = (
    "energy_per_request",
    "energy_per_output_token",
    "energy_per_correct_answer",
    "accuracy_per_joule_mean",
    "accuracy_per_watt",
    "output_tokens_per_second",
)
ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))
COLUMNS = " ".join(
    [
        "rank tied model load=metrics.level answered=metrics.answered asked=metrics.queries",
        "accuracy=accuracy.value accuracy_low=accuracy.low accuracy_high=accuracy.high",
        *(" ".join(f"{name}{end}=metrics.figures.{name}.{of}" for end, of in ENDS) for name in FIGURES),
        "ttft_p50_s=metrics.latency.ttft_s.p50 hardware scope boundary",
        "pedigree=metrics.bill.gross.pedigree dataset run",
    ]
)
ABOUT = ("dataset", "scope", "boundary")  # what a published table says of all its rows
TOLERANCE = 1e-6  # relative: what another machine's arithmetic may change


@dataclass(frozen=True)
class Place(ToDict):
    """One run at one load. `refused` says why it has no energy. `rank` is shared by places that are `tied`: their
    intervals of what they are ranked by overlap that of the first of them."""

    JSON = (
        "rank tied run model level=metrics.level queries=metrics.queries answered=metrics.answered "
        "pedigree=metrics.bill.gross.pedigree scope boundary hardware ttft_p50_s=metrics.latency.ttft_s.p50 accuracy"
    )

    run: str
    model: str
    dataset: str
    hardware: str
    metrics: Metrics
    scope: str
    boundary: str
    rank: int | None = None
    tied: bool = False

    @property
    def refused(self) -> str | None:
        return self.metrics.bill.gross.refused

    @property
    def accuracy(self) -> Figure:
        formula = "correct / scored queries, failed ones included; Wilson"
        return Figure.share(self.metrics.accuracy, formula, "no answer was scored")

    def figure(self, name: str) -> Figure:
        return self.accuracy if name == "accuracy" else self.metrics.figures[name]

    def to_dict(self) -> dict[str, Any]:
        more = {} if self.refused is None else {"refused": self.refused}
        return {**super().to_dict(), **{name: self.metrics.figures[name].to_dict() for name in FIGURES}, **more}

    def row(self) -> list[Cell]:
        """For a table with the columns of `HEADERS`."""
        shown, one = self._shown, self.metrics
        ttft = one.latency["ttft_s"]
        return [
            "-" if self.rank is None else f"{self.rank}{' tied' if self.tied else ''}",
            *(self.model, one.level, f"{one.answered}/{one.queries}"),
            None if one.accuracy is None else str(one.accuracy),
            *(shown("accuracy_per_joule_mean"), shown("accuracy_per_watt"), shown("energy_per_output_token")),
            *(shown("energy_per_request"), None if ttft is None else format_duration(ttft["p50"])),
            *(shown("output_tokens_per_second"), self.hardware or None, self.scope or None),
            *(one.bill.gross.pedigree, self.run),
        ]

    def _shown(self, name: str) -> str | None:
        figure = self.metrics.figures[name]
        return None if figure.value is None else str(replace(figure, unit="").printed())


@dataclass(frozen=True)
class Board:
    """Places in order, table after table: within one, all joules have the same scope and boundary."""

    order: str
    dataset: str
    places: tuple[Place, ...]

    @property
    def groups(self) -> dict[tuple[str, str], list[Place]]:
        """The places of each table, by the scope and boundary of its joules."""
        found: dict[tuple[str, str], list[Place]] = {}
        for place in self.places:
            found.setdefault((place.scope, place.boundary), []).append(place)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `scope` and `boundary` name those of all tables."""
        return {
            "order": self.order,
            "dataset": self.dataset,
            "scope": "; ".join(dict.fromkeys(scope for scope, _ in self.groups)),
            "boundary": "; ".join(dict.fromkeys(boundary for _, boundary in self.groups)),
            "places": [place.to_dict() for place in self.places],
        }

    def tables(self) -> list[Table]:
        """One table for each scope and boundary of joules."""
        return [self._table(*which, places) for which, places in self.groups.items()]

    def _table(self, scope: str, boundary: str, places: Sequence[Place]) -> Table:
        notes = [f"joules: scope {scope}, boundary {boundary}"] if scope else []
        if any(place.tied for place in places):
            notes.append("tied: the 95 % interval overlaps that of the first with this rank")
        notes += [f"{place.run}: no energy: {place.refused}" for place in places if place.refused]
        title = f"{self.dataset}, by {self.order}"
        if len(self.groups) > 1:
            title += f": joules of {scope}, boundary {boundary}"
        return Table.of(*HEADERS, rows=[place.row() for place in places], title=title, notes=notes)

    def to_csv(self) -> str:
        """A line for each place, plain numbers with the ends of their intervals."""
        return csv_of(COLUMNS, self.places)


def leaderboard(runs: Sequence[Run], order: str = "accuracy-per-joule") -> Board:
    """The tables. ScopeError where the runs asked different items."""
    if order not in ORDERS:
        raise UsageError(f"Results cannot be sorted by '{order}'.", cure=f"one of: {', '.join(ORDERS)}")
    if not runs:
        raise UsageError("No runs were given.", cure="everywatt bench leaderboard RUN RUN")
    asked: dict[tuple[str, str], str] = {}
    tables: dict[tuple[str, str], list[Place]] = {}
    without = []
    for run in runs:
        plan, found = evaluate_folder(run)
        first = f", first {plan.max_queries}" if plan.max_queries else ""
        asked.setdefault((plan.dataset_name, f"{str(plan.dataset.sha256)[:8]}{first}"), run.name)
        for one in found:
            names = run.name, plan.model_name, plan.dataset_name, hardware_name(run)
            place = Place(*names, one, one.bill.gross.scope, one.bill.boundary)
            if place.refused is None:
                tables.setdefault((place.scope, place.boundary), []).append(place)
            else:
                without.append(place)
    if len(asked) > 1:
        listed = "; ".join(f"{run}: {name} ({which})" for (name, which), run in asked.items())
        raise ScopeError(f"The runs used different items: {listed}.", cure="rank the runs of each group separately")
    scope, boundary = next(iter(tables), ("", ""))
    tables.setdefault((scope, boundary), []).extend(
        replace(place, scope=scope, boundary=boundary) for place in without
    )  # without energy, they are ranked by accuracy and speed alone
    places = [place for table in tables.values() for place in _ranked(table, *ORDERS[order])]
    return Board(order, next(iter(asked))[0], tuple(places))


def _ranked(places: Sequence[Place], name: str, sign: int) -> list[Place]:
    """Best first. Places whose interval overlaps that of the first of their rank are tied with it."""

    def key(place: Place) -> tuple[bool, float]:
        value = place.figure(name).value
        return value is None, sign * (value or 0.0)

    groups: list[list[Place]] = []
    for place in sorted(places, key=key):
        if groups and _overlap(groups[-1][0].figure(name), place.figure(name)):
            groups[-1].append(place)
        else:
            groups.append([place])
    found, rank = [], 1
    for group in groups:
        known = group[0].figure(name).value is not None
        found += [replace(one, rank=rank if known else None, tied=known and len(group) > 1) for one in group]
        rank += len(group)
    return found


def _overlap(one: Figure, other: Figure) -> bool:
    if one.value is None or other.value is None:
        return one.value is other.value
    if one.low is None or other.low is None:
        return one.value == other.value
    return max(one.low, other.low) <= min(math.inf if end is None else end for end in (one.high, other.high))


def check_board(data: Mapping[str, Any], find: Callable[[str], Run]) -> list[tuple[str, str, str]]:
    """What in a published table does not follow from its runs, each as run and load, field and problem. `find` gives
    the run of a name, or raises EverywattError."""
    found = []
    runs: dict[str, Run] = {}
    for published in data.get("places", ()):
        name = str(published.get("run"))
        try:
            runs.setdefault(name, find(name))
        except EverywattError as error:
            found.append((name, "run", error.message))
    known = [published for published in data.get("places", ()) if str(published.get("run")) in runs]
    if not known or found:
        return found
    try:
        board = leaderboard(list(runs.values()), str(data.get("order")))
    except EverywattError as error:
        return [("", "places", error.message)]
    whole = board.to_dict()
    differs = "differs from what the run's tape and records give"
    found += [("", field, differs) for field in ABOUT if field in data and data[field] != whole[field]]
    mine = {(place.run, place.metrics.level): place.to_dict() for place in board.places}
    for published in known:
        key = (runs[str(published["run"])].name, str(published.get("level")))
        place = mine.pop(key, None)
        if place is None:
            found.append((", ".join(key), "level", "the run has no such load"))
            continue
        published = {"boundary": data.get("boundary"), **published}  # older tables have one for all
        wrong = [field for field, value in plain(place).items() if not _same(published.get(field), value)]
        found += [(", ".join(key), field, differs) for field in wrong]
    found += [(", ".join(key), "level", "this load of the run is not in the table") for key in mine]
    return found


def _same(published: Any, value: Any) -> bool:
    if isinstance(value, Mapping):
        return isinstance(published, Mapping) and all(_same(published.get(name), one) for name, one in value.items())
    if isinstance(value, float) and isinstance(published, int | float):
        return math.isclose(published, value, rel_tol=TOLERANCE, abs_tol=1e-12)
    return bool(published == value)


def hardware_name(run: Run) -> str:
    """What the run was measured on: its GPUs by name and number, else the CPU."""
    infos = {group.info.device: group.info.label for tape in run.tapes for group in tape.groups if group.info.label}
    cards = Counter(label for device, label in infos.items() if is_gpu(device))
    if cards:
        return ", ".join(f"{count} × {label}" if count > 1 else label for label, count in cards.items())
    return str(run.meta.get("host", {}).get("cpu") or "")
