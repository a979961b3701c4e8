"""A run as CSV, JSON lines, Parquet or Arrow: the same rows in each, streamed, one tick of one channel a row.

Beside the ticks lie the spans and the points, and `…groups.json` with what is known of the channels, from which
`importing` makes the same tape again.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.core.files import replacing
from everywatt.core.jsonio import dumps
from everywatt.core.plugins import arrow
from everywatt.core.tables import neutral_cell
from everywatt.tape.reader import StoredGroup, Tape

KINDS: Final = ("csv", "jsonl", "parquet", "arrow")
TICKS: Final = {
    "time_utc": "time",
    "monotonic_ns": "int64",
    "host": "text",
    "device": "text",
    "channel": "text",
    "unit": "text",
    "kind": "text",
    "value": "float64",
    "early_ns": "int64",
    "late_ns": "int64",
}
SPANS: Final = {
    "host": "string",
    "id": "string",
    "parent": "string",
    "name": "string",
    "start_utc": "time",
    "end_utc": "time",
    "start_ns": "int64",
    "end_ns": "int64",
    "attributes": "string",
}
POINTS: Final = {
    "host": "string",
    "time_utc": "time",
    "monotonic_ns": "int64",
    "name": "string",
    "value": "string",
    "span": "string",
}
_BATCH: Final = 50_000
Rows = Iterator[tuple[Any, ...]]
Writer = Callable[[Path, dict[str, str], Rows], None]


def export(
    segments: Sequence[Path],
    kind: str,
    out: Path,
    tell: Callable[[float, str], None] = lambda share, text: None,
    *,
    neutral: bool = False,
) -> list[Path]:
    """Write a run's ticks to `out`, its spans, points and groups beside it; gives the paths. Files are replaced whole.

    Value is in `unit`; null where the channel gave nothing. monotonic_ns is when it was read, and it was published
    between early_ns and late_ns. `tell` is called with the share that is done and what is being written.
    With `neutral`, words in a CSV that a spreadsheet would take for a formula have an apostrophe before them.
    """
    if kind not in KINDS:
        raise UsageError(f"'{kind}' is not an export format.", cure=f"one of: {', '.join(KINDS)}")
    if not segments:
        raise UsageError("There is no tape to export.")
    if neutral and kind != "csv":
        raise UsageError("Only a CSV can hold formulas.", cure="--to csv --neutral")
    out = Path(out)
    writers: dict[str, Writer] = {"csv": partial(_write_csv, neutral=neutral), "jsonl": _write_jsonl}
    write = writers.get(kind) or _arrow_writer(kind)
    with contextlib.ExitStack() as stack:
        tapes = [stack.enter_context(Tape.open(path)) for path in segments]
        try:
            write(out, TICKS, (row for tape in tapes for row in _ticks(tape, tell)))
            write(beside(out, "spans"), SPANS, (row for tape in tapes for row in _spans(tape)))
            write(beside(out, "points"), POINTS, (row for tape in tapes for row in _points(tape)))
            with replacing(groups_file(out)) as part:
                part.write_text(dumps([_groups(tape) for tape in tapes], indent=1), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror or error}.") from None
    return [out, beside(out, "spans"), beside(out, "points"), groups_file(out)]


def beside(out: Path, what: str) -> Path:
    """`run.csv` and `spans` make `run.spans.csv`."""
    return out.with_name(f"{out.stem}.{what}{out.suffix}")


def groups_file(out: Path) -> Path:
    """Where what is known of the channels is kept."""
    return out.with_name(f"{out.stem}.groups.json")


def host_of(tape: Tape) -> str:
    """The host in the name of a tape's file."""
    return tape.path.stem.rpartition("-")[0] or tape.path.stem


def _utc_ns(tape: Tape, at_ns: int | None) -> int | None:
    return None if at_ns is None or not tape.anchors() else tape.to_utc_ns(at_ns)


def _ticks(tape: Tape, tell: Callable[[float, str], None] = lambda share, text: None) -> Rows:
    host = host_of(tape)
    anchored = bool(tape.anchors())
    start_ns, end_ns = tape.extent_ns() if tape.groups else (0, 0)
    for place, group in enumerate(tape.groups):
        channels = [(c.device, c.name, c.unit, str(c.kind), c.scale) for c in group.info.channels]
        for frame in () if group.info.table else tape.iter_frames(group.id):
            share = (place + (frame.first_ns - start_ns) / max(end_ns - start_ns, 1)) / len(tape.groups)
            tell(share, f"writing {group.info.name}")
            for row in frame.rows():
                utc_ns = tape.to_utc_ns(row.read_ns) if anchored else None
                for (device, name, unit, kind, scale), raw in zip(channels, row.values, strict=True):
                    value = raw * scale if math.isfinite(raw) else None
                    yield utc_ns, row.read_ns, host, device, name, unit, kind, value, row.early_ns, row.late_ns


def _spans(tape: Tape) -> Rows:
    host = host_of(tape)
    for span in tape.spans():
        times = (_utc_ns(tape, span.start_ns), _utc_ns(tape, span.end_ns), span.start_ns, span.end_ns)
        yield host, span.id, span.parent, span.name, *times, dumps(span.attributes)


def _points(tape: Tape) -> Rows:
    host = host_of(tape)
    for point in tape.points():
        yield host, _utc_ns(tape, point.at_ns), point.at_ns, point.name, dumps(point.value), point.span


def _groups(tape: Tape) -> dict[str, Any]:
    def entry(group: StoredGroup) -> dict[str, Any]:
        return {**group.info.to_dict(), "expected_period_s": group.expected_period_s}

    groups = [entry(group) for group in tape.groups if not group.info.table]
    return {"host": host_of(tape), "segment": tape.path.name, "meta": tape.meta, "groups": groups}


def iso(utc_ns: int) -> str:
    """`2026-11-15T19:50:30.123456789Z`."""
    seconds, ns = divmod(utc_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _text_rows(columns: dict[str, str], rows: Rows) -> Rows:
    times = [index for index, kind in enumerate(columns.values()) if kind == "time"]
    for row in rows:
        cells = list(row)
        for index in times:
            cells[index] = None if cells[index] is None else iso(cells[index])
        yield tuple(cells)


def _write_csv(path: Path, columns: dict[str, str], rows: Rows, *, neutral: bool) -> None:
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        lines = _text_rows(columns, rows)
        writer.writerows(([neutral_cell(cell) for cell in line] for line in lines) if neutral else lines)


def _write_jsonl(path: Path, columns: dict[str, str], rows: Rows) -> None:
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for row in _text_rows(columns, rows):
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def ticks_table(tapes: Sequence[Tape], channels: Sequence[str] | None = None) -> Any:
    """All ticks of some or all channels as one pyarrow Table, with the columns of an export."""
    pa, _ = arrow()
    schema = _schema(pa, TICKS, "parquet")
    rows = (row for tape in tapes for row in _ticks(tape) if channels is None or row[4] in channels)
    return pa.Table.from_batches(_record_batches(pa, schema, rows), schema=schema)


def _schema(pa: ModuleType, columns: dict[str, str], kind: str) -> Any:
    types = {
        "time": pa.timestamp("ns", tz="UTC"),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "string": pa.string(),
        "text": pa.dictionary(pa.int32(), pa.string()) if kind == "parquet" else pa.string(),
    }
    return pa.schema([(name, types[what]) for name, what in columns.items()])


def _record_batches(pa: ModuleType, schema: Any, rows: Rows) -> Iterator[Any]:
    while batch := list(islice(rows, _BATCH)):
        arrays = [pa.array(cells, field.type) for cells, field in zip(zip(*batch, strict=True), schema, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _arrow_writer(kind: str) -> Callable[[Path, dict[str, str], Rows], None]:
    pa, _ = arrow()

    def write(path: Path, columns: dict[str, str], rows: Rows) -> None:
        schema = _schema(pa, columns, kind)
        with replacing(path) as part, _arrow_file(pa, kind, part, schema) as writer:
            for batch in _record_batches(pa, schema, rows):
                writer.write_batch(batch)

    return write


def _arrow_file(pa: ModuleType, kind: str, path: Path, schema: Any) -> AbstractContextManager[Any]:
    file: AbstractContextManager[Any]
    if kind == "parquet":
        file = pa.parquet.ParquetWriter(path, schema, compression="zstd")
    else:
        file = pa.ipc.new_file(str(path), schema)
    return file
