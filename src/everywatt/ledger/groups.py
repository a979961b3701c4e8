"""What a ledger can be asked by, and how processes become owners of that kind."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from everywatt.core.cgroup_names import Place, PlaceKind
from everywatt.core.errors import UsageError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.platforms import user_name
from everywatt.ledger.owners import Owner, OwnerKind
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.facts import ProcessFacts, container_label, places_of
from everywatt.tape.reader import Tape

GROUPINGS = ("container", "job", "step", "user")
Step = tuple[int, str]
NO_CONTAINER = Owner(OwnerKind.CONTAINER, "host", "(no container)")
NO_JOB = Owner(OwnerKind.JOB, "host", "(no job)")
NO_USER = Owner(OwnerKind.USER, "unknown", "(user unknown)")


@dataclass(frozen=True, slots=True)
class Names:
    """What the recorder found of cgroups, by their paths.

    `here` says that the tape was recorded on this host, so that users it does not name may be asked of the system.
    """

    cgroups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    here: bool = False

    @classmethod
    def of_tape(cls, tape: Tape) -> Names:
        processes = tape_use(tape).processes
        names = processes.cgroups.names if processes is not None else {}
        return cls(names, tape.host == socket.gethostname())

    def user(self, uid: int, name: str | None = None) -> str:
        """The user's name, else the number: a user of another host or of a container's own namespace has no name."""
        return name or (_name_here(uid) if self.here else str(uid))


_name_here = lru_cache(maxsize=1024)(user_name)


def owner_of(process: ProcessFacts, by: str, names: Names, tree: Step | None = None) -> Owner:
    """The container, job, step of a job or user (`by`) that a process belongs to; `host` where it is in no such group.

    `tree` is the job and step of its parents, for jobs without cgroups.
    A systemd unit is a container's equal: what runs in no container is grouped by job and unit.
    """
    if by == "user":
        if process.uid is None:
            return NO_USER
        return Owner(OwnerKind.USER, str(process.uid), names.user(process.uid, process.user))
    if by in ("job", "step"):
        return _job_owner(process.cgroup, names, tree, with_step=by == "step")
    if by == "container":
        return _container_owner(process.cgroup, names)
    raise UsageError(f"'{by}' is not one of {', '.join(GROUPINGS)}.")


def details_of(process: ProcessFacts, by: str, names: Names, tree: Step | None = None) -> dict[str, Any]:
    """Facts about that owner: runtime, container_id, pod, namespace, image; job_id, sluid, step; unit; uid."""
    if by == "user":
        return {} if process.uid is None else {"uid": process.uid}
    within = places_of(process.cgroup)
    if by in ("job", "step") and PlaceKind.JOB not in within and tree is not None:
        return {"scheduler": "slurm", "job_id": tree[0], **({"step": tree[1]} if by == "step" else {})}
    kinds = (PlaceKind.JOB,) if by in ("job", "step") else tuple(PlaceKind)
    for kind in kinds:
        if kind in within:
            facts = dict(within[kind].details)
            for passing in ("task",) if by == "step" else ("step", "task"):  # of this process, not of its job
                facts.pop(passing, None)
            if kind is PlaceKind.UNIT:
                return facts
            return {**facts, **_names_of(process.cgroup, kind, names)}
    return {}


def _names_of(cgroup: str | None, kind: PlaceKind, names: Names) -> dict[str, Any]:
    """What the recorder found of a cgroup, as far as it is of a job or of a container."""
    found = names.cgroups.get(cgroup or "", {})
    return {key: value for key, value in found.items() if (key == "job_id") == (kind is PlaceKind.JOB)}


def _job_owner(cgroup: str | None, names: Names, tree: Step | None = None, *, with_step: bool = False) -> Owner:
    found = places_of(cgroup).get(PlaceKind.JOB)
    if found is None and tree is None:
        return NO_JOB
    job: dict[str, Any] = {"job_id": tree[0], "step": tree[1]} if tree is not None else {}
    if found is not None:
        job = {**found.details, **_names_of(cgroup, PlaceKind.JOB, names)}
    number = str(job.get("job_id", job.get("sluid")))
    if with_step and job.get("step"):
        number = f"{number}.{job['step']}"
    return Owner(OwnerKind.JOB, f"slurm:{number}", f"job {number}")


def _container_owner(cgroup: str | None, names: Names) -> Owner:
    within = places_of(cgroup)
    found = within.get(PlaceKind.CONTAINER)
    if found is not None:
        return Owner(
            OwnerKind.CONTAINER, found.id, container_label(found, _names_of(cgroup, PlaceKind.CONTAINER, names))
        )
    if PlaceKind.JOB in within:
        job = _job_owner(cgroup, names)
        return Owner(OwnerKind.CONTAINER, job.id, job.label)
    unit = within.get(PlaceKind.UNIT)
    if unit is not None:
        return Owner(OwnerKind.CONTAINER, unit.id, _unit_label(unit, names))
    return NO_CONTAINER


def _unit_label(unit: Place, names: Names) -> str:
    uid = unit.details.get("uid")
    return unit.label if uid is None else unit.label.replace(f"of user {uid}", f"of {names.user(uid)}")


KINDS = ("process", "container", "user", "job", "step", "span", "device")


@dataclass(frozen=True, slots=True)
class Grouping:
    """How processes of tapes become owners of one kind, and their details."""

    by: str
    _names: Mapping[int, Names]
    _trees: Mapping[int, JobTree]

    @classmethod
    def of(cls, by: str, tapes: Sequence[Tape]) -> Grouping:
        """By one of KINDS but spans; UsageError for any other."""
        if by not in KINDS:
            raise UsageError(f"A ledger cannot be grouped by '{by}'.", cure=f"one of: {', '.join(KINDS)}")
        if by in ("process", "device"):
            return cls(by, {}, {})
        if by not in GROUPINGS:
            raise UsageError(f"Processes cannot be grouped by {by}.", cure=f"one of: {', '.join(GROUPINGS)}")
        uses = {id(tape): tape_use(tape) for tape in tapes}
        trees = {key: JobTree(use.processes.processes if use.processes else (), use.steps) for key, use in uses.items()}
        return cls(by, {id(tape): Names.of_tape(tape) for tape in tapes}, trees)

    def owner(self, tape: Tape, facts: ProcessFacts) -> Owner:
        """Whose a process is."""
        if self.by not in GROUPINGS:
            return Owner(OwnerKind.PROCESS, facts.id, facts.label)
        return owner_of(facts, self.by, self._names[id(tape)], self._trees[id(tape)].step_of(facts))

    def details(self, tape: Tape, facts: ProcessFacts) -> dict[str, Any]:
        """Details of that owner, from the facts of one of its processes."""
        if self.by not in GROUPINGS:
            return facts.to_dict()
        return details_of(facts, self.by, self._names[id(tape)], self._trees[id(tape)].step_of(facts))


# Every process of a Slurm step descends from its slurmstepd, which is root's and is called `slurmstepd: [123.batch]`.
_TITLE = re.compile(r"slurmstepd: \[(?P<job>\d+)(?:\+\d+)?\.(?P<step>\w+)\]")


@dataclass(slots=True)
class JobTree:
    """The jobs of the processes of one tape, by their parents as of when each was first seen.

    `given` is the job and step of processes (by their place in `processes`) that are known otherwise; it holds
    for their children too.
    """

    processes: Sequence[ProcessFacts]
    given: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    _known: dict[int, tuple[int, str] | None] = field(default_factory=dict)
    _given: dict[int, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known.update(self.given)
        self._given = {id(self.processes[number]): step for number, step in self.given.items()}

    def step_of(self, facts: ProcessFacts) -> tuple[int, str] | None:
        """The job and step that a process descends from, itself included; None where it is in no job."""
        if (own := slurm_step(facts) or self._given.get(id(facts))) is not None:
            return own
        return None if facts.parent is None else self._of(facts.parent)

    def _of(self, number: int) -> tuple[int, str] | None:
        chain: list[int] = []
        found: tuple[int, str] | None = None
        at: int | None = number
        while at is not None and at not in chain:
            if at in self._known:
                found = self._known[at]
                break
            chain.append(at)
            found = slurm_step(self.processes[at])
            if found is not None:
                break
            at = self.processes[at].parent
        for one in chain:
            self._known[one] = found
        return found


def slurm_step(facts: ProcessFacts) -> tuple[int, str] | None:
    """The job and step of a slurmstepd. Any user may take its name: only root's is believed."""
    if facts.uid != 0 or facts.exited:
        return None
    match = _TITLE.match(facts.cmdline or "")
    return (int(match["job"]), match["step"]) if match else None
