"""Who a process belongs to: container, job, user. From the path of its cgroup and from names on the tape."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from everywatt.core.cgroup_names import Place, PlaceKind, place, places
from everywatt.core.errors import UsageError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.owners import Owner, OwnerKind
from everywatt.tape.reader import Tape

__all__ = ["GROUPINGS", "Names", "Place", "Placed", "details_of", "owner_of", "place"]

GROUPINGS = ("container", "job", "step", "user")
Step = tuple[int, str]
CGROUPS = "use.cgroups"
NO_CONTAINER = Owner(OwnerKind.CONTAINER, "host", "(no container)")
NO_JOB = Owner(OwnerKind.JOB, "host", "(no job)")
NO_USER = Owner(OwnerKind.USER, "unknown", "(user unknown)")


class Placed(Protocol):
    """What is asked of a process: the path of its cgroup, its user's number and name, None where not known."""

    @property
    def cgroup(self) -> str | None:
        """As in /proc/PID/cgroup."""

    @property
    def uid(self) -> int | None:
        """The real user."""

    @property
    def user(self) -> str | None:
        """The user's name, where the recorder knew it."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the recorder found of cgroups, by their paths.

    `here` says that the tape was recorded on this host, so that users it does not name may be asked of the system.
    """

    cgroups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    here: bool = False

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]], *, host: str | None = None) -> Names:
        """From rows of `use.cgroups`; `host` is the name of the host that they are from."""
        cgroups: dict[str, dict[str, Any]] = {}
        _take(cgroups, rows)
        return cls(cgroups, _is_here(host))

    @classmethod
    def of_tape(cls, tape: Tape) -> Names:
        """What a tape says; of one that is being written, what was read before is kept."""
        file, written = tape.version
        kept = _kept.get(tape)
        if kept is None or kept.file != file:
            kept = _kept[tape] = _Kept(file)
        if kept.written != written:
            kept.written = written
            for group in (group for group in tape.groups if group.info.name == CGROUPS):
                for frame in tape.tables(group.id, kept.last_ns, None):
                    _take(kept.cgroups, frame.rows)
                    kept.last_ns = frame.at_ns
        return cls(kept.cgroups, _is_here(tape.meta.get("host", {}).get("name")))

    def user(self, uid: int, told: str | None = None) -> str:
        """The user's name, else the number: a user of another host or of a container's own namespace has no name."""
        return told or (_system_name(uid) if self.here else None) or str(uid)


@dataclass(slots=True)
class _Kept:
    """What was read of a tape so far."""

    file: int
    written: int = -1
    last_ns: int | None = None
    cgroups: dict[str, dict[str, Any]] = field(default_factory=dict)


_kept: WeakKeyDictionary[Tape, _Kept] = WeakKeyDictionary()


def _take(cgroups: dict[str, dict[str, Any]], rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        if isinstance(row.get("name"), Mapping):
            cgroups.setdefault(str(row.get("cgroup")), {}).update(row["name"])


def _is_here(host: str | None) -> bool:
    return host is not None and host == socket.gethostname()


@lru_cache(maxsize=1024)
def _system_name(uid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def owner_of(process: Placed, by: str, names: Names, tree: Step | None = None) -> Owner:
    """The container, job, step of a job or user (`by`) that a process belongs to; `host` where it is in none.

    `tree` is the job and step that its parents tell, for jobs without cgroups.
    A systemd unit is a container's equal: what runs in no container is told apart by job and unit.
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


def details_of(process: Placed, by: str, names: Names, tree: Step | None = None) -> dict[str, Any]:
    """Facts about that owner: runtime, container_id, pod, namespace, image; job_id, sluid, step; unit; uid."""
    if by == "user":
        return {} if process.uid is None else {"uid": process.uid}
    within = _within(process.cgroup)
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
            return {**facts, **_told(process.cgroup, kind, names)}
    return {}


def _within(cgroup: str | None) -> dict[PlaceKind, Place]:
    return {} if cgroup is None else _cached_places(cgroup)


_cached_places = lru_cache(maxsize=4096)(places)


def _told(cgroup: str | None, kind: PlaceKind, names: Names) -> dict[str, Any]:
    """What the recorder found of a cgroup, as far as it is of a job or of a container."""
    told = names.cgroups.get(cgroup or "", {})
    return {key: value for key, value in told.items() if (key == "job_id") == (kind is PlaceKind.JOB)}


def _job_owner(cgroup: str | None, names: Names, tree: Step | None = None, *, with_step: bool = False) -> Owner:
    found = _within(cgroup).get(PlaceKind.JOB)
    if found is None and tree is None:
        return NO_JOB
    job: dict[str, Any] = {"job_id": tree[0], "step": tree[1]} if tree is not None else {}
    if found is not None:
        job = {**found.details, **_told(cgroup, PlaceKind.JOB, names)}
    number = str(job.get("job_id", job.get("sluid")))
    if with_step and job.get("step"):
        number = f"{number}.{job['step']}"
    return Owner(OwnerKind.JOB, f"slurm:{number}", f"job {number}")


def _container_owner(cgroup: str | None, names: Names) -> Owner:
    within = _within(cgroup)
    found = within.get(PlaceKind.CONTAINER)
    if found is not None:
        return Owner(OwnerKind.CONTAINER, found.id, _label(found, _told(cgroup, PlaceKind.CONTAINER, names)))
    if PlaceKind.JOB in within:
        job = _job_owner(cgroup, names)
        return Owner(OwnerKind.CONTAINER, job.id, job.label)
    unit = within.get(PlaceKind.UNIT)
    if unit is not None:
        return Owner(OwnerKind.CONTAINER, unit.id, _unit_label(unit, names))
    return NO_CONTAINER


def _label(found: Place, told: Mapping[str, Any]) -> str:
    """`namespace/pod/container` in Kubernetes, the container's name elsewhere, else a short id."""
    if told.get("pod"):
        return "/".join(str(told[key]) for key in ("namespace", "pod", "container") if told.get(key))
    return str(told.get("name") or found.label)


def _unit_label(unit: Place, names: Names) -> str:
    uid = unit.details.get("uid")
    return unit.label if uid is None else unit.label.replace(f"of user {uid}", f"of {names.user(uid)}")
