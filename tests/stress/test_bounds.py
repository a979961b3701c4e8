"""A program never gets more memory than is available: the machine's, or its control group's."""

import pytest

from everywatt.core.errors import UsageError
from everywatt.core.machine import Machine
from everywatt.sensors.surroundings import memory_bytes
from everywatt.stress import Cpu, Program, Step
from everywatt.stress.cpu import stream_bytes
from everywatt.stress.playing import check_memory, needed_bytes

GIB = 2**30


def machine(folder, *, available_gib=4, total_gib=8, cgroup="", limits=None):
    proc, sys = folder / "proc", folder / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal: {total_gib * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {available_gib * 2**20} kB\n"
    )
    if cgroup:
        (proc / "self" / "cgroup").write_text(cgroup)
    for path, text in (limits or {}).items():
        file = sys / "fs" / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return Machine(sys=sys, proc=proc)


def holding(size):
    return Program((Step(1.0, memory_bytes=size),))


def test_more_than_is_available_is_refused_before_anything_starts(tmp_path):
    here = machine(tmp_path)
    check_memory(holding(3 * GIB), here)
    with pytest.raises(UsageError, match=r"needs 3\.9 GiB of memory; 4\.0 GiB are available, and 409\.6 MiB") as caught:
        check_memory(holding(int(3.9 * GIB)), here)
    assert "3.6 GiB" in caught.value.cure


def test_the_limit_of_a_container_counts(tmp_path):
    here = machine(
        tmp_path,
        cgroup="0::/pod/one\n",
        limits={
            "pod/one/memory.max": "max",
            "pod/one/memory.current": 100,
            "pod/memory.max": GIB,
            "pod/memory.current": GIB // 4,
        },
    )
    assert memory_bytes(here) == (GIB * 3 // 4, GIB)
    with pytest.raises(UsageError, match=r"768\.0 MiB are available"):
        check_memory(holding(700 * 2**20), here)


def test_a_container_that_sees_itself_as_the_root(tmp_path):
    here = machine(tmp_path, cgroup="0::/\n", limits={"memory.max": GIB, "memory.current": GIB // 2})
    assert memory_bytes(here) == (GIB // 2, GIB)


def test_an_old_control_group(tmp_path):
    limits = {"memory/box/memory.limit_in_bytes": 2 * GIB, "memory/box/memory.usage_in_bytes": GIB}
    here = machine(tmp_path, cgroup="5:memory:/box\n4:cpu,cpuacct:/box\n0::/box\n", limits=limits)
    assert memory_bytes(here) == (GIB, 2 * GIB)


def test_workers_count_too():
    program = Program((Step(1.0, Cpu(4, 10.0, "memory"), memory_bytes=1000), Step(1.0, Cpu(2, 10.0))))
    assert needed_bytes(program) == 1000 + 4 * (32 * 2**20 + 2 * stream_bytes())
    assert needed_bytes(Program((Step(1.0, Cpu(2, 10.0)),))) == 64 * 2**20


def test_a_kernel_that_does_not_say_forbids_nothing(tmp_path):
    check_memory(holding(GIB), Machine(sys=tmp_path, proc=tmp_path))
