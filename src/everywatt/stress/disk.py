"""Disk: bytes per second that are written and synced to a file without a name, so that nothing is ever left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everywatt.stress.pacing import Stretch, block_bytes, pace

BLOCK_BYTES = 256 * 1024
SMALLEST_BYTES = 4096
FILE_BYTES = 64 * 2**20
SYNC_EVERY = 4


class DiskWork:
    """Writes round and round in one file; a level is bytes per second. Its size is bounded by FILE_BYTES."""

    about = ""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._file = unnamed_file(options["folder"])
        self._block = memoryview(os.urandom(BLOCK_BYTES))
        self._size = BLOCK_BYTES
        self._written = 0
        self._blocks = 0
        self._before = 0

    def done(self) -> float:
        """Bytes written so far."""
        return self._written

    def work(self) -> None:
        """Write a block; every fourth time wait until they are on the disk."""
        place = (self._blocks * BLOCK_BYTES) % FILE_BYTES
        self._written += os.pwrite(self._file, self._block[: self._size], place)
        self._blocks += 1
        if self._blocks % SYNC_EVERY == 0:
            os.fdatasync(self._file)

    def begin(self, stretch: Stretch) -> None:
        """Count from here, in blocks that suit the rate."""
        self._before = self._written
        self._size = block_bytes(stretch.level, SMALLEST_BYTES, BLOCK_BYTES)

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        """Write until the end of the stretch."""
        pace(self, stretch, wait)

    def report(self) -> dict[str, Any]:
        """Bytes written in this stretch."""
        return {"done": self._written - self._before}

    def close(self) -> None:
        """Let go of the file, which is its end."""
        os.close(self._file)


def unnamed_file(folder: str) -> int:
    """A descriptor of a file that no folder lists, and that is gone with this process."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # a filesystem or a kernel that cannot
        file, path = tempfile.mkstemp(prefix=".everywatt-stress-", dir=folder)
        os.unlink(path)  # noqa: PTH108 - pathlib is not needed here
        return file
