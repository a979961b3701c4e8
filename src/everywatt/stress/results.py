"""What became of one step: what was asked, what was reached, when, and why not where it was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everywatt.stress.program import Step

SHORT_POINTS = 3.0
"""A share missed by more than this many points gets a note; so does an amount missed by this many percent."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step that was played.

    start_ns, end_ns  CLOCK_MONOTONIC
    reached           by the same names as `asked`; `cpu_percent` is the workers' own CPU time over wall time. Also
                      `cpu_s` (all workers), and for CPU work `operations` and `bytes` that its kind counts, `waited_s`
                      (workers were ready and no core was free) and `stolen_s` (the hypervisor ran another guest)
    notes             why less was reached than asked
    complete          False: the program was stopped inside this step
    """

    index: int
    step: Step
    start_ns: int
    end_ns: int
    reached: Mapping[str, float]
    notes: tuple[str, ...] = ()
    complete: bool = True

    @property
    def asked(self) -> dict[str, float | int | str]:
        """What the step asked for, by name."""
        return self.step.asked

    @property
    def duration_s(self) -> float:
        """Seconds that it really took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def cpu_missed_points(self) -> float | None:
        """How many points of CPU load less than asked were reached, below zero where more; None if none was
        reported."""
        if self.step.cpu is None or "cpu_percent" not in self.reached:
            return None
        return self.step.cpu.percent - self.reached["cpu_percent"]

    @property
    def cpu_withheld_points(self) -> float:
        """How many points of CPU load the machine did not give while workers asked for it."""
        if self.step.cpu is None or self.duration_s <= 0:
            return 0.0
        seconds = self.reached.get("waited_s", 0.0) + self.reached.get("stolen_s", 0.0)
        return min(100.0, 100 * seconds / (self.duration_s * self.step.cpu.cores))

    def off_points(self, allowed: float = SHORT_POINTS) -> float | None:
        """How far the duty cycle is from what was asked.

        None if that cannot be determined: no CPU load, or it fell short by more than `allowed` points and the machine
        withheld at least as many.
        """
        missed = self.cpu_missed_points
        if missed is None or (missed > allowed and self.cpu_withheld_points >= missed - allowed):
            return None
        return abs(missed)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "index": self.index,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "duration_s": self.duration_s,
            "asked": self.asked,
            "reached": dict(self.reached),
            "notes": list(self.notes),
            "complete": self.complete,
        }
