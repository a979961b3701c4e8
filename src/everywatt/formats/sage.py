"""Records of Sage/Waggle (ndjson) from files or a data API: one tape per node, one channel per series."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.meters.series import Part, Table, group, number, write_parts
from everywatt.net.api import ApiClient, NotTaken
from everywatt.sensors.jetson.jetson import series_channel
from everywatt.tape.exporting import iso
from everywatt.tape.importing import parse_utc_ns

MOST_SERIES: Final = 4096  # of one import: a node has about 50


def import_sage(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A run from ndjson of the Sage data API (also .gz). options: name (only series whose name contains it)."""
    parts = parts_of((line for path in paths for line in foreign.lines(path)), str(options.get("name", "")))
    if not parts:
        raise UsageError(f"{paths[0]} contains no Sage records.", cure="lines with timestamp, name, value and meta")
    return write_parts(out, parts, paths, options)


def parts_of(lines: Iterable[str | bytes], wanted: str = "") -> list[Part]:
    """Lines of ndjson as one part per node; `wanted`: only series whose name contains it."""
    series: dict[tuple[str, str], Table] = {}
    odd = sum(not take_record(line, series, wanted) for line in lines)
    parts: dict[str, Part] = {}
    for (node, _), table in series.items():
        parts.setdefault(node, Part([], host=node, meta={"odd_lines": odd})).tables.append(table)
    return list(parts.values())


def take_record(line: str | bytes, series: dict[tuple[str, str], Table], wanted: str) -> bool:
    """Add one record (a line of ndjson) to its series; False if it is not one."""
    if not line.strip():
        return True
    try:
        record = foreign.parse_json(line)
        name, value = record["name"], number(record["value"])
        at = parse_utc_ns(record["timestamp"], "iso", "timestamp")
        meta = record.get("meta") or {}
        labels = {key: str(meta[key]) for key in ("vsn", "node", "sensor", "cpu", "host") if key in meta}
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        return False
    if not isinstance(name, str) or value is None:
        return isinstance(name, str)  # a text, a picture's address: a record, and no number
    if wanted not in name:
        return True
    node = labels.get("vsn") or labels.get("node", "")
    key = ".".join(filter(None, (name, labels.get("sensor"), labels.get("cpu"))))
    if (node, key) not in series:
        if len(series) >= MOST_SERIES:
            return False
        series[node, key] = Table(group(key, "sage", [series_channel(name, labels.get("sensor", ""), key)]))
    series[node, key].add(at, [value])
    return True


PATH = "/api/v1/query"


def query(
    client: ApiClient,
    *,
    start_ns: int,
    end_ns: int | None = None,
    filters: Mapping[str, str] | None = None,
    head: int | None = None,
    tail: int | None = None,
    bucket: str | None = None,
) -> list[bytes]:
    """The records that the API has, as lines. `head` and `tail` are the first and the last so many of each series."""
    if head is not None and tail is not None:
        raise UsageError("--head and --tail cannot be combined.")
    if end_ns is not None and end_ns <= start_ns:
        raise UsageError("The end must be after the start.", cure="--start -1h --end now")
    asked: dict[str, Any] = {"start": iso(start_ns)}
    given = {"end": None if end_ns is None else iso(end_ns), "head": head, "tail": tail, "bucket": bucket}
    asked.update({key: value for key, value in given.items() if value is not None})
    if filters:
        asked["filter"] = dict(filters)
    try:
        data = client.ask(PATH, body=json.dumps(asked).encode(), check=_whole)
    except NotTaken as error:
        raise MeasurementRefused(f"{client.shown} rejected the query: {str(error).rstrip('.')}.") from None
    return [line for line in data.split(b"\n") if line.strip()]


def _whole(data: bytes) -> None:
    """ValueError where the last line was cut, or what came is no lines of JSON at all."""
    lines = data.strip().split(b"\n")
    for line in (lines[0], lines[-1]) if data.strip() else ():
        if not isinstance(json.loads(line), dict):
            raise ValueError("it is not a record")
