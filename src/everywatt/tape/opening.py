"""Opening a tape file as data: never written to, never trusted, and never silently less than it was."""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from everywatt.core.errors import NotATape, TapeDamaged, TapeError, TapeTooNew
from everywatt.core.lazy_dataclass import dataclass
from everywatt.tape import schema

if sys.platform == "linux":
    import fcntl

_MAGIC: Final = b"SQLite format 3\x00"
_COPY_BELOW_BYTES: Final = 256 << 20
_LOG_MAGIC: Final = (0x377F0682, 0x377F0683)
_LOG_HEADER: Final = struct.Struct(">8I")
_LOG_ENTRY: Final = struct.Struct(">6I")
_LOG_INDEX_AT: Final = 16
_LOG_TRIES: Final = 4
_LOCK: Final = struct.Struct("hhqqi4x")  # struct flock of Linux: type, whence, start, length, process
_READERS: Final = (0x40000002, 510)  # first byte and length, by SQLite's file format


@dataclass(frozen=True, slots=True)
class Header:
    """The first bytes of a file: what it says of itself, and what it is.

    `locked`: another process has it open as a database, or that cannot be determined.
    """

    page_bytes: int
    pages: int
    file_bytes: int
    inode: int
    locked: bool

    @property
    def truncated(self) -> bool:
        """True where the file is shorter than it says."""
        return self.page_bytes * self.pages > self.file_bytes

    @property
    def left(self) -> str:
        """How much of the file there is, in words."""
        return f"{self.file_bytes} of {self.page_bytes * self.pages} bytes are left"


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection that cannot write, and how it was come by.

    log      whether the log beside the file is there and read: True, False, or None where it was there and could not be
    log_cut  the log holds transactions that could not be read
    """

    db: sqlite3.Connection
    header: Header
    log: bool | None
    log_cut: bool = False


def read_header(path: Path) -> Header:
    """Look at the first hundred bytes. Raises NotATape, TapeTooNew or TapeDamaged."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
            stat = os.fstat(file.fileno())
            locked = _locked(file.fileno())
    except FileNotFoundError:
        raise NotATape(f"There is no file {path}.") from None
    except OSError as error:
        raise TapeError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(head) < 100:
        raise NotATape(f"{path} is not a tape: it ends after {len(head)} bytes.")
    if head[:16] != _MAGIC or struct.unpack_from(">I", head, 68)[0] != schema.APPLICATION_ID:
        raise NotATape(f"{path} is not a tape.")
    version = struct.unpack_from(">I", head, 60)[0]
    if version > schema.VERSION:
        raise TapeTooNew(
            f"{path} has format {version}; this everywatt reads formats up to {schema.VERSION}.",
            cure="pip install --upgrade everywatt",
        )
    if version < 1:
        raise TapeDamaged(f"{path}: its header claims format {version}, which does not exist.")
    size = struct.unpack_from(">H", head, 16)[0]
    page_bytes = 65536 if size == 1 else size
    if page_bytes < 512 or page_bytes & (page_bytes - 1):
        raise TapeDamaged(f"{path}: its header claims pages of {page_bytes} bytes.")
    return Header(page_bytes, struct.unpack_from(">I", head, 28)[0], stat.st_size, stat.st_ino, locked)


def _locked(descriptor: int) -> bool:
    """Whether another process holds SQLite's lock of readers, as one with a log does from its first look to its end."""
    if sys.platform != "linux":
        return True
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *_READERS, 0)
    try:
        return bool(_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    except OSError:
        return True


def open_file(path: Path) -> Opened:
    """Open a tape for reading, with the log beside it where there is one."""
    header = read_header(path)
    log = Path(f"{path}-wal")
    if not has_log(path):
        try:
            return Opened(_connect(path, "immutable=1", header), header, False)
        except TapeDamaged:
            if not header.truncated:
                raise
            raise TapeDamaged(f"{path} is truncated: {header.left}, too few to read anything.") from None
    try:
        return Opened(_connect(path, "mode=ro", header), header, True, _log_is_cut(path))
    except (TapeDamaged, NotATape):
        raise
    except TapeError:
        pass  # the folder cannot be written, so SQLite cannot share the log: read a copy, or the file alone
    if header.file_bytes + log.stat().st_size < _COPY_BELOW_BYTES:
        try:
            return _open_copy(path, log, header)
        except OSError:
            pass
    return Opened(_connect(path, "immutable=1", header), header, None)


def has_log(path: Path) -> bool:
    """True where the log of a live tape lies beside it."""
    try:
        return Path(f"{path}-wal").stat().st_size > 0
    except OSError:
        return False


def _open_copy(path: Path, log: Path, header: Header) -> Opened:
    import shutil
    import tempfile  # brings every kind of compression, for the few tapes that are copied

    folder = tempfile.mkdtemp(prefix="everywatt-")
    try:
        copy = Path(folder) / "copy.tape"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, f"{copy}-wal")
        db = _connect(copy, "mode=ro", header)
        return Opened(db, header, True, _log_is_cut(copy))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # an open file stays readable without its name


def _connect(path: Path, how: str, header: Header) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?{how}"  # noqa: PTH100 - resolve() would follow links
    try:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)
    except schema.BROKEN as error:
        raise TapeError(f"{path} cannot be opened: {error}.") from None
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, schema.MOST_BLOB_BYTES)
        if header.truncated and how == "immutable=1":
            # SQLite refuses a file that is shorter than it says unless its schema may be mended; nothing is written.
            db.execute("PRAGMA writable_schema=ON")
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA cell_size_check=ON")
        db.execute("PRAGMA mmap_size=0")
        db.execute("PRAGMA cache_size=-2048")
        _check_schema(db, path)
    except sqlite3.OperationalError as error:
        db.close()
        raise TapeError(f"{path} cannot be opened: {error}.") from None
    except schema.BROKEN as error:
        db.close()
        raise TapeDamaged(f"{path} is damaged: {error}.") from None
    except BaseException:
        db.close()
        raise
    return db


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Only our tables and indexes, as we make them: no tape has a foreign trigger or view."""
    found = {name: (kind, sql) for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_schema")}
    expected = {name: ("table", sql) for name, sql in schema.TABLES.items()}
    for name, sql in schema.INDEXES.items():
        if name in found:
            expected[name] = ("index", sql)
    odd = [name for name in found if found[name] != expected.get(name)]
    if odd:
        raise TapeDamaged(f"{path}: table sqlite_schema has an entry {odd[0]!r}, which no tape has.")
    missing = [name for name in expected if name not in found]
    if missing:
        raise TapeDamaged(f"{path}: table {missing[0]} is missing.")


def _log_is_cut(path: Path) -> bool:
    """True where the log of the tape at `path`, which another process has open, holds more transactions than SQLite
    reads: it stops at the first damaged entry without a word.

    An active writer may have written a transaction that is not indexed yet, so a suspected cut is checked again.
    """
    for attempt in range(_LOG_TRIES):
        if attempt:
            time.sleep(0.02)
        written = _committed(Path(f"{path}-wal"))
        read = _indexed(Path(f"{path}-shm"))
        if written is not None and (read is None or written <= read):
            return False
    return True


def _indexed(path: Path) -> int | None:
    """How many entries of the log are in use, by the index that readers share."""
    try:
        with path.open("rb") as file:
            file.seek(_LOG_INDEX_AT)
            return int(struct.unpack("=I", file.read(4))[0])
    except (OSError, struct.error):
        return None


def _committed(path: Path) -> int | None:
    """The number of the last entry that ends a transaction; None where the log's head is damaged."""
    try:
        with path.open("rb") as file:
            head = file.read(_LOG_HEADER.size)
            if not head:
                return 0
            if len(head) < _LOG_HEADER.size or not _head_is_right(head):
                return None
            page_bytes = _LOG_HEADER.unpack(head)[2]
            salts = _LOG_HEADER.unpack(head)[4:6]
            last = number = 0
            while len(entry := file.read(_LOG_ENTRY.size)) == _LOG_ENTRY.size:
                number += 1
                _, pages, *found = _LOG_ENTRY.unpack(entry)
                if tuple(found[:2]) == salts and pages:
                    last = number
                file.seek(page_bytes, 1)
            return last
    except OSError:
        return 0


def _head_is_right(head: bytes) -> bool:
    magic, _, page_bytes, *_, first, second = _LOG_HEADER.unpack(head)
    if magic not in _LOG_MAGIC or page_bytes < 512:
        return False
    words = struct.unpack(">6I" if magic & 1 else "<6I", head[:24])
    a = b = 0
    for left, right in zip(words[::2], words[1::2], strict=True):
        a = (a + left + b) & 0xFFFFFFFF
        b = (b + right + a) & 0xFFFFFFFF
    return (a, b) == (first, second)
