"""Names of containers and jobs, from files that engines and the kubelet leave on the host; no daemon is asked.

A name is gone when its container is, so the recorder looks once, when it first meets a cgroup, and the tape keeps it.
What cannot be read (most of these files are root's) stays without a name: the path still gives a short id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.cgroup_names import Place, PlaceKind, places
from everywatt.sensors import procfs

if TYPE_CHECKING:
    from everywatt.sensors.usage.cgroups import CgroupRow

ATTEMPTS = 3  # a container's files may come later than its first process
MOST_BYTES = 4 << 20
_OCI_ANNOTATIONS = {
    "io.kubernetes.cri.container-name": "container",
    "io.kubernetes.cri.sandbox-name": "pod",
    "io.kubernetes.cri.sandbox-namespace": "namespace",
    "io.kubernetes.cri.image-name": "image",
    "io.kubernetes.container.name": "container",
    "io.kubernetes.pod.name": "pod",
    "io.kubernetes.pod.namespace": "namespace",
    "nerdctl/name": "name",
}
_BUNDLES = "run/containerd/io.containerd.runtime.v2.task"
_STORAGE = "containers/storage/overlay-containers/containers.json"


class ContainerNames:
    """Looks up names below `root` (/). `rows` reports each cgroup's name once, `forget` makes it report them again."""

    def __init__(self, root: Path, proc: Path, cgroups: Path) -> None:
        self._root = root
        self._proc = proc
        self._cgroups = cgroups
        self._tries: dict[str, int] = {}
        self._folders: dict[Path, tuple[int, dict[str, str]]] = {}

    def rows(self, paths: Iterable[str]) -> list[CgroupRow]:
        """{"cgroup", "name": {…}} for each of these cgroups of which a name was found for the first time.

        A name has, as far as known: `name` and `image` of a container; `pod`, `namespace` and `container` in
        Kubernetes; `job_id` of a Slurm job whose path has a SLUID.
        """
        present = set(paths)
        for path in self._tries.keys() - present:
            del self._tries[path]
        found: list[CgroupRow] = []
        for path in sorted(present):
            tries = self._tries.get(path, 0)
            if tries >= ATTEMPTS:
                continue
            self._tries[path] = tries + 1
            name, complete = self._name(path)
            if complete:
                self._tries[path] = ATTEMPTS
            if name:
                found.append({"cgroup": path, "name": name})
        return found

    def forget(self) -> None:
        """A new listener: report all names again."""
        self._tries.clear()

    def _name(self, path: str) -> tuple[dict[str, str | int], bool]:
        """What files say of a cgroup, and whether there is nothing more to wait for."""
        within = places(path)
        name: dict[str, str | int] = {}
        complete = True
        container = within.get(PlaceKind.CONTAINER)
        if container is not None and ("container_id" in container.details or "pod_uid" in container.details):
            name |= self._container(container)
            complete = bool(name)
        job = within.get(PlaceKind.JOB)
        if job is not None and "job_id" not in job.details:
            number = self._job_id(path)
            complete = complete and number is not None
            if number is not None:
                name["job_id"] = number
        return name, complete

    def _container(self, place: Place) -> dict[str, str]:
        uid, container_id = place.details.get("pod_uid"), place.details.get("container_id")
        name = {} if uid is None else self._pod(str(uid))
        if container_id is None:
            return name
        if uid is not None:
            name |= self._kubelet_log(str(container_id))
            if name.get("container"):
                return name
        for look in (self._docker, self._storage, self._bundle):
            more = look(str(container_id))
            if more:
                return {**more, **name}
        return name

    def _pod(self, uid: str) -> dict[str, str]:
        """From the kubelet's log folders, `NAMESPACE_POD_UID`; a namespace and a pod have no underscore."""
        entry = self._index(self._root / "var/log/pods", "_").get(uid)
        if entry is None or entry.count("_") != 2:
            return {}
        namespace, pod, _ = entry.split("_")
        return {"pod": pod, "namespace": namespace}

    def _kubelet_log(self, container_id: str) -> dict[str, str]:
        """From the kubelet's links, `POD_NAMESPACE_CONTAINER-ID.log`."""
        entry = self._index(self._root / "var/log/containers", "-").get(f"{container_id}.log")
        if entry is None or entry.count("_") != 2:
            return {}
        pod, namespace, rest = entry.split("_")
        return {"pod": pod, "namespace": namespace, "container": rest.rpartition("-")[0]}

    def _index(self, folder: Path, mark: str) -> dict[str, str]:
        """Entries of a folder by what follows their last `mark`; read again only when the folder has changed."""
        try:
            changed_ns = folder.stat().st_mtime_ns
            known = self._folders.get(folder)
            if known is None or known[0] != changed_ns:
                with os.scandir(folder) as entries:
                    # A pod's UID has dashes itself, so pods are cut at an underscore and containers at a dash.
                    known = (changed_ns, {entry.name.rpartition(mark)[2]: entry.name for entry in entries})
                self._folders[folder] = known
        except OSError:
            return {}
        return known[1]

    def _docker(self, container_id: str) -> dict[str, str]:
        data = _json(self._root / "var/lib/docker/containers" / container_id / "config.v2.json")
        if not isinstance(data, dict):
            return {}
        config = data.get("Config")
        labels = config.get("Labels") if isinstance(config, dict) else None
        image = config.get("Image") if isinstance(config, dict) else None
        name = {"name": str(data.get("Name") or "").removeprefix("/"), "image": image}
        return _filled(name) | _annotated(labels)

    def _storage(self, container_id: str) -> dict[str, str]:
        """podman's and CRI-O's list of containers: root's, and that of the user who records."""
        home = Path(os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser())
        for file in (self._root / "var/lib" / _STORAGE, home / _STORAGE):
            data = _json(file)
            for entry in data if isinstance(data, list) else ():
                if isinstance(entry, dict) and entry.get("id") == container_id:
                    return _stored(entry)
        return {}

    def _bundle(self, container_id: str) -> dict[str, str]:
        """containerd's running containers, in a folder for each of its namespaces."""
        try:
            spaces = list((self._root / _BUNDLES).iterdir())
        except OSError:
            return {}
        for space in spaces:
            data = _json(space / container_id / "config.json")
            if isinstance(data, dict):
                return _annotated(data.get("annotations"))
        return {}

    def _job_id(self, path: str) -> int | None:
        """SLURM_JOB_ID of a process in the cgroup: readable for its user and for root."""
        if ".." in path.split("/"):  # a group of an outer namespace
            return None
        try:
            pids = procfs.slurp(f"{self._cgroups}{path}/cgroup.procs").split()[:4]
        except OSError:
            return None
        for pid in pids:
            try:
                environ = procfs.slurp(f"{self._proc}/{int(pid)}/environ")
            except (OSError, ValueError):
                continue
            for entry in environ.split(b"\0"):
                if entry.startswith(b"SLURM_JOB_ID=") and entry[13:].isdigit():
                    return int(entry[13:])
        return None


def user_names(root: Path) -> dict[int, str]:
    """Local users by their number. Directories of users (LDAP) are not asked: that may take long, and hang."""
    try:
        lines = (root / "etc/passwd").read_text(errors="replace").split("\n")
    except OSError:
        return {}
    fields = [line.split(":") for line in lines]
    return {int(words[2]): words[0] for words in reversed(fields) if len(words) > 2 and words[2].isdecimal()}


def _stored(entry: Mapping[str, Any]) -> dict[str, str]:
    names = [str(name) for name in entry.get("names") or ()]
    try:
        metadata = json.loads(entry.get("metadata") or "{}")
    except (TypeError, ValueError):
        metadata = {}
    image = metadata.get("image-name") if isinstance(metadata, dict) else None
    name = names[0] if names else None
    if name is not None and name.startswith("k8s_") and name.count("_") == 5:
        _, container, pod, namespace, _, _ = name.split("_")
        return _filled({"container": container, "pod": pod, "namespace": namespace, "image": image})
    return _filled({"name": name, "image": image})


def _annotated(annotations: Any) -> dict[str, str]:
    if not isinstance(annotations, dict):
        return {}
    return _filled({word: annotations.get(key) for key, word in _OCI_ANNOTATIONS.items() if key in annotations})


def _filled(name: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in name.items() if value}


def _json(path: Path) -> Any:
    """The content of a foreign file; None if it cannot be read, is too large, or is not JSON."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
