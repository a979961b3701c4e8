"""Plots of language-model runs: tokens against energy, latency and power with their regressions, and densities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.llm.figure import regression
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import evaluate_folder
from everywatt.core.errors import MeasurementRefused

WIDTH, HEIGHT = 360, 260
MOST_POINTS = 5000
COLOUR, LINE = "#0072b2", "#d55e00"
PANELS = (("joules", "Energy (J)"), ("seconds", "Latency (s)"), ("watts", "Power (W)"))
DENSITIES = (
    ("joules_per_token", "Energy per output token (J)"),
    ("tokens", "Output tokens"),
    ("seconds", "Latency (s)"),
)
Rows = list[dict[str, float]]


def tokens_chart(altair: Any, run: Run) -> Any:
    """Total tokens of each query against its energy, latency and power, each with the least-squares line."""
    rows = _rows(run)
    return altair.hconcat(*[_panel(altair, rows, name, title) for name, title in PANELS])


def density_chart(altair: Any, run: Run) -> Any:
    """How energy per token, output tokens and latency are distributed over the queries."""
    rows = _rows(run)
    charts = []
    for name, title in DENSITIES:
        base = altair.Chart(altair.Data(values=rows)).transform_density(name, as_=["x", "y"])
        x, y = altair.X("x:Q", title=title), altair.Y("y:Q", title="Density")
        area = base.mark_area(color=COLOUR, opacity=0.35, line={"color": COLOUR})
        charts.append(area.encode(x=x, y=y).properties(width=WIDTH, height=HEIGHT))
    return altair.hconcat(*charts)


def _rows(run: Run) -> Rows:
    _, found = evaluate_folder(run)
    rows = [row for one in found for item in one.items if (row := _row(item)) is not None]
    if len(rows) < 3:
        raise MeasurementRefused(
            f"{run.name} has {len(rows)} queries with tokens and energy: too few to plot.{_why(found)}"
        )
    return rows[:: -(-len(rows) // MOST_POINTS)]


def _why(found: Sequence[Metrics]) -> str:
    reasons = [one.gross.refused for one in found if one.gross.refused]
    return f" {reasons[0]}." if reasons else ""


def _row(item: Any) -> dict[str, float] | None:
    known = item["joules"], item["output_tokens"], item["input_tokens"]
    if item["status"] != "ok" or any(one is None for one in known) or not item["e2e_s"] or not item["output_tokens"]:
        return None
    joules, seconds = float(item["joules"]), float(item["e2e_s"])
    return {
        "total": float(item["output_tokens"] + item["input_tokens"]),
        "tokens": float(item["output_tokens"]),
        "joules": joules,
        "seconds": seconds,
        "watts": joules / seconds,
        "joules_per_token": joules / float(item["output_tokens"]),
    }


def _panel(altair: Any, rows: Rows, name: str, title: str) -> Any:
    x, y = altair.X("total:Q", title="Input and output tokens"), altair.Y(f"{name}:Q", title=title)
    dots = altair.Chart(altair.Data(values=rows)).mark_circle(color=COLOUR, opacity=0.5, size=28).encode(x=x, y=y)
    fit = regression({"tokens": [row["total"] for row in rows]}, [row[name] for row in rows])
    if fit is None:
        return dots.properties(width=WIDTH, height=HEIGHT, title="all queries have the same number of tokens: no slope")
    slope, constant = fit["tokens"], fit["constant"]
    ends = [min(row["total"] for row in rows), max(row["total"] for row in rows)]
    line = [{"total": at, name: constant["value"] + slope["value"] * at} for at in ends]
    drawn = altair.Chart(altair.Data(values=line)).mark_line(color=LINE).encode(x=x, y=y)
    r2 = "" if fit["r2"] is None else f", R² {fit['r2']:.3f}"
    told = f"{slope['value']:.3g} ± {slope['se']:.2g} (s.e.) per token{r2}"
    return altair.layer(dots, drawn).properties(width=WIDTH, height=HEIGHT, title=told)
