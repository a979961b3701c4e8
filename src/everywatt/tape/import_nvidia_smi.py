"""Logs of `nvidia-smi --query-gpu=… --format=csv`: one group for each GPU. Columns are found by their header name."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Pedigree
from everywatt.core.errors import UsageError
from everywatt.tape import importing

_TIME: Final = "%Y/%m/%d %H:%M:%S.%f"


class _Field(NamedTuple):
    queries: tuple[str, ...]  # the first of them that holds a number is taken
    channel: str
    unit: str
    scale: float
    power: bool = False


_FIELDS: Final = (
    _Field(("power.draw.instant", "power.draw"), "power", "W", 1.0, True),
    _Field(("power.draw.average",), "power_average", "W", 1.0),
    _Field(("utilization.gpu",), "utilisation", "%", 1.0),
    _Field(("utilization.memory",), "memory_utilisation", "%", 1.0),
    _Field(("memory.used",), "memory", "B", float(1 << 20)),
    _Field(("temperature.gpu",), "temperature", "°C", 1.0),
    _Field(("clocks.current.sm", "clocks.sm"), "clock_sm", "MHz", 1.0),
    _Field(("clocks.current.memory", "clocks.mem"), "clock_memory", "MHz", 1.0),
    _Field(("power.limit", "enforced.power.limit"), "power_limit", "W", 1.0),
)


def import_nvidia_smi(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from logs with a header line. Times are taken as UTC. What is not a number (`[N/A]`) is missing."""
    tables = [(path, row) for path in paths for row in _rows(path)]
    if not tables:
        raise UsageError(f"{paths[0]} holds no rows of nvidia-smi.", cure="log with --format=csv and a timestamp")
    by_gpu: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for number, (path, row) in enumerate(tables, 1):
        utc_ns = importing.parse_utc_ns(row["timestamp"], _TIME, f"{path}, row {number}")
        by_gpu.setdefault(row.get("index", "0"), []).append((utc_ns, row))
    groups = []
    for index, rows in sorted(by_gpu.items()):
        rows.sort(key=lambda entry: entry[0])
        chosen = [(field, query) for field in _FIELDS if (query := _query(field, rows))]
        if not chosen:
            raise UsageError(f"{paths[0]} holds no column of GPU {index} that is known.")
        channels = tuple(_channel(index, field) for field, _ in chosen)
        values = [(at, tuple(importing.number_in(row.get(query, "")) for _, query in chosen)) for at, row in rows]
        label = rows[0][1].get("name", "")
        groups.append((GroupInfo(f"gpu.{index}", "nvidia-smi", f"gpu.{index}", channels, label=label), values))
    return importing.write_utc_table(out, groups, source=paths, meta=options.get("meta", {}))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Rows by header name without units; a header may come again in the middle of a log."""
    header: list[str] = []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for cells in csv.reader(file, skipinitialspace=True):
            names = [cell.partition(" [")[0].strip() for cell in cells]
            if "timestamp" in names:
                header = names
            elif header and len(cells) == len(header):
                yield dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _query(field: _Field, rows: Sequence[tuple[int, Mapping[str, str]]]) -> str | None:
    for query in field.queries:
        values = (importing.number_in(row.get(query, "")) for _, row in rows)
        if any(value == value for value in values):
            return query
    return None


def _channel(index: str, field: _Field) -> Channel:
    domain = Domain.GPU if field.power else None
    name, device = f"gpu.{index}.{field.channel}", f"gpu.{index}"
    return Channel(name, field.unit, Kind.GAUGE, device, domain, field.scale, Pedigree.INTEGRATED)
