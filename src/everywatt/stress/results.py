"""What became of one step: what was asked, what was reached, when, and why not where it was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everywatt.stress.program import Step


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step that was played.

    start_ns, end_ns  CLOCK_MONOTONIC
    reached           by the same names as `asked`; `cpu_percent` is the workers' own CPU time over wall time. Also
                      `cpu_s` (all workers), and for CPU work `operations` and `bytes` that its kind counts
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
