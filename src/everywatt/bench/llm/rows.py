"""The figures of a load as rows of a table: the name, the value, its interval, and the formula or why it is refused."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.latency import FORMULAS
from everywatt.bench.llm.metrics import Metrics
from everywatt.core.format import Printed, format_duration, format_percent, print_quantity
from everywatt.core.tables import Table, csv_text

Row = tuple[str, str, str, str]
ENDINGS = (".json", ".csv", ".md")
HEADERS = ("FIGURE", "VALUE", "95 %", "FORMULA")
_QUERY = {"joules": "energy_j", "low": "energy_low_j", "high": "energy_high_j", "net_joules": "energy_net_j"}
QUERY_COLUMNS = (
    *("level", "id", "status", "error", "verdict", "input_tokens", "output_tokens", "ttft_s", "e2e_s"),
    *_QUERY.values(),
)


def query_csv(found: Sequence[Metrics]) -> str:
    """A line for each query of each load, with its joules; what is not known is an empty cell."""
    named = [
        {"level": one.level} | {_QUERY.get(name, name): value for name, value in item.items()}
        for one in found
        for item in one.items
    ]
    return csv_text(QUERY_COLUMNS, [[item.get(name) for name in QUERY_COLUMNS] for item in named])


def figures_markdown(found: Sequence[Metrics]) -> str:
    """A table of figures for each load."""
    return "\n".join(f"## {one.level}\n\n{figure_table(one).markdown()}\n- {one.about}\n" for one in found)


def figure_table(one: Metrics, title: str = "", more: Sequence[Row] = ()) -> Table:
    """Every figure of a load, and `more` rows below."""
    return Table.of(*HEADERS, rows=[*figure_rows(one), *more], title=title)


def figure_rows(one: Metrics) -> list[Row]:
    """Every figure of a load: accuracy, energies, what follows from them, and times."""
    rows: list[Row] = []
    of = ", ".join(f"{count} {name}" for name, count in one.verdicts.items())
    if (share := one.accuracy) is not None:
        shown = Figure(100 * share.value, 100 * share.low, 100 * share.high, "%", "").printed()
        failed = f", {share.n - judged} failed" if (judged := _judged(one)) < share.n else ""
        rows.append(row_of("accuracy", shown, f"correct / scored queries ({of}{failed}); Wilson"))
    elif of:
        rows.append(("accuracy", "refused", "", f"no answer was scored ({of})"))
    reasons = "; ".join(f"{told['queries']} {told['status']}: {told['reason']}" for told in one.failures)
    rows.append(("answered", f"{one.answered} of {one.queries}", "", reasons or "answered / sent queries"))
    for name, energy in (("energy, gross", one.gross), ("energy, net", one.net), ("other processes", one.others)):
        if energy.joules is None:
            rows.append((name, "refused", "", energy.refused or ""))
        else:
            about = f"{energy.scope} · {energy.pedigree} · coverage {format_percent(energy.coverage)}"
            below, above = energy.sides()
            # The budget is symmetric; what was used up cannot be less than nothing, as in the figures below.
            shown = print_quantity(energy.joules, "J", min(below, max(energy.joules, 0.0)), above)
            rows.append(row_of(name, shown, about))
    rows += [figure_row(name, figure) for name, figure in one.figures.items()]
    for name, seconds in one.latency.items():
        if seconds is not None:
            tail = f"p90 {format_duration(seconds['p90'])}, p99 {format_duration(seconds['p99'])}"
            rows.append((f"{name.removesuffix('_s')} p50", format_duration(seconds["p50"]), tail, FORMULAS[name]))
    return rows


def _judged(one: Metrics) -> int:
    return sum(count for verdict, count in one.verdicts.items() if verdict != "unevaluated")


def figure_row(name: str, figure: Figure) -> Row:
    """A figure as a row: its words, and its formula or why it is refused."""
    about = (figure.refused or "") if figure.value is None else figure.formula
    return row_of(name.replace("_", " "), figure.printed(), about)


def row_of(name: str, shown: Printed, about: str) -> Row:
    """Value and interval in two cells that share unit and digits."""
    return name, f"{shown.value} {shown.unit}".strip(), shown.interval, about
