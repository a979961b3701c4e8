"""Slurm's jobs for the agent: whose a process is by its cgroup or by the slurmstepd above it, and what hooks said.

The agent asks between two reads, so this is light: files of the spool and of /proc, read when they changed. It takes
nothing out of the spool, which is for `slurm node`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from everywatt.core.cgroup_names import Job, PlaceKind, places
from everywatt.core.clocks import NS
from everywatt.core.config import resolve
from everywatt.core.machine import Machine
from everywatt.core.platforms import user_name
from everywatt.sensors.procfs import parse_process_stat
from everywatt.slurm.node.hooks import DEFAULT_SPOOL
from everywatt.slurm.node.node_jobs import NodeJob, NodeJobs
from everywatt.slurm.node.spool import AGENT, STATE, holder, leave, read_events, take_place

PLACE_NS: Final = 10 * NS
MOST_STEPS: Final = 50_000
_TITLE = re.compile(rb"slurmstepd: \[(\d+)(?:\+\d+)?\.\w+\]")


class SlurmJobs:
    """A provider of jobs (`fleet.jobs.JobProvider`). While it lives, hooks know that this node is recorded."""

    by_process: Final = True  # jobs without cgroups are distinguished by their processes

    def __init__(self, spool: Path | None = None, proc: Path | None = None) -> None:
        self._spool = spool or resolve().slurm_spool or DEFAULT_SPOOL
        self._proc = proc or Machine.here().proc
        self._seen: tuple[int, ...] = ()
        self._jobs: dict[str, Job] = {}
        self._steps: dict[int, tuple[str, int | None]] = {}
        self._placed_ns: int | None = None
        self.refresh(0)

    def job_of(self, cgroup: str | None, pid: int, uid: int | None) -> Job | None:
        """By the path of the cgroup, else by the parents of the process."""
        found = places(cgroup).get(PlaceKind.JOB) if cgroup else None
        if found is not None:
            number = found.details.get("job_id", found.details.get("sluid"))
            uid = found.details.get("uid", uid)
        else:
            number = self._above(pid)
        if number is None:
            return None
        return self._jobs.get(str(number)) or Job(str(number), user=user_name(uid))

    def refresh(self, now_ns: int) -> bool:
        """Read what hooks and `slurm node` wrote since. True where something is known now that was not before."""
        if self._placed_ns is None or now_ns - self._placed_ns >= PLACE_NS:
            self._placed_ns = now_ns
            self._take_place()
        seen = tuple(_changed_ns(self._spool / name) for name in ("events", STATE))
        if seen == self._seen:
            return False
        self._seen = seen
        before, self._jobs = self._jobs, {**self._kept(), **self._spooled()}
        return before != self._jobs

    def close(self) -> None:
        """The agent ends: from now on hooks start a recorder of their own."""
        leave(self._spool, AGENT)

    def _take_place(self) -> None:
        try:
            if self._spool.is_dir() and holder(self._spool, AGENT) != os.getpid():
                take_place(self._spool, AGENT)
        except OSError:
            pass  # a spool that cannot be written: hooks then do not know of us, and `slurm node` records

    def _spooled(self) -> dict[str, Job]:
        """Jobs with events in the spool."""
        jobs = NodeJobs(self._state())
        for event in read_events(self._spool):
            jobs.take(event)
        return _by_number(jobs)

    def _kept(self) -> dict[str, Job]:
        """Jobs that are known already, as long as there are few: processes of ended jobs may be reported late."""
        return self._jobs if len(self._jobs) < 10_000 else {}

    def _state(self) -> list[NodeJob]:
        """Jobs that `slurm node` has taken out of the spool."""
        try:
            data: dict[str, Any] = json.loads((self._spool / STATE).read_text(encoding="utf-8"))
            return [NodeJob(**job) for job in data["jobs"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _above(self, pid: int) -> str | None:
        """The job whose slurmstepd a process is below; a process that has ended is remembered."""
        chain: list[int] = []
        found: str | None = None
        at = pid
        while at > 1 and at not in chain:
            chain.append(at)
            start, parent, title = _process(self._proc / str(at))
            known = self._steps.get(at)
            if known is not None and start in (known[1], None):
                found = known[0]
                break
            if title is not None:
                found = title
                break
            at = parent
        if len(self._steps) > MOST_STEPS:
            self._steps.clear()
        if found is not None:
            for one in chain:
                self._steps[one] = (found, _process(self._proc / str(one))[0])
        return found


def _process(folder: Path) -> tuple[int | None, int, str | None]:
    """Start and parent of a process, and the job where it is root's slurmstepd; (None, 0, None) where it is gone."""
    try:
        facts = parse_process_stat((folder / "stat").read_bytes())
        if facts.name != "slurmstepd" or folder.stat().st_uid != 0:
            return facts.start, facts.ppid, None
        match = _TITLE.match((folder / "cmdline").read_bytes())
        return facts.start, facts.ppid, match[1].decode() if match else None
    except (OSError, ValueError):
        return None, 0, None


def _by_number(jobs: NodeJobs) -> dict[str, Job]:
    found = {}
    for job in jobs.jobs.values():
        known = Job(str(job.job_id), job.user or user_name(job.uid), job.account, job.partition)
        found[str(job.job_id)] = known
        if job.sluid:
            found[job.sluid] = known
    return found


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
