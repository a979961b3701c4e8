"""Whose a process is, as the agent's series name it: by its cgroup, and by providers of jobs that the agent asks.

A provider is any object with the three methods of `JobProvider`. Providers register by the entry point group
`everywatt.job_providers`, ours too, or are named as `module:Class`. A class is made without arguments. Answers are
kept, so a provider is asked once for each cgroup (and user), and again after `refresh` said that something changed.
One that sets `by_process` is asked for each process that is in no job's cgroup, and where it knows nothing of a
process for its parent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from everywatt.core.cgroup_names import Job as Job
from everywatt.core.cgroup_names import PlaceKind
from everywatt.core.errors import UsageError
from everywatt.core.platforms import user_name as user_name
from everywatt.core.plugins import JOB_PROVIDERS, load, registered
from everywatt.ledger.counters import OwnerKey
from everywatt.ledger.use.facts import ProcessFacts, container_label, places_of
from everywatt.sensors.base import TableRow


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
        found = places_of(cgroup).get(PlaceKind.JOB)
        if found is None:
            return None
        details = found.details
        return Job(str(details.get("job_id", details.get("sluid"))), user=user_name(details.get("uid", uid)))

    def refresh(self, now_ns: int) -> bool:
        """Nothing to refresh: a path never changes its meaning."""
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


class _Placed(NamedTuple):
    """Whose processes at one place are, None where they are their user's; and the job that they are in."""

    owner: OwnerKey | None
    job: Job | None


_Where = tuple[str | None, int | None, int, int | None]  # cgroup and user; pid and start where a provider asks for them


class Places:
    """Whose a process is: its job, else its container or unit, else its user (or its program).

    `names` is what files on the host report about cgroups (`CgroupTable.names`).
    """

    def __init__(self, providers: Sequence[JobProvider], *, by_program: bool = False) -> None:
        self._providers = providers
        self.by_program = by_program
        self.names: Mapping[str, Mapping[str, Any]] = {}
        self._by_process = any(getattr(provider, "by_process", False) for provider in providers)
        self._placed: dict[_Where, _Placed] = {}
        self._users: dict[int, OwnerKey] = {}
        self.jobs: dict[str, Job] = {}

    def feed_cgroups(self, rows: Iterable[TableRow]) -> None:
        """Ask again of groups that have got a name (which is in `names` by now) or are gone."""
        changed = {str(row.get("cgroup")) for row in rows if row.get("name") or row.get("gone")}
        for where in [where for where in self._placed if where[0] in changed] if changed else ():
            del self._placed[where]

    def refresh(self, now_ns: int) -> None:
        """Let providers look around."""
        if any([provider.refresh(now_ns) for provider in self._providers]):  # noqa: C419 - each of them is to be asked
            self._placed.clear()

    def tidy(self, living: Collection[ProcessFacts]) -> None:
        """Forget places and users that no process is at any more."""
        places, users = {self._where(process) for process in living}, {process.uid for process in living}
        self._placed = {where: placed for where, placed in self._placed.items() if where in places}
        self._users = {uid: owner for uid, owner in self._users.items() if uid in users}

    def _where(self, process: ProcessFacts) -> _Where:
        apart = self._by_process and PlaceKind.JOB not in places_of(process.cgroup)
        return (process.cgroup, process.uid, process.pid if apart else 0, process.start if apart else None)

    def owner(self, process: ProcessFacts) -> OwnerKey:
        """The one owner of a process that is not the meter."""
        where = self._where(process)
        placed = self._placed.get(where)
        if placed is None:
            job = self._job(process, bool(where[2]))
            owner = self._group(process.cgroup) if job is None else OwnerKey("job", job.id)
            placed = self._placed[where] = _Placed(owner, job)
        if placed.job is not None:
            self.jobs[placed.job.id] = placed.job
        if placed.owner is not None:
            return placed.owner
        return OwnerKey("process", process.program) if self.by_program else self._user(process)

    def _user(self, process: ProcessFacts) -> OwnerKey:
        """The user by name; processes that came and went are reported with a number only."""
        if process.uid is None:
            return OwnerKey("user", str(process.user or "unknown"))
        known = self._users.get(process.uid)
        if known is None or (process.user and process.user != known.id):
            known = self._users[process.uid] = OwnerKey("user", process.user or user_name(process.uid))
        return known

    def _job(self, process: ProcessFacts, apart: bool) -> Job | None:
        # A process that lived only between two reads cannot be found; its parent can.
        pids = (process.pid, process.ppid or 0) if apart else (process.pid,)
        found = (one for pid in pids for p in self._providers if (one := p.job_of(process.cgroup, pid, process.uid)))
        job, known_id = next(found, None), self.names.get(process.cgroup or "", {}).get("job_id")
        return job if job is None or known_id is None else Job(str(known_id), job.user, job.account, job.partition)

    def _group(self, cgroup: str | None) -> OwnerKey | None:
        within = places_of(cgroup)
        found, unit = within.get(PlaceKind.CONTAINER), within.get(PlaceKind.UNIT)
        if found is not None:
            return OwnerKey("container", container_label(found, self.names.get(cgroup or "", {})))
        return None if unit is None else OwnerKey("container", unit.id.removeprefix("unit:"))
