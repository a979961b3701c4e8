"""One core's worth of CPU work: a duty cycle on this process's own CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.stress import kinds
from everywatt.stress.pacing import Stretch, pace


class CpuWork:
    """Work of the plan's kinds; a level of 1 is a whole core."""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._kinds = {kind: kinds.prepare(kind) for _, _, level, kind in steps if level > 0}
        self._offset = float(options.get("offset", 0.0))
        self._kind = next(iter(self._kinds.values()), None)
        self._rounds = 0

    def done(self) -> float:
        """CPU seconds of this process."""
        return time.process_time_ns() / 1e9

    def work(self) -> None:
        """About 0.2 ms of work."""
        assert self._kind is not None
        work, rounds = self._kind.work, self._kind.rounds
        for _ in range(rounds):
            work()
        self._rounds += rounds

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> dict[str, Any]:
        """Work until the end of the stretch; gives how long it had to wait for a core, and what was worked."""
        self._kind, self._rounds = self._kinds.get(stretch.kind), 0
        waited = waited_s()
        pace(self, stretch, wait, offset=self._offset)
        after = waited_s()
        kind = self._kind
        return {
            "waited_s": None if waited is None or after is None else after - waited,
            "operations": 0 if kind is None else self._rounds * kind.operations,
            "bytes": 0 if kind is None else self._rounds * kind.bytes,
        }


def waited_s(path: Path = Path("/proc/self/schedstat")) -> float | None:
    """Seconds that this process was ready to run and no core was free; None where the kernel does not say."""
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
