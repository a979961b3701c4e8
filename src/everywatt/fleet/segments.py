"""The agent's tape: segments in one folder, one of them live, rotated by the hour, kept within bounds of disk and age.

`Queue` reads samples from them in order. What a reader has not taken yet (remote write) is kept, unless the bound on
the disk says otherwise; then it is counted.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from everywatt.core.channels import Row
from everywatt.core.clocks import NS, Clock
from everywatt.fleet.encodings import Sample, labels_bytes
from everywatt.fleet.exporting import SAMPLES
from everywatt.recorder.session import EARLY_NS, Session
from everywatt.recorder.source import Source
from everywatt.tape.accumulate import publication_ns
from everywatt.tape.places import spare_file
from everywatt.tape.run_store import next_segment

SHARED_ROWS = 64  # of each group, that two segments share at most
LONGEST_NS = 10 * NS  # a group that is slower than this is cut between two of its rows
_NUMBER = re.compile(r"-(\d+)\.tape$")


class SegmentSession(Session):
    """A segment being written.

    `before` is called in time for what it adds to be flushed, `after` then, with whether the tape took all of it.
    `resumed` are rows, by group, that it begins with: the last ones of an agent before.
    """

    def __init__(
        self,
        path: Path,
        meta: Mapping[str, Any],
        period_ns: int,
        clock: Clock,
        proc: Path,
        *,
        before: Callable[[int], bool],
        after: Callable[[int, bool], None],
        flush_every_ns: int | None = None,
        resumed: Mapping[str, Row] | None = None,
    ) -> None:
        super().__init__(path, meta, period_ns, clock, proc)
        self._rows_first = dict(resumed or {})
        self.bounds_ns: tuple[int | None, int | None] = meta.get("bounds_ns") or (None, None)
        self._newest: dict[str, deque[Row]] = {}
        self._before, self._after = before, after
        # What was published must be on the tape.
        self._samples = self.writer.add_group(SAMPLES, period_ns / 1e9, prompt=True)
        self.sample_count = 0
        if flush_every_ns is not None:
            self.flush_every_ns = flush_every_ns
            self.flush_ns = self.started_ns + flush_every_ns

    def listen(self, source: Source) -> None:
        super().listen(source)
        row = self._rows_first.pop(source.info.name, None)
        if row is not None:
            self.rows(source, [row])

    def tell(self, at_ns: int, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.sample_count += sum(row["c"] for row in rows if "c" in row)
            self._safely(self.writer.append_table, self._samples, at_ns, rows)

    def flush_now(self, now_ns: int) -> None:
        """Settle and flush, whatever the time."""
        self._flush(now_ns)

    @property
    def written(self) -> bool:
        """Whether the tape has taken everything."""
        return self._trouble is None

    def write(self, now_ns: int) -> None:
        """Flush what was published, without settling."""
        super()._flush(now_ns)

    def _flush(self, now_ns: int) -> None:
        if not self._before(now_ns):
            self.flush_ns = now_ns + 2 * EARLY_NS  # the processes are about to be read
            return
        super()._flush(now_ns)
        self._after(now_ns, self.written)

    def rows(self, source: Source, rows: Sequence[Row]) -> None:
        super().rows(source, rows)
        kept = self._newest.get(source.info.name)
        if kept is None:
            kept = self._newest[source.info.name] = deque(maxlen=SHARED_ROWS)
        kept.extend(rows)

    def cut_ns(self, now_ns: int) -> int:
        """Where to end: the last instant up to which every group with energy that answers is complete."""
        newest = [
            publication_ns(source.last)
            for source in self.sources
            if source.last is not None and source.outage is None and any(c.carries_energy for c in source.info.channels)
        ]
        return max(min(newest, default=now_ns), now_ns - LONGEST_NS)

    def end(self, cut_ns: int) -> None:
        """Say where this segment ends, though it has rows beyond."""
        self.bounds_ns = (self.bounds_ns[0], cut_ns)
        self._safely(self.writer.set_meta, "bounds_ns", self.bounds_ns)

    def prime(self, source: Source, before: SegmentSession, cut_ns: int) -> None:
        """Begin where the segment before ends: rows around that instant are on both."""
        self.listen(source)
        if source.info.table:
            # The source then repeats its whole table.
            source.group.follow(())  # type: ignore[union-attr]
            return
        rows = list(before._newest.get(source.info.name, ()))
        first = max((place for place, row in enumerate(rows) if publication_ns(row) <= cut_ns), default=0)
        if rows:  # one more, since a counter needs two
            self.rows(source, rows[max(first - 1, 0) :])


def number_of(path: Path) -> int:
    """The number of a segment, -1 where its name has none."""
    match = _NUMBER.search(path.name)
    return int(match.group(1)) if match else -1


def segments(folder: Path) -> list[Path]:
    """All segments of a folder in order."""
    return sorted((path for path in folder.glob("*.tape") if number_of(path) >= 0), key=number_of)


def _files(path: Path) -> tuple[Path, ...]:
    """A segment, its log, and the space that it holds until it is sealed."""
    return path, Path(f"{path}-wal"), Path(f"{path}-shm"), spare_file(path)


def size_bytes(path: Path) -> int:
    """What a segment takes, with its log and the space that is held for it."""
    whole = 0
    for file in _files(path):
        with contextlib.suppress(OSError):
            whole += file.stat().st_size
    return whole


def new_path(folder: Path, host: str, at_least: int = 1) -> Path:
    """The next free segment; its number is never one that was used before."""
    path = next_segment(folder, host)
    stem = path.name.rpartition("-")[0]
    return path.with_name(f"{stem}-{max(number_of(path), at_least):04d}.tape")


def prune(
    folder: Path,
    *,
    live: Path,
    most_bytes: int,
    oldest_utc_s: float,
    sent: Path | None,
    drop: Callable[[Path], None],
) -> int:
    """Remove segments beyond the bounds, oldest first; returns the bytes that are left.

    `sent` is the first segment that a reader still needs (None without readers). One at or after it is removed only
    because of `most_bytes`, and is reported to `drop`.
    """
    found = segments(folder)
    sizes = {path: size_bytes(path) for path in found}
    whole = sum(sizes.values())
    for path in found:
        if path == live:
            break
        needed = sent is not None and number_of(path) >= number_of(sent)
        with contextlib.suppress(OSError):
            old = path.stat().st_mtime < oldest_utc_s
            if whole <= most_bytes and (needed or not old):
                if not needed:
                    continue
                break
            if needed:
                drop(path)
            for file in _files(path):
                file.unlink(missing_ok=True)
            whole -= sizes[path]
    return whole


def connect(path: Path) -> sqlite3.Connection:
    """A segment open for reading. The log of one that a kill left is made good first, which writes."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
    )


def samples_group(db: sqlite3.Connection) -> int | None:
    """The number of the group of samples on a tape; None if the group or the tape itself does not exist yet."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name='grp'").fetchone():
        return None  # its agent was killed while it made the file
    found = db.execute("SELECT id FROM grp WHERE json_extract(info, '$.name')=?", (SAMPLES.name,)).fetchone()
    return None if found is None else int(found[0])


def table_rows(path: Path, after: int, most: int) -> list[tuple[int, bytes]]:
    """Number and bytes of tables of samples after a number, at most so many; the file is let go of at once."""
    db = connect(path)
    try:
        group = samples_group(db)
        if group is None:
            return []
        sql = "SELECT id, data FROM tframe WHERE grp=? AND id>? ORDER BY id LIMIT ?"
        return [(int(number), bytes(data)) for number, data in db.execute(sql, (group, after, most))]
    finally:
        db.close()


CHUNK = 64
LEFT_S = 120.0  # since it was written to last: then a segment has no writer any more, sealed or not


class Position(NamedTuple):
    """The number of a segment, and of the last table in it that is done."""

    segment: int
    table: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples by series, in order of time, the position on the tape after them, and whether more are there."""

    series: tuple[tuple[bytes, tuple[Sample, ...]], ...]
    after: Position
    more: bool = False

    def __len__(self) -> int:
        return sum(len(samples) for _, samples in self.series)

    @property
    def first_ms(self) -> int:
        return min((samples[0][0] for _, samples in self.series), default=0)


@dataclass
class Queue:
    """Reads a folder of segments. `labels` go with every series; a label of the same name is sent as exported_NAME.

    Segments with numbers below `dead_below` have no writer any more, sealed or not.
    """

    folder: Path
    labels: Mapping[str, str]
    position: Position
    most: int = 5000
    dead_below: int = 0
    _known: dict[int, bytes] = field(default_factory=dict)
    _known_of: int = -1
    _db: sqlite3.Connection | None = None
    _inode: int = 0
    _group: int | None = None

    def next(self) -> Batch | None:
        """The next samples; None without any. The position stays until `accept`."""
        while True:
            path = self._path()
            if path is None:
                return None
            try:
                sealed, rows = self._read(path)
            except (sqlite3.Error, OSError) as error:
                self.close()
                if path.exists() and not self._hopeless(path, error):
                    return None  # it is just being replaced, or the disk does not answer: later
                if path.exists() and not self._move_on(number_of(path)):
                    return None
                continue
            if rows:
                return self._batch(path, rows)
            if not sealed or not self._move_on(number_of(path)):
                return None

    def accept(self, batch: Batch) -> None:
        self.position = batch.after

    def _path(self) -> Path | None:
        """The segment to read: that of the position, else the next one that is there."""
        found = [path for path in segments(self.folder) if number_of(path) >= self.position.segment]
        if not found:
            return None
        if number_of(found[0]) != self.position.segment:
            self.position = Position(number_of(found[0]), 0)
        return found[0]

    def _hopeless(self, path: Path, error: Exception) -> bool:
        """Whether this can never be read: its agent was killed before the tape was created, or the file is damaged."""
        return number_of(path) < self.dead_below and "locked" not in str(error)

    def _move_on(self, number: int) -> bool:
        later = [path for path in segments(self.folder) if number_of(path) > number]
        if later:
            self.position = Position(number_of(later[0]), 0)
        return bool(later)

    def _read(self, path: Path) -> tuple[bool, list[tuple[int, bytes]]]:
        """Whether the segment is whole, and its next tables. No transaction stays open: its writer may seal it."""
        whole = number_of(path) < self.dead_below or time.time() - written_s(path) > LEFT_S
        db = self._open(path)
        if self._group is None:
            self._group = samples_group(db)
        if self._group is not None and self._known_of != number_of(path):
            self._known, self._known_of = {}, number_of(path)
            self._learn(db, self._group)
        if not whole:
            whole = bool(db.execute("SELECT count(*) FROM seal").fetchone()[0])
        sql = "SELECT id, data FROM tframe WHERE grp=? AND id>? ORDER BY id LIMIT ?"
        rows = db.execute(sql, (self._group, self.position.table, CHUNK)).fetchall()
        return whole, [(int(number), bytes(data)) for number, data in rows]

    def _open(self, path: Path) -> sqlite3.Connection:
        """The segment's file, opened again where another one took its place (a sealed one)."""
        inode = path.stat().st_ino
        if self._db is None or inode != self._inode:
            self.close()
            self._db, self._inode = connect(path), inode
        return self._db

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db, self._group = None, None

    def _learn(self, db: sqlite3.Connection, group: int) -> None:
        """What the numbers of series mean that were said before the position."""
        sql = "SELECT data FROM tframe WHERE grp=? AND id<=? ORDER BY id"
        for (data,) in db.execute(sql, (group, self.position.table)):
            for row in _rows(data):
                self._define(row)

    def _define(self, row: Mapping[str, Any]) -> None:
        if "i" in row:
            labels = {(f"exported_{key}" if key in self.labels else key): value for key, value in row["l"].items()}
            self._known[row["i"]] = labels_bytes(row["n"], {**labels, **self.labels})

    def _batch(self, path: Path, rows: list[tuple[int, bytes]]) -> Batch:
        found: dict[bytes, list[Sample]] = {}
        count, last = 0, self.position.table
        for number, data in rows:
            if count >= self.most:
                break
            last = number
            for row in _rows(data):
                self._define(row)
                flat = json.loads(row.get("s", "[]"))
                for place in range(0, len(flat), 3):
                    labels = self._known.get(flat[place])
                    if labels is not None:
                        found.setdefault(labels, []).append((row["t"] + flat[place + 1], flat[place + 2]))
                        count += 1
        series = tuple((labels, tuple(sorted(samples, key=lambda s: s[0]))) for labels, samples in found.items())
        return Batch(series, Position(number_of(path), last), len(rows) == CHUNK or last != rows[-1][0])

    def left_in(self, path: Path) -> int:
        """How many samples of a segment are after the position."""
        after = self.position.table if number_of(path) == self.position.segment else 0
        if number_of(path) < self.position.segment:
            return 0
        with contextlib.suppress(sqlite3.Error, OSError):
            db = connect(path)
            try:
                group = samples_group(db)
                sql = "SELECT data FROM tframe WHERE grp=? AND id>?"
                datas = db.execute(sql, (group, after)) if group is not None else ()
                return sum(row.get("c", 0) for (data,) in datas for row in _rows(data))
            finally:
                db.close()
        return 0

    def pending_bytes(self) -> int:
        """The size of the segments that are not done; of the one that is being read, all."""
        return sum(size_bytes(path) for path in segments(self.folder) if number_of(path) >= self.position.segment)


def written_s(path: Path) -> float:
    """When a tape was written to last (unix)."""
    newest = 0.0
    for side in ("", "-wal"):
        with contextlib.suppress(OSError):
            newest = max(newest, Path(f"{path}{side}").stat().st_mtime)
    return newest


def _rows(data: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(zlib.decompress(data))
    except (zlib.error, ValueError):
        return []  # a damaged table must not stop those after it
    return found if isinstance(found, list) else []
