"""One core's worth of CPU work: a duty cycle on this process's own CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everywatt.sensors.cpu.perf import open_event, read_event
from everywatt.stress import kinds
from everywatt.stress.pacing import Stretch, pace, waited_s

_HARDWARE, _INSTRUCTIONS = 0, 1  # numbers of the kernel's perf events


class CpuWork:
    """Work of the plan's kinds; a level of 1 is a whole core."""

    about = ""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._kinds = {kind: kinds.prepare(kind) for _, _, level, kind in steps if level > 0}
        self._offset = float(options.get("offset", 0.0))
        self._kind = next(iter(self._kinds.values()), None)
        self._rounds = 0
        self._waited_s = waited_s()
        self._instructions = Instructions()
        self._counted: int | None = None

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

    def begin(self, stretch: Stretch) -> None:
        """Take up the kind of work of this stretch."""
        self._kind, self._rounds = self._kinds.get(stretch.kind), 0
        self._counted = self._instructions.read()

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        """Work until the end of the stretch."""
        pace(self, stretch, wait, offset=self._offset)

    def report(self) -> dict[str, Any]:
        """How long it had to wait for a core, and what was worked."""
        kind, before, counted = self._kind, self._waited_s, self._instructions.read()
        self._waited_s = now = waited_s()  # from report to report, so that waking up late counts as waiting too
        return {
            "instructions": None if self._counted is None or counted is None else counted - self._counted,
            "waited_s": None if before is None or now is None else now - before,
            "operations": 0 if kind is None else self._rounds * kind.operations,
            "bytes": 0 if kind is None else self._rounds * kind.bytes,
        }

    def close(self) -> None:
        """Let go of the counter."""
        self._instructions.close()


class Instructions:
    """Instructions that this process has done, where its hardware counts and the kernel tells."""

    def __init__(self) -> None:
        try:
            self._event: int | None = open_event(_HARDWARE, _INSTRUCTIONS, -1, pid=0, user_only=True)
        except OSError:
            self._event = None

    def read(self) -> int | None:
        """How many so far; None if not counted."""
        return None if self._event is None else read_event(self._event)

    def close(self) -> None:
        """Let go of the counter."""
        if self._event is not None:
            os.close(self._event)
