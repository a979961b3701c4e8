"""Chips beside the wall as a picture: one panel a node, in watts over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from everywatt.core.errors import MeasurementRefused
from everywatt.core.format import format_percent
from everywatt.meters.block import Floats
from everywatt.meters.wall import Node
from everywatt.report.plots import MOST_POINTS, PALETTE, check_ending, load_altair, save

LINES = ("wall", "chips", "CPUs", "cards")


def plot_wall(nodes: Sequence[Node], out: Path) -> Path:
    """Draw a comparison into a PNG, SVG or PDF and give its path; a cell without a value is a hole in its line."""
    check_ending(out)
    altair = load_altair()
    panels = [_panel(altair, node) for node in nodes if len(node.start_s)]
    if not panels:
        raise MeasurementRefused("This comparison has no cells to plot.")
    save(altair.vconcat(*panels), out)
    return out


def _panel(altair: Any, node: Node) -> Any:
    kinds = dict(zip(LINES, (node.wall_w, node.chips_w, node.cpu_w, node.gpu_w), strict=True))
    shown = [name for name, watts in kinds.items() if np.nan_to_num(watts).any()]
    rows = [row for name in shown for row in _rows(name, node.start_s, kinds[name])]
    start = datetime.fromtimestamp(float(node.start_s[0]), UTC)
    fit = f"; {node.overhead}" if node.overhead else ""
    title = f"{node.name}: the chips do not explain {format_percent(node.gap_pct / 100)} of the wall{fit}"
    colours = altair.Scale(domain=list(LINES), range=list(PALETTE[: len(LINES)]))
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


def _rows(name: str, start_s: Floats, watts: Floats) -> list[dict[str, Any]]:
    """At most `MOST_POINTS` of a line: means of neighbouring cells where there are more."""
    every = -(-len(start_s) // MOST_POINTS)
    firsts = np.arange(0, len(start_s), every)
    good = np.isfinite(watts)
    sums, counts = (np.add.reduceat(values, firsts) for values in (np.where(good, watts, 0.0), good.astype(np.int64)))
    return [
        {"line": name, "t": float(t - start_s[0]), "w": float(total / count) if count else None}
        for t, total, count in zip(start_s[firsts], sums, counts, strict=True)
    ]
