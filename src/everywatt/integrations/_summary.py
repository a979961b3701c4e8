"""A finished run in the terms of experiment trackers: numbers, labels, a power curve of bounded length, files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everywatt.api.measurement import Measurement
from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import dumps
from everywatt.integrations._phases import figures

ARTEFACTS = ("json", "tape", None)
MOST_SPAN_NAMES = 20
READINGS = 3


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """Mean watts of one stretch: its middle in seconds after the run's start, and in UTC milliseconds."""

    seconds: float
    utc_ms: int
    watts: float


def as_run(measured: Run | Meter | Measurement) -> Run:
    """The run of what `load()`, a Meter or `measure()` gave; MeasurementRefused if there is no run."""
    return measured if isinstance(measured, Run) else measured.run


def metrics(run: Run) -> dict[str, float]:
    """Joules with their interval: gross, net, for each device and for each span name; seconds; coverage.

    A figure that was refused is not there, since zero would be a lie; `labels` has the reason.
    """
    energy = run.energy()
    found = {**figures(energy), "duration_s": run.duration_s}
    if energy.joules is not None:
        found["energy_coverage"] = energy.coverage
    for name, value in figures(run.energy_net()).items():
        found[name.replace("energy_", "energy_net_")] = value
    for device, part in energy.parts:
        if part.joules is not None:
            found[f"energy_joules.{_word(device)}"] = part.joules
    names = dict.fromkeys(span.name for span in run.spans if span.parent is not None)
    for name in list(names)[:MOST_SPAN_NAMES]:
        joules = run.energy(span=name).joules
        if joules is not None:
            found[f"energy_joules.span.{_word(name)}"] = joules
    return found


def _word(name: str) -> str:
    """A name that trackers take. A slash would be a folder to a store of files, beside a metric of the same name."""
    return re.sub(r"[^A-Za-z0-9_. -]", "_", name)


def labels(run: Run) -> dict[str, str]:
    """What the figures cover and where they come from: scope, provenance, coverage, the run's name, its own tags."""
    energy = run.energy()
    found = {"run": run.name, "energy": str(energy), "coverage": f"{energy.coverage:.4f}"}
    found |= {"scope": energy.scope, "pedigree": energy.pedigree}
    found |= {"refused": energy.refused or "", "net_refused": run.energy_net().refused or ""}
    found |= {f"tag.{key}": str(value) for key, value in run.meta.get("tags", {}).items()}
    return {key: value for key, value in found.items() if value}


def power_curve(run: Run, most_points: int) -> list[PowerPoint]:
    """Mean power of up to `most_points` equal stretches, each long enough to hold a few readings of every sensor."""
    if most_points < 0:
        raise UsageError(f"{most_points} is not a number of points.")
    length_s = {id(tape): (tape.extent_ns()[1] - tape.extent_ns()[0]) / NS for tape in run.tapes}
    total_s = sum(length_s.values())
    points: list[PowerPoint] = []
    if total_s <= 0 or most_points == 0:
        return points
    origin_utc = run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0])
    for tape in run.tapes:
        seconds = length_s[id(tape)]
        periods = [
            group.expected_period_s for group in tape.groups if any(c.carries_energy for c in group.info.channels)
        ]
        count = int(min(most_points * seconds / total_s, seconds / (READINGS * max(periods, default=0.1))))
        if count < 1:
            continue
        edges = np.linspace(0.0, seconds, count + 1)
        try:
            joules = Run(run.path, [tape]).energies(edges[:-1], edges[1:])
        except EverywattError:
            continue  # this segment has no power at all; the labels say so
        for middle, watts in zip((edges[:-1] + edges[1:]) / 2, joules / np.diff(edges), strict=True):
            if np.isfinite(watts):
                utc_ns = tape.to_utc_ns(tape.extent_ns()[0] + round(middle * NS))
                points.append(PowerPoint((utc_ns - origin_utc) / NS, utc_ns // 1_000_000, float(watts)))
    return points


@contextmanager
def artefacts(run: Run, kind: str | None) -> Iterator[list[Path]]:
    """The files to keep with an experiment: the run as one JSON file, or its tapes, or none."""
    if kind not in ARTEFACTS:
        raise UsageError(f"'{kind}' is not one of 'json', 'tape', None.")
    if kind == "tape":
        missing = [tape.path for tape in run.tapes if not tape.path.exists()]
        if missing:
            raise UsageError(f"{missing[0]} was not kept (save=False).", cure="artefact='json'")
        yield [tape.path for tape in run.tapes]
    elif kind == "json":
        with tempfile.TemporaryDirectory(prefix="everywatt-") as folder:
            file = Path(folder) / f"{run.name}.json"
            file.write_text(dumps(as_document(run)), encoding="utf-8")
            yield [file]
    else:
        yield []


def as_document(run: Run) -> dict[str, Any]:
    """The run's JSON form with the points that the program logged."""
    origin_ns = run.tapes[0].extent_ns()[0]
    points = [{"at_s": (p.at_ns - origin_ns) / NS, "name": p.name, "value": p.value} for p in run.points]
    return {**run.to_dict(), "points": points}
