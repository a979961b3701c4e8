"""Whose a process is beyond what its cgroup says: providers of jobs that the agent asks.

A provider is any object with the three methods of `JobProvider`. Providers register by the entry point group
`everywatt.job_providers`, ours too, or are named as `module:Class`. A class is made without arguments. Answers are
kept, so a provider is asked once for each cgroup (and user), and again after `refresh` said that something changed.
One that sets `by_process` is asked for each process that is in no job's cgroup, and where it knows nothing of a
process for its parent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from everywatt.core.cgroup_names import Job as Job
from everywatt.core.cgroup_names import PlaceKind, places
from everywatt.core.errors import UsageError
from everywatt.core.platforms import user_name as user_name
from everywatt.core.plugins import JOB_PROVIDERS, load, registered


class JobProvider(Protocol):
    """Tells jobs. Must answer quickly and never block: it is asked between two reads."""

    def job_of(self, cgroup: str | None, pid: int, uid: int | None) -> Job | None:
        """The job that a process is in, by the path of its cgroup, its pid and its user; None where it is in none."""
        ...

    def refresh(self, now_ns: int) -> bool:
        """Called once a tick (monotonic ns). True where answers given before may be others now."""
        ...

    def close(self) -> None:
        """The agent ends."""
        ...


class CgroupJobs:
    """Jobs by the path of the cgroup alone: a Slurm job's number, or its SLUID where the path has that."""

    def job_of(self, cgroup: str | None, pid: int, uid: int | None) -> Job | None:
        """From `…/job_123/step_0` or `…/sEKNKTV3WPV500/step_0` below slurmstepd."""
        found = places(cgroup).get(PlaceKind.JOB) if cgroup else None
        if found is None:
            return None
        details = found.details
        return Job(str(details.get("job_id", details.get("sluid"))), user=user_name(details.get("uid", uid)))

    def refresh(self, now_ns: int) -> bool:
        """Paths say the same for ever."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def make(names: Iterable[str]) -> list[JobProvider]:
    """The providers of these names, or `module:Class`. UsageError where one cannot be made."""
    made: list[JobProvider] = []
    for name in names:
        providers = registered(JOB_PROVIDERS)
        target = providers.get(name, name)
        if ":" not in target:
            raise UsageError(f"There is no job provider '{name}'.", cure=f"one of: {', '.join(providers)}")
        try:
            made.append(load(target)())
        except (ImportError, AttributeError, TypeError) as error:
            raise UsageError(f"The job provider '{name}' cannot be used: {error}.") from None
    return made
