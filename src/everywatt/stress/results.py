"""What became of one step: what was asked, what its workers reached, when, and why it was less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everywatt.core.format import format_bytes
from everywatt.core.jsonio import ToDict
from everywatt.stress.crew import Worker
from everywatt.stress.pacing import StepReport
from everywatt.stress.program import Step

SHORT_POINTS = 3.0
"""A share missed by more than this many points gets a note; so does an amount missed by this many percent."""
LEAST_OVER_S = 0.005
"""CPU time per core: a smaller excess comes from reporting, not from the work itself."""

Reports = Mapping[str, Sequence[StepReport]]


@dataclass(frozen=True, slots=True)
class StepResult(ToDict):
    """One step that was played.

    start_ns, end_ns  CLOCK_MONOTONIC
    reached           by the same names as `asked`; `cpu_percent` is the workers' own CPU time over wall time. Also
                      `cpu_s` (all workers), and for CPU work `operations` and `bytes` that its kind counts, `waited_s`
                      (workers were ready and no core was free) and `stolen_s` (the hypervisor ran another guest)
    notes             why less was reached than asked
    complete          False: the program was stopped inside this step
    """

    JSON = "index start_ns end_ns duration_s asked reached notes complete"

    index: int
    step: Step
    start_ns: int
    end_ns: int
    reached: Mapping[str, float]
    notes: tuple[str, ...] = ()
    complete: bool = True

    @property
    def asked(self) -> dict[str, float | int | str]:
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


def weighed(
    step: Step, index: int, workers: Sequence[Worker], seconds: float, stolen_s: float | None = None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What was reached in the `seconds` of this step, by the names of `Step.asked`, and why it was less.

    `stolen_s` is how long the hypervisor ran another guest meanwhile, over all CPUs.
    """
    by_role: dict[str, list[StepReport]] = {}
    for worker in workers:
        if index in worker.reports:
            by_role.setdefault(worker.plan.role, []).append(worker.reports[index])
    notes: list[str] = []
    silent = sum(index not in worker.reports for worker in workers)
    if silent:
        notes.append(f"{silent} of {len(workers)} workers did not report in time")
    reached = {"cpu_s": sum(report.cpu_s or 0.0 for reports in by_role.values() for report in reports)}
    if seconds > 0:
        _cpu(step, seconds, by_role, reached, notes, stolen_s)
        _amounts(step, seconds, by_role, reached, notes)
        _gpu(step, seconds, by_role, reached, notes)
    return reached, tuple(notes)


def _cpu(
    step: Step,
    seconds: float,
    by_role: Reports,
    reached: dict[str, float],
    notes: list[str],
    stolen_s: float | None,
) -> None:
    reports = by_role.get("cpu") or by_role.get("stress-ng")
    if step.cpu is None or not reports:
        return
    percent = 100 * sum(report.cpu_s or 0.0 for report in reports) / (seconds * step.cpu.cores)
    reached["cpu_percent"] = percent
    for name in ("operations", "bytes", "instructions"):
        found = [value for report in reports if (value := getattr(report, name)) is not None]
        if found:
            reached[name] = sum(found)
    waits = [report.waited_s for report in reports if report.waited_s is not None]
    if waits:
        reached["waited_s"] = sum(waits)
    if stolen_s:
        reached["stolen_s"] = stolen_s
    missed = step.cpu.percent - percent
    lacking_s = missed / 100 * seconds * step.cpu.cores
    if missed > SHORT_POINTS or (missed < -SHORT_POINTS and -lacking_s > LEAST_OVER_S * step.cpu.cores):
        why = _why(lacking_s, sum(waits) if waits else None, stolen_s or 0.0, seconds * step.cpu.cores)
        notes.append(f"reached {percent:.0f} of {step.cpu.percent:.0f}: {why}")


def _why(lacking_s: float, waited_s: float | None, stolen_s: float, whole_s: float) -> str:
    """Why workers had less CPU time than they were to have: the machine gave none, or they did not ask for it."""
    if lacking_s < 0:
        return f"the duty cycle was off by {-100 * lacking_s / whole_s:.0f} points"
    if waited_s is None:
        return "whether the machine was busy is unknown"
    allowed_s = SHORT_POINTS / 100 * whole_s
    if waited_s + stolen_s >= lacking_s - allowed_s:
        reason = f"the machine was busy: workers waited {waited_s:.2f} s for a core"
        return f"{reason}; the hypervisor took {stolen_s:.2f} s" if stolen_s > allowed_s / 2 else reason
    return (
        f"{lacking_s:.2f} s of CPU time are missing and workers waited {waited_s:.2f} s for a core: limited by a "
        "cgroup quota, or by the duty cycle"
    )


def _amounts(step: Step, seconds: float, by_role: Reports, reached: dict[str, float], notes: list[str]) -> None:
    for role, key, asked, unit in (
        ("disk", "disk_bytes_per_s", step.disk_bytes_per_s, "/s"),
        ("network", "network_bytes_per_s", step.network_bytes_per_s, "/s"),
        ("ram", "memory_bytes", step.memory_bytes, ""),
    ):
        reports = by_role.get(role)
        if not asked or not reports:
            continue
        amount = (reports[0].memory_bytes or 0.0) if role == "ram" else (reports[0].done or 0.0) / seconds
        reached[key] = amount
        if amount < asked * (1 - SHORT_POINTS / 100):
            notes.append(f"{role}: reached {format_bytes(amount)}{unit} of {format_bytes(asked)}{unit}")


def _gpu(step: Step, seconds: float, by_role: Reports, reached: dict[str, float], notes: list[str]) -> None:
    reports = by_role.get("gpu") or by_role.get("gpu-sim")
    if step.gpu is None or not reports:
        return
    percent = 100 * sum(report.done or 0.0 for report in reports) / (seconds * len(step.gpu.devices))
    reached["gpu_percent"] = percent
    operations = [report.operations for report in reports if report.operations is not None]
    if operations:
        reached["gpu_operations"] = sum(operations)
    if percent < step.gpu.percent - SHORT_POINTS:
        notes.append(f"gpu: reached {percent:.0f} of {step.gpu.percent:.0f}")
