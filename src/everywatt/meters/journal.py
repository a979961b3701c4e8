"""What came from a meter, byte for byte, appended to a file as it comes: the part of a capture that a kill cannot harm.

    EWJ1 serial\n            or `EWJ1 text`, then records:
    u64 UTC ns, u32 size, bytes

A record without bytes says where the journal before ended: rows of this one are after that.
What is read is in shared memory before it comes here (see `ring_buffer`), so a killed capture loses nothing; whoever
captures next goes on with the same journal, also in the midst of a frame. Where the disk is full,
records wait in memory, and beyond a bound the oldest are dropped and counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import struct
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from everywatt.core.errors import TapeError, UsageError
from everywatt.meters.block import Block, Oddities
from everywatt.meters.omegawatt_csv import read_blocks
from everywatt.meters.omegawatt_serial import Decoder, Frame, block_of, settled_ns

KINDS: Final = ("serial", "text")
SUFFIX: Final = ".journal"
MOST_WAITING_BYTES: Final = 64 << 20
TAIL_BYTES: Final = 65_536
_LATEST_NS: Final = 2**62  # of the year 2116: a later time is damage, and what follows it is no record
_HEAD: Final = b"EWJ1 "
_RECORD = struct.Struct("<QI")
_NAME = re.compile(r"(?P<meter>.+)-(?P<at>\d{10,20})\.journal")
_BLOCK_FRAMES: Final = 4096


class Journal:
    """One journal being written, locked. `append` never raises for a disk that is full."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        named = _NAME.fullmatch(path.name)
        self.began_ns = int(named["at"]) if named else 0
        self.waiting: deque[bytes] = deque()
        self.waiting_bytes = self.lost_bytes = 0
        self.trouble: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path} is in use by another capture.", cure="--meter with another name") from None
        except OSError as error:
            raise TapeError(f"{path} cannot be written: {error.strerror}.") from None
        self.size = whole_size(path)
        os.ftruncate(self._fd, self.size)  # a record that a crash of the machine left half
        os.lseek(self._fd, 0, os.SEEK_END)
        if self.size == 0:
            self._put(_HEAD + kind.encode() + b"\n")

    @property
    def empty(self) -> bool:
        """True where nothing of a meter is in it yet."""
        return self.size <= len(_HEAD) + len(self.kind) + 1 and len(self.waiting) < 2

    def append(self, utc_ns: int, data: bytes) -> None:
        """Write what was read at an instant, after what waits."""
        self._put(_RECORD.pack(utc_ns, len(data)) + data)

    def _put(self, record: bytes) -> None:
        self.waiting.append(record)
        self.waiting_bytes += len(record)
        self.retry()
        while self.waiting_bytes > MOST_WAITING_BYTES:
            dropped = self.waiting.popleft()
            self.waiting_bytes -= len(dropped)
            self.lost_bytes += len(dropped)

    def retry(self) -> bool:
        """Try to write what waits; True where nothing is left."""
        while self.waiting:
            record = self.waiting[0]
            try:
                if os.write(self._fd, record) != len(record):
                    raise OSError(28, "No space left on device")
            except OSError as error:
                self.trouble = error.strerror
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self.size)
                    os.lseek(self._fd, self.size, os.SEEK_SET)
                return False
            self.size += len(record)
            self.waiting_bytes -= len(record)
            self.waiting.popleft()
        self.trouble = None
        return True

    def sync(self) -> None:
        """Bring it to the disk in the background: the port must not wait for that."""
        fd = os.dup(self._fd)

        def work() -> None:
            with contextlib.suppress(OSError):
                os.fsync(fd)
            os.close(fd)

        threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        self.retry()
        os.close(self._fd)


def whole_size(path: Path) -> int:
    """Where the last whole record ends; 0 where it is no journal."""
    return _scan(path)[0]


def tail_of(path: Path) -> tuple[int, bytes]:
    """When a journal ends (UTC ns), and the last bytes that it has from the meter: more than a frame or line has."""
    _, at = _scan(path)
    last = list(_records(path, at))
    return max((utc_ns for utc_ns, _ in last), default=0), b"".join(data for _, data in last)


def head_of(path: Path) -> bytes:
    """The first bytes that a journal has from the meter: more than a header is long."""
    found = b""
    for _, data in records(path)[1]:
        found += data
        if len(found) > TAIL_BYTES:
            break
    return found


def _scan(path: Path) -> tuple[int, int]:
    """Where the last whole record ends, and where the last stretch of records begins."""
    with path.open("rb") as file:
        head, size = file.readline(64), os.fstat(file.fileno()).st_size
        if not head.startswith(_HEAD) or not head.endswith(b"\n"):
            return 0, 0
        at = len(head)
        tail: int | None = None
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            while at + _RECORD.size <= size:
                utc_ns, length = _RECORD.unpack_from(data, at)
                end = at + _RECORD.size + length
                if end > size or utc_ns > _LATEST_NS:
                    break
                if tail is None and at >= size - TAIL_BYTES:
                    tail = at
                at = end
    return at, at if tail is None else tail


def journals(folder: Path, meter: str | None = None) -> list[tuple[int, str, Path]]:
    """Journals of an archive, oldest first: start (UTC ns), meter, path."""
    found = []
    for path in (folder / "journal").glob(f"*{SUFFIX}"):
        match = _NAME.fullmatch(path.name)
        if match and meter in (None, match["meter"]):
            found.append((int(match["at"]), match["meter"], path))
    return sorted(found)


def journal_path(folder: Path, meter: str, utc_ns: int) -> Path:
    return folder / "journal" / f"{meter}-{utc_ns}{SUFFIX}"


def kind_of(path: Path) -> str | None:
    """What a journal holds, `serial` or `text`; None where it is no journal (yet)."""
    with path.open("rb") as file:
        head = file.readline(64)
    kind = head[len(_HEAD) :].strip().decode("ascii", "replace")
    return kind if head.startswith(_HEAD) and head.endswith(b"\n") and kind in KINDS else None


def records(path: Path) -> tuple[str, Iterator[tuple[int, bytes]]]:
    """The kind of a journal and its records; a torn last one is left out. UsageError where it is no journal."""
    try:
        kind = kind_of(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if kind is None:
        raise UsageError(f"{path} is not a capture journal.")
    return kind, _records(path, len(_HEAD) + len(kind) + 1)


def _records(path: Path, at: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        file.seek(at)
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            utc_ns, length = _RECORD.unpack(head)
            data = file.read(length)
            if len(data) < length or utc_ns > _LATEST_NS:
                return
            yield utc_ns, data


def journal_blocks(path: Path, odd: Oddities) -> Iterator[Block]:
    kind, found = records(path)
    if kind == "text":
        try:
            yield from read_blocks((data for _, data in found), odd, str(path))
        except UsageError:
            if any(data.strip() for _, data in records(path)[1]):
                raise
        return
    yield from _serial_blocks(found, odd)


def _serial_blocks(found: Iterator[tuple[int, bytes]], odd: Oddities) -> Iterator[Block]:
    decoder = Decoder()
    times: list[int] = []
    frames: list[Frame] = []
    last_ns = 0
    for utc_ns, data in found:
        if not data:  # where the journal before ended
            last_ns = max(last_ns, utc_ns)
        fresh = decoder.feed(data)
        if not fresh:
            continue
        if frames and (len(frames) >= _BLOCK_FRAMES or len(frames[0].watts) != len(fresh[0].watts)):
            stamps = settled_ns(times, frames, last_ns)
            last_ns = stamps[-1]
            yield block_of(stamps, frames)
            times, frames = [], []
        for frame in fresh:
            if not frames or len(frame.watts) == len(frames[0].watts):
                times.append(utc_ns)
                frames.append(frame)
            else:
                odd.bad_frames += 1  # modules that came or went within one read
    odd.bad_frames += decoder.bad_check + decoder.bad_frames
    if frames:
        yield block_of(settled_ns(times, frames, last_ns), frames)
