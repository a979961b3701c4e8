"""Plots of power models: prediction against truth, and columns against power. PNG, SVG, PDF (extra `plots`) or HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everywatt.core.errors import UsageError
from everywatt.report.plots import ENDINGS, FONT, PALETTE, load_altair

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
    styled = chart.configure(font=FONT, background="white").configure_view(stroke=None)
    if out.suffix.lower() not in (*ENDINGS, ".html"):
        raise UsageError(
            f"The name '{out.name}' has no known extension.", cure=f"a name that ends in {', '.join(ENDINGS)} or .html"
        )
    try:
        if out.suffix.lower() == ".html":
            # The drawing itself: a page that loads nothing from anywhere.
            import vl_convert

            svg = vl_convert.vegalite_to_svg(styled.to_dict())
            out.write_text(_page(out.stem, svg), encoding="utf-8")
        else:
            styled.save(str(out), format=out.suffix[1:].lower())
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}.") from error
    return out


def _page(title: str, svg: str) -> str:
    """A page around a drawing: no script, and nothing that it could ask anybody for."""
    style = (
        "body { margin: 16px; background: #fff; color: #16191d; font: 15px/1.5 system-ui, sans-serif; }"
        " h1 { font-size: 1.2rem; overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; }"
    )
    shown, drawn = html.escape(title), svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{shown} · everywatt</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{shown}</h1>
{drawn}
</main>
</body>
</html>
"""
