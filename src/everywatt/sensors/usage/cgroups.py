"""Control groups of processes: where a process is, and what its group used. Version 1, version 2 and both at once."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everywatt.sensors import procfs
from everywatt.sensors.sysfs import parse_cpus

if TYPE_CHECKING:  # as in base
    from collections.abc import Mapping
    from typing import Required, TypedDict

    class CgroupUsage(TypedDict, total=False):
        """What a group used. `why` is why one is None: the kernel does not count it; `cpus` is there where the group
        was given only so many."""

        cpu_s: float | None
        memory_bytes: float | None
        cpus: float
        why: str

    class CgroupRow(CgroupUsage, total=False):
        """A group that is new, changed or gone, or that everywatt `made` for a command; or the `name` files give it."""

        cgroup: Required[str]
        version: int
        made: bool
        gone: bool
        name: Mapping[str, str | int]


MADE = "everywatt-run-"  # how the names of groups begin that `everywatt run` makes for its command
_LOOK_AT_LIMITS = 30  # reads between two looks at what a group was given


class Place(NamedTuple):
    """The cgroup of a process. `path` names it; `cpu` and `memory` are the folders that count, None where none does.

    A controller that stays at its root counts the whole machine and says nothing of this group, so it does not count.
    `quota` and `cpuset` are the folders whose limits say how many CPUs the group was given.
    """

    path: str
    version: int
    cpu: str | None = None
    memory: str | None = None
    quota: str | None = None
    cpuset: str | None = None


@lru_cache(maxsize=1024)
def parse_place(data: bytes) -> Place:
    """What /proc/PID/cgroup says.

    The name is, among the hierarchies that matter for accounting, the path that names a container, job or unit, else
    the deepest one, so that each is found whichever of them its manager uses. On a hybrid system the version 1
    controllers count and version 2 only names.
    """
    unified = ""
    by_controller: dict[str, tuple[str, str]] = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if number == "0" and not controllers:
            unified = path
        for name in filter(None, controllers.split(",")):
            by_controller[name] = (controllers, path)
    unified = without_made(unified)
    if not {"cpuacct", "cpu", "memory"} & by_controller.keys():
        own = unified or None
        return Place(unified or "/", 2, own, own, own, own)
    by_controller = {name: (joint, without_made(own)) for name, (joint, own) in by_controller.items()}
    # Slurm's own process tracking has a group of the freezer and, unless it is set to limit jobs, no other.
    names = ("cpuacct", "memory", "cpu", "pids", "name=systemd", "freezer", "cpuset", "devices")
    paths = [by_controller[name][1] for name in names if name in by_controller] + [unified]
    path = _best_named(frozenset(text.rstrip("/") for text in paths) - {""})
    return Place(path, 1, *(_folder(by_controller, name, path) for name in ("cpuacct", "memory", "cpu", "cpuset")))


@lru_cache(maxsize=1024)
def _best_named(paths: frozenset[str]) -> str:
    """Hierarchies may differ: the path that names a job, a container or a unit, else the deepest one.

    A job comes first: only root can make its path, while a user may make groups of any name in other hierarchies.
    """
    if len(paths) < 2:
        return next(iter(paths), "/")
    return max(paths, key=lambda text: (_name_rank(text), text.count("/"), text))


def _name_rank(path: str) -> int:
    from everywatt.core.cgroup_names import PlaceKind, places

    found = places(path)
    return max(({PlaceKind.JOB: 3, PlaceKind.CONTAINER: 2, PlaceKind.UNIT: 1}[kind] for kind in found), default=0)


def without_made(path: str) -> str:
    """The path without the group that everywatt made for a command: a process belongs where it was started."""
    parent, _, name = path.rpartition("/")
    return (parent or "/") if name.startswith(MADE) else path


def _folder(by_controller: dict[str, tuple[str, str]], name: str, path: str) -> str | None:
    controllers, own = by_controller.get(name, ("", ""))
    return f"{controllers}{own}" if controllers and own == path else None


class Counted:
    """The files of one group below `root` (/sys/fs/cgroup) that count; they stay open, since opening costs most."""

    def __init__(self, root: Path, place: Place) -> None:
        self._root = str(root)
        self._place = place
        self._files: dict[str, procfs.KeptFile] = {}
        self._reads = 0
        self._cpus: float | None = None
        self._outside = place.version == 2 and _inside(self._root, place.path) is None

    def read(self) -> CgroupUsage:
        """What it used. FileNotFoundError where the group is gone."""
        place = self._place
        if self._outside:
            return {"cpu_s": None, "memory_bytes": None, "why": "the group is outside this cgroup namespace"}
        reasons: dict[str, str] = {}
        if place.version == 2:
            cpu_s = self._value("cpu", place.cpu, "cpu.stat", _usage_usec, reasons)
            memory = self._value("memory", place.memory, "memory.current", _whole, reasons)
        else:
            cpu_s = self._value("cpuacct", place.cpu, "cpuacct.usage", _nanoseconds, reasons)
            memory = self._value("memory", place.memory, "memory.usage_in_bytes", _whole, reasons)
        row: CgroupUsage = {"cpu_s": cpu_s, "memory_bytes": memory}
        if self._reads % _LOOK_AT_LIMITS == 0:
            self._cpus = self._given()
        self._reads += 1
        if self._cpus is not None:
            row["cpus"] = self._cpus
        if reasons:
            row["why"] = "; ".join(reasons.values())
        return row

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _value(self, name: str, place: str | None, file: str, parse: Any, reasons: dict[str, str]) -> float | None:
        kept = self._files.get(name)
        if kept is None:
            folder = self._folder(name, place, reasons)
            if folder is None:
                return None
            try:
                kept = self._files[name] = procfs.KeptFile(f"{folder}/{file}")
            except OSError as error:
                reasons[name] = f"{name}: {error.strerror}"
                return None
        try:
            value: float = parse(kept.read(1024))
            return value
        except ValueError as error:
            reasons[name] = f"{name}: {error}"
        except OSError as error:  # ENODEV: this group is gone, and one that came again has files of its own
            self.close()
            self._folder(name, place, {})  # FileNotFoundError where it is gone
            reasons[name] = f"{name}: {error.strerror}"
        return None

    def _folder(self, name: str, place: str | None, reasons: dict[str, str]) -> str | None:
        """Where a controller keeps the files of this group. FileNotFoundError where the group is gone."""
        if self._place.version == 2:
            folder = _inside(self._root, self._place.path)
            if folder is None or not os.path.isdir(folder):  # noqa: PTH112 - a tenth of Path's cost
                raise FileNotFoundError(folder)
            return folder
        if place is None:
            reasons[name] = f"the {name} controller is not enabled for this group"
            return None
        controllers, _, path = place.partition("/")
        # A joint hierarchy is mounted under its joint name, usually with links from each single one.
        mounts = [f"{self._root}/{mount}" for mount in dict.fromkeys((controllers, name))]
        for mount in mounts:
            folder = _inside(mount, "/" + path)
            if folder is not None and os.path.isdir(folder):  # noqa: PTH112
                return folder
        if any(map(os.path.isdir, mounts)):
            raise FileNotFoundError(place)
        reasons[name] = f"the {name} hierarchy is not mounted"
        return None

    def _given(self) -> float | None:
        """How many CPUs the group may use, if a limit is set."""
        place, found = self._place, []
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = self._folder("cpu", place.quota, {})
            if place.version == 2:
                words = procfs.slurp(f"{folder}/cpu.max", 64).split()
            else:
                words = [procfs.slurp(f"{folder}/cpu.cfs_{name}_us", 64) for name in ("quota", "period")]
            found += [int(words[0]) / int(words[1])] if int(words[0]) > 0 else []
        with contextlib.suppress(OSError, ValueError):
            folder = self._folder("cpuset", place.cpuset, {})
            listed = b"" if folder is None else procfs.slurp(f"{folder}/cpuset.cpus", 4096)
            count = len(parse_cpus(listed.decode("ascii", "replace")))
            # An old hierarchy copies the whole machine into every group: no limit.
            found += [float(count)] if count and (place.version == 2 or count < (os.cpu_count() or 1)) else []
        return min(found, default=None)


def made_seconds(folder: str | Path) -> float:
    """CPU seconds of a group by its folder, in either version. OSError or ValueError where it does not say."""
    try:
        return _nanoseconds(procfs.slurp(f"{folder}/cpuacct.usage", 64))
    except FileNotFoundError:
        return _usage_usec(procfs.slurp(f"{folder}/cpu.stat", 1024))


def _nanoseconds(data: bytes) -> float:
    return int(data) / 1e9


def _whole(data: bytes) -> float:
    return float(int(data))


def _usage_usec(data: bytes) -> float:
    for line in data.split(b"\n"):
        name, _, value = line.partition(b" ")
        if name == b"usage_usec":
            return int(value) / 1e6
    raise ValueError("cpu.stat has no usage_usec")


def _inside(root: str, path: str) -> str | None:
    """The folder of a group; None where its path climbs out (a process of an outer cgroup namespace)."""
    if ".." in path.split("/"):
        return None
    return f"{root}{path}".rstrip("/")
