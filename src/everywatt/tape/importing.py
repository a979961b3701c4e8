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
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import NAN, Channel, GroupInfo, Row
from everywatt.core.clocks import NS, Anchor, FakeClock
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.plugins import IMPORTERS, load, registered
from everywatt.core.spans import Point, Span
from everywatt.tape.writer import TapeWriter

Importer = Callable[[Sequence[Path], Path, Mapping[str, Any]], Path]
FOLDERS: Final = ("aipowermeter", "labia", "ipw")  # kinds whose recordings are folders
_FLUSH_ROWS: Final = 1024
_FLUSH_FRAMES: Final = 1000


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
    """One group of channels with its rows, oldest first, on a clock of its own that anchors tie to UTC."""

    info: GroupInfo
    rows: Iterable[Row]
    expected_period_s: float


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """A table of processes: frames of changed rows with their instants, oldest first."""

    info: GroupInfo
    frames: Sequence[tuple[int, Sequence[Mapping[str, Any]]]]
    expected_period_s: float


def write_tape(
    out: Path,
    recordings: Sequence[Recording],
    *,
    meta: Mapping[str, Any],
    anchors: Sequence[Anchor],
    spans: Iterable[Span] = (),
    points: Iterable[Point] = (),
    tables: Sequence[ImportedTable] = (),
) -> Path:
    """A sealed tape of recordings. The half-written file goes away where something is wrong with them."""
    writer = TapeWriter(out, meta, clock=FakeClock(now_ns=anchors[-1].monotonic_ns if anchors else 0))
    try:
        for anchor in anchors:
            writer.anchor(anchor)
        for recording in recordings:
            group = writer.add_group(recording.info, recording.expected_period_s)
            for batch in _batches(recording.rows):
                writer.append(group, batch)
                writer.flush()
        for table in tables:
            group = writer.add_group(table.info, table.expected_period_s)
            for number, (at_ns, rows) in enumerate(table.frames):
                writer.append_table(group, at_ns, rows)
                if number % _FLUSH_FRAMES == _FLUSH_FRAMES - 1:
                    writer.flush()
        for span in spans:
            writer.span_open(span)
        for point in points:
            writer.point(point)
        return writer.seal()
    except (EverywattError, OSError, ValueError):
        writer.abandon()
        writer.live_path.unlink(missing_ok=True)  # our own, made a moment ago
        raise


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _FLUSH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def usual_period_s(times_ns: Sequence[int]) -> float:
    """The median step of a sorted list of times, 1 s where there is none."""
    steps = sorted(b - a for a, b in pairwise(times_ns) if b > a)
    return steps[len(steps) // 2] / NS if steps else 1.0


def write_utc_table(
    out: Path,
    groups: Sequence[tuple[GroupInfo, Sequence[tuple[int, tuple[float, ...]]]]],
    *,
    source: Sequence[Path],
    meta: Mapping[str, Any],
) -> Path:
    """A tape from rows of (UTC ns, values). Its clock starts at one second with the first of them."""
    first = min(rows[0][0] for _, rows in groups) - NS
    last = max(rows[-1][0] for _, rows in groups)
    recordings = [
        Recording(
            info,
            [Row(at - first, at - first, at - first, values) for at, values in rows],
            usual_period_s([at for at, _ in rows]),
        )
        for info, rows in groups
    ]
    anchors = [Anchor(at - first, at, at - first, 0) for at in (first + NS, last)]
    told = {"imported_from": [path.name for path in source], **meta}
    return write_tape(out, recordings, meta=told, anchors=anchors)


def number_in(text: str) -> float:
    """The number at the start of a text (`39.32 W`), NaN where there is none."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return NAN


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
    except ValueError:
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


def import_ours(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from what `exporting` wrote: ticks, and spans, points and groups where they lie beside."""
    from everywatt.tape import import_ours as ours

    return ours.import_export(paths, out, options)


def si_channel(channel: Channel) -> Channel:
    """A channel whose values are already in its unit."""
    facts = channel.facts
    wrap = None if facts.wrap is None else facts.wrap * channel.scale
    return replace(channel, scale=1.0, facts=replace(facts, wrap=wrap))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a file of JSON lines."""
    for number, line in enumerate(foreign.lines(path, errors="strict"), 1):
        try:
            entry = foreign.parse_json(line)
        except ValueError:
            raise UsageError(f"{path}, line {number}: not JSON.") from None
        if isinstance(entry, dict):
            yield entry
