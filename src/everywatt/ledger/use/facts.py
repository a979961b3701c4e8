"""What is known of a process: its facts, the workload that it is a part of, and whose descendant it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from everywatt.core.cgroup_names import Place, PlaceKind, places
from everywatt.core.jsonio import declared
from everywatt.core.lazy_dataclass import dataclass


@dataclass(slots=True)
class ProcessFacts:
    """One process as far as its rows say; later rows update it.

    `number` counts the processes of a table, `parent` is the number of its parent, as of when it was first seen.
    `exited` marks a stand-in for the children of `parent` that came and went between two reads. `moved` marks facts
    from before the process was moved to another cgroup; other facts of the same pid and start say how it went on.
    `tree` is the number of the first process of its tree below init.
    """

    pid: int
    start: int | None
    name: str = "?"
    ppid: int | None = None
    cmdline: str | None = None
    uid: int | None = None
    cgroup: str | None = None
    meter: bool = False
    reaper: bool = False
    exited: bool = False
    parent: int | None = None
    user: str | None = None
    moved: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    number: int = -1
    tree: int = -1

    @property
    def workload(self) -> str | int:
        """What it is a part of, for every kind of ledger: its job, container, unit or cgroup, else its tree."""
        return self.tree if self.cgroup in (None, "/") else _workload(self.cgroup or "")

    @property
    def id(self) -> str:
        """`PID:START`, the same in every ledger of a run; `PID:START:exited` for a stand-in."""
        return f"{self.pid}:{self.start if self.start is not None else ''}{':exited' if self.exited else ''}"

    @property
    def program(self) -> str:
        """Its name; for a stand-in that of the program that it stands in for, or for whose children."""
        return str(self.more.get("of", self.name))

    @property
    def label(self) -> str:
        """For people: the command line without its folder, else the name."""
        if self.exited:
            return self.name
        words = (self.cmdline or "").split()
        if not words:
            return self.name if self.name != "?" else f"pid {self.pid}"
        words[0] = words[0].rsplit("/", 1)[-1] or words[0]
        return " ".join(words)

    def take(self, row: Mapping[str, Any]) -> None:
        """Bring the facts up to date with a row of the table."""
        if "ppid" in row:
            self.ppid = row["ppid"]
        if "name" in row:
            self.name = str(row["name"])
        if "cmdline" in row:
            self.cmdline = row["cmdline"]
        if "uid" in row:
            self.uid, self.user = row["uid"], None  # a user without a name does not have that of the parent process
        if "user" in row:
            self.user = row["user"]
        if "cgroup" in row:
            self.cgroup = row["cgroup"]
        if row.get("meter"):
            self.meter = True
        elif self.meter and "cpu_s" in row:
            self.meter = False  # the meter itself was asked for later on
        if row.get("reaper"):
            self.reaper = True

    def to_dict(self) -> dict[str, Any]:
        known = declared(self, "pid start ppid name cmdline uid cgroup")
        return {key: value for key, value in known.items() if value is not None}


@lru_cache(maxsize=1024)
def places_of(cgroup: str | None) -> dict[PlaceKind, Place]:
    """Everything that a cgroup's path says (`core.cgroup_names.places`), found once; empty without a path."""
    return places(cgroup) if cgroup else {}


@lru_cache(maxsize=1024)
def _workload(cgroup: str) -> str:
    within = places_of(cgroup)
    kinds = (PlaceKind.JOB, PlaceKind.CONTAINER, PlaceKind.UNIT)
    return next((within[kind].id for kind in kinds if kind in within), cgroup)


def container_label(found: Place, names: Mapping[str, Any]) -> str:
    """`namespace/pod/container` in Kubernetes, the container's name elsewhere, else a short id.

    `names` is what files on the host say of its cgroup.
    """
    if names.get("pod"):
        return "/".join(str(names[key]) for key in ("namespace", "pod", "container") if names.get(key))
    return str(names.get("name") or found.label)


def members(processes: Sequence[ProcessFacts], roots: Iterable[tuple[int, int | None]]) -> list[bool]:
    """For each process whether it descends from a followed root (pid, start or None), or from the run's reaper.

    By the parent that each had when it was first seen; a process once a member stays one. The reaper itself never is.
    """
    wanted = set(roots)
    known: list[bool | None] = [None] * len(processes)
    for number, process in enumerate(processes):
        root = (process.pid, process.start) in wanted or (process.pid, None) in wanted
        known[number] = True if root and not process.exited else None
    for number in range(len(processes)):
        chain = []
        at: int | None = number
        while at is not None and known[at] is None and at not in chain:
            chain.append(at)
            parent = processes[at].parent
            if parent is not None and processes[parent].reaper:
                known[at] = True
                break
            at = parent
        answer = at is not None and known[at] is True
        for one in chain:
            known[one] = answer
    return [bool(one) for one in known]
