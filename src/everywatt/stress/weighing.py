"""What a step's workers reported, weighed against what was asked."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.stress.crew import Worker
from everywatt.stress.program import Step

SHORT_POINTS = 3.0
"""A share that is missed by more than this many points gets a note."""


def weighed(step: Step, index: int, workers: Sequence[Worker]) -> tuple[dict[str, float], tuple[str, ...]]:
    """What was reached in this step, by the names of `Step.asked`, and why it was less."""
    reached: dict[str, float] = {}
    notes: list[str] = []
    heard = [worker.reports[index] for worker in workers if index in worker.reports]
    silent = sum(index not in worker.reports for worker in workers)
    if silent:
        notes.append(f"{silent} of {len(workers)} workers did not report in time")
    reached["cpu_s"] = sum(report["cpu_s"] for report in heard)
    if step.cpu is not None:
        _cpu(step, [w.reports[index] for w in workers if w.plan.role == "cpu" and index in w.reports], reached, notes)
    return reached, tuple(notes)


def _cpu(step: Step, reports: Sequence[dict[str, float]], reached: dict[str, float], notes: list[str]) -> None:
    assert step.cpu is not None
    if not reports:
        return
    spent_s = sum(report["cpu_s"] for report in reports)
    percent = 100 * spent_s / (step.duration_s * step.cpu.cores)
    reached |= {
        "cpu_percent": percent,
        "operations": sum(report["operations"] for report in reports),
        "bytes": sum(report["bytes"] for report in reports),
    }
    waits = [report["waited_s"] for report in reports if report["waited_s"] is not None]
    if waits:
        reached["waited_s"] = sum(waits)
    if percent < step.cpu.percent - SHORT_POINTS:
        why = "the machine was busy"
        if waits:
            why += f", workers waited {sum(waits):.2f} s for a core"
        notes.append(f"reached {percent:.0f} of {step.cpu.percent:.0f}: {why}")
