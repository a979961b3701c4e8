"""Tables from runs: every channel of a tape on the instants at which the host's use was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everywatt.api.run import Run
from everywatt.core.channels import Channel, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.models.table import Floats, Table, concatenate
from everywatt.tape.columns import Columns, load_columns
from everywatt.tape.reader import StoredGroup, Tape

USE = "use.host"
STEP = "step"
LEAST_ROWS = 5


def run_table(runs: Sequence[Run]) -> Table:
    """Runs as one table: counters as rates (joules as watts), gauges as means, between two reads of the host's use."""
    tables = [tape_table(tape) for run in runs for tape in run.tapes]
    return concatenate(tables)


def column_name(channel: Channel) -> str:
    """What a channel is called in a table: energy is told as power."""
    if channel.kind is Kind.COUNTER and channel.unit == "J":
        return channel.name.removesuffix(".energy") + ".power"
    return channel.name


def tape_table(tape: Tape) -> Table:
    """One tape. UsageError where the use of the host was not recorded."""
    edges = _edges(tape)
    columns: dict[str, Floats] = {}
    units: dict[str, str] = {}
    for group in tape.groups:
        if group.info.table or not group.info.channels:
            continue
        names = [channel.name for channel in group.info.channels]
        rows = load_columns(tape, group.id, names)
        if len(rows) < 2:
            continue
        for channel in group.info.channels:
            if channel.pedigree is Pedigree.MODELLED:
                continue  # an estimate is no truth to learn from
            name = column_name(channel)
            if name not in columns:
                columns[name] = _between(rows, channel, group, edges)
                units[name] = _unit(channel)
    host = str(tape.meta.get("host", {}).get("name", ""))
    times = np.array([tape.to_utc_ns(int(at)) / NS for at in edges[1:]])
    return Table(times, columns, units, _loads(tape, edges), host)


def _unit(channel: Channel) -> str:
    if channel.kind is not Kind.COUNTER:
        return channel.unit
    return "W" if channel.unit == "J" else f"{channel.unit or '1'}/s"


def _edges(tape: Tape) -> Floats:
    for group in tape.groups:
        if group.info.name == USE or group.info.name.endswith(f".{USE}"):
            found = load_columns(tape, group.id, [group.info.channels[0].name]).published
            if len(found) >= LEAST_ROWS:
                return found.astype(np.float64)
    raise UsageError(
        f"{tape.path.name} has no utilisation of the host: too short, or recorded without the sensor 'use'."
    )


def _between(rows: Columns, channel: Channel, group: StoredGroup, edges: Floats) -> Floats:
    """The mean of a channel between two edges, in its unit; NaN where it was not observed."""
    at = rows.published.astype(np.float64)
    raw = rows.values[channel.name]
    known = np.isfinite(raw)
    if known.sum() < 2:
        return np.full(len(edges) - 1, np.nan)
    unit = channel.scale * channel.facts.gain
    if channel.kind is Kind.COUNTER:
        counts = rows.accumulated.get(channel.name, raw)
        reached = np.interp(edges, at[known], counts[known], left=np.nan, right=np.nan)
        steps = np.diff(reached) * unit
        steps[steps < 0] = np.nan
        return np.asarray(steps / (np.diff(edges) / NS))
    total = np.concatenate([[0.0], np.cumsum(raw[known])])
    place = np.searchsorted(at[known], edges, side="right")
    count = np.diff(place)
    mean = np.diff(total[place]) / np.maximum(count, 1)
    held = raw[known][np.clip(place[1:] - 1, 0, None)]
    fresh = edges[1:] - at[known][np.clip(place[1:] - 1, 0, None)] <= 3 * group.expected_period_s * NS
    value = np.where(count > 0, mean, np.where(fresh & (place[1:] > 0), held, np.nan))
    return np.asarray(value * unit + (channel.facts.bias_w if channel.unit == "W" else 0.0))


def _loads(tape: Tape, edges: Floats) -> Any:
    """The kind of load of each row by the steps of a load program; None where there were none, or one kind."""
    names = np.array(["idle"] * (len(edges) - 1), dtype="U60")
    middles = (edges[1:] + edges[:-1]) / 2
    for span in tape.spans():
        if span.name == STEP and span.end_ns is not None and span.attributes.get("role") == STEP:
            asked = span.attributes.get("asked") or {}
            used = [str(asked["cpu_kind"])] if "cpu_kind" in asked else []
            used += [key.split("_")[0] for key in asked if key.endswith(("_bytes", "_per_s")) or key == "gpu_percent"]
            names[(middles >= span.start_ns) & (middles < span.end_ns)] = " ".join(dict.fromkeys(used)) or "idle"
    return names if len(np.unique(names)) > 2 else None
