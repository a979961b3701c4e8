"""The section of a report for a run of `bench llm`: what answers cost, one line per load; why queries failed, accuracy
by subject, distributions, every figure, the worst queries; and models beside each other where a report has several such
runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everywatt.api.run import Run
from everywatt.bench.llm.comparing import is_llm
from everywatt.bench.llm.energy import SERVER
from everywatt.bench.llm.leaderboard import leaderboard
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.records import OK
from everywatt.bench.llm.result import evaluate_folder, knee, repeats_data
from everywatt.bench.llm.rows import MISSING, figure_rows, figure_text, load_lines
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_duration, format_energy
from everywatt.core.tables import Cell, Quantity, Table, columns_of
from everywatt.report.html.figures import table_view

MOST_POINTS = 1500
WORST = 10
BINS = 24


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
        "model": plan.model_name,
        "dataset": plan.dataset_name,
        "client": plan.client["client"],
        "answer": _answer(found) + _unsent(plan, found),
        "boundary": found[0].bill.about,
        "loads": dict(zip(("heads", "rows"), load_lines(found), strict=True)),
        "failures": [[one.level, str(why.queries), why.status, why.reason] for one in found for why in one.failures],
        "subjects": _subjects(found),
        "levels": [_level(one) for one in found],
        "ttft": _histogram([item["ttft_s"] for item in items]),
        "e2e": _histogram([item["e2e_s"] for item in items if item["status"] == OK]),
        "energy": _histogram([item["joules"] for item in items]),
        "per_token": _histogram([_per_token(item) for item in items]),
        "tokens": _points(items),
        "curve": [point for one in found if (point := _curve(one)) is not None],
        "knee": knee(found) if len(found) > 1 else None,
        "repeats": repeats_data(found) if len(found) > 1 else {},
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
    scope, boundary = next(iter(board.groups))
    if len(board.groups) > 1:
        return {"refused": "The joules of the runs cover different scopes; everywatt bench leaderboard ranks each."}
    rows = [
        {
            "name": f"{place.model}, {place.metrics.level}",
            "run": place.run,
            "accuracy": place.accuracy.to_dict(),
            "accuracy_shown": str(place.metrics.accuracy or MISSING),
            "joules": (each := place.metrics.figures["energy_per_request"]).to_dict(),
            "joules_shown": figure_text(each),
            "per_joule": figure_text(place.metrics.figures["accuracy_per_joule_mean"]),
            "per_token": figure_text(place.metrics.figures["energy_per_output_token"]),
            "pedigree": place.metrics.bill.gross.pedigree,
        }
        for place in board.places
    ]
    return {"dataset": board.dataset, "scope": scope, "boundary": boundary, "rows": rows}


def _answer(found: Sequence[Metrics]) -> str:
    """What the reader wants to know first: what the server used for the answers, at the cheapest load."""
    known = [one for one in found if one.bill.gross.joules is not None and one.answered]
    if not known:
        return f"No energy: {found[0].bill.gross.refused or 'no query was answered'}."
    best = min(known, key=lambda one: one.figures["energy_per_request"].value or math.inf)
    how, which = "with the lowest energy per request of", ""
    if not all(one is best or _cheaper(best, one) for one in known):
        best, how, which = known[0], "the first of", " of which none is surely the cheapest"
    per = [f"{figure_text(best.figures['energy_per_request'])} per request"]
    if best.figures["energy_per_output_token"].value is not None:
        per.append(f"{figure_text(best.figures['energy_per_output_token'])} per output token")
    load = "The" if len(found) < 2 else f"At {best.level}, {how} {len(found)} loads{which}, the"
    whose = "server" if best.bill.boundary == SERVER else "machine"
    used = format_energy(best.bill.gross)
    if best.cpu_s is not None:
        used = f"{format_duration(best.cpu_s)} of CPU time, and by a model {used},"
    right = "" if best.accuracy is None else f", accuracy {best.accuracy}"
    return (
        f"{load} {whose} used {used} for {best.queries} queries, {best.answered} of them "
        f"answered{right}: {' and '.join(per)}."
    )


def _cheaper(one: Metrics, other: Metrics) -> bool:
    """Whether a load surely used less energy per request, for all that the errors of both leave open."""
    try:
        return (one.bill.gross / one.answered).ratio(other.bill.gross / other.answered).high < 1
    except EverywattError:
        return False


def _unsent(plan: LlmPlan, found: Sequence[Metrics]) -> str:
    """A sentence about queries that were planned and never sent, as where the server died; else nothing."""
    planned = min(plan.dataset.items or 0, plan.max_queries or math.inf)
    sent = min(one.queries for one in found)
    return f" Only {sent} of {planned} planned queries were sent." if 0 < sent < planned < math.inf else ""


def _subjects(found: Sequence[Metrics]) -> dict[str, Any] | None:
    """Accuracy of each subject at each load; None where items have fewer than two."""
    names = list(dict.fromkeys(name for one in found for name in one.subjects))
    if len(names) < 2:
        return None
    rows = [[name, *(str(one.subjects.get(name, MISSING)) for one in found)] for name in names]
    return {"heads": ["Subject", *(one.level for one in found)], "rows": rows}


def _level(one: Metrics) -> dict[str, Any]:
    return {
        "level": one.level,
        "queries": one.queries,
        "statuses": dict(one.statuses),
        "verdicts": dict(one.verdicts),
        "rows": [list(row) for row in figure_rows(one)],
        "about": one.bill.about,
        "notes": list(one.notes),
    }


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


def _worst(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The queries that cost most; where there is no energy, those that took longest.

    What was asked and answered stays in the run's folder: a page is made to be passed on.
    """
    known = [item for item in items if item["joules"] is not None]
    ordered = sorted(known, key=lambda item: -float(item["joules"])) or sorted(items, key=lambda item: -item["e2e_s"])
    columns = columns_of("Item, Load, Status, Verdict, Output tokens [], Energy [J], Per token [J], Time [s]")
    return table_view(Table.of(*columns, rows=[_query(item) for item in ordered[:WORST]]))


def _query(item: Mapping[str, Any]) -> list[Cell]:
    energy, tokens = None, item["output_tokens"]
    if (joules := item["joules"]) is not None:
        low, high = item["low"], item["high"]
        energy = Quantity(joules, "J", joules - (joules if low is None else low), (high or joules) - joules)
    each = (
        Quantity(energy.value / tokens, "J", energy.below / tokens, energy.above / tokens)
        if energy and tokens
        else None
    )
    return [item["id"], item["level"], item["status"], item["verdict"], tokens, energy, each, item["e2e_s"]]
