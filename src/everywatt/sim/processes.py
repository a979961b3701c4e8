"""Who is on a simulated card: a mapped table that the NVML library reads and programs inside the machine may change."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING

from everywatt.core.errors import SimError
from everywatt.sim.options import GpuProcess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_ROW = struct.Struct("<iiiiQdd")
ROWS = 64


class ProcessTable:
    """The processes of one card."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, _ROW.size * ROWS)

    @classmethod
    def create(cls, path: Path, processes: Iterable[GpuProcess] = ()) -> None:
        """A new table with these processes (a pid of 0 is filled in later, by `adopt`)."""
        rows = [_ROW.pack(*_fields(process)) for process in processes]
        if len(rows) > ROWS:
            raise SimError(f"A simulated card holds at most {ROWS} processes.")
        path.write_bytes(b"".join(rows) + bytes(_ROW.size * (ROWS - len(rows))))

    def rows(self) -> list[tuple[int, GpuProcess]]:
        """The rows in use, with their places."""
        found = []
        for place in range(ROWS):
            pid, kind, instance, check, memory, sm, bandwidth = _ROW.unpack_from(self._map, place * _ROW.size)
            if kind:
                row = GpuProcess(pid, memory, sm, bandwidth, kind == 2, instance, bool(check))
                found.append((place, row))
        return found

    def put(self, process: GpuProcess) -> None:
        """Add a process, or change what it does if it is there."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            used = self.rows()
            same = [place for place, row in used if row.pid == process.pid]
            free = sorted(set(range(ROWS)) - {place for place, _ in used})
            if not same and not free:
                raise SimError(f"A simulated card holds at most {ROWS} processes.")
            place = same[0] if same else free[0]
            _ROW.pack_into(self._map, place * _ROW.size, *_fields(process))
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def drop(self, pid: int) -> None:
        for place, row in self.rows():
            if row.pid == pid:
                _ROW.pack_into(self._map, place * _ROW.size, 0, 0, 0, 0, 0, 0.0, 0.0)

    def adopt(self, pid: int) -> None:
        """Give a pid to the rows that stand for the command of the machine."""
        for place, row in self.rows():
            if row.pid == 0:
                struct.pack_into("<i", self._map, place * _ROW.size, pid)

    def share(self) -> float:
        """The share of the card that living processes use, at most 1."""
        return min(sum(row.sm for _, row in self.rows() if not row.check or _alive(row.pid)), 1.0)

    def sweep(self) -> bool:
        """Remove declared processes that have gone; True where there were any."""
        gone = [row.pid for _, row in self.rows() if row.check and not _alive(row.pid)]
        for pid in gone:
            self.drop(pid)
        return bool(gone)

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


def _fields(p: GpuProcess) -> tuple[int, int, int, int, int, float, float]:
    return (p.pid, 2 if p.graphics else 1, p.instance, int(p.check), p.memory_bytes, p.sm, p.bandwidth)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
