"""What the machine did while a query was open: power, utilisation, memory and temperature of each device, and the
memory of the host. Readings are of whole devices, which other queries used too; a query's joules are in its bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everywatt.api.power import PowerLine, held_line, power_line
from everywatt.bench.llm.energy import Asked
from everywatt.core.channels import Kind
from everywatt.energy.sources import addable, sources
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape

# The last part of a channel's name, and what it is called in a record. Utilisation is in percent.
STATES: Mapping[str, str] = {
    "utilisation": "utilisation_pct",
    "memory_utilisation": "memory_utilisation_pct",
    "memory": "memory_bytes",
    "temperature": "temperature_c",
}
Conditions = Mapping[str, Mapping[str, Any]]
"""By device and quantity: `{"gpu.0": {"power_w": {"min": …, "mean": …, "max": …, "samples": …}}}`."""


def conditions(asked: Sequence[Asked]) -> dict[str, dict[str, dict[str, Any]]]:
    """The conditions of each query by its span. What was not recorded is absent."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in asked:
        lines = _lines(one.tape)
        for record in one.records:
            span = record.span or ""
            mine = found.setdefault(span, {})
            for device, name, line in lines:
                told = _summary(line.inside([one.edges[span]]))
                if told is not None:
                    mine.setdefault(device, {})[name] = told
    return found


def _lines(tape: Tape) -> list[tuple[str, str, PowerLine]]:
    """Everything that is told of a query: the device, the quantity, and its values over time."""
    found = [(one.label, "power_w", line) for one in addable(sources(tape)) if (line := power_line(one)) is not None]
    for group in tape.groups:
        chosen = [
            channel
            for channel in group.info.channels
            if channel.kind is Kind.GAUGE and channel.name.rpartition(".")[2] in STATES
        ]
        if not chosen:
            continue
        columns = load_columns(tape, group.id, [channel.name for channel in chosen])
        for channel in chosen:
            values = columns.values[channel.name] * channel.scale
            known = np.isfinite(values)
            if known.sum() > 1:
                line = held_line(columns.published[known], values[known], group.expected_period_s)
                found.append((channel.device, STATES[channel.name.rpartition(".")[2]], line))
    return found


def _summary(values: Any) -> dict[str, Any] | None:
    if not len(values):
        return None
    return {
        "min": float(values.min()),
        "mean": float(values.mean()),
        "max": float(values.max()),
        "median": float(np.median(values)),
        "samples": len(values),
    }
