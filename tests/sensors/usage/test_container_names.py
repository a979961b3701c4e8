"""Names of containers from files on the host: trees as Docker, podman, containerd and the kubelet leave them."""

import json

import pytest

from everywatt.sensors.usage.container_names import ATTEMPTS, ContainerNames

ID = "4f1c0de5" * 8
UID = "2d4b7e6a-1f0c-4b7e-9c55-0123456789ab"
POD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text))


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return ContainerNames(tmp_path, tmp_path / "proc", tmp_path / "sys/fs/cgroup")


def test_docker(tmp_path, names):
    config = {"ID": ID, "Name": "/web", "Config": {"Image": "nginx:1.27", "Labels": {}}}
    put(tmp_path / "var/lib/docker/containers" / ID / "config.v2.json", config)
    path = f"/system.slice/docker-{ID}.scope"
    assert names.rows([path]) == [{"cgroup": path, "name": {"name": "web", "image": "nginx:1.27"}}]
    assert names.rows([path]) == [], "a name is told once"
    names.forget()
    assert len(names.rows([path])) == 1


@pytest.mark.parametrize("place", ["var/lib", "home"])
def test_podman_of_root_and_of_the_user(tmp_path, names, place):
    entry = {"id": ID, "names": ["db"], "metadata": json.dumps({"image-name": "docker.io/library/postgres:17"})}
    put(tmp_path / place / "containers/storage/overlay-containers/containers.json", [{"id": "other"}, entry])
    (row,) = names.rows([f"/machine.slice/libpod-{ID}.scope/container"])
    assert row["name"] == {"name": "db", "image": "docker.io/library/postgres:17"}


def test_kubernetes_by_the_folders_of_its_logs(tmp_path, names):
    (tmp_path / f"var/log/pods/shop_cart-5d9c7_{UID}/web").mkdir(parents=True)
    assert names.rows([POD]) == [{"cgroup": POD, "name": {"pod": "cart-5d9c7", "namespace": "shop"}}]
    put(tmp_path / f"var/log/containers/cart-5d9c7_shop_web-{ID}.log", "")
    path = f"{POD}/cri-containerd-{ID}.scope"
    (row,) = names.rows([path])
    assert row["name"] == {"pod": "cart-5d9c7", "namespace": "shop", "container": "web"}


def test_kubernetes_by_the_storage_of_crio(tmp_path, names):
    entry = {"id": ID, "names": [f"k8s_web_cart-5d9c7_shop_{UID}_0"]}
    put(tmp_path / "var/lib/containers/storage/overlay-containers/containers.json", [entry])
    (row,) = names.rows([f"{POD}/crio-{ID}.scope"])
    assert row["name"] == {"container": "web", "pod": "cart-5d9c7", "namespace": "shop"}


def test_containerd_by_its_bundle(tmp_path, names):
    annotations = {"nerdctl/name": "cache", "something": "else"}
    bundle = tmp_path / "run/containerd/io.containerd.runtime.v2.task/default" / ID
    put(bundle / "config.json", {"annotations": annotations})
    (row,) = names.rows([f"/system.slice/nerdctl-{ID}.scope"])
    assert row["name"] == {"name": "cache"}


def test_the_job_of_a_sluid(tmp_path, names):
    path = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0"
    put(tmp_path / "sys/fs/cgroup" / path[1:] / "cgroup.procs", "41\n42\n")
    put(tmp_path / "proc/42/environ", "HOME=/\0SLURM_JOB_ID=4711\0")
    assert names.rows([path]) == [{"cgroup": path, "name": {"job_id": 4711}}]


def test_a_name_that_comes_late_is_found_but_not_waited_for_without_end(tmp_path, names):
    path = f"/docker/{ID}"
    file = tmp_path / "var/lib/docker/containers" / ID / "config.v2.json"
    assert names.rows([path]) == []
    put(file, {"Name": "/web"})
    assert names.rows([path])[0]["name"] == {"name": "web"}
    late = f"/docker/{ID[::-1]}"
    for _ in range(ATTEMPTS):
        assert names.rows([late]) == []
    put(tmp_path / "var/lib/docker/containers" / ID[::-1] / "config.v2.json", {"Name": "/late"})
    assert names.rows([late]) == []
    names.rows([])  # it went, and came again
    assert names.rows([late])[0]["name"] == {"name": "late"}


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "null", '{"Name": null}', '{"Config": 3}', "[" * 100_000])
def test_files_that_are_not_what_they_should_be(tmp_path, names, text):
    put(tmp_path / "var/lib/docker/containers" / ID / "config.v2.json", text)
    put(tmp_path / "var/lib/containers/storage/overlay-containers/containers.json", text)
    put(tmp_path / "run/containerd/io.containerd.runtime.v2.task/default" / ID / "config.json", text)
    put(tmp_path / "var/log/containers" / f"no-underscores-{ID}.log", "")
    assert names.rows([f"/docker/{ID}", f"{POD}/crio-{ID}.scope", "/", "/../x", "/system.slice/x.service"]) == []
