"""Sealing: many small frames become few large ones in a new file that takes the live one's place.

The live file stays as it is until the new one is complete and synced, so a kill at any moment leaves a whole tape. The
log beside the live file is emptied before the new file takes its name: a log must never meet a file that it is not of.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import TapeDamaged, TapeError
from everywatt.core.jsonio import dumps
from everywatt.tape import codec, places, schema

FRAME_ROWS: Final = 1024
_FRAME_VALUES: Final = 40 * FRAME_ROWS
_MOST_FRAME_ROWS: Final = 2048


def frame_rows(channels: int) -> int:
    """Rows of a sealed frame: 1024, and more where channels are few, so that a frame is worth a look-up."""
    return min(_MOST_FRAME_ROWS, max(FRAME_ROWS, _FRAME_VALUES // max(1, channels)))


def seal(db: sqlite3.Connection, path: Path, sealed_ns: int) -> None:
    """Compact the tape that `db` has open at `path`, close it, and leave one plain file there."""
    part = path.with_name(f".{path.name}.sealing")
    try:
        part.unlink(missing_ok=True)
        _write_compact(db, part, sealed_ns, path.stat().st_mode & 0o777)
        places.sync_file(part)
        busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise TapeError(
                f"{path} is open in a reader and could not be sealed.", cure="close the reader and seal it again"
            )
        db.close()
        part.replace(path)
        for side in (Path(f"{path}-wal"), Path(f"{path}-shm"), places.spare_file(path)):
            with contextlib.suppress(OSError):
                side.unlink()
        places.sync_file(path.parent)
    except (sqlite3.Error, OSError) as error:
        raise TapeError(f"{path} could not be sealed: {error}. The recording in it is intact.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _write_compact(db: sqlite3.Connection, part: Path, sealed_ns: int, mode: int) -> None:
    # Readable for whom the live tape was: another process's umask may apply by now.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode & 0o600))
    part.chmod(mode)
    new = sqlite3.connect(part, isolation_level=None)
    try:
        for pragma in (
            "page_size=4096",
            "journal_mode=OFF",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            "cache_size=-4096",
        ):
            new.execute(f"PRAGMA {pragma}")
        new.execute("BEGIN")
        new.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
        new.execute(f"PRAGMA user_version={schema.VERSION}")
        for statement in schema.TABLES.values():
            new.execute(statement)
        counts = {}
        for table in schema.COLUMNS:
            if table != "seal":
                read = db.execute(f"{schema.SELECT[table]} ORDER BY 1")
                rows = _compact_frames(db, read) if table == "frame" else (_checked(table, row) for row in read)
                tally = Tally()
                new.executemany(schema.INSERT[table], tally.over(rows))
                counts[table] = tally.result()
        for statement in schema.INDEXES.values():
            new.execute(statement)
        new.execute(schema.INSERT["seal"], codec.sealed_row("seal", (1, sealed_ns, dumps(counts))))
        new.execute("COMMIT")
    finally:
        new.close()


class Tally:
    """Counts rows and runs a CRC-32 over their CRCs."""

    def __init__(self) -> None:
        self.count = 0
        self.crc = 0

    def add(self, crc: int) -> None:
        self.count += 1
        self.crc = zlib.crc32(crc.to_bytes(4, "little"), self.crc)

    def over(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The same rows, counted on their way."""
        for row in rows:
            self.add(row[-1])
            yield row

    def result(self) -> list[int]:
        return [self.count, self.crc]


def _checked(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    if codec.checksum(table, row[:-1]) != row[-1]:
        raise TapeDamaged(f"Table {table}, row {row[0]}: the checksum does not match.")
    return row


class _Builder:
    """Small frames of one group on their way into a large one."""

    def __init__(self, group: int, channels: int) -> None:
        self.group = group
        self.channels = channels
        self.most = frame_rows(channels)
        self.seq = 0
        self.n = 0
        self._begin()

    def _begin(self) -> None:
        self.times: list[array[int]] = [array("q") for _ in range(3)]
        self.values: list[array[float]] = [array("d") for _ in range(self.channels)]
        self.n = 0
        self.flags = 0
        self.first_ns = self.last_ns = 0
        self.cum = b""

    def takes(self, n: int, flags: int) -> bool:
        """True where a frame of `n` rows can be appended."""
        return self.n == 0 or (self.n + n <= self.most and not flags & codec.BREAK)

    def add(self, first_ns: int, last_ns: int, n: int, cum: bytes, data: bytes) -> None:
        if self.n == 0:
            self.first_ns, self.cum, self.flags = first_ns, cum, data[0] & codec.BREAK
        parts = codec.split_frame(data, 3 + self.channels, n)
        columns: list[array[Any]] = [*self.times, *self.values]
        for column, (tag, piece) in zip(columns, parts, strict=True):
            codec.extend(column, tag, piece, n)
        self.n += n
        self.last_ns = last_ns

    def frame(self, number: int) -> tuple[Any, ...]:
        """The large frame as a row; the builder is reset."""
        self.seq += 1
        columns = [codec.encode_ints(column) for column in self.times]
        columns += [codec.encode_floats(column) for column in self.values]
        data = codec.encode_frame(columns, self.n, self.flags)
        row = (number, self.group, self.seq, self.first_ns, self.last_ns, self.n, self.cum, data)
        self._begin()
        return codec.sealed_row("frame", row)


def _compact_frames(db: sqlite3.Connection, frames: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    builders = {
        group: _Builder(group, len(json.loads(info)["channels"]))
        for group, info in db.execute("SELECT id, info FROM grp")
    }
    number = 0
    for row in frames:
        _, group, _, first_ns, last_ns, n, cum, data, _ = _checked("frame", row)
        builder = builders[group]
        if not builder.takes(n, data[0]):
            number += 1
            yield builder.frame(number)
        builder.add(first_ns, last_ns, n, cum, data)
    for builder in builders.values():
        if builder.n:
            number += 1
            yield builder.frame(number)
