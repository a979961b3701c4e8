from pathlib import Path

import pytest

from everywatt.sensors.usage.cgroups import Counted, Place, parse_place


def usage(root: Path, place: Place) -> dict[str, object]:
    counted = Counted(root, place)
    try:
        return counted.read()
    finally:
        counted.close()


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_version_2(tmp_path):
    place = parse_place(b"0::/system.slice/slurmstepd.scope/job_12/step_0\n")
    assert (place.path, place.version) == ("/system.slice/slurmstepd.scope/job_12/step_0", 2)
    folder = tmp_path / "system.slice/slurmstepd.scope/job_12/step_0"
    put(folder / "cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    put(folder / "memory.current", "4096\n")
    assert usage(tmp_path, place) == {"cpu_s": 2.5, "memory_bytes": 4096.0}


def test_version_2_without_the_memory_controller_says_why(tmp_path):
    put(tmp_path / "a" / "cpu.stat", "usage_usec 1000\n")
    used = usage(tmp_path, Place("/a", 2))
    assert (used["cpu_s"], used["memory_bytes"]) == (0.001, None)
    assert "memory" in used["why"]


def test_version_1_with_joint_hierarchies(tmp_path):
    data = b"9:name=systemd:/x\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n"
    place = parse_place(data)
    assert (place.path, place.version) == ("/docker/abc", 1)
    put(tmp_path / "cpu,cpuacct/docker/abc/cpuacct.usage", "1500000000\n")
    put(tmp_path / "memory/docker/abc/memory.usage_in_bytes", "8192\n")
    assert usage(tmp_path, place) == {"cpu_s": 1.5, "memory_bytes": 8192.0}


def test_hybrid_counts_by_version_1(tmp_path):
    data = b"3:memory:/job\n2:cpuacct:/job\n1:name=systemd:/job\n0::/job\n"
    place = parse_place(data)
    assert place == Place("/job", 1, "cpuacct/job", "memory/job")
    put(tmp_path / "unified/job/cpu.stat", "usage_usec 77\n")
    put(tmp_path / "cpuacct/job/cpuacct.usage", "250000000")
    put(tmp_path / "memory/job/memory.usage_in_bytes", "1")
    assert usage(tmp_path, place)["cpu_s"] == 0.25


def test_a_controller_at_its_root_does_not_speak_for_the_group(tmp_path):
    place = parse_place(b"4:memory:/box/a\n2:cpuacct:/\n1:cpu:/\n0::/\n")
    assert place == Place("/box/a", 1, None, "memory/box/a")
    put(tmp_path / "cpuacct/cpuacct.usage", "999000000000")
    put(tmp_path / "memory/box/a/memory.usage_in_bytes", "5")
    used = usage(tmp_path, place)
    assert (used["cpu_s"], used["memory_bytes"]) == (None, 5.0)
    assert "cpuacct" in used["why"]


def test_a_group_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        usage(tmp_path, Place("/gone", 2))
    (tmp_path / "cpuacct").mkdir()
    with pytest.raises(FileNotFoundError):
        usage(tmp_path, Place("/gone", 1, "cpuacct/gone", None))


def test_a_hierarchy_that_is_not_mounted(tmp_path):
    used = usage(tmp_path, Place("/a", 1, "cpuacct/a", "memory/a"))
    assert (used["cpu_s"], used["memory_bytes"]) == (None, None)
    assert "not mounted" in used["why"]


def test_a_path_that_climbs_out_is_not_followed(tmp_path):
    put(tmp_path / "secret" / "cpu.stat", "usage_usec 1\n")
    (tmp_path / "root").mkdir()
    assert usage(tmp_path / "root", parse_place(b"0::/../secret\n"))["cpu_s"] is None


@pytest.mark.parametrize("text", ["", "garbage", "usage_usec x"])
def test_garbage_is_none_with_a_reason(tmp_path, text):
    put(tmp_path / "a" / "cpu.stat", text)
    put(tmp_path / "a" / "memory.current", text)
    used = usage(tmp_path, Place("/a", 2))
    assert (used["cpu_s"], used["memory_bytes"]) == (None, None)
    assert "cpu" in used["why"] and "memory" in used["why"]


def test_where_hierarchies_differ_the_path_that_names_something_counts():
    number = "0123456789abcdef" * 4
    data = f"4:memory:/a/b/c\n3:cpuset:/\n2:cpuacct:/docker-{number}.scope\n1:cpu:/\n".encode()
    place = parse_place(data)
    assert (place.path, place.cpu) == (f"/docker-{number}.scope", f"cpuacct/docker-{number}.scope")
    assert parse_place(b"4:memory:/a/b/c\n2:cpuacct:/a\n").path == "/a/b/c"


@pytest.mark.parametrize(
    ("quota", "cpus", "given"), [("max 100000", "", None), ("150000 100000", "", 1.5), ("max 100000", "0-1,4", 3.0)]
)
def test_how_many_cpus_a_group_was_given(tmp_path, quota, cpus, given):
    put(tmp_path / "a/cpu.stat", "usage_usec 1\n")
    put(tmp_path / "a/memory.current", "1")
    put(tmp_path / "a/cpu.max", quota + "\n")
    put(tmp_path / "a/cpuset.cpus", cpus + "\n")
    assert usage(tmp_path, parse_place(b"0::/a\n")).get("cpus") == given


def test_a_quota_of_version_1(tmp_path):
    place = parse_place(b"4:memory:/j\n3:cpuset:/j\n2:cpuacct:/j\n1:cpu:/j\n")
    put(tmp_path / "cpuacct/j/cpuacct.usage", "0")
    put(tmp_path / "memory/j/memory.usage_in_bytes", "1")
    put(tmp_path / "cpu/j/cpu.cfs_quota_us", "50000\n")
    put(tmp_path / "cpu/j/cpu.cfs_period_us", "100000\n")
    assert usage(tmp_path, place)["cpus"] == 0.5


def test_a_member_of_a_made_group_belongs_where_it_was_started():
    assert parse_place(b"0::/box/everywatt-run-77\n").path == "/box"
    assert parse_place(b"4:memory:/a/b\n2:cpuacct:/everywatt-run-77\n0::/\n").path == "/a/b"


@pytest.mark.parametrize("sign", ["\v", "\f", "\x1e", "\u2028", "\r"])
def test_a_path_cannot_hold_a_second_line(sign):
    path = f"/user.slice/x{sign}0::/system.slice/slurmstepd.scope/job_999/step_0"
    assert parse_place(f"0::{path}\n".encode()).path == path


def test_a_container_in_another_hierarchy_does_not_hide_a_job():
    """With version 1 a user may make groups in systemd's hierarchy, of any name and depth; a job's only root makes."""
    own = f"/user.slice/user-1000.slice/user@1000.service/a/b/libpod-{'ab' * 32}.scope"
    place = parse_place(f"3:freezer:/slurm/uid_1000/job_5/step_0\n2:cpuacct:/\n1:name=systemd:{own}\n".encode())
    assert place.path == "/slurm/uid_1000/job_5/step_0"
    forged = "/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_9/step_0/user/task_0"
    place = parse_place(f"3:freezer:/slurm/uid_1000/job_5/step_0\n2:cpuacct:/\n1:name=systemd:{forged}\n".encode())
    assert place.path == "/slurm/uid_1000/job_5/step_0"
