"""What disk and network load share: bytes moved at a rate, in blocks that suit it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from everywatt.stress.pacing import Stretch, pace


class Transfer(ABC):
    """Moves bytes; a level is bytes per second. A subclass moves one block in `move`, and has its own sizes."""

    about = ""
    least_bytes = 4096
    most_bytes = 256 * 1024

    def __init__(self) -> None:
        self._size = self.most_bytes
        self._moved = 0
        self._before = 0

    @abstractmethod
    def move(self, size: int) -> int:
        """Move at most `size` bytes; gives how many it were."""

    def done(self) -> float:
        """Bytes moved so far."""
        return self._moved

    def work(self) -> None:
        """One block."""
        self._moved += self.move(self._size)

    def begin(self, stretch: Stretch) -> None:
        """Count from here. A block more or less must not matter in a second."""
        self._before = self._moved
        self._size = block_bytes(stretch.level, self.least_bytes, self.most_bytes)

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        """Move bytes until the end of the stretch."""
        pace(self, stretch, wait)

    def report(self) -> dict[str, Any]:
        """Bytes moved in this stretch."""
        return {"done": self._moved - self._before}


def block_bytes(bytes_per_s: float, least: int, most: int) -> int:
    """The size of a block: a two-hundredth of what a second has, within bounds."""
    return int(min(most, max(least, bytes_per_s / 200)))
