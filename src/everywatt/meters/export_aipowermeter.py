"""A run as a recording of AIPowerMeter (its generation of 2026): `power_metrics.json` and `metadata.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from everywatt.api.run import Run
from everywatt.core.channels import Domain
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, RunExists
from everywatt.energy.sources import Source, sources
from everywatt.meters.aipowermeter import CPU, END, FILE, day_text

PERIOD_S: Final = 1.0
_KEYS: Final = {domain: key for key, _, _, domain in CPU}


def export_aipowermeter(run: Run, folder: Path, period_s: float = PERIOD_S) -> list[Path]:
    """Write a run's power, a line every `period_s`, each the mean since the line before; a segment ends with each tape.

    RunExists where the folder has a recording already: unlike theirs, ours are not deleted to make room.
    """
    target = folder / FILE
    if target.exists():
        raise RunExists(f"{target} exists, and recordings are never overwritten.", cure="--out with another folder")
    lines: list[str] = []
    for one in [Run(run.path, [tape]) for tape in run.tapes]:
        lines += _segment(one, period_s)
    if not lines:
        raise MeasurementRefused("This run has no power to export.")
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / "metadata.json"
    about.write_text(json.dumps({"description": run.name, "date": day_text(_started_ns(run))}) + "\n", encoding="utf-8")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [target, about]


def _started_ns(run: Run) -> int:
    return run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0])


def _segment(run: Run, period_s: float) -> list[str]:
    tape = run.tapes[0]
    found = [source for source in sources(tape) if source.domain in (*_KEYS, Domain.GPU)]
    first_ns, last_ns = tape.extent_ns()
    length_s = (last_ns - first_ns) / NS
    if not found or length_s <= 0:
        return []
    edges_s = np.append(np.arange(0.0, length_s, period_s), length_s)
    if len(edges_s) > 2 and edges_s[-1] - edges_s[-2] < period_s / 2:
        edges_s = np.delete(edges_s, -2)
    steps_s = np.diff(edges_s)
    powers = [run.energies(edges_s[:-1], edges_s[1:], device=source.label) / steps_s for source in found]
    started_ns = _started_ns(run)
    lines = []
    for place, edge_s in enumerate(edges_s):
        watts = [float(power[max(place - 1, 0)]) for power in powers]  # the first line covers no time
        metrics = _metrics(found, watts)
        lines.append(json.dumps({"date": day_text(started_ns + round(edge_s * NS)), "metrics": metrics}))
    return [*lines, json.dumps(END)]


def _metrics(found: Sequence[Source], watts: Sequence[float]) -> dict[str, Any]:
    cpu: dict[str, Any] = {}
    cards: dict[str, float] = {}
    for source, power in zip(found, watts, strict=True):
        if not np.isfinite(power):
            continue
        if source.domain is Domain.GPU:
            cards[source.channel.device.removeprefix("gpu.")] = power
        else:
            cpu[_KEYS[source.domain]] = cpu.get(_KEYS[source.domain], 0.0) + power
    cpu.setdefault("psys_power", -1)  # theirs for absent
    metrics: dict[str, Any] = {"cpu": cpu}
    if cards:
        metrics["gpu"] = {"nvidia_power": sum(cards.values()), "per_gpu_nvidia_power": cards}
    return metrics
