"""Control groups of processes: where a process is, and what its group used. Version 1, version 2 and both at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everywatt.sensors import procfs


@dataclass(frozen=True, slots=True)
class Place:
    """The cgroup of a process. `path` names it; `cpu` and `memory` are the folders that count, None where none does.

    A controller that stays at its root counts the whole machine and says nothing of this group, so it does not count.
    """

    path: str
    version: int
    cpu: str | None = None
    memory: str | None = None


def parse_place(data: bytes) -> Place:
    """What /proc/PID/cgroup says.

    The name is the deepest path among the hierarchies that matter for accounting, so that a job or container is found
    whichever of them its manager uses. On a hybrid system the version 1 controllers count and version 2 only names.
    """
    unified = ""
    by_controller: dict[str, tuple[str, str]] = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if number == "0" and not controllers:
            unified = path
        for name in filter(None, controllers.split(",")):
            by_controller[name] = (controllers, path)
    if not {"cpuacct", "cpu", "memory"} & by_controller.keys():
        return Place(unified or "/", 2, unified or None, unified or None)
    names = ("cpuacct", "memory", "cpu", "pids", "name=systemd")
    paths = [by_controller[name][1] for name in names if name in by_controller] + [unified]
    path = max(paths, key=lambda text: text.rstrip("/").count("/")) or "/"
    return Place(path, 1, _folder(by_controller, "cpuacct", path), _folder(by_controller, "memory", path))


def _folder(by_controller: dict[str, tuple[str, str]], name: str, path: str) -> str | None:
    controllers, own = by_controller.get(name, ("", ""))
    return f"{controllers}{own}" if controllers and own == path else None


def usage(root: Path, place: Place) -> dict[str, Any]:
    """CPU seconds and bytes of a group below `root` (/sys/fs/cgroup): {"cpu_s", "memory_bytes", "why"}.

    None where the kernel does not count it, with the reason in `why`. FileNotFoundError where the group is gone.
    """
    reasons: dict[str, str] = {}
    if place.version == 2:
        folder = _inside(root, place.path)
        if folder is None:
            return {"cpu_s": None, "memory_bytes": None, "why": "the group is outside of this cgroup namespace"}
        if not Path(folder).is_dir():
            raise FileNotFoundError(folder)
        cpu_s = _try(_usage_usec, folder, "cpu.stat", "cpu", reasons)
        memory = _try(_whole, folder, "memory.current", "memory", reasons)
    else:
        cpu_s = _version_1(root, place.cpu, "cpuacct.usage", "cpuacct", reasons)
        cpu_s = None if cpu_s is None else cpu_s / 1e9
        memory = _version_1(root, place.memory, "memory.usage_in_bytes", "memory", reasons)
    row: dict[str, Any] = {"cpu_s": cpu_s, "memory_bytes": memory}
    if reasons:
        row["why"] = "; ".join(reasons.values())
    return row


def _version_1(root: Path, place: str | None, file: str, name: str, reasons: dict[str, str]) -> float | None:
    if place is None:
        reasons[name] = f"the {name} controller does not follow this group"
        return None
    controllers, _, path = place.partition("/")
    # A joint hierarchy is mounted under its joint name, usually with links from each single one.
    for mount in dict.fromkeys((controllers, name)):
        folder = _inside(root / mount, "/" + path)
        if folder is not None and Path(folder).is_dir():
            return _try(_whole, folder, file, name, reasons)
    if any((root / mount).is_dir() for mount in (controllers, name)):
        raise FileNotFoundError(place)
    reasons[name] = f"the {name} hierarchy is not mounted"
    return None


def _try(reader: Any, folder: str, file: str, name: str, reasons: dict[str, str]) -> float | None:
    try:
        value: float = reader(procfs.slurp(f"{folder}/{file}"))
        return value
    except (OSError, ValueError) as error:
        reasons[name] = f"{name}: {error.strerror if isinstance(error, OSError) else error}"
        return None


def _whole(data: bytes) -> float:
    return float(int(data))


def _usage_usec(data: bytes) -> float:
    for line in data.splitlines():
        name, _, value = line.partition(b" ")
        if name == b"usage_usec":
            return int(value) / 1e6
    raise ValueError("cpu.stat has no usage_usec")


def _inside(root: Path, path: str) -> str | None:
    """The folder of a group; None where its path climbs out (a process of an outer cgroup namespace)."""
    if ".." in path.split("/"):
        return None
    return f"{root}{path}".rstrip("/")
