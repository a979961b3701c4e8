import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Cadence
from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors import procfs
from everywatt.sensors.base import Request, State
from everywatt.sensors.usage.use import Use

STAT = "cpu  100 10 30 500 20 4 6 50 70 5\ncpu0 100 10 30 500 20 4 6 50 70 5\n"
MEMINFO = "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n"


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text(STAT)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return Machine(sys=tmp_path / "sys", proc=tmp_path / "proc", environ={}, clock=FakeClock(now_ns=7_000_000_000))


def test_host_values_and_their_time(machine):
    host = Use(Request(machine)).groups()[0]
    (row,) = host.read()
    tick = procfs.TICKS_PER_S
    assert row.values == pytest.approx((150 / tick, 520 / tick, 50 / tick, 1500 * 1024))
    assert (row.read_ns, row.late_ns) == (7_000_000_000, 7_000_000_000)
    assert row.early_ns == 7_000_000_000 - 1_000_000_000 // tick
    names = [channel.name for channel in host.info.channels]
    assert names == ["host.cpu_time", "host.idle_time", "host.steal_time", "host.memory"]
    assert not any(channel.carries_energy for channel in host.info.channels)
    assert (host.info.cadence, host.info.table) == (Cadence.SLOW, False)
    host.close()


def test_the_report_has_real_values_and_no_power(machine):
    report = Use(Request(machine)).probe()
    assert report.usable and report.power is False
    assert report.samples["host.memory"] == 1500 * 1024
    (machine.proc / "mounts").write_text("proc /proc proc rw,hidepid=2 0 0\n")
    assert "hidepid=2" in Use(Request(machine)).probe().missing["processes of other users"]


def test_no_meminfo_is_none_and_not_zero(machine):
    (machine.proc / "meminfo").unlink()
    report = Use(Request(machine)).probe()
    assert report.usable and report.samples["host.memory"] is None and "host.memory" in report.missing


@pytest.mark.parametrize("text", ["", "garbage\n", "cpu  x\n"])
def test_a_broken_stat(machine, text):
    host = Use(Request(machine)).groups()[0]
    (machine.proc / "stat").write_text(text)
    with pytest.raises(SensorError):
        host.read()
    assert Use(Request(machine)).probe().state is State.UNUSABLE
    (machine.proc / "stat").unlink()
    assert Use(Request(machine)).probe().state is State.ABSENT


def test_busy_seconds_of_the_real_host_hold_those_of_a_burning_child():
    host = Use(Request()).groups()[0]
    before = host.read()[0].values[0]
    code = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert host.read()[0].values[0] - before >= 0.25
    host.close()


def test_processes_and_cgroups_of_a_real_tree():
    child = subprocess.Popen(["sleep", "30"])
    groups = Use(Request(pids=(child.pid,))).groups()
    try:
        _, table, cgroups = groups
        assert (table.info.name, table.info.table, table.info.cadence) == ("use.processes", True, Cadence.SLOW)
        at_ns, rows = table.read_table()
        assert abs(at_ns - time.monotonic_ns()) < 5_000_000_000
        by_pid = {row["pid"]: row for row in rows}
        assert by_pid[os.getpid()]["meter"] is True
        assert "meter" not in by_pid[child.pid]
        _, groups_used = cgroups.read_table()
        assert {row["cgroup"] for row in groups_used} >= {by_pid[child.pid]["cgroup"]}
    finally:
        child.kill()
        child.wait()
        for group in groups:
            group.close()


def test_cgroups_change_and_vanish(machine, monkeypatch):
    proc, root = machine.proc, machine.sys / "fs" / "cgroup"
    folder = proc / "10" / "task" / "10"
    folder.mkdir(parents=True)
    (folder / "children").write_text("")
    (proc / "10" / "stat").write_text("10 (x) S 1 0 0 0 -1 0 0 0 0 0 1 0 0 0 20 0 1 0 5 0 10 0 0 0\n")
    (proc / "10" / "cgroup").write_text("0::/job_1\n")
    group = root / "job_1"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 1000000\n")
    (group / "memory.current").write_text("4096\n")
    _, table, cgroups = Use(Request(machine, pids=(10,))).groups()
    table.read_table()
    whole = {"cgroup": "/job_1", "version": 2, "cpu_s": 1.0, "memory_bytes": 4096.0}
    assert cgroups.read_table()[1] == [whole]
    assert cgroups.read_table()[1] == []
    (group / "cpu.stat").write_text("usage_usec 3000000\n")
    assert cgroups.read_table()[1] == [{**whole, "cpu_s": 3.0}]
    for path in (group / "cpu.stat", group / "memory.current"):
        path.unlink()
    group.rmdir()
    # An open file of a cgroup that was removed cannot be read; an ordinary file still could.
    monkeypatch.setattr("everywatt.sensors.procfs.KeptFile.read", Mock(side_effect=OSError(errno.ENODEV, "No device")))
    assert cgroups.read_table()[1] == [{"cgroup": "/job_1", "version": 2, "gone": True}]
    assert cgroups.read_table()[1] == []


def test_sensors_load_without_heavy_libraries():
    code = (
        "import sys, everywatt.sensors.usage.use, everywatt.sensors.cpu.modelled as m\n"
        "m.shipped()\n"
        "print(sorted({'numpy', 'click', 'rich', 'psutil', 'asyncio', 'scipy', 'pynvml'} & set(sys.modules)))"
    )
    source = Path(__file__).parents[3] / "src"
    env = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
