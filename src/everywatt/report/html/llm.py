"""The section of a report for a run of `bench llm`: figures of each load, distributions, the curve, the worst queries;
and models beside each other where a report has several such runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everywatt.api.run import Run
from everywatt.bench.llm.comparing import is_llm
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.leaderboard import leaderboard, model_name
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import evaluate_folder, knee, over_all_repeats
from everywatt.bench.llm.rows import figure_rows
from everywatt.core.errors import EverywattError

MOST_POINTS = 1500
WORST = 10
BINS = 24
QUERY_FIGURES = (
    *("id", "level", "status", "error", "verdict", "input_tokens", "output_tokens", "ttft_s", "e2e_s"),
    *("joules", "low", "high", "net_joules"),
)


def llm_view(run: Run) -> dict[str, Any] | None:
    """What the page shows of a run of a language model; None for any other run."""
    if not is_llm(run):
        return None
    try:
        plan, found = evaluate_folder(run)
    except EverywattError as error:
        return {"refused": error.message}
    if not found:
        return {"refused": "no query finished"}
    items = [{**item, "level": one.level} for one in found for item in one.items]
    return {
        "model": model_name(plan),
        "dataset": plan["dataset"]["name"],
        "client": plan["client"]["client"],
        "levels": [_level(one) for one in found],
        "per_token": _histogram([_per_token(item) for item in items]),
        "tokens": _points(items),
        "curve": [point for one in found if (point := _curve(one)) is not None],
        "knee": knee(found) if len(found) > 1 else None,
        "repeats": over_all_repeats(found) if len(found) > 1 else {},
        "worst": _worst(items),
    }


def models_view(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Accuracy against joules over the runs of a report that are of language models; None for fewer than two."""
    chosen = [run for run in runs if is_llm(run)]
    if len(chosen) < 2:
        return None
    try:
        board = leaderboard(chosen)
    except EverywattError as error:
        return {"refused": error.message}
    rows = [
        {
            "name": f"{place.model}, {place.level}",
            "run": place.run,
            "accuracy": place.accuracy.to_dict(),
            "joules": place.figures["energy_per_request"].to_dict(),
            "per_joule": _shown(place.figures["accuracy_per_joule_mean"]),
            "per_token": _shown(place.figures["energy_per_output_token"]),
            "pedigree": place.pedigree,
        }
        for place in board.places
    ]
    return {"dataset": board.dataset, "scope": board.scope, "boundary": board.boundary, "rows": rows}


def _level(one: Metrics) -> dict[str, Any]:
    return {
        "level": one.level,
        "queries": one.queries,
        "statuses": dict(one.statuses),
        "verdicts": dict(one.verdicts),
        "rows": [list(row) for row in figure_rows(one)],
        "about": one.about,
        "notes": list(one.notes),
    }


def _shown(figure: Figure) -> str:
    return str(figure.printed())


def _per_token(item: Mapping[str, Any]) -> float | None:
    if item["joules"] is None or not item["output_tokens"]:
        return None
    return float(item["joules"]) / float(item["output_tokens"])


def _histogram(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Counts of equal bins; what lies above the 99th percentile is in the last."""
    known = np.array([value for value in values if value is not None])
    if len(known) < 3:
        return None
    top = float(np.percentile(known, 99))
    low = float(known.min())
    if not top > low:
        return None
    counts, edges = np.histogram(np.minimum(known, top), bins=min(BINS, len(known)), range=(low, top))
    return {"edges": edges.tolist(), "counts": counts.tolist(), "n": len(known), "median": float(np.median(known))}


def _points(items: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Output tokens, joules and seconds of queries; every so many where there are many."""
    known = [one for one in items if one["joules"] is not None and one["output_tokens"] is not None]
    step = max(1, -(-len(known) // MOST_POINTS))
    return [[one["output_tokens"], one["joules"], one["e2e_s"]] for one in known[::step]]


def _curve(one: Metrics) -> dict[str, Any] | None:
    rate, cost = one.figures["output_tokens_per_second"], one.figures["energy_per_output_token"]
    if rate.value is None or cost.value is None:
        return None
    return {"name": one.level, "x": rate.value, "y": cost.value, "low": cost.low, "high": cost.high}


def _worst(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The queries that cost most; where there is no energy, those that took longest."""
    known = [item for item in items if item["joules"] is not None]
    ordered = sorted(known, key=lambda item: -float(item["joules"])) or sorted(items, key=lambda item: -item["e2e_s"])
    # What was asked and answered stays in the run's folder: a page is made to be passed on.
    return [{name: item.get(name) for name in QUERY_FIGURES} for item in ordered[:WORST]]
