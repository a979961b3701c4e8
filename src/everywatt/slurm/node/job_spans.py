"""Jobs as spans of the tape that `slurm node` records by itself, so that show and report tell them."""

from __future__ import annotations

from typing import Any, Final

from everywatt.api.meter import Meter, SpanHandle
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.slurm.node.node_jobs import NodeJob

FACTS: Final = (
    "job_id", "restart", "user", "account", "partition", "job_name", "array_job_id", "array_task_id", "het_job_id",
    "het_offset", "cpus", "memory_bytes", "gpus", "nodes", "state", "exit_code",
)  # fmt: skip


class JobSpans:
    """Opens a span for each job that starts and closes it with what is known of the job at its end."""

    def __init__(self, meter: Meter, clock: Clock | None = None) -> None:
        self._meter = meter
        self._clock: Clock = clock or SystemClock()
        self._since_ns = self._clock.monotonic_ns()
        self._open: dict[str, SpanHandle] = {}

    def started(self, job: NodeJob) -> None:
        """Open the job's span where it is not open, from its start on or from when this recording began."""
        if job.key not in self._open:
            at_ns = max(self._monotonic_ns(job.start_s), self._since_ns)
            self._open[job.key] = self._meter.open_span(shown(job), at_ns=at_ns, **about(job))

    def ended(self, job: NodeJob) -> None:
        """Close it where the job ended."""
        self.started(job)
        span = self._open.pop(job.key)
        if self._meter.recording is not None and span.id is not None:
            at_ns = max(self._monotonic_ns(job.end_s or job.start_s), self._since_ns)
            self._meter.recording.span_close(span.id, attributes=about(job), at_ns=at_ns)

    def _monotonic_ns(self, at_s: float) -> int:
        return self._clock.monotonic_ns() - (self._clock.utc_ns() - round(at_s * NS))


def shown(job: NodeJob) -> str:
    """The id as Slurm's own tools print it: 123, 123_4, 123+0."""
    if job.array_job_id is not None and job.array_task_id is not None:
        return f"{job.array_job_id}_{job.array_task_id}"
    if job.het_job_id is not None and job.het_offset is not None:
        return f"{job.het_job_id}+{job.het_offset}"
    return str(job.job_id)


def about(job: NodeJob) -> dict[str, Any]:
    """What is known of a job, as attributes of a span; what is not known is left out."""
    facts = {key: getattr(job, key.removeprefix("job_") if key == "job_name" else key) for key in FACTS}
    return {"role": "job"} | {key: value for key, value in facts.items() if value not in (None, "", [])}
