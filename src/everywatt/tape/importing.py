"""Other people's recordings, and our own exports, become tapes.

An importer is a function `(paths, out, options) -> Path`: it writes one sealed tape at `out`. Importers register by the
entry point group `everywatt.importers`, ours too.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import NAN, Channel, Domain, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS, Anchor, SystemClock
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.plugins import IMPORTERS, arrow, load, registered
from everywatt.core.spans import Note, Point, Span
from everywatt.tape import exporting
from everywatt.tape.writer import TapeWriter

Importer = Callable[[Sequence[Path], Path, Mapping[str, Any]], Path]
FOLDERS: Final = ("aipowermeter", "labia", "ipw")  # kinds whose recordings are folders
_FLUSH_ROWS: Final = 1024
_FLUSH_FRAMES: Final = 1000
# Of exports without a file that describes their channels.
_DOMAINS: Final = {"gpu": Domain.GPU, "cpu": Domain.PACKAGE, "dram": Domain.DRAM, "psys": Domain.NODE}


def kinds() -> dict[str, str]:
    """Every kind that can be imported, with the `module:function` that does it."""
    return registered(IMPORTERS)


def import_files(kind: str, paths: Sequence[Path], out: Path, options: Mapping[str, Any] | None = None) -> Path:
    """Make one sealed tape at `out` from files of a kind. Raises UsageError where they are not of it."""
    targets = kinds()
    if kind not in targets:
        raise UsageError(f"'{kind}' cannot be imported.", cure=f"one of: {', '.join(sorted(targets))}")
    missing = [path for path in paths if not Path(path).is_file() and not (kind in FOLDERS and Path(path).is_dir())]
    if missing and Path(missing[0]).is_dir():
        raise UsageError(f"{missing[0]} is a folder, and {kind} is read from files.")
    if missing or not paths:
        raise UsageError(f"There is no file {missing[0]}." if missing else "No file was given to import.")
    importer: Importer = load(targets[kind])
    try:
        return importer([Path(path) for path in paths], Path(out), options or {})
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error) as error:
        raise UsageError(f"{', '.join(map(str, paths))} cannot be read as {kind}: {error}.") from None


@dataclass(frozen=True, slots=True)
class Recording:
    """One group of channels with its rows, oldest first, on a clock of its own that anchors tie to UTC.

    edges  rows that were read where spans start and end
    gaps   channel (None: all), start and end, and kind of gaps that rows do not show
    """

    info: GroupInfo
    rows: Iterable[Row]
    expected_period_s: float
    edges: Iterable[Row] = ()
    gaps: Iterable[tuple[str | None, int, int, str]] = ()


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """A table of processes: frames of changed rows with their instants, oldest first."""

    info: GroupInfo
    frames: Iterable[tuple[int, Sequence[Mapping[str, Any]]]]
    expected_period_s: float


class _StoppedClock(SystemClock):
    """The time of a tape whose recording has ended."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self._now_ns


def write_tape(
    out: Path,
    recordings: Sequence[Recording],
    *,
    meta: Mapping[str, Any],
    anchors: Sequence[Anchor],
    spans: Iterable[Span] = (),
    points: Iterable[Point] = (),
    tables: Sequence[ImportedTable] = (),
    notes: Iterable[Note] = (),
) -> Path:
    """A sealed tape of recordings. The half-written file goes away where something is wrong with them."""
    writer = TapeWriter(out, meta, clock=_StoppedClock(anchors[-1].monotonic_ns if anchors else 0))
    try:
        for anchor in anchors:
            writer.anchor(anchor)
        for recording in recordings:
            group = writer.add_group(recording.info, recording.expected_period_s)
            rows = iter(recording.rows)
            while batch := list(islice(rows, _FLUSH_ROWS)):
                writer.append(group, batch)
                writer.flush()
            for row in recording.edges:
                writer.edge(group, row)
            for gap in recording.gaps:
                writer.gap(group, *gap)
        for table in tables:
            group = writer.add_group(table.info, table.expected_period_s)
            for number, (at_ns, changed) in enumerate(table.frames):
                writer.append_table(group, at_ns, changed)
                if number % _FLUSH_FRAMES == _FLUSH_FRAMES - 1:
                    writer.flush()
        for span in spans:
            writer.span_open(span)
        for point in points:
            writer.point(point)
        for note in notes:
            writer.note(note)
        return writer.seal()
    except (EverywattError, OSError, ValueError):
        writer.abandon()
        writer.live_path.unlink(missing_ok=True)  # our own, made a moment ago
        raise


def usual_period_s(times_ns: Sequence[int]) -> float:
    """The median step of a sorted list of times; 1 s if it has no steps."""
    steps = sorted(b - a for a, b in pairwise(times_ns) if b > a)
    return steps[len(steps) // 2] / NS if steps else 1.0


def parse_utc_ns(text: str, form: str, where: str) -> int:
    """UTC nanoseconds; times without a zone are taken as UTC."""
    text = text.strip()
    try:
        if form in ("s", "ms", "ns"):
            whole, _, part = text.partition(".")
            digits = {"s": 9, "ms": 6, "ns": 0}[form]
            return int(whole + (part + "0" * digits)[:digits])
        if form == "iso":
            return _iso_ns(text)
        return _datetime_ns(datetime.strptime(text, form))
    except (ValueError, OverflowError):
        raise UsageError(f"{where}: '{text}' is not a time of the form {form}.", cure="time_format") from None


def _iso_ns(text: str) -> int:
    """ISO 8601 with up to nine decimals, of which datetime itself would keep six."""
    head, dot, tail = text.partition(".")
    if not dot:
        return _datetime_ns(datetime.fromisoformat(text))
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return _datetime_ns(datetime.fromisoformat(head + tail[digits:])) + int((tail[:digits] + "0" * 9)[:9])


def _datetime_ns(when: datetime) -> int:
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * NS + since.microseconds * 1000


def si_channel(channel: Channel) -> Channel:
    """A channel whose values are already in its unit."""
    facts = channel.facts
    wrap = None if facts.wrap is None else facts.wrap * channel.scale
    return replace(channel, scale=1.0, facts=replace(facts, wrap=wrap))


def import_ours(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """The tape behind the ticks at `paths` that `exporting` wrote, with the spans, points and groups beside them.

    All are of one host: a tape is the recording of one.
    """
    ticks: dict[str, dict[tuple[int, int, int], float]] = {}
    first: dict[str, Any] | None = None
    last: dict[str, Any] = {}
    described: dict[str, dict[str, Any]] = {}
    for path, entry in ((one, entry) for one in paths for entry in _entries(one)):
        try:
            key = (int(entry["monotonic_ns"]), int(entry["early_ns"]), int(entry["late_ns"]))
            name = str(entry["channel"])
            value = NAN if entry["value"] in (None, "") else float(entry["value"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path} is not an export of everywatt's ticks: {error!r}.",
                cure="name the file with the ticks; spans and points are found beside it",
            ) from None
        if first is not None and entry.get("host") != first.get("host"):
            raise UsageError(
                f"{path} contains several hosts, and a tape is the recording of one.",
                cure="split it by host",
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
    about = {"host": first.get("host"), **meta, "imported_from": [path.name for path in paths]}
    try:
        spans, points = list(_spans(paths[0])), list(_points(paths[0]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"The spans or points beside {paths[0]} are not an export of everywatt: {error!r}.") from None
    return write_tape(out, recordings, meta=about, anchors=anchors, spans=spans, points=points)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".csv":
        yield from csv.DictReader(foreign.lines(path, errors="strict", ends=True))
    elif path.suffix in (".parquet", ".arrow"):
        yield from _arrow_entries(path)
    else:
        yield from (entry for _, entry in foreign.json_lines(path) if isinstance(entry, dict))


def _arrow_entries(path: Path) -> Iterator[dict[str, Any]]:
    pa, _ = arrow()
    for batch in arrow_batches(path):
        table = pa.Table.from_batches([batch])
        for name in table.column_names:
            if pa.types.is_timestamp(table.schema.field(name).type):
                at = table.column_names.index(name)
                table = table.set_column(at, name, table[name].cast(pa.int64()))
        yield from table.to_pylist()


def arrow_batches(path: Path) -> Iterator[Any]:
    """The record batches of a Parquet file, or of an Arrow file or stream. UsageError if it is neither."""
    pa, pq = arrow()
    try:
        if path.suffix == ".parquet":
            yield from pq.ParquetFile(path).iter_batches()
            return
        with pa.memory_map(str(path)) as source:
            try:
                batches = pa.ipc.open_stream(source)
            except pa.ArrowInvalid:
                reader = pa.ipc.open_file(source)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            yield from batches
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def _utc_ns(value: Any) -> int | None:
    if value in (None, ""):
        return None
    return value if isinstance(value, int) else parse_utc_ns(str(value), "iso", "time_utc")


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
                channels = tuple(si_channel(channel) for channel in info.channels)
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
) -> Recording:
    columns = [ticks.get(channel.name, {}) for channel in info.channels]
    times = sorted({key for column in columns for key in column}, key=lambda key: key[1] + key[2])
    rows = [Row(*key, tuple(column.get(key, NAN) for column in columns)) for key in times]
    return Recording(info, rows, period_s or usual_period_s([key[0] for key in times]))


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
