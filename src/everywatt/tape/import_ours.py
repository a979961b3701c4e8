"""Our own exports back to a tape: the same rows, the same totals."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.core import foreign
from everywatt.core.channels import NAN, Channel, Domain, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import Anchor
from everywatt.core.errors import MissingExtra, UsageError
from everywatt.core.spans import Point, Span
from everywatt.tape import exporting, importing

_DOMAINS = {"gpu": Domain.GPU, "cpu": Domain.PACKAGE, "dram": Domain.DRAM, "psys": Domain.NODE}


def import_export(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """One tape from the ticks at `paths` (all of one host: a tape is the recording of one)."""
    ticks: dict[str, dict[tuple[int, int, int], float]] = {}
    first: dict[str, Any] | None = None
    last: dict[str, Any] = {}
    described: dict[str, dict[str, Any]] = {}
    for entry in (entry for path in paths for entry in _entries(path)):
        try:
            key = (int(entry["monotonic_ns"]), int(entry["early_ns"]), int(entry["late_ns"]))
            name = str(entry["channel"])
            value = NAN if entry["value"] in (None, "") else float(entry["value"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{paths[0]} is not an export of everywatt: {error!r}.") from None
        if first is not None and entry.get("host") != first.get("host"):
            raise UsageError(
                f"{paths[0]} contains several hosts, and a tape is the recording of one.", cure="split it by host"
            )
        ticks.setdefault(name, {})[key] = value
        described.setdefault(name, entry)
        first, last = first or entry, entry if not last or key[0] > int(last["monotonic_ns"]) else last
    if first is None:
        raise UsageError(f"{paths[0]} contains no ticks.")
    groups, meta = _groups(paths[0], described)
    recordings = [_recording(info, period_s, ticks) for info, period_s in groups]
    anchors = [anchor for anchor in (_anchor(first), _anchor(last)) if anchor is not None]
    anchors.sort(key=lambda anchor: anchor.monotonic_ns)
    told = {"host": first.get("host"), **meta, "imported_from": [path.name for path in paths]}
    try:
        spans, points = list(_spans(paths[0])), list(_points(paths[0]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"The spans or points beside {paths[0]} are not an export of everywatt: {error!r}.") from None
    return importing.write_tape(out, recordings, meta=told, anchors=anchors, spans=spans, points=points)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".csv":
        yield from csv.DictReader(foreign.lines(path, errors="strict", ends=True))
    elif path.suffix in (".parquet", ".arrow"):
        yield from _arrow_entries(path)
    else:
        yield from importing.read_jsonl(path)


def _arrow_entries(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("pyarrow", "analysis") from None
    try:
        if path.suffix == ".parquet":
            batches = pq.ParquetFile(path).iter_batches()
        else:
            reader = pa.ipc.open_file(str(path))
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for name in table.column_names:
                if pa.types.is_timestamp(table.schema.field(name).type):
                    at = table.column_names.index(name)
                    table = table.set_column(at, name, pc.cast(table[name], pa.int64()))
            yield from table.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def _utc_ns(value: Any) -> int | None:
    if value in (None, ""):
        return None
    return value if isinstance(value, int) else importing.parse_utc_ns(str(value), "iso", "time_utc")


def _anchor(entry: Mapping[str, Any]) -> Anchor | None:
    utc_ns, at = _utc_ns(entry.get("time_utc")), int(entry["monotonic_ns"])
    return None if utc_ns is None else Anchor(at, utc_ns, at, 0)


def _groups(
    path: Path, described: Mapping[str, Mapping[str, Any]]
) -> tuple[list[tuple[GroupInfo, float | None]], dict[str, Any]]:
    """What is known of the channels: from the file beside, else from their names."""
    beside = exporting.groups_file(path)
    if beside.is_file():
        try:
            segments = foreign.read_json(beside)
            found: dict[str, tuple[GroupInfo, float | None]] = {}
            for entry in (entry for segment in segments for entry in segment["groups"]):
                info = GroupInfo.from_dict(entry)
                channels = tuple(importing.si_channel(channel) for channel in info.channels)
                values = {field: getattr(info, field) for field in ("cadence", "inline", "tracked", "table", "label")}
                made = GroupInfo(info.name, info.sensor, info.device, channels, **values)
                found.setdefault(info.name, (made, float(entry["expected_period_s"])))
            return list(found.values()), dict(segments[0]["meta"])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UsageError(f"{beside} does not describe groups: {error!r}.") from None
    return [(GroupInfo(name, "import", c.device, (c,)), None) for name, c in _guessed(described)], {}


def _guessed(described: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Channel]]:
    for name, entry in described.items():
        try:
            kind = Kind(entry["kind"])
        except ValueError as error:
            raise UsageError(f"Channel {name}: {error}.") from None
        unit, device = str(entry["unit"]), str(entry["device"])
        domain = _DOMAINS.get(device.partition(".")[0]) if unit in ("J", "W") else None
        pedigree = Pedigree.COUNTER if kind is Kind.COUNTER else Pedigree.INTEGRATED
        yield name, Channel(name, unit, kind, device, domain, pedigree=pedigree)


def _recording(
    info: GroupInfo, period_s: float | None, ticks: Mapping[str, Mapping[tuple[int, int, int], float]]
) -> importing.Recording:
    columns = [ticks.get(channel.name, {}) for channel in info.channels]
    times = sorted({key for column in columns for key in column}, key=lambda key: key[1] + key[2])
    rows = [Row(*key, tuple(column.get(key, NAN) for column in columns)) for key in times]
    return importing.Recording(info, rows, period_s or importing.usual_period_s([key[0] for key in times]))


def _spans(path: Path) -> Iterator[Span]:
    beside = exporting.beside(path, "spans")
    for entry in _entries(beside) if beside.is_file() else ():
        end_ns = None if entry["end_ns"] in (None, "") else int(entry["end_ns"])
        attributes = foreign.parse_json(entry["attributes"] or "{}")
        yield Span(entry["id"], entry["name"], int(entry["start_ns"]), end_ns, entry["parent"] or None, attributes)


def _points(path: Path) -> Iterator[Point]:
    beside = exporting.beside(path, "points")
    for entry in _entries(beside) if beside.is_file() else ():
        yield Point(
            int(entry["monotonic_ns"]), entry["name"], foreign.parse_json(entry["value"]), entry["span"] or None
        )
