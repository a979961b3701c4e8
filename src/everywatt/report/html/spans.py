"""Spans for a page: bands behind the power chart, and phases, which are spans of one name taken together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everywatt.api.run import IDLE_ROLE, Run
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError
from everywatt.core.spans import Span
from everywatt.core.units import format_duration, format_quantity, format_watts
from everywatt.report.html.figures import shown_energy
from everywatt.report.html.lines import offset_ns_of

MOST_BANDS = 1500
MOST_PHASES = 60


def bands_of(run: Run) -> dict[str, Any]:
    """Names, and for each span [name, start, end, depth] in seconds; the longest where there are very many."""
    placed: dict[str, tuple[Span, float, float]] = {}
    for tape in run.tapes:
        offset_ns, high_ns = offset_ns_of(run, tape), tape.extent_ns()[1]
        for span in tape.spans():
            end_ns = high_ns if span.end_ns is None else span.end_ns
            placed.setdefault(span.id, (span, (span.start_ns - offset_ns) / NS, (end_ns - offset_ns) / NS))
    spans = {uid: span for uid, (span, _, _) in placed.items()}
    longest = sorted(placed.values(), key=lambda entry: entry[1] - entry[2])[:MOST_BANDS]
    names = list(dict.fromkeys(span.name for span, _, _ in longest))
    places = {name: place for place, name in enumerate(names)}
    bands = [[places[span.name], round(start, 6), round(end, 6), _depth(span, spans)] for span, start, end in longest]
    return {"names": names, "bands": sorted(bands, key=lambda band: (band[3], band[1])), "count": len(placed)}


def _depth(span: Span, spans: dict[str, Span]) -> int:
    depth, seen = 0, {span.id}
    while span.parent in spans and span.parent not in seen:
        seen.add(span.parent)
        span = spans[span.parent]
        depth += 1
    return depth


def phases_of(run: Run) -> dict[str, Any]:
    """Spans by name: how many, how long, joules with interval, mean watts, share of the run; the longest names."""
    by_name: dict[str, list[Span]] = {}
    for span in run.spans:
        by_name.setdefault(span.name, []).append(span)
    names = sorted(by_name, key=lambda name: -sum(span.duration_s or 0.0 for span in by_name[name]))
    whole = run.energy().joules
    rows = [_phase(run, name, by_name[name], whole) for name in names[:MOST_PHASES]]
    order = {name: place for place, name in enumerate(by_name)}
    return {"rows": sorted(rows, key=lambda row: order[row["name"]]), "count": len(names)}


def _phase(run: Run, name: str, spans: Sequence[Span], whole_j: float | None) -> dict[str, Any]:
    try:
        energy = run.energy(span=name)
    except EverywattError as error:  # one of them lies where nothing was read
        energy = Energy.refuse(error.message)
    seconds = sum(span.duration_s or 0.0 for span in spans)
    row: dict[str, Any] = {
        "name": name,
        "count": len(spans),
        "seconds": seconds,
        "seconds_shown": format_duration(seconds),
        "energy": shown_energy(replace(energy, parts=())),
        "inner": any(span.parent is not None for span in spans),
        "idle": any(span.attributes.get("role") == IDLE_ROLE for span in spans),
        "share": energy.joules / whole_j if energy.joules is not None and whole_j else None,
        "mean_shown": format_watts(energy.joules / seconds) if energy.joules is not None and seconds > 0 else None,
        "each_shown": None,
    }
    if energy.joules is not None and len(spans) > 1:
        sides = energy.budget.sides()
        row["each_shown"] = format_quantity(
            energy.joules / len(spans), "J", sides[0] / len(spans), sides[1] / len(spans)
        )
    return row
