"""A finished benchmark as figures: for each load, and as the JSON object of `bench llm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.llm.energy import SERVER, bill, refused
from everywatt.bench.llm.metrics import Metrics, metrics
from everywatt.bench.llm.records import Record, read_plan, read_records


def evaluate(
    run: Run | None,
    records: Sequence[Record],
    plan: Mapping[str, Any],
    *,
    bounds: Mapping[str, float] | None = None,
) -> list[Metrics]:
    """The figures of every load, in the order in which they were asked."""
    levels = list(dict.fromkeys([*plan.get("levels", ()), *(record.level for record in records)]))
    found = []
    for level in levels:
        own = [record for record in records if record.level == level]
        if not own:
            continue
        why = plan.get("no_energy")
        if run is None or why:
            found.append(metrics(level, own, refused(why or "nothing was recorded"), bounds=bounds))
        else:
            owed = bill(run, own, str(plan.get("boundary") or SERVER))
            found.append(metrics(level, own, owed, bounds=bounds))
    return found


def evaluate_folder(run: Run, *, bounds: Mapping[str, float] | None = None) -> tuple[dict[str, Any], list[Metrics]]:
    """The plan and the figures of a run that `bench llm` made."""
    folder = run.path if run.path.is_dir() else run.path.parent
    plan = read_plan(folder)
    return plan, evaluate(run, read_records(folder), plan, bounds=bounds)


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
    return data


def knee(found: Sequence[Metrics]) -> dict[str, Any] | None:
    """The load beyond which more throughput costs more energy than it saves: the point furthest from the line
    between the first and the last, in output tokens a second and joules a token, each scaled to 0 … 1."""
    points = [
        (one.level, rate.value, cost.value)
        for one in found
        if (rate := one.figures["output_tokens_per_second"]).value is not None
        and (cost := one.figures["energy_per_output_token"]).value is not None
    ]
    if len(points) < 3:
        return None
    rates = [rate or 0.0 for _, rate, _ in points]
    costs = [cost or 0.0 for _, _, cost in points]
    wide, high = max(rates) - min(rates), max(costs) - min(costs)
    if not wide or not high:
        return None
    scaled = [((r - min(rates)) / wide, (c - min(costs)) / high) for r, c in zip(rates, costs, strict=True)]
    (x0, y0), (x1, y1) = scaled[0], scaled[-1]
    apart = [abs((y1 - y0) * x - (x1 - x0) * y + x1 * y0 - y1 * x0) for x, y in scaled]
    best = max(range(len(points)), key=lambda index: apart[index])
    return {"level": points[best][0], "output_tokens_per_second": rates[best], "energy_per_output_token": costs[best]}
