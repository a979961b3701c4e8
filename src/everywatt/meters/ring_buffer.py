"""A ring buffer in shared memory that the kernel copies a meter's bytes into; a kill leaves them there.

The read of the port writes straight into the ring: there is no moment at which bytes are in a process alone. Who
captures next finds what had been read and was not yet in the journal. It also lets the port be read on while a disk is
slow.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import stat
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

SHARED: Final = Path("/dev/shm")
SLOTS: Final = 1024  # ten seconds at 100 frames a second
SLOT_BYTES: Final = 4096
MAGIC: Final = b"EWLAND1\n"
_TOP = struct.Struct("<8sQ")  # magic, slots taken
_MARK = struct.Struct("<QQQ")  # a journal, its size when a slot is about to be put into it, and which slot (from 1)
_SLOT = struct.Struct("<QQI")  # number of the slot from 1, UTC ns, bytes
_FILL: Final = _TOP.size + _MARK.size
_FIRST: Final = _FILL + SLOT_BYTES
_STRIDE: Final = _SLOT.size + SLOT_BYTES


def ring_path(archive: Path, meter: str) -> Path:
    """The ring of one meter of one archive, of this user."""
    which = hashlib.sha256(f"{archive.resolve()}\0{meter}".encode()).hexdigest()[:16]
    return SHARED / f"everywatt-{os.getuid()}-{which}.landing"


class RingBuffer:
    """A ring of slots. One thread fills slots (`fill`), one takes them in order (`take`)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._map, kept = _opened(path)
        self._view = memoryview(self._map)
        self._came = threading.Condition()
        self._taken = self._next = 0
        if kept:
            self._taken = self._next = _TOP.unpack_from(self._map)[1]
            while self._filled(self._next):
                self._next += 1
        else:
            # What a read would never leave behind by chance: a slot that still holds it was not read into.
            self._view[_FILL:_FIRST] = os.urandom(SLOT_BYTES)
            _TOP.pack_into(self._map, 0, MAGIC, 0)

    def _filled(self, number: int) -> bool:
        at = _FIRST + number % SLOTS * _STRIDE
        stored, _, size = _SLOT.unpack_from(self._map, at)
        if stored != number + 1 or not 0 < size <= SLOT_BYTES or number - self._taken >= SLOTS:
            return False
        body = at + _SLOT.size
        return self._view[body : body + size] != self._view[_FILL : _FILL + size]

    @property
    def full(self) -> bool:
        """True where no slot is free until one is taken."""
        return self._next - self._taken >= SLOTS

    def fill(self, fd: int, utc_ns: int) -> int:
        """Read what a port has into the next slot; gives how many bytes, 0 at its end. BlockingIOError where none."""
        size = min(max(_waiting_bytes(fd), 1), SLOT_BYTES)
        at = _FIRST + self._next % SLOTS * _STRIDE
        body = self._view[at + _SLOT.size : at + _SLOT.size + size]
        body[:] = self._view[_FILL : _FILL + size]
        _SLOT.pack_into(self._map, at, self._next + 1, utc_ns, size)
        got = 0
        try:
            got = os.readv(fd, [body])
        finally:
            _SLOT.pack_into(self._map, at, self._next + 1 if got else 0, utc_ns, got)
        if got:
            with self._came:
                self._next += 1
                self._came.notify()
        return got

    def wait(self, timeout_s: float) -> bool:
        """Wait until a slot is filled; False where nothing did in time."""
        with self._came:
            return self._came.wait_for(lambda: self._next > self._taken, timeout_s)

    def wake(self) -> None:
        with self._came:
            self._came.notify()

    def take(self) -> Iterator[tuple[int, bytes]]:
        """What was read and not taken: (UTC ns, bytes); each is gone when the next is asked for."""
        while self._taken < self._next:
            at = _FIRST + self._taken % SLOTS * _STRIDE
            _, utc_ns, size = _SLOT.unpack_from(self._map, at)
            yield utc_ns, bytes(self._view[at + _SLOT.size : at + _SLOT.size + size])
            self._taken += 1
            _TOP.pack_into(self._map, 0, MAGIC, self._taken)

    def goes_to(self, journal: int, position: int) -> None:
        """What `take` gave last is about to be put into a journal (its start in ns), which has this size before."""
        _MARK.pack_into(self._map, _TOP.size, journal, position, 0)
        _MARK.pack_into(
            self._map, _TOP.size, journal, position, self._taken + 1
        )  # in this order: a kill may come between

    def skip_written(self, size_of: Callable[[int], int]) -> None:
        """Leave out what a killed capture had put into its journal but not yet ticked off.

        size_of  the size of a journal that began at an instant (ns); 0 if it does not exist
        """
        journal, position, slot = _MARK.unpack_from(self._map, _TOP.size)
        if self._taken < self._next and slot == self._taken + 1 and size_of(journal) > position:
            next(taken := self.take(), None)
            next(taken, None)

    def close(self, *, remove: bool) -> None:
        """Let go of it, and take it away where all was taken and written."""
        self._view.release()
        with contextlib.suppress(BufferError):  # a thread that still reads: it ends with the process
            self._map.close()
        if remove and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _waiting_bytes(fd: int) -> int:
    try:
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0])
    except OSError:
        return SLOT_BYTES


def _opened(path: Path | None) -> tuple[mmap.mmap, bool]:
    """The ring, and True where one was left by a capture before; memory of this process alone where it must be."""
    size = _FIRST + SLOTS * _STRIDE
    if path is None:
        return mmap.mmap(-1, size), False
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        about = os.fstat(fd)
        if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode):
            return mmap.mmap(-1, size), False
        os.posix_fallocate(fd, 0, size)  # a page that could not be had later would end the process
        found = mmap.mmap(fd, size)
        return found, about.st_size == size and found[: len(MAGIC)] == MAGIC
    except OSError:
        return mmap.mmap(-1, size), False
    finally:
        if fd >= 0:
            os.close(fd)
