"""A run of the precision lab as one plain document: verdicts, costs, quality against energy, layers, every trial."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.precision.layers import by_part
from everywatt.bench.precision.result import Result, Row, sensitivity_table
from everywatt.core.format import format_joules, format_percent
from everywatt.core.jsonio import document, plain
from everywatt.report.html.data import provenance
from everywatt.report.html.figures import table_view
from everywatt.report.html.trials import ENDED, energy_of, made_now, ratios_of, trials_of

MOST_LAYERS = 500
TITLES = ("Cost", "Quality", "Percent of the baseline")


def precision_document(result: Result, *, run: Run | None = None, command: Sequence[str] = ()) -> dict[str, Any]:
    """The document of a page over what the lab found."""
    known = [row for row in result.rows if row.failure is None]
    found = [row.figures for row in known if row.figures is not None]
    base = result.baseline
    data = {
        **made_now(),
        "command": shlex.join(command),
        "title": f"{result.job.name} at {len(result.rows)} precisions",
        "first": "" if base is None else base.precision,
        "verdicts": result.verdicts() or [_alone(result)],
        "failures": result.failures(),
        "remarks": result.remarks(),
        "tables": [
            table_view(replace(table, title=title, notes=()))
            for title, table in zip(TITLES, result.tables() if known else (), strict=False)
        ],
        "candidates": [_candidate(place, row, result) for place, row in enumerate(known)],
        "metric": next((row.score.metric for row in known if row.score is not None), None),
        "ratios": [line for place, one in enumerate(found) for line in ratios_of(place, one)],
        "trials": trials_of(found),
        "computed": result.computed_lines(),
        "layers": [_layers(row) for row in known if row.layers],
        "sensitivity": _sensitivity(result),
        "pairs": _pairs(result) + ([] if run is None else provenance(run)),
    }
    return document("precision", dict(plain(data)))


def _alone(result: Result) -> str:
    base = result.baseline
    if base is None:
        return "no precision has an energy"
    each = base.energy_per_sample
    return f"{base.precision}: no energy" if each is None else f"{base.precision}: {each.quantity('J')} per sample"


def _candidate(place: int, row: Row, result: Result) -> dict[str, Any]:
    score = row.score
    return {
        "place": place,
        "label": row.precision,
        "command": row.emulated or "",
        "energy": energy_of(row.energy_per_sample),
        "score": None if score is None else score.to_dict(),
        "score_shown": "-" if score is None else str(score),
        "chosen": row.precision in result.pareto(),
    }


def _layers(row: Row) -> dict[str, Any]:
    """Parts of the model, which add up to a batch, and the layers in their order; the last row is the remainder."""
    rows = row.layers
    kept = [*rows[:-1][:MOST_LAYERS], rows[-1]]
    return {
        "precision": row.precision,
        "parts": [{"name": name, "share": share, "shown": _joules(part_j)} for name, share, part_j in by_part(rows)],
        "heads": ["layer", "type", "share", "energy / batch"],
        "rows": [[one.layer, one.kind, format_percent(one.share), _joules(one.joules)] for one in kept],
        "more": len(rows) - len(kept),
    }


def _joules(amount: float | None) -> str:
    return "-" if amount is None else format_joules(amount)


def _sensitivity(result: Result) -> dict[str, Any] | None:
    if result.sensitivity is None:
        return None
    shown = sensitivity_table(result.sensitivity, most=MOST_LAYERS)
    return table_view(replace(shown, title="Layers in order of sensitivity"))


def _pairs(result: Result) -> list[list[str]]:
    job = result.job
    length = next((row.seq_length for row in result.rows if row.seq_length), None)
    pairs = [
        ("Run", result.run or "nothing recorded"),
        ("Ended", ENDED.get(result.ended, result.ended)),
        ("Model", job.name),
        ("Task", job.task),
        ("Data", job.data),
        ("Batches", f"{job.batch_size} items" + (f" of {length} tokens" if length else "")),
        ("Runtime", job.runtime),
        ("Device", job.device),
    ]
    return [list(pair) for pair in pairs]
