"""Whose a process is beyond what its cgroup says: providers of jobs that the agent asks.

A provider is any object with the three methods of `JobProvider`. `PROVIDERS` names those that come with everywatt;
others are named as `module:Class`. A class is made without arguments. Answers are kept, so a provider is asked once
for each cgroup (and user), and again after `refresh` said that something changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from everywatt.core.cgroup_names import PlaceKind, places
from everywatt.core.errors import UsageError

PROVIDERS: dict[str, str] = {"cgroup": "everywatt.fleet.jobs:CgroupJobs"}
"""Providers by name, as `module:Class`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a scheduler. `id` is its owner's label; the rest is in `everywatt_job_info`, "" where unknown."""

    id: str
    user: str = ""
    account: str = ""
    partition: str = ""


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


def user_name(uid: object) -> str:
    """The name of a user's number, else the number; "" where there is none."""
    import pwd

    if not isinstance(uid, int):
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def make(names: Iterable[str]) -> list[JobProvider]:
    """The providers of these names, or `module:Class`. UsageError where one cannot be made."""
    made: list[JobProvider] = []
    for name in names:
        target = PROVIDERS.get(name, name)
        module, colon, attribute = target.partition(":")
        if not colon:
            raise UsageError(f"There is no provider of jobs '{name}'.", cure=f"one of: {', '.join(PROVIDERS)}")
        try:
            made.append(getattr(importlib.import_module(module), attribute)())
        except (ImportError, AttributeError, TypeError) as error:
            raise UsageError(f"The provider of jobs '{name}' cannot be used: {error}.") from None
    return made
