"""A finished benchmark as figures: for each load, and as the JSON object of `bench llm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from everywatt.api.run import Run, union
from everywatt.bench.llm.compute import Facts, peak_of
from everywatt.bench.llm.conditions import conditions
from everywatt.bench.llm.elsewhere import bill_elsewhere, placed_elsewhere
from everywatt.bench.llm.energy import SERVER, Asked, Bill, asked_of, bill, refused
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.loads import kind_of
from everywatt.bench.llm.metrics import Metrics, metrics
from everywatt.bench.llm.records import Record, read_plan, read_records
from everywatt.bench.llm.scorers import plain_words
from everywatt.bench.llm.stats import Share, over_repeats
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError
from everywatt.core.stats import mean


def evaluate(
    run: Run | None,
    records: Sequence[Record],
    plan: Mapping[str, Any],
    *,
    bounds: Mapping[str, float] | None = None,
    reference: Sequence[Record] | None = None,
    detail: bool = False,
) -> list[Metrics]:
    """The figures of every load, in the order in which they were asked. `reference` are answers to agree with; `detail`
    adds to each query what the machine did meanwhile."""
    facts = known_facts(run, plan)
    during = conditions(placed(run, records, plan)) if detail and run is not None else None
    levels = list(dict.fromkeys([*plan.get("levels", ()), *(record.level for record in records)]))
    found = []
    for level in levels:
        own = [record for record in records if record.level == level]
        if not own:
            continue
        owed = refused("nothing was recorded", seconds=open_s(own)) if run is None else owed_by(run, own, plan)
        one = metrics(level, own, owed, bounds=bounds, facts=facts, during=during)
        one = replace(one, notes=(*plan.get("warnings", ()), *one.notes))
        if reference is not None:
            one = replace(one, figures={**one.figures, "agreement": agreement(own, reference)})
        found.append(one)
    return found


def placed(run: Run, records: Sequence[Record], plan: Mapping[str, Any]) -> list[Asked]:
    """The queries on the tapes that measured them: the server's own, where it has one."""
    if plan.get("server_tape"):
        try:
            return placed_elsewhere(run, records, plan["server_tape"])
        except EverywattError:
            return []
    return asked_of(run, records)


def owed_by(run: Run, records: Sequence[Record], plan: Mapping[str, Any]) -> Bill:
    """The energy of queries, wherever the server is; refused if nothing measured it."""
    boundary = str(plan.get("boundary") or SERVER)
    if plan.get("server_tape"):
        return bill_elsewhere(run, records, plan["server_tape"])
    if plan.get("no_energy"):
        return refused(str(plan["no_energy"]), boundary, open_s(records))
    return bill(run, records, boundary)


def open_s(records: Sequence[Record]) -> float:
    """Seconds in which at least one query was open, by the client's clock."""
    times = [(record.answer.sent_ns, record.answer.ended_ns) for record in records]
    return sum(end - start for start, end in union([one for one in times if one[1] > one[0]])) / NS


def known_facts(run: Run | None, plan: Mapping[str, Any]) -> Facts:
    """What the plan knows of the model and its hardware; the peak also from the name of the only GPU on the tape."""
    facts = Facts.from_dict(plan.get("facts") or {})
    if facts.parameters is None or facts.peak_flops is not None or run is None:
        return facts
    groups = [group.info for tape in run.tapes for group in tape.groups]
    cards = {info.device: info.label for info in groups if is_gpu(info.device) and info.label}
    found = peak_of(list(cards.values()))
    return facts if found is None else replace(facts, peak_flops=found[0], peak_from=found[1])


def agreement(records: Sequence[Record], reference: Sequence[Record]) -> Figure:
    """The share of items that were answered as a reference run answered them, whether right or wrong."""
    formula = "same answers as the reference run / items that both answered; Wilson"
    theirs = {record.id: record for record in reference if record.ok}
    pairs = [(record, theirs[record.id]) for record in records if record.ok and record.id in theirs]
    share = Share.of(sum(_said(a) == _said(b) for a, b in pairs), len(pairs))
    if share is None:
        return Figure.none("", formula, "the two runs have no item in common")
    return Figure(share.value, share.low, share.high, "", formula)


def _said(record: Record) -> str:
    """What an answer comes down to: what its scorer read out of it, else its words."""
    score = record.score or {}
    extracted = score.get("found") if score.get("how") not in ("constraints", "JSON schema") else None
    return str(extracted) if extracted is not None else plain_words(record.answer.text)


def evaluate_folder(
    run: Run, *, bounds: Mapping[str, float] | None = None, detail: bool = False
) -> tuple[dict[str, Any], list[Metrics]]:
    """The plan and the figures of a run that `bench llm` made."""
    folder = run.path if run.path.is_dir() else run.path.parent
    plan = read_plan(folder)
    return plan, evaluate(run, read_records(folder), plan, bounds=bounds, detail=detail)


def to_dict(name: str | None, plan: Mapping[str, Any], found: Sequence[Metrics], **more: Any) -> dict[str, Any]:
    """The JSON form: one load's figures stand at the top, and `levels` has all, with their items."""
    data: dict[str, Any] = {
        "run": name,
        "model": plan.get("model"),
        "client": plan.get("client"),
        "dataset": plan.get("dataset"),
        "settings": plan.get("settings"),
        **more,
    }
    if len(found) == 1:
        data |= {name: value for name, value in found[0].to_dict().items() if name != "items"}
    data["levels"] = [one.to_dict() for one in found]
    if len(found) > 1:
        data["knee"] = knee(found)
        data["repeats"] = over_all_repeats(found)
    return data


def knee(found: Sequence[Metrics]) -> dict[str, Any] | None:
    """The load beyond which more throughput hardly saves energy: the point furthest below the line between the
    slowest and the fastest, in output tokens a second and joules a token, each scaled to 0 … 1. Repeats of a load are
    one point, their mean. None where no load lies below it, or there are fewer than three."""
    loads: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        rate, cost = one.figures["output_tokens_per_second"].value, one.figures["energy_per_output_token"].value
        if rate is not None and cost is not None:
            loads.setdefault(kind_of(one.level), []).append((rate, cost))
    points = sorted((mean([r for r, _ in same]), mean([c for _, c in same]), kind) for kind, same in loads.items())
    if len(points) < 3:
        return None
    rates, costs = [rate for rate, _, _ in points], [cost for _, cost, _ in points]
    wide, high = max(rates) - min(rates), max(costs) - min(costs)
    if not wide or not high:
        return None
    scaled = [((r - min(rates)) / wide, (c - min(costs)) / high) for r, c in zip(rates, costs, strict=True)]
    (x0, y0), (x1, y1) = scaled[0], scaled[-1]
    below = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y for x, y in scaled]
    best = max(range(len(points)), key=lambda index: below[index])
    if not below[best] > 1e-9:
        return None
    return {
        "level": points[best][2],
        "output_tokens_per_second": points[best][0],
        "energy_per_output_token": points[best][1],
    }


def over_all_repeats(found: Sequence[Metrics]) -> dict[str, Any]:
    """For each load that was repeated, its figures over the repetitions: how much they vary from run to run."""
    kinds: dict[str, list[Metrics]] = {}
    for one in found:
        kinds.setdefault(kind_of(one.level), []).append(one)
    data: dict[str, Any] = {}
    for kind, same in kinds.items():
        if len(same) < 2:
            continue
        values: dict[str, list[float]] = {}
        for one in same:
            if one.accuracy is not None:
                values.setdefault("accuracy", []).append(one.accuracy.value)
            for name, figure in one.figures.items():
                if figure.value is not None:
                    values.setdefault(name, []).append(figure.value)
        data[kind] = {name: over_repeats(all_of_them) for name, all_of_them in values.items() if len(all_of_them) > 1}
    return data
