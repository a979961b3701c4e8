"""Writing a tape: rows are buffered, accumulated and flushed in one transaction; a failed flush loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.clocks import NS, Anchor, Clock, SystemClock
from everywatt.core.errors import RunExists, TapeError, UsageError
from everywatt.core.jsonio import dumps
from everywatt.core.spans import Note, Point, Span
from everywatt.tape import SUFFIX, codec, places, schema, sealing
from everywatt.tape.accumulate import Found
from everywatt.tape.pending import Buffer, PendingTable

LIVE_PAGE_BYTES: Final = 1024  # a flush is short: small pages keep what one second writes small


class TapeWriter:
    """One segment being recorded. Not for several threads at once.

    Creates the file, its folder too. Raises RunExists where the file is there, TapeError with the reason where it
    cannot be written. On a network filesystem everything goes to a local spool until `seal` moves the finished file to
    `path`. `most_values` bounds the memory for rows that cannot be written: beyond it the oldest are dropped, which a
    gap and a note then say. `spare_bytes` of the disk are held until the end, so that a full disk has room for how the
    recording ended. `mode` are the rights of the file, below the umask.
    """

    def __init__(
        self,
        path: Path,
        meta: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        checkpoint_s: float = 10.0,
        spool: Path | None = None,
        mounts: Path = places.MOUNTS,
        most_values: int = 2_000_000,
        spare_bytes: int = 0,
        mode: int = 0o644,
    ) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
        self._clock: Clock = clock or SystemClock()
        self._checkpoint_ns = round(checkpoint_s * NS)
        self._checkpointed_ns = self._clock.monotonic_ns()
        self._mode = mode
        self._buffer = Buffer(most_values)
        self._open_spans: dict[str, tuple[int, Span]] = {}
        self._file = self._reserve(spool, mounts)
        self._db: sqlite3.Connection | None = _create(self._file, mode)
        self._inode = self._file.stat().st_ino
        places.WRITERS.add(self)
        self._spare = places.hold_space(self._file, spare_bytes)
        try:
            self._begin({**meta, "checkpoint_s": checkpoint_s})
        except TapeError:
            self._discard()
            raise

    def _begin(self, meta: Mapping[str, Any]) -> None:
        for key, value in meta.items():
            self.set_meta(key, value)
        if self.spooled:
            self.set_meta("place", str(self.path))  # where it belongs, in case no process is left to move it
            text = "The folder is on a network filesystem: written to a local spool first."
            self.note(Note(self._checkpointed_ns, "spool", text))
        self.flush()

    def _discard(self) -> None:
        """Take back a file that was made a moment ago and holds nothing."""
        if self._db is not None:
            self._db.close()
        self._db = None
        self._spare.unlink(missing_ok=True)
        _remove(self._file)

    @property
    def spooled(self) -> bool:
        """True where the tape is written elsewhere and moved when it is sealed."""
        return self._file != self.path

    @property
    def inode(self) -> int | None:
        """Of the file that is being written; None when it is closed."""
        return None if self._db is None else self._inode

    @property
    def live_path(self) -> Path:
        """The file that is being written: `path`, or the one in the spool."""
        return self._file

    def _reserve(self, spool: Path | None, mounts: Path) -> Path:
        if os.path.lexists(self.path):
            raise RunExists(f"{self.path} exists already, and recordings are never overwritten.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path.parent, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            if places.is_network(places.filesystem(self.path, mounts)):
                name = f"{self.path.stem}-{os.getpid()}-{self._clock.utc_ns():x}{SUFFIX}"
                return places.spool_folder(spool) / name
        except OSError as error:
            raise TapeError(
                f"{self.path} cannot be written: {error.strerror or error}.", cure="set EVERYWATT_HOME"
            ) from None
        return self.path

    def add_group(self, info: GroupInfo, expected_period_s: float, *, prompt: bool = False) -> int:
        """Add a group whose rows should come every `expected_period_s`; gives its number for `append`.

        `prompt`: they go with every flush, also if they carry no energy.
        """
        if not (expected_period_s > 0):
            raise UsageError(f"Group {info.name}: the expected period must be above 0 s.")
        group = self._buffer.add_group(info, expected_period_s, prompt)
        self._insert("grp", group, dumps({**info.to_dict(), "expected_period_s": expected_period_s}))
        return group

    def append(self, group: int, rows: Sequence[Row]) -> None:
        """Buffer rows of a group: counters are unwrapped, energy accumulated, gaps found.

        A row whose publication is not after the last one is dropped and counted (a note says so at the end).
        """
        for found in self._buffer.append(group, rows):
            self._gap(group, found)

    def _gap(self, group: int, gap: Found) -> None:
        columns = (gap.channel, gap.start_ns, gap.end_ns, gap.kind, gap.count, gap.most)
        self._insert("gap", self._buffer.next_id("gap"), group, *columns)

    def append_table(self, group: int, at_ns: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Buffer the rows of a table group (processes) as they stood at `at_ns`."""
        self._buffer.append_table(PendingTable(group, at_ns, len(rows), _table_json(rows)))

    def edge(self, group: int, row: Row) -> None:
        """Store a row that the measured program read itself, where a span starts or ends."""
        self._buffer.must_fit(group, row)
        if self._buffer.refuse():
            return
        data = array("d", row.values).tobytes()
        self._insert("edge", self._buffer.next_id("edge"), group, row.read_ns, row.early_ns, row.late_ns, data)

    def gap(self, group: int, channel: str | None, start_ns: int, end_ns: int, kind: str) -> None:
        """Say that a channel (None: the whole group) was not observed."""
        if kind == "suspend":
            self._buffer.suspended(group)
        self._gap(group, Found(channel, start_ns, end_ns, kind))

    def span_open(self, span: Span) -> None:
        """Store a span; `span_close` ends it. A span that comes with its end is stored as it is."""
        number = self._buffer.next_id("span")
        if span.end_ns is None:
            self._open_spans[span.id] = (number, span)
        self._insert("span", number, *_span_columns(span))

    def span_close(self, uid: str, at_ns: int, attributes: Mapping[str, Any] | None = None) -> None:
        """End a span, adding attributes. One that was never opened becomes a note."""
        entry = self._open_spans.pop(uid, None)
        if entry is None:
            self.note(Note(at_ns, "span", f"Span {uid} was closed but is not open."))
            return
        number, span = entry
        merged = {**span.attributes, **(attributes or {})}
        closed = Span(span.id, span.name, span.start_ns, at_ns, span.parent, merged)
        self._buffer.put(schema.REPLACE["span"], codec.sealed_row("span", (number, *_span_columns(closed))))

    def point(self, point: Point) -> None:
        if self._buffer.refuse():
            return
        self._insert("point", self._buffer.next_id("point"), point.at_ns, point.name, dumps(point.value), point.span)

    def note(self, note: Note) -> None:
        self._insert("note", self._buffer.next_id("note"), note.at_ns, note.kind, note.text, dumps(note.data))

    def anchor(self, anchor: Anchor) -> None:
        number = self._buffer.next_id("anchor")
        self._insert("anchor", number, anchor.monotonic_ns, anchor.utc_ns, anchor.boottime_ns, anchor.error_ns)

    def set_meta(self, key: str, value: Any) -> None:
        self._buffer.put(schema.REPLACE["meta"], codec.sealed_row("meta", (key, dumps(value))))

    def _insert(self, table: str, *values: Any) -> None:
        self._buffer.put(schema.INSERT[table], codec.sealed_row(table, values))

    def flush(self, *, energy_only: bool = False) -> None:
        """Write all that is buffered in one transaction, and checkpoint when it is time.

        `energy_only` leaves rows of groups that carry no energy, and tables, for a later flush, in larger pieces.
        On TapeError (disk full, folder gone) nothing is lost: a later flush tries again.
        """
        self._connection()
        self._buffer.close_chunks(energy_only)
        self._check_place()
        db = self._connection()  # another one where the file had to be put back
        self._write(db)
        if self._buffer.report_losses():
            self._write(db)
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._checkpointed_ns >= self._checkpoint_ns:
            self._checkpointed_ns = now_ns
            with contextlib.suppress(sqlite3.Error):  # the log simply grows until the next one
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _write(self, db: sqlite3.Connection) -> None:
        try:
            db.execute("BEGIN IMMEDIATE")
            for sql, rows in self._buffer.statements():
                db.executemany(sql, rows)
            db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise TapeError(f"{self._file} cannot be written: {error}.") from None
        self._buffer.written()

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise TapeError(f"{self.path} is closed.")
        return self._db

    def _check_place(self) -> None:
        """Writing to a file that was removed succeeds, and is lost when we leave: put it back."""
        try:
            if self._file.stat().st_ino == self._inode:
                return
            reason = "another file replaced it"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason == "another file replaced it" or not self._file.parent.is_dir():
            raise TapeError(f"{self._file} was removed during the recording ({reason}); the data is kept for now.")
        self._put_back()

    def _put_back(self) -> None:
        """Write the removed file again, from the one that is still open."""
        old = self._connection()
        try:
            fresh = _create(self._file, self._mode, empty=True)
            old.backup(fresh)
            old.close()  # takes the log away by its name: before the new one has a log of that name
            self._db = fresh
            _use_log(fresh)
        except (sqlite3.Error, OSError) as error:
            raise TapeError(f"{self._file} was removed, and cannot be restored: {error}.") from None
        self._inode = self._file.stat().st_ino
        self.note(
            Note(self._clock.monotonic_ns(), "removed", "The file was removed during the recording and restored.")
        )

    def seal(self) -> Path:
        """Write what is left, compact, and leave one plain file at `path`; gives that path.

        A kill in its midst leaves the whole tape, unsealed. On TapeError the tape can be sealed again.
        """
        if not self._file.parent.is_dir():
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
        dropped = self._buffer.dropped()
        if dropped:
            self.set_meta("dropped_rows", dropped)
            total = sum(dropped.values())
            text = f"{total} rows arrived out of order and were dropped."
            self.note(Note(self._clock.monotonic_ns(), "out-of-order", text, dropped))
        self.flush()
        sealing.seal(self._connection(), self._file, self._clock.monotonic_ns())
        self._db = None
        self._spare.unlink(missing_ok=True)
        if self.spooled:
            places.move_into_place(self._file, self.path)
        return self.path

    def abandon(self) -> None:
        """Close without sealing. What was flushed stays, what was not is tried once."""
        self._spare.unlink(missing_ok=True)
        if self._db is None:
            return
        with contextlib.suppress(TapeError):
            self.set_meta("abandoned", True)
            self.flush()
        self._db.close()
        self._db = None


def _table_json(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as JSON; looked at one by one only where they hold what JSON cannot."""
    try:
        return json.dumps(rows, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):
        return dumps(list(rows)).encode()


def _span_columns(span: Span) -> tuple[Any, ...]:
    return (span.id, span.parent, span.name, span.start_ns, span.end_ns, dumps(span.attributes))


def _create(path: Path, mode: int, *, empty: bool = False) -> sqlite3.Connection:
    """A new tape file with its tables, open for writing."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
    except FileExistsError:
        raise RunExists(f"{path} exists already, and recordings are never overwritten.") from None
    except OSError as error:
        raise TapeError(f"{path} cannot be written: {error.strerror or error}.", cure="set EVERYWATT_HOME") from None
    try:
        db = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False, cached_statements=64)
        db.execute(f"PRAGMA page_size={LIVE_PAGE_BYTES}")
        db.execute("PRAGMA cache_size=-512")
        if empty:
            return db
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={schema.VERSION}")
        for statement in schema.TABLES.values():
            db.execute(statement)
        db.execute("COMMIT")
        _use_log(db)
    except sqlite3.Error as error:
        _remove(path)
        raise TapeError(f"{path} cannot be written: {error}.") from None
    return db


def _remove(path: Path) -> None:
    for side in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            Path(f"{path}{side}").unlink()


def _use_log(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
