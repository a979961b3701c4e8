"""The jobs of one node as its hooks report them: which started, which ended, and whose they are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.core.units import parse_duration_s
from everywatt.slurm.lists import cpus_of, expand, indices
from everywatt.slurm.node.spool import Event
from everywatt.slurm.schema import ID_PARTS, Numbered

DEFAULT_PERIOD_S: Final = 2.0
REMEMBERED: Final = 1000
NO_START: Final = "its start was not reported"
SLICES: Final = "it used parts of cards (MIG), for which no idle power is charged by allocation"


@dataclass(slots=True)
class NodeJob(Numbered):
    """One job on this node; `end_s` is None while it runs."""

    job_id: int
    restart: int
    start_s: float
    end_s: float | None = None
    node: str = ""
    cluster: str = ""
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    name: str = ""
    nodes: int = 1
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: list[int] = field(default_factory=list)  # as Slurm numbers them
    cards: list[str] = field(default_factory=list)  # as the tape names them, once that is known
    slices: list[str] = field(default_factory=list)  # UUIDs of parts of cards (MIG)
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    sluid: str = ""
    conf: str = ""
    state: str = "RUNNING"
    exit_code: str | None = None
    submit_s: float | None = None
    suspended_s: float = 0.0
    period_s: float = DEFAULT_PERIOD_S
    complete: bool = True
    note: str = ""
    stdout: str = ""  # where its script writes, if that script runs on this node; text that its user chose

    @property
    def key(self) -> str:
        """Which run of which job: a job that was requeued runs again under its number."""
        return f"{self.job_id}/{self.restart}"

    @property
    def devices(self) -> list[str]:
        """The cards that it has, as the tape names them."""
        return self.cards or [f"gpu.{number}" for number in self.gpus]

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        return data if self.stdout else {name: value for name, value in data.items() if name != "stdout"}

    def update(self, facts: Mapping[str, Any]) -> None:
        """Take over facts from scontrol or a task; what they do not say stays."""
        for name, value in facts.items():
            if value not in (None, "", []) and name in self.__slots__:
                setattr(self, name, value)


class NodeJobs:
    """All jobs of a node that are not recorded yet, by job and restart."""

    def __init__(self, jobs: Iterable[NodeJob] = (), recorded: Iterable[str] = ()) -> None:
        self.jobs: dict[str, NodeJob] = {job.key: job for job in jobs}
        self.recorded = dict.fromkeys(recorded)

    def leave(self, job: NodeJob) -> None:
        """The job is recorded; that is remembered for a while."""
        self.jobs.pop(job.key, None)
        self.recorded[job.key] = None
        while len(self.recorded) > REMEMBERED:
            del self.recorded[next(iter(self.recorded))]

    def is_late(self, event: Event) -> bool:
        """Whether an event reports the end of a job that has ended: slurmd calls Epilogs again after a reboot."""
        key = f"{event.job_id}/{event.number('restart') or 0}"
        there = self.jobs.get(key)
        return event.kind == "end" and (key in self.recorded if there is None else there.end_s is not None)

    def ran_before(self, job: NodeJob) -> bool:
        """Whether an earlier run of a job is known here."""
        return any(f"{job.job_id}/{n}" in {*self.jobs, *self.recorded} for n in range(job.restart))

    def end_before_s(self, job: NodeJob) -> float:
        """When the last earlier run of a job ended, as far as it is still known here; else 0."""
        earlier = (one for one in self.jobs.values() if one.job_id == job.job_id and one.restart < job.restart)
        return max((one.end_s or one.start_s for one in earlier), default=0.0)

    def take(self, event: Event, node: str = "") -> NodeJob | None:
        """Bring the jobs up to date with an event; gives the job, None where it is about no job of this node.

        `node` is the name of this node: what another node's hook said is not taken.
        """
        if event.kind != "task" and node and event.text("node") not in ("", node):
            return None
        if event.kind == "start":
            return self._start(event)
        job = self.running(event.job_id, event.number("restart"))
        if event.kind == "end":
            return self._end(event, job)
        if job is None or (job.uid is not None and event.uid not in (job.uid, 0)):
            return None  # a user writes about the job of another one
        job.update({"name": event.text("name"), **_numbers(event)})
        return job

    def running(self, job_id: int, restart: int | None = None) -> NodeJob | None:
        """The run of a job that has not ended; of several the latest."""
        found = [job for job in self.jobs.values() if job.job_id == job_id and job.end_s is None]
        exact = [job for job in found if job.restart == restart]
        return max(exact or found, key=lambda job: job.restart, default=None)

    def close_all(self, at_s: float, why: str, before_s: float = math.inf) -> None:
        """The node went down: jobs that ran, and began before an instant, have ended, and how was not observed."""
        for job in self.jobs.values():
            if job.end_s is None and job.start_s < before_s:
                job.end_s, job.complete, job.note, job.state = max(at_s, job.start_s), False, why, "NODE_FAIL"

    def _start(self, event: Event) -> NodeJob:
        job = NodeJob(event.job_id, event.number("restart") or 0, event.at_s)
        there = self.jobs.get(job.key)
        if there is not None and there.end_s is None:
            job = there  # a Prolog that was called twice
        _describe(job, event)
        self.jobs[job.key] = job
        return job

    def _end(self, event: Event, job: NodeJob | None) -> NodeJob:
        if job is None:
            # Its start was not reported: before everywatt was installed. Nothing is known of its beginning.
            job = NodeJob(event.job_id, event.number("restart") or 0, event.at_s, complete=False)
            job.note = NO_START
            _describe(job, event)
            self.jobs[job.key] = job
        job.nodes = max(job.nodes, event.number("nodes") or 1, len(expand(event.text("nodelist"))))
        job.end_s = max(event.at_s, job.start_s)
        job.exit_code = event.text("exit_code") or None
        job.state = _state(job.exit_code)
        return job


def _describe(job: NodeJob, event: Event) -> None:
    job.update(
        {name: event.text(name) for name in ("node", "cluster", "user", "account", "partition", "sluid", "conf")}
    )
    cpus = cpus_of(event.text("cpus"), event.text("nodelist"), event.text("node"))
    job.update({"uid": event.number("uid"), "cpus": cpus})
    # Slurm does not give every hook the number of nodes, and the other records of the job have it, too.
    job.nodes = max(job.nodes, event.number("nodes") or 1, len(expand(event.text("nodelist"))))
    # Of Intel's tiles (0.1) the card counts: its tiles have no energy of their own.
    visible = re.sub(r"\.\d+", "", event.text("visible"))
    gpus = indices(event.text("gpus")) or (indices(visible) if re.fullmatch(r"\d+(,\d+)*", visible) else [])
    job.update({"gpus": list(dict.fromkeys(gpus)), **_numbers(event)})
    job.update({"slices": [name for name in event.text("visible").split(",") if name.startswith("MIG-")]})
    if job.slices:
        job.gpus, job.note = [], job.note or SLICES
    try:
        job.period_s = parse_duration_s(event.text("period") or f"{DEFAULT_PERIOD_S}s")
    except UsageError:
        job.period_s = DEFAULT_PERIOD_S


def _numbers(event: Event) -> dict[str, int | None]:
    return {name: event.number(name) for name in ID_PARTS}


def _state(exit_code: str | None) -> str:
    """What an exit code `N:SIGNAL` says; sacct knows better, and is asked later."""
    if exit_code is None:
        return "COMPLETED"
    return "COMPLETED" if exit_code in ("0:0", "0") else "FAILED"
