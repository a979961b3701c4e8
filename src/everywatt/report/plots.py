"""Plots as files: PNG, SVG or PDF, without a browser (Altair with vl-convert, extra `plots`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from everywatt.api.run import Run
from everywatt.core.energy import Energy
from everywatt.core.errors import MeasurementRefused, MissingExtra, UsageError
from everywatt.core.format import format_percent
from everywatt.core.jsonio import declared
from everywatt.report.html.lines import CHARTS, Line, extent_s, lines_of
from everywatt.report.html.pyramid import buckets
from everywatt.report.html.spans import phases_of, spans_over_time

if TYPE_CHECKING:
    from everywatt.meters.block import Floats
    from everywatt.meters.wall import Node
from everywatt.bench.llm.figure import regression
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import evaluate_folder
from everywatt.core.files import usable

ENDINGS = (".png", ".svg", ".pdf")
WIDTH, HEIGHT = 640, 300
MOST_POINTS = 1500
MOST_BANDS = 60
MOST_NAMED = 12
MOST_LISTED = 20  # metrics in a message
PALETTE = ("#0072b2", "#d55e00", "#007a5a", "#b0457f", "#8a6d00", "#3b8fc4", "#7a4b9c", "#5f6b7a")
FONT = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"


def plot(
    run: Run, what: str, out: Path, *, metrics: Sequence[str] = (), second: Sequence[str] = (), scale: float = 2.0
) -> Path:
    """Draw a run into a file and give its path; the ending says the format.

    `what` is one of `WHAT`. For power, `metrics` are the lines to draw (default: what the total is made of) and
    `second` lines on an axis of their own at the right. UsageError where the run has no such line.
    """
    check_ending(out)
    if what not in WHAT:
        raise UsageError(f"'{what}' cannot be plotted.", cure=f"one of: {', '.join(WHAT)}")
    if what != "power" and (metrics or second):
        raise UsageError("--metric and --second-axis apply only to --what power.")
    altair = load_altair()
    chart = _power(altair, run, metrics, second) if what == "power" else WHAT[what](altair, run)
    properties: dict[str, Any] = {"width": WIDTH, **({"height": HEIGHT} if what == "power" else {})}
    if what.startswith("llm-"):
        properties = {}  # several panels, each with a size of its own
    return save(chart.properties(**properties), out, scale=scale)


def check_ending(out: Path, endings: Sequence[str] = ENDINGS) -> None:
    """UsageError where a file's name does not say a format that can be drawn."""
    if out.suffix.lower() not in endings:
        *most, last = endings
        raise UsageError(
            f"The name '{out.name}' has no known extension.", cure=f"a name that ends in {', '.join(most)} or {last}"
        )


def save(chart: Any, out: Path, *, scale: float = 2.0) -> Path:
    """Write a chart in the project's style; the ending says the format."""
    check_ending(out)
    with usable(out, "written"):
        styled(chart).save(
            str(out), format=out.suffix[1:].lower(), **({"scale_factor": scale} if out.suffix == ".png" else {})
        )
    return out


def metrics_of(run: Run) -> list[tuple[str, str]]:
    """What can be drawn over time: each line's name and its unit."""
    return [(metric_name(line), CHARTS[line.chart][1]) for line in lines_of(run)]


def metric_name(line: Line) -> str:
    """`gpu.0 power`, `gpu.0 clocks`, `loss`: the line's label with what its chart shows, unless it says so itself."""
    if line.chart == "logged" or line.chart in line.label:
        return line.label
    return f"{line.label} {line.chart}"


def load_altair() -> Any:
    """Altair; MissingExtra, with the cure, where it is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401 - what altair saves with
    except ImportError:
        raise MissingExtra("Altair with vl-convert", "plots") from None
    altair.data_transformers.disable_max_rows()
    return altair


def _chosen(run: Run, lines: Sequence[Line], names: Sequence[str]) -> list[Line]:
    found = []
    for name in names:
        same = [line for line in lines if name in (metric_name(line), line.channel)]
        if not same:
            known = [metric_name(line) for line in lines]
            more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
            listed = f"{', '.join(known[:MOST_LISTED]) or 'none'}{more}"
            raise UsageError(f"This run has no metric '{name}'; it has: {listed}.", cure=listing(run))
        found.append(same[0])
    return found


def listing(run: Run) -> str:
    """The command that lists the metrics of a run."""
    return f"everywatt plot {run.name} --list"


def _power(altair: Any, run: Run, metrics: Sequence[str], second: Sequence[str]) -> Any:
    lines = lines_of(run)
    left = (
        _chosen(run, lines, metrics) if metrics else [line for line in lines if line.chart == "power" and line.in_total]
    )
    if not left:
        raise MeasurementRefused("This run has no ticks of power to plot.", cure=listing(run))
    right = _chosen(run, lines, second)
    for side in (left, right):
        if len({CHARTS[line.chart][1] for line in side}) > 1:
            units = ", ".join(f"{metric_name(line)} in {CHARTS[line.chart][1] or 'no unit'}" for line in side)
            raise UsageError(
                f"An axis has one unit, and these metrics have several: {units}.",
                cure="--second-axis for the other unit",
            )
    names = [metric_name(line) for line in [*left, *right]]
    scale = altair.Scale(domain=names, range=_colours(lines, [*left, *right]))
    layers = _band_layers(altair, run)
    sides = [layers + _curves(altair, run, left, scale, "left")] + (
        [_curves(altair, run, right, scale, "right")] if right else []
    )
    whole = altair.layer(*[altair.layer(*side) for side in sides])
    return whole.resolve_scale(y="independent") if right else whole


def _colours(lines: Sequence[Line], drawn: Sequence[Line]) -> list[str]:
    """The colour of each: that of its device on a page, unless another line of the device has it already."""
    places = device_places([line.device for line in lines if line.device])
    least = 1 + max(places.values(), default=-1)
    found: list[int] = []
    for line in drawn:
        place = places.get(line.device, least)
        free = (other for other in range(least, least + len(drawn)) if other not in found)
        found.append(next(free) if place in found else place)
    return [PALETTE[place % len(PALETTE)] for place in found]


USUAL_DEVICES = ("gpu.0", "cpu.0", "host", "gpu.1", "cpu.1")


def device_places(names: Sequence[str]) -> dict[str, int]:
    """The place of each device in the palette: as `everywatt.devicePlaces` of the page has them."""
    places = {name: place for place, name in enumerate(USUAL_DEVICES) if name in names}
    free = (place for place in itertools.count() if place not in places.values())
    others = sorted(set(names) - places.keys(), key=_rank)
    return {**places, **dict(zip(others, free, strict=False))}


def _rank(device: str) -> tuple[bool, bool, bool, list[str | int]]:
    """Cards first, then packages, each by number; the total last."""
    last = device.rpartition(" ")[2].rpartition("/")[2]
    parts = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", device)]
    return device == "total", not last.startswith("gpu."), not last.startswith("cpu."), parts


def _curves(altair: Any, run: Run, lines: Sequence[Line], scale: Any, side: str) -> list[Any]:
    """The mean of each line, and where ticks were put together, lowest to highest behind it."""
    rows = [row for line in lines for row in _rows(line)]
    chart, unit = lines[0].chart, CHARTS[lines[0].chart][1]
    title = f"{CHARTS[chart][0]} ({unit})" if unit else ", ".join(line.label for line in lines)
    axis = altair.Axis(orient=side, grid=side == "left")
    zero = altair.Scale(zero=chart in ("power", "utilisation", "memory"), **_top(chart, rows))
    x = _time(altair, run)
    key = altair.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)
    colour = altair.Color("line:N", title=None, scale=scale, legend=key)
    step = "step-before" if lines[0].series.held else "linear"
    base = altair.Chart(altair.Data(values=rows))
    dash = altair.value([5, 3]) if side == "right" else altair.value([])
    band = base.mark_area(opacity=0.22, interpolate=step, clip=True).encode(
        x=x, y=altair.Y("low:Q", title=title, axis=axis, scale=zero), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=1.4, interpolate=step, clip=True).encode(
        x=x, y=altair.Y("mean:Q", title=title, axis=axis, scale=zero), color=colour, strokeDash=dash
    )
    return [band, line]


def _top(chart: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Some room above, so that a steady line is not the frame; shares end at 100 %."""
    most = max((row["high"] for row in rows if row["high"] is not None), default=0.0)
    if most <= 0 or chart not in ("power", "utilisation", "memory"):
        return {}
    return {"domainMax": 100.0 if chart == "utilisation" and most <= 100 else 1.05 * most}


def _rows(line: Line) -> list[dict[str, Any]]:
    series = line.series
    level = buckets(series, max(1, -(-len(series) // MOST_POINTS)))
    name = metric_name(line)
    columns = (level.end_us / 1e6, level.low, level.high, level.mean)
    return [
        {"line": name, "t": t, "low": _number(low), "high": _number(high), "mean": _number(mean)}
        for t, low, high, mean in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _band_layers(altair: Any, run: Run) -> list[Any]:
    """The innermost spans as shades behind, with their names where there are few."""
    found = spans_over_time(run)
    deepest = max((band[3] for band in found), default=0)
    bands = [band for band in found if band[3] == deepest]
    if not bands or len(bands) > MOST_BANDS:
        return []
    rows = [{"a": a, "b": b, "span": name} for name, a, b, _ in bands]
    layers = []
    for place, shade in enumerate(("#dfe5ec", "#eff2f5")):
        base = altair.Chart(altair.Data(values=rows[place::2]))
        layers.append(base.mark_rect(color=shade, clip=True).encode(x=_time(altair, run, "a"), x2="b:Q"))
    if len(bands) <= MOST_NAMED:
        base = altair.Chart(altair.Data(values=rows))
        words = base.mark_text(align="left", baseline="top", dx=3, dy=3, fontSize=10, color="#444", clip=True)
        layers.append(words.encode(x=_time(altair, run, "a"), y=altair.value(0), text="span:N"))
    return layers


def _time(altair: Any, run: Run, field: str = "t") -> Any:
    scale = altair.Scale(domain=extent_s(run), nice=False)
    return altair.X(f"{field}:Q", title="Time (s)", scale=scale, axis=altair.Axis(grid=False, tickCount=10))


def _bars(altair: Any, run: Run, rows: list[dict[str, Any]], title: str) -> Any:
    """Horizontal bars with the 95 % interval and the figure itself."""
    if not rows:
        raise MeasurementRefused(f"This run has no {title} with an energy.", cure=f"everywatt show {run.reference}")
    names = [row["name"] for row in rows]
    # Bars of one name would lie on top of each other.
    rows = [
        {
            **row,
            "name": f"{row['name']} #{names[: i + 1].count(row['name'])}"
            if names.count(row["name"]) > 1
            else row["name"],
        }
        for i, row in enumerate(rows)
    ]
    base = altair.Chart(altair.Data(values=rows)).encode(y=altair.Y("name:N", sort=None, title=None))
    bars = base.mark_bar(height={"band": 0.62}, color=PALETTE[0]).encode(x=altair.X("joules:Q", title="Energy (J)"))
    whiskers = base.mark_rule(strokeWidth=1.3).encode(x=altair.X("low:Q", title="Energy (J)"), x2="high:Q")
    ends = [
        base.mark_tick(thickness=1.3, height=8, color="black").encode(x=altair.X(f"{end}:Q", title="Energy (J)"))
        for end in ("low", "high")
    ]
    words = base.mark_text(align="left", dx=6, fontSize=11).encode(x="high:Q", text="shown:N")
    return altair.layer(bars, whiskers, *ends, words).properties(height=altair.Step(30))


def _bar(name: str, energy: Energy | Mapping[str, Any], shown: str) -> dict[str, Any] | None:
    data = declared(energy, "joules low high")
    return None if data["joules"] is None else {"name": name, **data, "shown": shown}


def _devices(altair: Any, run: Run) -> Any:
    rows = [_bar(name, part, str(part).partition(" (95")[0]) for name, part in run.energy().parts]
    return _bars(altair, run, [row for row in rows if row], "device")


def _spans(altair: Any, run: Run) -> Any:
    rows = [_bar(row["name"], row["energy"], row["energy"]["shown"]) for row in phases_of(run)["rows"]]
    return _bars(altair, run, [row for row in rows if row], "span")


def _ledger(altair: Any, run: Run) -> Any:
    from everywatt.report.html.data import ledger_of, ledger_view

    ledger = ledger_view(ledger_of(run))
    if "refused" in ledger:
        raise MeasurementRefused(f"There is no ledger: {ledger['refused']}.")
    rows = [_bar(row["owner"]["label"], row["energy"], row["energy"]["shown"]) for row in ledger["owners"][:25]]
    return _bars(altair, run, [row for row in rows if row], "owner")


def styled(chart: Any) -> Any:
    """The chart in the project's style."""
    return (
        chart.configure(font=FONT, background="white")
        .configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e9ed")
        .configure_legend(labelFontSize=11, orient="top")
        .configure_view(stroke=None)
    )


PANEL_WIDTH, PANEL_HEIGHT = 360, 260
MOST_QUERIES = 5000
PANELS = (("joules", "Energy (J)"), ("seconds", "Latency (s)"), ("watts", "Power (W)"))
DENSITIES = (
    ("joules_per_token", "Energy per output token (J)"),
    ("tokens", "Output tokens"),
    ("seconds", "Latency (s)"),
)
Queries = list[dict[str, float]]


def tokens_chart(altair: Any, run: Run) -> Any:
    """Total tokens of each query against its energy, latency and power, each with the least-squares line."""
    rows = _queries(run)
    return altair.hconcat(*[_panel(altair, rows, name, title) for name, title in PANELS])


def density_chart(altair: Any, run: Run) -> Any:
    """How energy per token, output tokens and latency are distributed over the queries."""
    rows = _queries(run)
    charts = []
    for name, title in DENSITIES:
        base = altair.Chart(altair.Data(values=rows)).transform_density(name, as_=["x", "y"])
        x, y = altair.X("x:Q", title=title), altair.Y("y:Q", title="Density")
        area = base.mark_area(color=PALETTE[0], opacity=0.35, line={"color": PALETTE[0]})
        charts.append(area.encode(x=x, y=y).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT))
    return altair.hconcat(*charts)


def _queries(run: Run) -> Queries:
    _, found = evaluate_folder(run)
    rows = [row for one in found for item in one.items if (row := _query(item)) is not None]
    if len(rows) < 3:
        raise MeasurementRefused(
            f"{run.name} has {len(rows)} queries with tokens and energy: too few to plot.{_no_energy(found)}"
        )
    return rows[:: -(-len(rows) // MOST_QUERIES)]


def _no_energy(found: Sequence[Metrics]) -> str:
    reasons = [why for one in found if (why := one.bill.gross.refused)]
    return f" {reasons[0]}." if reasons else ""


def _query(item: Any) -> dict[str, float] | None:
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


def _panel(altair: Any, rows: Queries, name: str, title: str) -> Any:
    x, y = altair.X("total:Q", title="Input and output tokens"), altair.Y(f"{name}:Q", title=title)
    dots = altair.Chart(altair.Data(values=rows)).mark_circle(color=PALETTE[0], opacity=0.5, size=28).encode(x=x, y=y)
    fit = regression({"tokens": [row["total"] for row in rows]}, [row[name] for row in rows])
    if fit is None:
        return dots.properties(
            width=PANEL_WIDTH, height=PANEL_HEIGHT, title="all queries have the same number of tokens: no slope"
        )
    slope, constant = fit["tokens"], fit["constant"]
    ends = [min(row["total"] for row in rows), max(row["total"] for row in rows)]
    line = [{"total": at, name: constant["value"] + slope["value"] * at} for at in ends]
    drawn = altair.Chart(altair.Data(values=line)).mark_line(color=PALETTE[1]).encode(x=x, y=y)
    r2 = "" if fit["r2"] is None else f", R² {fit['r2']:.3f}"
    caption = f"{slope['value']:.3g} ± {slope['se']:.2g} (s.e.) per token{r2}"
    return altair.layer(dots, drawn).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=caption)


WHAT: dict[str, Callable[..., Any]] = {
    "power": _power,
    "ledger": _ledger,
    "spans": _spans,
    "energy-by-device": _devices,
    "llm-tokens": tokens_chart,
    "llm-density": density_chart,
}
"""What can be plotted."""


SIZES_HEIGHT = 190


def plot_sizes(sizes: Sequence[Mapping[str, Any]], cheapest: int | None, out: Path) -> Path:
    """Draw sizes (as `batch probe --json` has them) into a PNG, SVG or PDF; the cheapest one is marked."""
    rows = [_row(one, cheapest) for one in sizes if one["fits"]]
    if not rows:
        raise MeasurementRefused("No size fits, so there is nothing to plot.")
    altair = load_altair()
    x = altair.X(
        "size:Q", title="Size", scale=altair.Scale(type="log", base=2, nice=False), axis=altair.Axis(grid=False)
    )
    base = altair.Chart(altair.Data(values=rows))
    charts = []
    if any(row["joules"] is not None for row in rows):
        title = "Energy (J a unit)"
        y = altair.Y("joules:Q", title=title, scale=altair.Scale(zero=True))
        bars = base.mark_rule(strokeWidth=1.3).encode(x=x, y=altair.Y("low:Q", title=title), y2="high:Q")
        line = base.mark_line(color=PALETTE[0], strokeWidth=1.4).encode(x=x, y=y)
        dots = base.mark_point(filled=True, opacity=1).encode(
            x=x,
            y=y,
            size=altair.condition("datum.cheapest", altair.value(130), altair.value(45)),
            color=altair.condition("datum.cheapest", altair.value(PALETTE[1]), altair.value(PALETTE[0])),
        )
        words = base.transform_filter("datum.cheapest").mark_text(dy=-14, fontSize=11, color=PALETTE[1])
        charts.append(altair.layer(line, bars, dots, words.encode(x=x, y=y, text="label:N")))
    if any(row["rate"] is not None for row in rows):
        y = altair.Y("rate:Q", title="Throughput (units/s)", scale=altair.Scale(zero=True))
        line = base.mark_line(color=PALETTE[2], strokeWidth=1.4, point={"filled": True, "color": PALETTE[2]})
        charts.append(line.encode(x=x, y=y))
    chart = altair.vconcat(*(one.properties(width=WIDTH, height=SIZES_HEIGHT) for one in charts)).resolve_scale(
        x="shared"
    )
    return save(chart, out)


def _row(one: Mapping[str, Any], cheapest: int | None) -> dict[str, Any]:
    size, energy = int(one["size"]), one["energy"]
    each = [None if energy[key] is None else energy[key] / size for key in ("joules", "low", "high")]
    best = size == cheapest
    return {
        "size": size,
        **dict(zip(("joules", "low", "high"), each, strict=True)),
        "rate": one["units_per_s"],
        "cheapest": best,
        "label": f"cheapest: {size}" if best else "",
    }


WALL_LINES = ("wall", "chips", "CPUs", "cards")


def plot_wall(nodes: Sequence[Node], out: Path) -> Path:
    """Draw a comparison into a PNG, SVG or PDF and give its path; a cell without a value is a hole in its line."""
    check_ending(out)
    altair = load_altair()
    panels = [_wall_panel(altair, node) for node in nodes if len(node.start_s)]
    if not panels:
        raise MeasurementRefused("This comparison has no cells to plot.")
    save(altair.vconcat(*panels), out)
    return out


def _wall_panel(altair: Any, node: Node) -> Any:
    kinds = dict(zip(WALL_LINES, (node.wall_w, node.chips_w, node.cpu_w, node.gpu_w), strict=True))
    shown = [name for name, watts in kinds.items() if np.nan_to_num(watts).any()]
    rows = [row for name in shown for row in _wall_rows(name, node.start_s, kinds[name])]
    start = datetime.fromtimestamp(float(node.start_s[0]), UTC)
    fit = f"; {node.overhead}" if node.overhead else ""
    title = f"{node.name}: the chips do not explain {format_percent(node.gap_pct / 100)} of the wall{fit}"
    colours = altair.Scale(domain=list(WALL_LINES), range=list(PALETTE[: len(WALL_LINES)]))
    return (
        altair.Chart(altair.Data(values=rows), title=altair.Title(title, fontSize=12, anchor="start"))
        .mark_line(strokeWidth=1.4, interpolate="step-after")
        .encode(
            x=altair.X("t:Q", title=f"Seconds from {start:%Y-%m-%d %H:%M:%S} UTC", axis=altair.Axis(grid=False)),
            y=altair.Y("w:Q", title="Power (W)"),
            color=altair.Color("line:N", title=None, scale=colours, legend=altair.Legend(values=shown)),
        )
        .properties(width=640, height=220)
    )


def _wall_rows(name: str, start_s: Floats, watts: Floats) -> list[dict[str, Any]]:
    """At most `MOST_POINTS` of a line: means of neighbouring cells where there are more."""
    every = -(-len(start_s) // MOST_POINTS)
    firsts = np.arange(0, len(start_s), every)
    good = np.isfinite(watts)
    sums, counts = (np.add.reduceat(values, firsts) for values in (np.where(good, watts, 0.0), good.astype(np.int64)))
    return [
        {"line": name, "t": float(t - start_s[0]), "w": float(total / count) if count else None}
        for t, total, count in zip(start_s[firsts], sums, counts, strict=True)
    ]
