"""Two language-model runs on the same items, item by item: accuracy, joules, tokens and times, each as a difference or
a ratio with an interval.

Items are drawn together with everything that both runs did on them (a paired bootstrap; whole groups where there are
five or more), since a hard item is hard for both. Ratios of energy get the measurement's own interval beside, in which
what is wrong with one sensor in the same way cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.bench.experiment import folder_of
from everywatt.bench.llm.energy import Bill
from everywatt.bench.llm.figure import Figure, times
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.records import Record, read_records, scored
from everywatt.bench.llm.result import agreement, owed_by
from everywatt.bench.llm.rows import HEADERS, figure_row
from everywatt.core.errors import EverywattError, ScopeError, UsageError
from everywatt.core.format import format_number
from everywatt.core.jsonio import ToDict
from everywatt.core.stats import clustered, mcnemar, paired_difference, resampled_sums
from everywatt.core.tables import Table, csv_text

Floats = npt.NDArray[np.float64]
COLUMNS = ("right", "joules", "tokens", "seconds", "items")
DRAWN = "bootstrap over items, 2,000 draws, with both runs' results on each item"


@dataclass(frozen=True)
class Side:
    """One run at one load."""

    name: str
    level: str
    plan: LlmPlan
    records: Mapping[str, Record]
    owed: Bill


@dataclass(frozen=True)
class Beside(ToDict):
    """A run beside the first: figures by name, McNemar's test and the sentences that follow."""

    JSON = "name level items items_sent=sent figures mcnemar verdicts notes"

    name: str
    level: str
    items: int
    figures: Mapping[str, Figure]
    only_first: int
    only_this: int
    p: float | None
    verdicts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sent: int = 0

    @property
    def mcnemar(self) -> dict[str, float | None]:
        """The items on which only one of the two was right, and McNemar's p."""
        return {"only_first_right": self.only_first, "only_this_right": self.only_this, "p": self.p}

    def table(self, first: str) -> Table:
        """Every figure, with the verdicts and what there is to know as notes; `first` is the name of the first run."""
        rows = [figure_row(name, figure) for name, figure in self.figures.items()]
        if self.p is not None:
            counts = f"correct only in the first: {self.only_first}, only in this one: {self.only_this}"
            rows.append(("McNemar's test", f"p = {self.p:.3g}", "", f"exact, two-sided; {counts}"))
        items = (
            f"{self.items} items" if self.items == self.sent else f"{self.items} of {self.sent} items answered by both"
        )
        title = f"{self.name} compared with {first}: {items}, {self.level}"
        return Table.of(*HEADERS, rows=rows, title=title, notes=(*self.verdicts, *self.notes))


@dataclass(frozen=True)
class LlmCompared(ToDict):
    """Runs beside the first one, item by item."""

    JSON = "baseline=first candidates=found"

    first: str
    found: tuple[Beside, ...]

    def tables(self) -> list[Table]:
        """One for each run but the first."""
        return [one.table(self.first) for one in self.found]

    def to_csv(self) -> str:
        """A line for each figure of each run."""
        figures = [(one, name, figure) for one in self.found for name, figure in one.figures.items()]
        rows = [[one.name, one.level, name, figure.value, figure.low, figure.high] for one, name, figure in figures]
        return csv_text(("run", "level", "figure", "value", "low", "high"), rows)


def compare_llm_runs(runs: Sequence[Run], *, level: str | None = None, force: bool = False) -> LlmCompared:
    """Every run beside the first. ScopeError where they asked other items, or their energy covers something else."""
    first, *others = [side(run, level) for run in runs]
    return LlmCompared(first.name, tuple(compare_llm(first, other, force=force) for other in others))


def is_llm(run: Run) -> bool:
    try:
        LlmPlan.read(folder_of(run))
    except UsageError:
        return False
    return True


def side(run: Run, level: str | None = None) -> Side:
    """A run at one of its loads: the one that is named, else its only one."""
    folder = folder_of(run)
    plan, records = LlmPlan.read(folder), read_records(folder)
    levels = list(dict.fromkeys(record.level for record in records))
    chosen = level if level in levels else levels[0] if len(levels) == 1 else None
    if chosen is None:
        raise UsageError(f"{run.name} has {len(levels)} loads: {', '.join(levels) or 'none'}.", cure="--level LOAD")
    own = {record.id: record for record in records if record.level == chosen}
    return Side(run.name, chosen, plan, own, owed_by(run, list(own.values()), plan))


def compare_llm(first: Side, other: Side, *, force: bool = False) -> Beside:
    """The second beside the first. ScopeError where they asked other items, or their energy covers something else."""
    if first.plan.dataset.sha256 != other.plan.dataset.sha256 and not force:
        raise ScopeError(
            f"{other.name} used other items than {first.name}.", cure="--force compares the items with equal ids"
        )
    notes = []
    if first.level != other.level:
        notes.append(f"the loads differ: {first.level} and {other.level}")
    if (a := first.plan.settings) != (b := other.plan.settings):
        notes.append(f"the settings differ: {a} and {b}")
    same = [name for name in first.records if name in other.records]
    if not any(first.records[name].ok and other.records[name].ok for name in same):
        raise UsageError(f"{first.name} and {other.name} have no answered item in common.")
    if len(same) < (most := max(len(first.records), len(other.records))):
        notes.append(f"compared: {len(same)} of {most} items, which both runs sent")
    for one in (first, other):
        answered = sum(one.records[name].ok for name in same)
        if answered < len(same):
            notes.append(
                f"{one.name} answered {answered} of {len(same)} items; the others count as not correct, and ratios of "
                "energy and time are over the items that both answered"
            )
    covered = _same_scope(first, other, force)
    if covered is not None:
        notes.append(covered)
    return _beside(first, other, same, notes, with_energy=covered is None or force)


def _same_scope(first: Side, other: Side, force: bool) -> str | None:
    """Why the energies cannot be compared; None where they can."""
    for one in (first, other):
        if one.owed.gross.joules is None:
            return f"{one.name} has no energy: {one.owed.gross.refused}"
    facts = [(one.owed.gross.scope, one.owed.boundary) for one in (first, other)]
    if facts[0] != facts[1]:
        said = " and ".join(f"{scope} of the {boundary}" for scope, boundary in facts)
        if not force:
            raise ScopeError(f"The energies do not cover the same scope: {said}.", cure="--force compares them anyway")
        return f"the energies do not cover the same scope: {said}"
    return None


def _beside(first: Side, other: Side, same: Sequence[str], notes: Sequence[str], *, with_energy: bool) -> Beside:
    both = [name for name in same if first.records[name].ok and other.records[name].ok]
    scored_ids = [{record.id for record in scored(list(one.records.values()))} for one in (first, other)]
    judged = [name for name in same if all(name in ids for ids in scored_ids)]

    def covered(names: Sequence[str]) -> tuple[list[str], str]:
        """The items that have energy in both runs, and the words for it where that is not all that both sent."""
        sides = (first, other) if with_energy else ()
        found = [name for name in names if sides and all(one.records[name].span in one.owed.queries for one in sides)]
        return found, "" if len(found) == len(same) else f", {len(found)} of {len(same)} items"

    figures: dict[str, Figure] = {}
    hits = [(bool(first.records[name].right), bool(other.records[name].right)) for name in judged]
    only_first = sum(a and not b for a, b in hits)
    only_this = sum(b and not a for a, b in hits)
    if judged:
        more = _figure(
            _sums(first, other, judged, with_energy=False),
            lambda s: s["right_b"] / s["items_b"] - s["right_a"] / s["items_a"],
            f"accuracy − accuracy of the first; {DRAWN}",
        )
        figures["accuracy_difference"] = _not_too_sure(more, only_first, only_this, len(judged))
        charged, some = covered(judged)
        if charged:
            own = _sums(first, other, charged)
            formula = f"accuracy per joule / the first's{some}; {DRAWN}"
            ratio = _figure(own, lambda s: s["right_b"] / s["joules_b"] * s["joules_a"] / s["right_a"], formula)
            if ratio.value == 0:  # all draws are 0 too, whatever the number of items
                ratio = Figure.bare(
                    0.0, "", formula, "no answer is correct: its interval cannot be drawn from the items"
                )
            figures["accuracy_per_joule_ratio"] = _with_measurement(ratio, other, first)
    charged, some = covered(both)
    if charged:
        sums = _sums(first, other, charged)
        formula = f"gross J of the items / the first's{some}; {DRAWN}"
        ratio = _figure(sums, lambda s: s["joules_b"] / s["joules_a"], formula)
        figures["energy_ratio"] = _with_measurement(ratio, first, other)
        if _known_tokens(first, charged) and _known_tokens(other, charged):
            formula = f"gross J per output token / the first's{some}; {DRAWN}"
            ratio = _figure(sums, lambda s: s["joules_b"] / s["tokens_b"] * s["tokens_a"] / s["joules_a"], formula)
            figures["energy_per_output_token_ratio"] = _with_measurement(ratio, first, other)
    answered = "" if len(both) == len(same) else f", {len(both)} of {len(same)} items"
    figures["time_ratio"] = _figure(
        _sums(first, other, both, with_energy=False),
        lambda s: s["seconds_b"] / s["seconds_a"],
        f"seconds of the answers / the first's{answered}; {DRAWN}",
    )
    figures["agreement"] = agreement(list(other.records.values()), list(first.records.values()))
    p = mcnemar(only_first, only_this) if judged else None
    return Beside(
        other.name,
        other.level,
        len(both),
        figures,
        only_first,
        only_this,
        p,
        tuple(_sentences(first.name, other.name, figures, p, answered)),
        tuple(notes),
        len(same),
    )


def _not_too_sure(figure: Figure, only_first: int, only_this: int, n: int) -> Figure:
    """The bootstrap's interval, widened to the one that few items that differ leave: drawing them again and again says
    little about those that were not asked."""
    if figure.value is None:
        return figure
    _, low, high = paired_difference(only_first, only_this, n)
    low = min(figure.value if figure.low is None else figure.low, low)
    high = max(figure.value if figure.high is None else figure.high, high)
    return Figure(figure.value, low, high, "", f"{figure.formula}, at least the interval of Agresti and Min")


def _known_tokens(one: Side, items: Sequence[str]) -> bool:
    return all(one.records[name].answer.output_tokens for name in items)


def _row(one: Side, name: str, with_energy: bool) -> list[float]:
    record = one.records[name]
    joules = one.owed.queries[record.span or ""].energy.value if with_energy else 0.0
    return [float(record.right or 0), joules, float(record.answer.output_tokens or 0), record.answer.e2e_s, 1.0]


def _sums(
    first: Side, other: Side, items: Sequence[str], with_energy: bool = True
) -> tuple[dict[str, Floats], dict[str, float]]:
    """Sums of all columns of both runs, drawn again and again, and as they are."""
    groups = [first.records[name].group for name in items]
    table = np.array([[*_row(first, name, with_energy), *_row(other, name, with_energy)] for name in items])
    names = [f"{column}_{which}" for which in "ab" for column in COLUMNS]
    drawn = resampled_sums(clustered(table, groups))
    whole = table.sum(axis=0)
    return dict(zip(names, drawn.T, strict=True)), {name: float(v) for name, v in zip(names, whole, strict=True)}


def _figure(sums: tuple[dict[str, Floats], dict[str, float]], of: Callable[[Any], Any], formula: str) -> Figure:
    drawn, whole = sums
    try:
        value = float(of(whole))
    except ZeroDivisionError:
        return Figure.none("", formula, "the figure of the first run is zero")
    with np.errstate(all="ignore"):
        found = np.asarray(of(drawn), dtype=np.float64)
    found = found[np.isfinite(found)]
    if len(found) < 2:
        return Figure(value, None, None, "", formula)
    low, high = np.percentile(found, (2.5, 97.5))
    return Figure(value, float(low), float(high), "", formula)


def _with_measurement(figure: Figure, below: Side, above: Side) -> Figure:
    """A ratio with what the sensors leave open beside what the items do, as independent; by which side's energy is
    below and above the line."""
    if figure.value is None or figure.low is None or figure.high is None:
        return figure
    try:
        ratio = above.owed.gross.ratio(below.owed.gross)
    except EverywattError as error:
        return Figure.none("", figure.formula, error.message)
    off = ratio.low / ratio.value, ratio.high / ratio.value
    low, high = times((figure.low, figure.value, figure.high), *off)
    return Figure(figure.value, low, high, "", f"{figure.formula}; plus measurement uncertainty")


def _sentences(first: str, other: str, figures: Mapping[str, Figure], p: float | None, answered: str = "") -> list[str]:
    """`answered` says how many items ratios of energy and time are over, where it is not all."""
    found = []
    more = figures.get("accuracy_difference")
    if more is not None and more.value is not None and more.low is not None and more.high is not None:
        word = (
            "more often correct" if more.low > 0 else "less often correct" if more.high < 0 else "no difference shown"
        )
        ends = 100 * (more.value - more.low), 100 * (more.high - more.value)
        points = format_number(100 * more.value, "points", *ends, signed=True)
        found.append(f"{other} compared with {first}, accuracy: {word}, {points}, McNemar p = {p:.2g}")
    for name, what in (
        ("energy_ratio", "energy"),
        ("time_ratio", "time"),
        ("accuracy_per_joule_ratio", "correct per J"),
    ):
        ratio = figures.get(name)
        if ratio is None or ratio.value is None or ratio.low is None:
            continue
        word = (
            "more" if ratio.low > 1 else "less" if ratio.high is not None and ratio.high < 1 else "no difference shown"
        )
        some = "" if name == "accuracy_per_joule_ratio" else answered
        found.append(f"{other} compared with {first}, {what}{some}: {word}, ratio {ratio.printed()}")
    return found
