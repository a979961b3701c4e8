"""The group that is made for a command: only where it changes nothing else. With files, and with the real kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everywatt.api import own_cgroup
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request
from everywatt.sensors.usage.use import Use

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Version 2 alone, a group of our own, no systemd."""
    root = tmp_path / "sys/fs/cgroup"
    put(root / "cgroup.controllers", "cpu memory\n")
    put(root / "box/cgroup.procs", "")
    put(root / "box/cgroup.subtree_control", "\n")
    put(root / "box/cgroup.type", "domain\n")
    put(tmp_path / "proc/self/cgroup", "0::/box\n")
    put(tmp_path / "proc/1/comm", "init\n")
    monkeypatch.setattr(own_cgroup, "made_seconds", lambda folder: 0.0)
    monkeypatch.setattr(own_cgroup, "SYSTEMD", tmp_path / "none")
    return Machine(sys=tmp_path / "sys", proc=tmp_path / "proc", environ={})


def test_it_lies_below_our_own(machine):
    made, why = own_cgroup.make(machine)
    assert (made.folder, why) == (machine.sys / f"fs/cgroup/box/everywatt-run-{os.getpid()}", "")
    assert made.cpu_s() is None  # nothing ran in it
    assert made.remove() and made.remove()


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("cgroup.subtree_control", "cpu\n", "delegates controllers"),
        ("cgroup.type", "threaded\n", "threaded"),
    ],
)
def test_groups_that_are_left_alone(machine, file, text, reason):
    put(machine.sys / "fs/cgroup/box" / file, text)
    made, why = own_cgroup.make(machine)
    assert made is None and reason in why


def test_what_systemd_looks_after_is_left_alone_unless_it_was_handed_over(machine, monkeypatch):
    put(machine.proc / "1/comm", "systemd\n")
    made, why = own_cgroup.make(machine)
    assert made is None and "systemd" in why
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1" if name == "user.delegate" else b"")
    assert own_cgroup.make(machine)[0] is not None


@pytest.mark.parametrize("line", ["0::/../outside\n", "0::/elsewhere\n", "3:cpu,cpuacct:/box\n", ""])
def test_there_is_none_where_there_is_no_group_to_be_seen(machine, line):
    put(machine.proc / "self/cgroup", line)
    made, why = own_cgroup.make(machine)
    assert made is None and why


def test_an_empty_group_of_a_run_that_is_over_goes(machine):
    left = machine.sys / "fs/cgroup/box/everywatt-run-4999999"
    left.mkdir()
    busy = machine.sys / "fs/cgroup/box/everywatt-run-1"
    busy.mkdir()  # its run is alive
    own_cgroup.make(machine)
    assert not left.exists() and busy.exists()


@pytest.fixture
def real():
    made, why = own_cgroup.make()
    if made is None:
        pytest.skip(why)
    yield made
    made.remove()


def test_a_real_group_counts_what_ran_in_it_and_nothing_else_changes(real):
    others = Path("/proc/self/cgroup").read_text().splitlines()
    code = BURN + "print(open('/proc/self/cgroup').read(), end='')"
    done = subprocess.run([sys.executable, "-S", "-c", code], preexec_fn=real.join, capture_output=True, text=True)
    # The child joins after it was forked, and the kernel rounds to its ticks: a little may be missing.
    assert 0.25 <= real.cpu_s() <= 0.6
    moved = [line for line in done.stdout.splitlines() if line not in others]
    assert len(moved) == 1 and moved[0].endswith(real.folder.name)
    table = Use(Request()).groups()[2]
    table.watch(str(real.folder))
    row = table.read_table()[1][-1]
    assert row["made"] is True and row["cpu_s"] == pytest.approx(real.cpu_s(), abs=0.001)
    assert real.remove() and not real.folder.exists()
    assert table.read_table()[1][-1]["gone"] is True
    assert own_cgroup.OwnCgroup(real.folder).cpu_s() is None


def test_a_group_with_a_living_daemon_stays(real):
    daemon = subprocess.Popen(["sleep", "30"], preexec_fn=real.join)
    try:
        assert real.remove() is False and real.folder.exists()
    finally:
        daemon.kill()
        daemon.wait()
    assert real.remove() is True
