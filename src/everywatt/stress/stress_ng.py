"""CPU load by stress-ng: restarted for each step with whole seconds, and ended by us, since its own timer may not.

Timeouts below a second never end in versions that are widely installed, so it always gets more time than the step has.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from everywatt.core.errors import UsageError
from everywatt.sensors.child import end_group
from everywatt.sensors.procfs import cpu_clock
from everywatt.stress.pacing import StepReport, Stretch, waited_s
from everywatt.stress.worker import ask_for_the_end

METHODS = {"integer": "int64", "float": "double", "vector": "matrixprod"}
"""Kinds of work covered by its load control, with its names for them."""
LOOK_NS = 100_000_000
LEAVE_S = 0.3


class StressNg:
    """All cores of a step; a level of 1 is whole cores, and `cores` in the options says how many at each step."""

    about = ""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        self._program = shutil.which("stress-ng")
        if self._program is None:
            raise UsageError("stress-ng is not installed.")
        self._cores: Sequence[int] = options["cores"]
        self._process: subprocess.Popen[bytes] | None = None
        self._spent_s = 0.0
        self._waits_s: dict[int, float] = {}

    def begin(self, stretch: Stretch) -> None:
        """Count from here."""
        self._spent_s = 0.0
        self._waits_s = {}

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        """Run it until the end of the stretch."""
        if stretch.level <= 0:
            wait(stretch.end_ns)
            return
        self._start(stretch)
        now_ns = stretch.start_ns
        while now_ns < stretch.end_ns:
            now_ns = min(now_ns + LOOK_NS, stretch.end_ns)
            wait(now_ns)
            self._spent_s = max(self._spent_s, self._cpu_s())
        self.close()

    def report(self) -> StepReport:
        """The CPU time of all its processes, and how long they waited for a core."""
        return StepReport(cpu_s=self._spent_s, waited_s=sum(self._waits_s.values()) if self._waits_s else None)

    def _start(self, stretch: Stretch) -> None:
        assert self._program is not None
        seconds = math.ceil((stretch.end_ns - stretch.start_ns) / 1e9) + 1
        words = ["--cpu", str(self._cores[stretch.index]), "--cpu-load", str(max(1, round(100 * stretch.level)))]
        words += ["--cpu-method", METHODS[stretch.kind], "--timeout", f"{seconds}s", "--quiet"]
        self._process = subprocess.Popen(
            [self._program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=ask_for_the_end,
            process_group=0,
        )

    def _cpu_s(self) -> float:
        """CPU seconds of stress-ng and of every process that it started; keeps how long each has waited."""
        assert self._process is not None
        pids, spent_s = [self._process.pid], 0.0
        for pid in pids:
            with suppress(OSError, ValueError):
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                spent_s += time.clock_gettime_ns(cpu_clock(pid)) / 1e9
                if (waited := waited_s(Path(f"/proc/{pid}/schedstat"))) is not None:
                    self._waits_s[pid] = waited
        return spent_s

    def close(self) -> None:
        """End it, politely and then by a kill of its whole group."""
        process, self._process = self._process, None
        if process is not None:
            end_group(process, LEAVE_S)
