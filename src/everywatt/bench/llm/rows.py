"""The figures of a load as rows of a table: the name, the value, its interval, and the formula or why it is refused."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.latency import FORMULAS
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.tables import csv_text, markdown

Row = tuple[str, str, str, str]
ENDINGS = (".json", ".csv", ".md")
HEADERS = ("FIGURE", "VALUE", "95 %", "FORMULA")
_QUERY = {"joules": "energy_j", "low": "energy_low_j", "high": "energy_high_j", "net_joules": "energy_net_j"}
QUERY_COLUMNS = (
    *("level", "id", "status", "verdict", "input_tokens", "output_tokens", "ttft_s", "e2e_s"),
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
    return "\n".join(f"## {one.level}\n\n{markdown(HEADERS, figure_rows(one), [one.about])}" for one in found)


def figure_rows(one: Metrics) -> list[Row]:
    """Every figure of a load: accuracy, energies, what follows from them, and times."""
    rows: list[Row] = []
    of = ", ".join(f"{count} {name}" for name, count in one.verdicts.items())
    if one.accuracy is not None:
        interval = f"{one.accuracy.low:.1%} … {one.accuracy.high:.1%}"
        rows.append(("accuracy", f"{one.accuracy.value:.1%}", interval, f"right / judged answers ({of}); Wilson"))
    elif of:
        rows.append(("accuracy", "refused", "", f"nothing was judged ({of})"))
    for name, energy in (("energy, gross", one.gross), ("energy, net", one.net), ("other processes", one.others)):
        if energy.joules is None:
            rows.append((name, "refused", "", energy.refused or ""))
        else:
            about = f"{energy.scope} · {energy.pedigree} · coverage {energy.coverage:.0%}"
            # The budget is symmetric; what was used up cannot be less than nothing, as in the figures below.
            interval = f"{max(0.0, energy.low or 0.0):.4g} … {energy.high:.4g}"
            rows.append((name, f"{energy.joules:.4g} J", interval, about))
    rows += [_row(name, figure) for name, figure in one.figures.items()]
    for name, seconds in one.latency.items():
        if seconds is not None:
            text = f"{seconds['p50'] * 1000:.4g} ms"
            tail = f"p90 {seconds['p90'] * 1000:.4g}, p99 {seconds['p99'] * 1000:.4g} ms"
            rows.append((f"{name.removesuffix('_s')} p50", text, tail, FORMULAS[name]))
    return rows


def _row(name: str, figure: Figure) -> Row:
    words = name.replace("_", " ")
    if figure.value is None:
        return words, "refused", "", figure.refused or ""
    interval = (
        "" if figure.low is None else f"{figure.low:.3g} … {'∞' if figure.high is None else f'{figure.high:.3g}'}"
    )
    return words, f"{figure.value:.4g} {figure.unit}".strip(), interval, figure.formula
