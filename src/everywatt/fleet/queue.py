"""The tape as a queue: batches of samples after a position, in order, over segments."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from everywatt.fleet.encodings import Sample, labels_bytes
from everywatt.fleet.segments import connect, number_of, samples_group, segments, size_bytes

CHUNK = 64
LEFT_S = 120.0


class Position(NamedTuple):
    """The number of a segment, and of the last table in it that is done."""

    segment: int
    table: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples by series, in order of time, where the tape stands when they are done, and whether more are there."""

    series: tuple[tuple[bytes, tuple[Sample, ...]], ...]
    after: Position
    more: bool = False

    def __len__(self) -> int:
        return sum(len(samples) for _, samples in self.series)

    @property
    def first_ms(self) -> int:
        """The time of the oldest sample."""
        return min((samples[0][0] for _, samples in self.series), default=0)


@dataclass
class Queue:
    """Reads a folder of segments. `labels` go with every series; one of the same name is told as exported_NAME.

    Segments with numbers below `dead_below` are written by nobody any more, sealed or not.
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
        """The next samples; None where there are none now. The position stays, until `accept`."""
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
        """A batch is done."""
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
        """Whether nobody will ever read this: its agent was killed before there was a tape in the file, or it broke."""
        return number_of(path) < self.dead_below and "locked" not in str(error)

    def _move_on(self, number: int) -> bool:
        later = [path for path in segments(self.folder) if number_of(path) > number]
        if later:
            self.position = Position(number_of(later[0]), 0)
        return bool(later)

    def _read(self, path: Path) -> tuple[bool, list[tuple[int, bytes]]]:
        """Whether the segment is whole, and its next tables. No transaction stays open: its writer may seal it."""
        whole = number_of(path) < self.dead_below or _left(path)
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
        """Let go of the file."""
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
            told = {(f"exported_{key}" if key in self.labels else key): value for key, value in row["l"].items()}
            self._known[row["i"]] = labels_bytes(row["n"], {**told, **self.labels})

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


def _left(path: Path) -> bool:
    """Whether nobody writes a segment any more, sealed or not."""
    newest = 0.0
    for side in ("", "-wal"):
        with contextlib.suppress(OSError):
            newest = max(newest, Path(f"{path}{side}").stat().st_mtime)
    return time.time() - newest > LEFT_S


def _rows(data: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(zlib.decompress(data))
    except (zlib.error, ValueError):
        return []  # a damaged table must not stop those after it
    return found if isinstance(found, list) else []
