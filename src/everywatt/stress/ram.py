"""Memory: so many bytes held and really there, touched page by page, and given back when less is asked."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.stress.pacing import Stretch

BLOCK_BYTES = 8 * 2**20
TOUCH_EVERY_NS = 1_000_000_000


class RamWork:
    """Holds memory; a level is bytes."""

    about = ""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._blocks: list[mmap.mmap] = []
        # Not zeros: pages of zeros may be merged or squeezed away.
        self._pattern = memoryview(os.urandom(2**20) * (BLOCK_BYTES // 2**20))
        self._own_bytes = resident_bytes()

    def begin(self, stretch: Stretch) -> None:
        """What is held already counts."""

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        """Hold the bytes until the end of the stretch."""
        self._resize(int(stretch.level), wait)
        now_ns = stretch.start_ns
        while now_ns < stretch.end_ns:
            now_ns = min(now_ns + TOUCH_EVERY_NS, stretch.end_ns)
            wait(now_ns)
            for block in self._blocks:
                block[0] = now_ns & 0xFF  # in use, should anybody think of swapping it out

    def report(self) -> dict[str, Any]:
        """How many bytes are resident."""
        return {"memory_bytes": max(0, resident_bytes() - self._own_bytes)}

    def close(self) -> None:
        """Give everything back."""
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


def resident_bytes(path: Path = Path("/proc/self/statm")) -> int:
    """Bytes of this process that are in memory."""
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
