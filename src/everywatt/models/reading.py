"""Tables from files (CSV, Parquet, records of Sage, also compressed) and from runs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everywatt.api.run import Run
from everywatt.core import foreign
from everywatt.core.channels import Channel, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.plugins import library
from everywatt.models.table import Floats, Table, concatenate, join, ordered, rates
from everywatt.tape.columns import Columns, load_columns
from everywatt.tape.importing import parse_utc_ns
from everywatt.tape.reader import StoredGroup, Tape

TIMES = ("timestamp", "time", "utc_ns", "time_ns", "unix_s", "epoch", "datetime", "date", "ts", "t", "time_s")
COUNTER_NAME = re.compile(r"(_total|_count|_energy|\.energy|_uj|_joules|energy_j|_seconds_total|\.cpu_time)$", re.I)
MILLI = re.compile(r"milli_?watts?|_mw\b|\bmw\b", re.I)


def read_table(path: Path, *, time: str | None = None, load: str | None = None) -> Table:
    """One file; its ending says what it is. Counters become rates.

    `time` and `load` name the column of times and the one that names the load.
    """
    name = path.name.lower().removesuffix(".gz")
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    if name.endswith((".parquet", ".pq")):
        raw = _parquet(path)
    elif name.endswith((".ndjson", ".jsonl", ".json")):
        return _with_rates(_sage(path))
    else:
        raw = _csv(path)
    return _with_rates(_table(path, raw, time, load))


def _csv(path: Path) -> dict[str, list[str]]:
    try:
        rows = csv.reader(foreign.lines(path, ends=True))
        head = [cell.strip() for cell in next(rows, [])]
        columns: list[list[str]] = [[] for _ in head]
        for row in rows:
            if len(row) == len(head):
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
    except csv.Error as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    if len(set(head)) != len(head) or not head:
        raise UsageError(f"{path} has no header, or a column name twice.")
    return dict(zip(head, columns, strict=True))


def _parquet(path: Path) -> dict[str, list[Any]]:
    pq, pa = (library(name, "analysis") for name in ("pyarrow.parquet", "pyarrow"))
    try:
        data = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    columns = {}
    for name in data.column_names:
        column = data[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ns")).cast(pa.int64())
        columns[name] = column.to_pylist()
    return columns


def _table(path: Path, raw: Mapping[str, Sequence[Any]], time: str | None, load: str | None) -> Table:
    lower = {name.lower(): name for name in raw}
    named = time or next((lower[known] for known in TIMES if known in lower), None)
    if named is None or named not in raw:
        cure = f"--time COLUMN, one of: {', '.join(raw)}"
        raise UsageError(f"{path} has no column of times{f' {named!r}' if named else ''}.", cure=cure)
    times = times_of(raw[named], f"{path}: {named}")
    columns: dict[str, Floats] = {}
    notes = []
    for name, values in raw.items():
        if name in (named, load):
            continue
        numbers = np.array([_number(value) for value in values], dtype=np.float64)
        if np.isfinite(numbers).any():
            columns[name] = numbers
        else:
            notes.append(f"{name} contains no numbers and was dropped")
    loads = None
    if load is not None:
        if load not in raw:
            raise UsageError(f"{path} has no column '{load}'.", cure=f"one of: {', '.join(raw)}")
        loads = np.array([str(value) for value in raw[load]])
    known = np.isfinite(times)
    if not known.all():
        notes.append(f"{int((~known).sum())} rows have no time and were dropped")
    return ordered(Table(times, columns, loads=loads, notes=tuple(notes)).take(known))


def times_of(values: Sequence[Any], where: str) -> Floats:
    """Seconds since 1970 from numbers of seconds, ms, µs or ns (their size says which), or from ISO times."""
    numbers = np.array([_number(value) for value in values], dtype=np.float64)
    if not len(numbers):
        raise UsageError(f"{where.rpartition(':')[0] or where} has no rows.")
    if np.isfinite(numbers).mean() > 0.5:
        size = float(np.nanmedian(np.abs(numbers)))
        for limit, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
            if size > limit:
                return numbers / unit
        return numbers
    try:
        return np.array([parse_utc_ns(str(value), "iso", where) / NS for value in values])
    except EverywattError as error:
        raise UsageError(f"{where} contains no times: {error.message}") from None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _sage(path: Path) -> Table:
    """Records of Sage as a table: a series for each name and its labels, on the instants of the fullest one."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for record in _records(path):
        meta = record.get("meta") or {}
        labels = [str(meta[key]) for key in ("vsn", "sensor", "cpu") if key in meta] if isinstance(meta, dict) else []
        value = _number(record.get("value"))
        if value != value or not isinstance(record.get("name"), str):
            continue
        at_s = parse_utc_ns(str(record.get("timestamp")), "iso", f"{path}: timestamp") / NS
        times, values = series.setdefault(
            ".".join([record["name"], *labels[1:]] if labels else [record["name"]]), ([], [])
        )
        times.append(at_s)
        values.append(value)
    if not series:
        raise UsageError(f"{path} contains no Sage records.", cure="lines with timestamp, name, value and meta")
    tables = [ordered(Table(np.array(times), {name: np.array(values)})) for name, (times, values) in series.items()]
    return join(sorted(tables, key=len, reverse=True))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for line in foreign.lines(path):
            if line.strip():
                record = foreign.parse_json(line)
                if isinstance(record, dict):
                    yield record
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def _with_rates(table: Table) -> Table:
    """Counters as rates (by name, and where they really never fall), milliwatts as watts."""
    counters = [name for name, values in table.columns.items() if is_counter(name, values)]
    notes = [f"{name} is a counter: its rate per second is used" for name in counters]
    made = rates(table, counters)
    return in_watts(made.with_columns(made.columns, *notes))


def in_watts(table: Table) -> Table:
    """The same table, columns whose names say milliwatts in watts, and a note for each."""
    named = [name for name in table.columns if MILLI.search(name)]
    notes = [f"{name} is in milliwatts and was converted to watts" for name in named]
    return table.with_columns({**table.columns, **{name: table.column(name) / 1000.0 for name in named}}, *notes)


def is_counter(name: str, values: Floats) -> bool:
    """Whether a column accumulates: it never falls (but for resets, where its name says so) and does move."""
    known = values[np.isfinite(values)]
    if len(known) < 20:
        return False
    steps = np.diff(known)
    if not (steps > 0).any():
        return False
    falls = float((steps < 0).mean())
    if COUNTER_NAME.search(name):
        return falls < 0.05
    return falls == 0 and float((steps > 0).mean()) > 0.3


USE = "use.host"
STEP = "step"
LEAST_ROWS = 5


def run_table(runs: Sequence[Run]) -> Table:
    """Runs as one table: counters as rates (joules as watts), gauges as means, between two reads of the host's use."""
    tables = [tape_table(tape) for run in runs for tape in run.tapes]
    return concatenate(tables)


def column_name(channel: Channel) -> str:
    """A channel's name in a table: energy becomes power."""
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
