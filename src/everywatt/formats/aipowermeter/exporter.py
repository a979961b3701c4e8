"""A run as a recording of AIPowerMeter (its generation of 2026): `power_metrics.json` and `metadata.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.core.channels import Domain
from everywatt.core.clocks import NS
from everywatt.core.device import Device
from everywatt.core.errors import MeasurementRefused, RunExists
from everywatt.energy.sources import Source, sources
from everywatt.formats.aipowermeter.importer import CPU, END, FILE, REST_PID, day_text
from everywatt.ledger.split.split import cut, process_use
from everywatt.ledger.use.account import tape_use
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape

PERIOD_S: Final = 1.0
# Of the cards, beside their power: their name for it, and the end of ours.
_BESIDE: Final = {"nvidia_use_rate": "utilisation", "nvidia_memory": "memory"}
_KEYS: Final = {domain: key for key, _, _, domain in CPU}


def export_aipowermeter(run: Run, folder: Path | None = None) -> list[Path]:
    """Write a run's power, a line every second, each the mean since the line before; a segment ends with each tape.

    RunExists where the folder has a recording already: unlike theirs, ours are not deleted to make room.
    """
    folder = folder or Path(f"{run.name}.aipowermeter")
    target = folder / FILE
    if target.exists():
        raise RunExists(
            f"{target} exists already, and recordings are never overwritten.", cure="--out with another folder"
        )
    lines: list[str] = []
    for one in [Run(run.path, [tape]) for tape in run.tapes]:
        lines += _segment(one)
    if not lines:
        raise MeasurementRefused("This run has no power to export.")
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / "metadata.json"
    told = {"description": _description(run), "date": day_text(_started_ns(run))}
    about.write_text(json.dumps(told) + "\n", encoding="utf-8")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [target, about]


def _description(run: Run) -> Any:
    """What its user wrote about it, here or in their recording that it was made from; else its name."""
    theirs = run.meta.get("description")
    text = theirs.get("description") if isinstance(theirs, Mapping) else theirs
    return run.meta.get("note") or text or run.name


def _started_ns(run: Run) -> int:
    return run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0])


def _segment(run: Run) -> list[str]:
    tape = run.tapes[0]
    found = [source for source in sources(tape) if source.domain in (*_KEYS, Domain.GPU)]
    first_ns, last_ns = tape.extent_ns()
    length_s = (last_ns - first_ns) / NS
    if not found or length_s <= 0:
        return []
    edges_s = np.append(np.arange(0.0, length_s, PERIOD_S), length_s)
    if len(edges_s) > 2 and edges_s[-1] - edges_s[-2] < PERIOD_S / 2:
        edges_s = np.delete(edges_s, -2)
    steps_s = np.diff(edges_s)
    powers = [run.energies(edges_s[:-1], edges_s[1:], device=source.label) / steps_s for source in found]
    started_ns = _started_ns(run)
    at_ns = first_ns + np.round(edges_s * NS).astype(np.int64)
    cards = [source.channel.device for source in found if source.domain is Domain.GPU]
    beside = {key: {card: _readings(tape, f"{card}.{what}", at_ns) for card in cards} for key, what in _BESIDE.items()}
    uses = _cpu_uses(tape, at_ns)
    lines = []
    for place, edge_s in enumerate(edges_s):
        watts = [float(power[max(place - 1, 0)]) for power in powers]  # the first line covers no time
        metrics = _metrics(found, watts)
        if uses:
            shares = {str(pid): float(share[max(place - 1, 0)]) for pid, share in uses.items()}
            whole_w = metrics["cpu"].get("intel_power")
            metrics["cpu"]["per_process_cpu_uses"] = shares
            if whole_w is not None:
                metrics["cpu"]["rel_intel_power"] = {pid: share * whole_w for pid, share in shares.items()}
        for key, readings in beside.items():
            now = {card: float(values[place]) for card, values in readings.items() if np.isfinite(values[place])}
            if now:
                whole = sum(now.values()) / (len(now) if key == "nvidia_use_rate" else 1)
                each = {Device.parse(card).name: value for card, value in now.items()}
                metrics.setdefault("gpu", {}).update({key: whole, f"per_gpu_{key}": each})
        lines.append(json.dumps({"date": day_text(started_ns + round(edge_s * NS)), "metrics": metrics}))
    return [*lines, json.dumps(END)]


def _cpu_uses(tape: Tape, at_ns: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.float64]]:
    """The share of each process in the CPU time that was used between neighbouring instants, by pid."""
    use = tape_use(tape)
    if use.processes is None:
        return {}
    starts_ns, ends_ns, count = at_ns[:-1], at_ns[1:], len(at_ns) - 1
    pieces = cut(list(zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)), use.processes.edges)
    subject = np.ones(len(use.processes.processes), dtype=np.bool_)
    found = process_use(pieces, use.processes, use.period_s, use.runs, subject)
    step = np.searchsorted(at_ns, pieces.starts_ns[found.stretch], side="right") - 1
    used: dict[int, npt.NDArray[np.float64]] = {}
    for number, facts in enumerate(use.processes.processes):
        mine = found.owner == number
        if mine.any():
            seconds = np.bincount(step[mine], found.amount[mine], count)
            used[facts.pid] = used.get(facts.pid, np.zeros(count)) + seconds
    whole = np.sum(list(used.values()), axis=0) if used else np.zeros(count)
    if use.busy is not None:
        whole = np.fmax(whole, use.busy.used(starts_ns, ends_ns))
    used.pop(REST_PID, None)
    return {pid: seconds / np.maximum(whole, 1e-9) for pid, seconds in used.items()}


def _readings(tape: Tape, name: str, at_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The newest value of a channel at each instant, NaN before its first and where there is no such channel."""
    for group in tape.groups:
        channel = next((one for one in group.info.channels if one.name == name), None)
        columns = load_columns(tape, group.id, [name]) if channel is not None else None
        if channel is not None and columns is not None and len(columns.read):
            place = np.searchsorted(columns.read, at_ns, side="right") - 1
            values = np.asarray(columns.values[name], dtype=np.float64) * channel.scale
            return np.where(place >= 0, values[np.maximum(place, 0)], np.nan)
    return np.full(len(at_ns), np.nan)


def _metrics(found: Sequence[Source], watts: Sequence[float]) -> dict[str, Any]:
    cpu: dict[str, Any] = {}
    cards: dict[str, float] = {}
    for source, power in zip(found, watts, strict=True):
        if not np.isfinite(power):
            continue
        if source.domain is Domain.GPU:
            cards[Device.parse(source.channel.device).name] = power
        else:
            cpu[_KEYS[source.domain]] = cpu.get(_KEYS[source.domain], 0.0) + power
    cpu.setdefault("psys_power", -1)  # theirs for absent
    metrics: dict[str, Any] = {"cpu": cpu}
    if cards:
        metrics["gpu"] = {"nvidia_power": sum(cards.values()), "per_gpu_nvidia_power": cards}
    return metrics
