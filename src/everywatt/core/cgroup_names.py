"""What the path of a cgroup says by itself: which container, pod, job or unit a process is in. Pure; reads no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from everywatt.core.lazy_dataclass import dataclass

SHORT_ID = 12
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: without I, L, O and U
_SLUID = re.compile(f"s[0-9A-F][{_DIGITS}]{{12}}")  # 13 digits carry 65 bits, and a SLUID has 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PlaceKind(StrEnum):
    """What a cgroup can be."""

    CONTAINER = "container"
    JOB = "job"
    UNIT = "unit"


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a scheduler. `id` is its owner's label; the rest is in `everywatt_job_info`, "" where unknown."""

    id: str
    user: str = ""
    account: str = ""
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A container, job or unit. `id` is the same for all its cgroups; `label` is for people; `details` are facts.

    container  runtime, container_id, pod_uid, qos, pod_id (podman), name (LXC, virtual machines), unit (inside of it)
    job        scheduler, job_id or sluid (with submitted, UTC), step, task, uid, node
    unit       unit, uid (of a user's own units)
    """

    kind: PlaceKind
    id: str
    label: str
    details: Mapping[str, Any] = field(default_factory=dict)


_HEX = "[0-9a-f]{64}"
# Patterns are compiled by `re` where they are first used: most programs that load this never do.
# Container engines name a cgroup `docker-ID.scope` (systemd draws the tree) or `ID` (they do); conmon watches one.
_SCOPE = rf"(?P<engine>[a-z][a-z0-9]*(?:-[a-z]+)*)-(?P<id>{_HEX})(?:\.scope)?"
_BARE = _HEX
_ENGINES = {
    "docker": "docker",
    "libpod": "podman",
    "libpod-conmon": "podman",
    "libpod-payload": "podman",
    "crio": "cri-o",
    "crio-conmon": "cri-o",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "buildah": "buildah",
}
_PARENTS = {"docker": "docker", "libpod_parent": "podman", "kubepods": "kubernetes", "actions_job": "docker"}
_POD_SLICE = r"(?:.+-)?kubepods(?:-(?P<qos>burstable|besteffort))?-pod(?P<uid>[0-9a-f]{8}[0-9a-f_-]{24,28})\.slice"
_POD_FOLDER = r"pod(?P<uid>[0-9a-f]{8}[0-9a-f_-]{24,28})"
_PODMAN_POD = rf"(?:.+-libpod_pod_|libpod_pod_)(?P<id>{_HEX})(?:\.slice)?"
_MACHINE = r"machine-(?P<name>.+)\.scope"
_LIBVIRT = r"(?P<driver>qemu|lxc)-(?P<number>\d+)-(?P<name>.+)"
_LXC = r"lxc\.(?:payload|monitor)\.(?P<name>.+)"
_SLURM_SCOPE = r"(?:(?P<node>.+)_)?slurmstepd\.scope"
_SLURM_SLICE = r"(?!user\.|machine\.).+\.slice"  # system.slice, or another one that the site chose
_SLURM_V1 = r"slurm(?:_(?P<node>.+))?"
_JOB = r"job_(?P<id>\d+)"
_UNIT = r".+\.(?:service|scope|socket|mount|swap|slice)"
_USER = r"user(?:@|-)(?P<uid>\d+)\.(?:service|slice)"
_SESSION = r"session-(?P<number>.+)\.scope"


def places(cgroup: str) -> dict[PlaceKind, Place]:
    """Everything that a path says, at most one of a kind: the innermost container, the job, the innermost unit."""
    # containerd may be given `SLICE:PREFIX:ID`; without systemd as cgroup driver that is the folder's name.
    parts = [re.sub(r"^(.+):([^:]+):([^:]+)$", r"\1/\2-\3", part) for part in cgroup.split("/") if part]
    parts = [piece for part in parts for piece in part.split("/")]
    found: dict[PlaceKind, Place] = {}
    for reader in (_container, _job, _unit):
        one = reader(parts)
        if one is not None:
            found[one.kind] = one
    return found


def _container(parts: Sequence[str]) -> Place | None:
    pod: dict[str, str] = {}
    newest: tuple[int, str, dict[str, str]] | None = None
    for index in range(len(parts)):
        pod = _pod(parts, index) or pod
        one = _engine(parts, index) or _named(parts, index)
        if one is not None:
            newest = (index, *one)
    if newest is None:
        uid = pod.get("pod_uid", "")
        return Place(PlaceKind.CONTAINER, f"pod:{uid}", f"pod {uid[:SHORT_ID]}", pod) if uid else None
    index, runtime, facts = newest
    details = {"runtime": runtime, **facts, **pod}
    unit = _unit(parts[index + 1 :])
    if unit is not None:  # a system of its own, as in LXC
        details["unit"] = unit.details["unit"]
    name = str(details.get("container_id") or details["name"])
    label = str(details.get("name") or name[:SHORT_ID])
    return Place(PlaceKind.CONTAINER, f"{_family(runtime)}:{name}", label, details)


def _family(runtime: str) -> str:
    """Ids of containers are unique whoever runs them; names are so only for one runtime."""
    return runtime if runtime in ("lxc", "nspawn", "qemu") else "container"


def _pod(parts: Sequence[str], index: int) -> dict[str, str]:
    """The Kubernetes or podman pod that this part of the path names."""
    part = parts[index]
    if match := re.fullmatch(_POD_SLICE, part):
        return {"pod_uid": _uid(match["uid"]), "qos": match["qos"] or "guaranteed"}
    if (match := re.fullmatch(_POD_FOLDER, part)) and index:
        above = parts[index - 1]
        if above in ("burstable", "besteffort"):
            return {"pod_uid": _uid(match["uid"]), "qos": above}
        if above == "kubepods":
            return {"pod_uid": _uid(match["uid"]), "qos": "guaranteed"}
    if match := re.fullmatch(_PODMAN_POD, part):
        return {"pod_id": match["id"]}
    return {}


def _uid(text: str) -> str:
    """systemd has no dashes within a name, so they are underscores there. Pods from files have a hash, without any."""
    return text.replace("_", "-")


def _engine(parts: Sequence[str], index: int) -> tuple[str, dict[str, str]] | None:
    """A container with an id of 64 digits: its runtime and facts."""
    part = parts[index]
    if match := re.fullmatch(_SCOPE, part):
        return _ENGINES.get(match["engine"], match["engine"]), {"container_id": match["id"]}
    if not re.fullmatch(_BARE, part):
        return None
    runtime = next((_PARENTS[above] for above in reversed(parts[:index]) if above in _PARENTS), "unknown")
    return runtime, {"container_id": part}


def _named(parts: Sequence[str], index: int) -> tuple[str, dict[str, str]] | None:
    """A container or virtual machine that goes by its name: its runtime and facts."""
    part = parts[index]
    if match := re.fullmatch(_LXC, part):
        return "lxc", {"name": match["name"]}
    if index and parts[index - 1] in ("lxc", "lxc.payload", "lxc.monitor"):
        return "lxc", {"name": part}
    if part.startswith("systemd-nspawn@") and part.endswith(".service"):
        return "nspawn", {"name": unescape(part.removeprefix("systemd-nspawn@").removesuffix(".service"))}
    if match := re.fullmatch(_MACHINE, part):
        name = unescape(match["name"])
        if virtual := re.fullmatch(_LIBVIRT, name):
            return virtual["driver"], {"name": virtual["name"]}
        return "nspawn", {"name": name}
    if index and parts[index - 1] == "qemu.slice" and part.endswith(".scope"):
        return "qemu", {"name": part.removesuffix(".scope")}
    return None


def _job(parts: Sequence[str]) -> Place | None:
    """A job of Slurm, by a path from the root of the hierarchy: further down a user may make groups of any name."""
    if len(parts) < 3:
        return None
    details: dict[str, str | int] = {"scheduler": "slurm"}
    if (scope := re.fullmatch(_SLURM_SCOPE, parts[1])) and re.fullmatch(_SLURM_SLICE, parts[0]):
        node = scope["node"]
    elif (v1 := re.fullmatch(_SLURM_V1, parts[0])) and re.fullmatch(r"uid_\d+", parts[1]):
        node = v1["node"]
        details["uid"] = int(parts[1][4:])
    else:
        return None
    if match := re.fullmatch(_JOB, parts[2]):
        details["job_id"] = int(match["id"])
    elif (submitted := sluid_time(parts[2])) is not None:
        details |= {"sluid": parts[2], "submitted": submitted.isoformat(timespec="milliseconds")}
    else:
        return None
    if node:
        details["node"] = node
    details |= dict(_step(parts[3:]))
    job = str(details.get("job_id", details.get("sluid")))
    return Place(PlaceKind.JOB, f"slurm:{job}", f"job {job}", details)


def sluid_time(text: str) -> datetime | None:
    """When a SLUID was given out: the identifier that Slurm 26.05 and later put into paths in place of job numbers.

    It is `s` and 13 digits of base 32: the cluster's number, milliseconds, a running number. None where the text is
    something else.

    >>> sluid_time("s5K1KKYAYG5D00").isoformat(timespec="milliseconds")
    '2026-03-17T16:44:29.741+00:00'
    """
    if not _SLUID.fullmatch(text):
        return None
    value = 0
    for digit in text[1:]:
        value = value << 5 | _DIGITS.index(digit)
    return _EPOCH + timedelta(milliseconds=value >> 10 & (1 << 42) - 1)


def _step(parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in ("step", "task"):
        for part in parts:
            if part.startswith(f"{name}_"):
                yield name, part.removeprefix(f"{name}_")
                break


def _unit(parts: Sequence[str]) -> Place | None:
    """The innermost unit that is not a slice, else the innermost slice; of a user's manager, whose it is."""
    names = [part for part in parts if re.fullmatch(_UNIT, part)]
    if not names:
        return None
    uid = next((match["uid"] for part in names if (match := re.fullmatch(_USER, part))), None)
    managers = [index for index, part in enumerate(names) if part.startswith("user@")]
    inner = names[managers[-1] + 1 :] if managers else names
    last = [part for part in inner if not part.endswith(".slice")] or inner[-1:] or names[-1:]
    unit = unescape(last[-1])
    details: dict[str, str | int] = {"unit": unit}
    if uid is None:
        return Place(PlaceKind.UNIT, f"unit:{unit}", unit, details)
    details["uid"] = int(uid)
    if session := re.fullmatch(_SESSION, unit):
        details["session"] = session["number"]
        return Place(PlaceKind.UNIT, f"unit:{unit}", f"session {session['number']} of user {uid}", details)
    if unit.startswith("user"):
        return Place(PlaceKind.UNIT, f"unit:{unit}", unit, details)
    return Place(PlaceKind.UNIT, f"unit:{uid}:{unit}", f"{unit} of user {uid}", details)


def unescape(name: str) -> str:
    r"""A name as given to systemd: `\x2d` in a unit's name is a dash."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), name)
