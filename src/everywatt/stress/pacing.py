"""The duty cycle: work in slices, as much in each as the rate asks for by its end, measured and not assumed.

The goal is cumulative over the step, so that an error in one slice is made up for in the next, and a worker that had to
wait for a core catches up where it can.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SLICE_NS = 20_000_000
LEAST_SLICES = 10


@dataclass(frozen=True, slots=True)
class Stretch:
    """One step for one worker: from start to end (monotonic ns) at a level in its own unit per second."""

    index: int
    start_ns: int
    end_ns: int
    level: float
    kind: str = ""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one worker reached in one step; None where its resource has no such figure.

    done  what its level is about: busy seconds of a device, bytes moved
    """

    cpu_s: float | None = None
    waited_s: float | None = None
    operations: float | None = None
    bytes: float | None = None
    instructions: float | None = None
    done: float | None = None
    memory_bytes: float | None = None


def pace(
    paced: Role,
    stretch: Stretch,
    wait: Callable[[int], None],
    *,
    offset: float = 0.0,
    clock: Callable[[], int] = time.monotonic_ns,
) -> None:
    """Let it work at the stretch's level until its end. `wait` sleeps until an instant, and ends a worker left alone.

    `offset` (0 to 1) shifts the slices, so that several workers are not all busy and idle at the same time.
    """
    if stretch.level <= 0:
        wait(stretch.end_ns)
        return
    length = stretch.end_ns - stretch.start_ns
    slice_ns = min(SLICE_NS, length // LEAST_SLICES)
    base = paced.done()
    boundary = stretch.start_ns + int(offset * slice_ns)
    while boundary < stretch.end_ns:
        boundary = min(boundary + slice_ns, stretch.end_ns)
        goal = stretch.level * (boundary - stretch.start_ns) / 1e9
        while paced.done() - base < goal and clock() < stretch.end_ns:
            paced.work()
            if clock() > boundary:
                break
        wait(boundary)


class Role:
    """One resource: made from the plan's steps and options, then asked to play each stretch and say what it reached.

    Its amount (CPU time, bytes, busy time of a device) grows while it works.

    about   what makes the load, where that is a choice; empty else
    offset  of its slices, 0 to 1
    """

    about = ""
    offset = 0.0

    def done(self) -> float:
        """The amount so far."""
        raise NotImplementedError

    def work(self) -> None:
        """A little of it."""
        raise NotImplementedError

    def begin(self, stretch: Stretch) -> None:
        """Just before a stretch is played: from here on is what the report is about."""

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        pace(self, stretch, wait, offset=self.offset)

    def report(self) -> StepReport:
        """What was reached, also where the stretch was cut short."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""


def waited_s(path: Path = Path("/proc/self/schedstat")) -> float | None:
    """Seconds that this process was ready to run and no core was free; None where the kernel does not say."""
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
