"""Paths as the engines, the kubelet, systemd and Slurm write them; forms from their documentation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.cgroup_names import Place, PlaceKind, places, sluid_time, unescape

ID = "4f1c0de5" * 8
OUTER = "0b1e55ed" * 8
UID = "2d4b7e6a-1f0c-4b7e-9c55-0123456789ab"
LINED = UID.replace("-", "_")
HASH = "0123456789abcdef0123456789abcdef"  # a pod from a file: its UID is the hash of the file

CONTAINERS = {
    f"/docker/{ID}": ("docker", None, None),
    f"/docker/{OUTER}/docker/{ID}": ("docker", None, None),
    f"/system.slice/docker-{ID}.scope": ("docker", None, None),
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope": ("docker", None, None),
    f"/machine.slice/libpod-{ID}.scope": ("podman", None, None),
    f"/machine.slice/libpod-{ID}.scope/container": ("podman", None, None),
    f"/machine.slice/libpod-conmon-{ID}.scope": ("podman", None, None),
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope": ("podman", None, None),
    f"/libpod_parent/libpod-{ID}": ("podman", None, None),
    f"/system.slice/nerdctl-{ID}.scope": ("containerd", None, None),
    f"/default/{ID}": ("unknown", None, None),
    f"/kubepods/burstable/pod{UID}/{ID}": ("kubernetes", UID, "burstable"),
    f"/kubepods/besteffort/pod{UID}/{ID}": ("kubernetes", UID, "besteffort"),
    f"/kubepods/pod{UID}/{ID}": ("kubernetes", UID, "guaranteed"),
    f"/kubepods/burstable/pod{HASH}/{ID}": ("kubernetes", HASH, "burstable"),
    f"/kubepods/burstable/pod{UID}/crio-{ID}": ("cri-o", UID, "burstable"),
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{LINED}.slice/cri-containerd-{ID}.scope": (
        "containerd",
        UID,
        "burstable",
    ),
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{LINED}.slice/docker-{ID}.scope": (
        "docker",
        UID,
        "besteffort",
    ),
    f"/kubepods.slice/kubepods-pod{LINED}.slice/crio-{ID}.scope/container": ("cri-o", UID, "guaranteed"),
    f"/kubepods.slice/kubepods-pod{HASH}.slice/crio-{ID}.scope": ("cri-o", HASH, "guaranteed"),
    f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{LINED}.slice/cri-containerd-{ID}.scope": (
        "containerd",
        UID,
        "guaranteed",
    ),
    f"/system.slice/containerd.service/kubepods-burstable-pod{LINED}.slice:cri-containerd:{ID}": (
        "containerd",
        UID,
        "burstable",
    ),
    f"/docker/{OUTER}/kubelet/kubepods/besteffort/pod{UID}/{ID}": ("kubernetes", UID, "besteffort"),
}


def place(cgroup: str) -> Place | None:
    """The container, else the job, else the unit that a path names."""
    found = places(cgroup)
    return next((found[kind] for kind in PlaceKind if kind in found), None)


@pytest.mark.parametrize("path", CONTAINERS)
def test_containers_with_an_id(path):
    runtime, pod_uid, qos = CONTAINERS[path]
    found = place(path)
    assert (found.kind, found.id, found.label) == (PlaceKind.CONTAINER, f"container:{ID}", ID[:12])
    assert found.details["runtime"] == runtime
    assert found.details["container_id"] == ID
    assert found.details.get("pod_uid") == pod_uid
    assert found.details.get("qos") == qos


def test_a_podman_pod_is_a_detail():
    found = place(f"/machine.slice/machine-libpod_pod_{OUTER}.slice/libpod-{ID}.scope")
    assert (found.id, found.details["pod_id"]) == (f"container:{ID}", OUTER)


def test_a_pod_without_a_container():
    found = place(f"/kubepods.slice/kubepods-pod{LINED}.slice")
    assert (found.kind, found.id, found.label) == (PlaceKind.CONTAINER, f"pod:{UID}", "pod 2d4b7e6a-1f0")


@pytest.mark.parametrize(
    ("path", "owner", "unit"),
    [
        ("/lxc/web", "lxc:web", None),
        ("/lxc/web/init.scope", "lxc:web", "init.scope"),
        ("/lxc.payload.web/system.slice/nginx.service", "lxc:web", "nginx.service"),
        ("/lxc.monitor.web", "lxc:web", None),
        (r"/machine.slice/machine-lxc\x2d4242\x2dweb.scope", "lxc:web", None),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb\x2d12.scope/libvirt/emulator", "qemu:web-12", None),
        ("/qemu.slice/100.scope", "qemu:100", None),
        ("/machine.slice/machine-debian.scope/payload", "nspawn:debian", None),
        ("/machine.slice/systemd-nspawn@debian.service/payload/init.scope", "nspawn:debian", "init.scope"),
    ],
)
def test_containers_with_a_name(path, owner, unit):
    found = place(path)
    assert (found.id, found.label, found.details.get("unit")) == (owner, owner.split(":")[1], unit)


@pytest.mark.parametrize(
    ("path", "id_", "label"),
    [
        ("/init.scope", "unit:init.scope", "init.scope"),
        ("/system.slice", "unit:system.slice", "system.slice"),
        ("/system.slice/nginx.service", "unit:nginx.service", "nginx.service"),
        ("/system.slice/nginx.service/workers", "unit:nginx.service", "nginx.service"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "unit:getty@tty1.service", "getty@tty1.service"),
        (r"/system.slice/a\x2db.service", "unit:a-b.service", "a-b.service"),
        ("/user.slice/user-1000.slice", "unit:user-1000.slice", "user-1000.slice"),
        ("/user.slice/user-1000.slice/session-3.scope", "unit:session-3.scope", "session 3 of user 1000"),
        ("/user.slice/user-1000.slice/user@1000.service", "unit:user@1000.service", "user@1000.service"),
        (
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
            "unit:1000:init.scope",
            "init.scope of user 1000",
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-12.scope",
            "unit:1000:app-gnome-firefox-12.scope",
            "app-gnome-firefox-12.scope of user 1000",
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice",
            "unit:1000:app.slice",
            "app.slice of user 1000",
        ),
    ],
)
def test_units(path, id_, label):
    found = place(path)
    assert (found.kind, found.id, found.label) == (PlaceKind.UNIT, id_, label)


@pytest.mark.parametrize(
    ("path", "details"),
    [
        ("/slurm/uid_1000/job_123/step_0/task_2", {"job_id": 123, "uid": 1000, "step": "0", "task": "2"}),
        ("/slurm_n1/uid_1000/job_123/step_batch", {"job_id": 123, "uid": 1000, "node": "n1", "step": "batch"}),
        ("/system.slice/slurmstepd.scope/job_123", {"job_id": 123}),
        (
            "/system.slice/slurmstepd.scope/job_123/step_extern/user/task_special",
            {"job_id": 123, "step": "extern", "task": "special"},
        ),
        (
            "/system.slice/n1_slurmstepd.scope/job_123/step_interactive/user/task_0",
            {"job_id": 123, "node": "n1", "step": "interactive", "task": "0"},
        ),
        (
            "/hpc.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
            {
                "sluid": "s5K1KKYAYG5D00",
                "submitted": "2026-03-17T16:44:29.741+00:00",
                "node": "n1",
                "step": "0",
                "task": "0",
            },
        ),
    ],
)
def test_slurm_jobs(path, details):
    found = places(path)[PlaceKind.JOB]
    number = details.get("job_id", details.get("sluid"))
    assert (found.id, found.label) == (f"slurm:{number}", f"job {number}")
    assert found.details == {"scheduler": "slurm", **details}


def test_a_container_in_a_job_is_both():
    found = places(f"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/libpod-{ID}.scope")
    assert found[PlaceKind.JOB].id == "slurm:7"
    assert found[PlaceKind.CONTAINER].id == f"container:{ID}"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/process_api/d39b044c3683f60934fbe4215da995a8",  # 32 digits are no container's id
        "/../..",
        "/job_5",
        "/slurm/job_5",
        "/user",
        "/docker",
        f"/docker/{ID[:63]}g",
    ],
)
def test_paths_that_say_nothing(path):
    assert place(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_999/step_0",
        "/user.slice/slurmstepd.scope/job_999/step_0",
        "/user.slice/user-1000.slice/user@1000.service/slurm/uid_1000/job_999/step_0",
        f"/docker/{ID}/slurm/uid_1000/job_999/step_0",
        f"/system.slice/docker-{ID}.scope/system.slice/slurmstepd.scope/job_999/step_0",
        f"/machine.slice/libpod-{ID}.scope/hpc.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00/step_0",
        "/machine.slice/slurmstepd.scope/job_999/step_0",
        "/slurmstepd.scope/job_999/step_0",
        "/system.slice/user-1000.slice/slurmstepd.scope/job_999",
        "/../system.slice/slurmstepd.scope/job_999/step_0",
    ],
)
def test_a_job_is_one_from_the_root_of_the_hierarchy_only(path):
    assert PlaceKind.JOB not in places(path)


def test_the_daemon_of_slurm_is_in_no_job():
    assert places("/system.slice/slurmstepd.scope/system").keys() == {PlaceKind.UNIT}
    assert places("/system.slice/slurmstepd.scope/sILOUILOUILOU0").keys() == {PlaceKind.UNIT}


def test_sluid():
    assert sluid_time("s5K1KKYAYG5D00").isoformat(timespec="milliseconds") == "2026-03-17T16:44:29.741+00:00"
    for wrong in ("", "s", "5K1KKYAYG5D00", "s5K1KKYAYG5D0", "s5K1KKYAYG5D000", "s5K1KKYAYG5D0I", "sG000000000000"):
        assert sluid_time(wrong) is None


@given(st.integers(0, 2**12 - 1), st.integers(0, 2**42 - 1), st.integers(0, 2**10 - 1))
def test_every_sluid_says_when_it_was_given_out(cluster, ms, sequence):
    value, text = cluster << 52 | ms << 10 | sequence, ""
    for _ in range(13):
        text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[value & 31] + text
        value >>= 5
    assert round(sluid_time("s" + text).timestamp() * 1000) == ms


@given(st.text(max_size=200))
def test_no_path_is_too_odd(path):
    for found in places(path).values():
        assert found.id and found.label


def test_unescape():
    assert unescape(r"dev-disk-by\x2duuid") == "dev-disk-by-uuid"
