"""A run in a few lines for a terminal."""

from __future__ import annotations

from typing import Any

from everywatt.api.power import mean_w
from everywatt.api.run import Run
from everywatt.core.energy import Energy
from everywatt.core.format import (
    format_count,
    format_duration,
    format_energy,
    format_percent,
    format_range,
    format_watts,
)
from everywatt.ledger.owners import OwnerKind
from everywatt.report.ledger_text import fold, printed
from everywatt.report.wall import wall_of

MAX_SPANS = 12
MAX_OWNERS = 5
SEEN = 0.9995


def summary(run: Run) -> list[str]:
    """The lines that `everywatt run` and `everywatt show` print."""
    energy = run.energy()
    duration_s = run.duration_s
    lines = [*_certain(run, energy, duration_s), _headline(energy), *_parts(run, energy)]
    if energy.joules is not None:
        lines += _wall(run)
        lines += _net(run)
        lines.append(f"  time    {format_duration(duration_s)}{_mean(energy, duration_s)}")
        lines += _owners(run)
    else:
        lines.append(f"  time    {format_duration(duration_s)}")
    lines += _spans(run)
    lines += _meter(run)
    lines += [f"  ! {text}" for text in warnings(run, energy)]
    return lines


def _mean(energy: Energy, duration_s: float) -> str:
    """Mean power."""
    mean = mean_w(energy, duration_s)
    if mean is None:
        return ""
    return f", mean {format_watts(mean)}{' of the observed time' if energy.coverage < SEEN else ''}"


def certain_cpu_s(run: Run, energy: Energy) -> float | None:
    """CPU seconds of the command where its energy is only modelled from them: the kernel counts them, so they are
    shown first. None elsewhere."""
    used = [span.attributes.get("cpu_s") for span in run.spans if span.attributes.get("role") == "run"]
    if "modelled" not in energy.pedigree or not used or None in used or run.duration_s <= 0:
        return None
    return sum(float(one) for one in used if one is not None)


def _certain(run: Run, energy: Energy, duration_s: float) -> list[str]:
    cpu_s = certain_cpu_s(run, energy)
    if cpu_s is None:
        return []
    busy = f"{cpu_s / duration_s:.2f} CPUs on average"
    return [f"cpu     {format_duration(cpu_s)} of CPU time in {format_duration(duration_s)} ({busy})"]


def _headline(energy: Energy) -> str:
    return f"energy  {energy}" if energy.joules is not None else f"energy  refused: {energy.refused}"


def _parts(run: Run, energy: Energy) -> list[str]:
    if len(energy.parts) < 2 and energy.joules is None:
        return []
    devices = run.devices()
    lines = []
    for name, part in energy.parts:
        power = devices.get(name, {}).get("power") or {}
        detail = ""
        if power.get("mean") is not None:
            # No reading may lie inside a short run; its mean then follows from the readings around it.
            span = f", {format_range(power['min'], power['max'], 'W')}" if power.get("min") is not None else ""
            detail = f"   {format_watts(power['mean'])} mean{span}, {format_count(power['samples'], 'tick')}"
        label = devices.get(name, {}).get("label") or ""
        lines.append(f"  {name:<7} {format_energy(part)}{detail}{'   ' + label if label else ''}")
    return lines


def _wall(run: Run) -> list[str]:
    """What a meter of the whole saw beside the chips; the two are never added."""
    found = wall_of(run)
    if found is None:
        return []
    share = f" ({format_percent(found.share)})" if found.share is not None else ""
    rest = f"not explained by the chips: {format_energy(found.unexplained)}{share}"
    return [f"  wall    {format_energy(found.wall)} at the meter; {rest}"]


def _net(run: Run) -> list[str]:
    net, baseline = run.energy_net(), run.baseline
    if net.joules is None or baseline is None:
        return [] if run.energy().joules is None else [f"  net     refused: {net.refused}"]
    length = f", {format_duration(baseline.duration_s)}" if baseline.duration_s else ""
    return [f"  net     {format_energy(net)} above idle ({baseline.where}{length})"]


def _owners(run: Run) -> list[str]:
    """The most expensive owners and the special ones, which add up; nothing where no process was recorded."""
    ledger = run.ledger()
    if not any(entry.owner.kind is OwnerKind.PROCESS for entry in ledger.entries):
        return []
    folded = fold(ledger.entries, MAX_OWNERS)
    amounts, unit, _ = printed([sum(entry.microjoules for entry in group) for _, group in folded])
    width = max(map(len, amounts))
    lines = [f"  owner   {amount:>{width}} {unit}  {label}" for (label, _), amount in zip(folded, amounts, strict=True)]
    if run.energy().scope != ledger.total.scope and ledger.total.joules is not None:
        lines.append(f"  ! owners share {ledger.total.scope}, {format_energy(ledger.total)}; the rest is not split")
    return lines


def _spans(run: Run) -> list[str]:
    inner = [span for span in run.spans if span.parent is not None]
    if not inner:
        return []
    names = list(dict.fromkeys(span.name for span in inner))
    lines = []
    for name in names[:MAX_SPANS]:
        same = [span for span in inner if span.name == name]
        seconds = sum(span.duration_s or 0.0 for span in same)
        count = f" ×{len(same)}" if len(same) > 1 else ""
        lines.append(f"  span    {name}{count}: {format_energy(run.energy(span=name))} in {format_duration(seconds)}")
    if len(names) > MAX_SPANS:
        lines.append(f"  span    … and {len(names) - MAX_SPANS} more names")
    return lines


def _meter(run: Run) -> list[str]:
    costs = [cost for cost in run.quality()["meter"] if cost]
    if not costs:
        return []
    cpu_s = sum(float(cost.get("cpu_s") or 0.0) for cost in costs)
    lived_s = sum(float(cost.get("seconds") or 0.0) for cost in costs)
    share = f" ({format_percent(cpu_s / lived_s)} of one core)" if lived_s >= 1 else ""
    return [f"  meter   everywatt itself used {format_duration(cpu_s)} of CPU time{share}"]


def warnings(run: Run, energy: Energy, quality: dict[str, Any] | None = None) -> list[str]:
    """Everything that a reader of the figure must know, each once. `quality` where it has been asked for already."""
    found = run.quality() if quality is None else quality
    return list(dict.fromkeys([*energy.notes, *found["warnings"], *run.trouble]))
