"""Disk: bytes per second that are written and synced to a file without a name, so that nothing is ever left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from everywatt.stress.transfer import Transfer

FILE_BYTES = 64 * 2**20
SYNC_EVERY = 4


class DiskWork(Transfer):
    """Writes round and round in one file, which never has more than FILE_BYTES."""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._file = unnamed_file(options["folder"])
        self._block = memoryview(os.urandom(self.most_bytes))
        self._blocks = 0

    def move(self, size: int) -> int:
        """Write a block; every fourth time wait until they are on the disk."""
        written = os.pwrite(self._file, self._block[:size], (self._blocks * self.most_bytes) % FILE_BYTES)
        self._blocks += 1
        if self._blocks % SYNC_EVERY == 0:
            os.fdatasync(self._file)
        return written

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
