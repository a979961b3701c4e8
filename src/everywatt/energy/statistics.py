"""Power statistics of each device over the run's windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Kind
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.energy.combine import combine
from everywatt.energy.loading import load_ticks
from everywatt.energy.median import median
from everywatt.energy.sources import Source, sources
from everywatt.energy.window import source_energy
from everywatt.tape.reader import Tape

Windows = Sequence[tuple[int, int]]
# Slopes are taken between instants whose uncertainties differ by at most so much of the distance between them.
UNEVEN = 0.2


def device_table(tapes: Sequence[Tape], windows: Sequence[Windows]) -> dict[str, Any]:
    """By device: energy, power (mean, sd, min, median, max, samples), and the channel and sensor they came from."""
    table: dict[str, Any] = {}
    several = len({str(tape.meta.get("host", {}).get("name", "")) for tape in tapes}) > 1
    for tape, asked in zip(tapes, windows, strict=True):
        host = str(tape.meta.get("host", {}).get("name", ""))
        for source in sources(tape):
            label = f"{host} {source.label}" if several else source.label
            entry = table.setdefault(label, _entry(source))
            entry["_energy"] += [(host, source_energy(source, start, end)) for start, end in asked]
            entry["_watts"] += [power_samples(source, start, end) for start, end in asked]
    for entry in table.values():
        figures: list[tuple[str, Energy]] = entry.pop("_energy")
        watts = entry.pop("_watts")
        entry["energy"] = combine(figures).to_dict() if figures else None
        entry["power"] = power_statistics(np.concatenate(watts) if watts else np.array([]))
    return table


def _entry(source: Source) -> dict[str, Any]:
    facts = source.channel.facts
    return {
        "domain": source.domain.value,
        "channel": source.channel.name,
        "sensor": source.group.info.sensor,
        "label": source.group.info.label,
        "period_s": facts.period_s,
        "window_s": facts.window_s,
        "_energy": [],
        "_watts": [],
    }


def power_samples(source: Source, start_ns: int, end_ns: int) -> npt.NDArray[np.float64]:
    """Watts at each publication inside the window: a gauge's readings, or a counter's slope between two readings."""
    ticks = load_ticks(source.tape, source.group, source.channel, start_ns, end_ns, whole=True)
    if ticks is None or len(ticks.at_ns) < 2:
        return np.array([])
    at_ns, joules = ticks.at_ns, ticks.joules
    if source.channel.kind is Kind.COUNTER:
        kept = _comparable(at_ns, ticks.half_ns, ticks.real)
        at_ns, joules = at_ns[kept], joules[kept]
    seconds = np.diff(at_ns) / NS
    with np.errstate(divide="ignore", invalid="ignore"):
        watts = np.diff(joules) / seconds if source.channel.kind is Kind.COUNTER else ticks.watts[1:]
    inside = (at_ns[1:] > start_ns) & (at_ns[:-1] < end_ns) & (seconds > 0)
    if source.channel.kind is Kind.GAUGE:
        inside &= ticks.real[1:]  # where nothing was read there is no reading of 0 W
    if source.channel.kind is Kind.COUNTER and inside.any():
        # Two reads close together (an inline read beside a scheduled one) divide a quantum by almost nothing.
        inside &= seconds >= 0.5 * median(seconds[inside])
    watts = watts[inside]
    return np.asarray(watts[np.isfinite(watts)], dtype=np.float64)


def _comparable(
    at_ns: npt.NDArray[np.int64], half_ns: npt.NDArray[np.float64], real: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    """Which ticks to take slopes between: instants that are known about equally well, compared with their distance.

    A sensor that is read once a second and whose schedule is looked for now and then has instants known to a
    millisecond beside others known to a second. From one kind to the other a slope is wild, along either it is not.
    """
    length, differs = np.diff(at_ns), np.abs(np.diff(half_ns))
    inner = real[1:] & real[:-1]
    if not np.any(inner & (differs > UNEVEN * length)):
        return np.arange(len(at_ns))
    places = np.flatnonzero(real)
    best = int(np.argmin(half_ns[places]))
    after = _walk(places[best:], at_ns, half_ns)
    before = _walk(places[best::-1], at_ns, half_ns)
    return np.array(before[:0:-1] + after, dtype=np.intp)


def _walk(places: npt.NDArray[np.intp], at_ns: npt.NDArray[np.int64], half_ns: npt.NDArray[np.float64]) -> list[int]:
    """From the first place on, those whose instant can be compared with the one taken before."""
    kept = [int(places[0])]
    at, half = int(at_ns[kept[0]]), float(half_ns[kept[0]])
    for place, then, width in zip(
        places[1:].tolist(), at_ns[places[1:]].tolist(), half_ns[places[1:]].tolist(), strict=True
    ):
        if abs(width - half) <= UNEVEN * abs(then - at):
            kept.append(place)
            at, half = then, width
    return kept


def power_statistics(watts: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Mean, standard deviation, minimum, median, maximum and count; None where there is nothing."""
    if len(watts) == 0:
        return {"mean": None, "sd": None, "min": None, "median": None, "max": None, "samples": 0}
    return {
        "mean": float(np.mean(watts)),
        "sd": float(np.std(watts, ddof=1)) if len(watts) > 1 else None,
        "min": float(np.min(watts)),
        "median": median(watts),
        "max": float(np.max(watts)),
        "samples": len(watts),
    }
