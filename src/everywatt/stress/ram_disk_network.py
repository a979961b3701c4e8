"""Memory, disk and network load: bytes held and really there, and bytes moved at a rate in blocks that suit it."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everywatt.core.platforms import rss_bytes
from everywatt.stress.pacing import Role, StepReport, Stretch

BLOCK_BYTES = 8 * 2**20
TOUCH_EVERY_NS = 1_000_000_000


class RamWork(Role):
    """Holds memory; a level is bytes."""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._blocks: list[mmap.mmap] = []
        # Not zeros: pages of zeros may be merged or squeezed away.
        self._pattern = memoryview(os.urandom(2**20) * (BLOCK_BYTES // 2**20))
        self._own_bytes = rss_bytes() or 0

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        self._resize(int(stretch.level), wait)
        now_ns = stretch.start_ns
        while now_ns < stretch.end_ns:
            now_ns = min(now_ns + TOUCH_EVERY_NS, stretch.end_ns)
            wait(now_ns)
            for block in self._blocks:
                block[0] = now_ns & 0xFF  # in use, so that it is not swapped out

    def report(self) -> StepReport:
        return StepReport(memory_bytes=max(0, (rss_bytes() or 0) - self._own_bytes))

    def close(self) -> None:
        for block in self._blocks:
            block.close()
        self._blocks.clear()

    def _resize(self, size: int, wait: Callable[[int], None]) -> None:
        held = sum(len(block) for block in self._blocks)
        while self._blocks and held > size:
            block = self._blocks.pop()
            held -= len(block)
            block.close()
        while held < size:
            length = min(BLOCK_BYTES, size - held)
            block = mmap.mmap(-1, length)
            block.write(self._pattern[:length])
            self._blocks.append(block)
            held += length
            wait(0)  # only to see whether the parent is still there


FILE_BYTES = 64 * 2**20
SYNC_EVERY = 4


class Transfer(Role):
    """Moves bytes; a level is bytes per second. A subclass moves one block in `move`, and has its own sizes."""

    least_bytes = 4096
    most_bytes = 256 * 1024

    def __init__(self) -> None:
        self._size = self.most_bytes
        self._moved = 0
        self._before = 0

    def move(self, size: int) -> int:
        """Move at most `size` bytes; gives how many it were."""
        raise NotImplementedError

    def done(self) -> float:
        return self._moved

    def work(self) -> None:
        self._moved += self.move(self._size)

    def begin(self, stretch: Stretch) -> None:
        """Count from here. A block more or less must not matter in a second."""
        self._before = self._moved
        self._size = block_bytes(stretch.level, self.least_bytes, self.most_bytes)

    def report(self) -> StepReport:
        return StepReport(done=self._moved - self._before)


def block_bytes(bytes_per_s: float, least: int, most: int) -> int:
    """The size of a block: a two-hundredth of what a second has, within bounds."""
    return int(min(most, max(least, bytes_per_s / 200)))


class DiskWork(Transfer):
    """Writes round and round in one file, which never has more than FILE_BYTES."""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._file = unnamed_file(options["folder"])
        self._block = memoryview(os.urandom(self.most_bytes))
        self._blocks = 0

    def move(self, size: int) -> int:
        written = os.pwrite(self._file, self._block[:size], (self._blocks * self.most_bytes) % FILE_BYTES)
        self._blocks += 1
        if self._blocks % SYNC_EVERY == 0:
            os.fdatasync(self._file)
        return written

    def close(self) -> None:
        os.close(self._file)


def unnamed_file(folder: str) -> int:
    """A descriptor of a file that no folder lists, and that is gone with this process."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # a filesystem or a kernel that cannot
        file, path = tempfile.mkstemp(prefix=".everywatt-stress-", dir=folder)
        os.unlink(path)  # noqa: PTH108 - pathlib is not needed here
        return file


class NetworkWork(Transfer):
    """A connection to itself."""

    least_bytes = 1024
    most_bytes = 64 * 1024

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname())
            self._receiver, _ = server.accept()
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * self.most_bytes)
        self._block = memoryview(bytes(self.most_bytes))
        self._into = bytearray(self.most_bytes)

    def move(self, size: int) -> int:
        sent = left = self._sender.send(self._block[:size])
        while left > 0:
            left -= self._receiver.recv_into(self._into, left)
        return sent

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
