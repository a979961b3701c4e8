"""What a probe found, as a picture: joules a unit and units a second over the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.core.errors import MeasurementRefused
from everywatt.report.plots import PALETTE, WIDTH, load_altair, save

HEIGHT = 190


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
    chart = altair.vconcat(*(one.properties(width=WIDTH, height=HEIGHT) for one in charts)).resolve_scale(x="shared")
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
