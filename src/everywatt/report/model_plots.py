"""Plots of power models: prediction against truth, and columns against power. PNG, SVG, PDF (extra `plots`) or HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everywatt.core.errors import UsageError
from everywatt.core.files import usable
from everywatt.report.html.page import still_page
from everywatt.report.plots import ENDINGS, PALETTE, check_ending, load_altair, save, styled

Floats = NDArray[np.float64]
MOST_POINTS = 3000
SIZE = 320


def truth_plot(times_s: Floats, truth: Floats, watts: Floats, target: str, out: Path) -> Path:
    """Prediction against truth as points beside the line where both are equal, and both over time."""
    altair = load_altair()
    order = _thinned(np.argsort(times_s))
    at = (times_s - times_s.min()) / 60
    rows = [
        {"t": float(at[k]), "truth": float(truth[k]), "watts": float(watts[k])}
        for k in order.tolist()
        if np.isfinite(truth[k])
    ]
    least, most = 0.0, float(np.nanmax([np.nanmax(truth), watts.max()])) * 1.05
    base = altair.Chart(altair.Data(values=rows)).properties(width=SIZE, height=SIZE)
    scale = altair.Scale(domain=[least, most])
    points = base.mark_circle(size=14, opacity=0.45, color=PALETTE[0]).encode(
        x=altair.X("truth:Q", title=f"{target}, measured (W)", scale=scale),
        y=altair.Y("watts:Q", title="predicted (W)", scale=scale),
    )
    ends = altair.Data(values=[{"a": least}, {"a": most}])
    line = altair.Chart(ends).mark_line(color="#5f6b7a", strokeDash=[4, 3]).encode(x="a:Q", y="a:Q")
    long = [
        {"t": row["t"], "W": row[key], "line": name}
        for row in rows
        for key, name in (("truth", "measured"), ("watts", "predicted"))
    ]
    over = (
        altair.Chart(altair.Data(values=long))
        .mark_line(strokeWidth=1)
        .encode(
            x=altair.X("t:Q", title="Time (min)"),
            y=altair.Y("W:Q", title="Power (W)"),
            color=altair.Color("line:N", title=None, scale=altair.Scale(range=[PALETTE[0], PALETTE[1]])),
        )
        .properties(width=2 * SIZE, height=SIZE)
    )
    return _save(altair.hconcat(points + line, over), out)


def scatter_plot(columns: Mapping[str, Floats], truth: Floats, target: str, out: Path) -> Path:
    """Each column against power, side by side."""
    altair = load_altair()
    charts = []
    for name, values in columns.items():
        keep = _thinned(np.flatnonzero(np.isfinite(values) & np.isfinite(truth)))
        rows = [{"x": float(values[k]), "y": float(truth[k])} for k in keep.tolist()]
        chart = altair.Chart(altair.Data(values=rows)).mark_circle(size=14, opacity=0.45, color=PALETTE[0])
        charts.append(
            chart.encode(x=altair.X("x:Q", title=name), y=altair.Y("y:Q", title=f"{target} (W)")).properties(
                width=SIZE, height=SIZE
            )
        )
    if not charts:
        raise UsageError("There is no column to plot.")
    return _save(altair.concat(*charts, columns=3), out)


def _thinned(places: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(places) <= MOST_POINTS:
        return places
    return np.asarray(places[np.linspace(0, len(places) - 1, MOST_POINTS).astype(int)])


def _save(chart: Any, out: Path) -> Path:
    if out.suffix.lower() != ".html":
        check_ending(out, (*ENDINGS, ".html"))
        return save(chart, out)
    import vl_convert

    # The drawing itself, without the style of its background: the page forbids those that it does not know.
    svg = re.sub(r' style="[^"]*"', "", vl_convert.vegalite_to_svg(styled(chart).to_dict()), count=1)
    drawn = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(out.stem)}" ', 1)
    with usable(out, "written"):
        out.write_text(still_page(out.stem, f'<section class="card drawing">{drawn}</section>'), encoding="utf-8")
    return out
