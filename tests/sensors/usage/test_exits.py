"""Exit records of the kernel, and trees that know by them what those used that came and went between two reads."""

import errno
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from everywatt.sensors import procfs
from everywatt.sensors.usage import exits, processes
from everywatt.sensors.usage.exits import Exit, ExitRecords
from everywatt.sensors.usage.member import Member
from everywatt.sensors.usage.processes import LOST, Trees

PROC = Path("/proc")
BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"


def records_or_skip():
    found, why = processes.open_records()
    if found is None:
        pytest.skip(why)
    return found


@pytest.fixture
def records():
    found = records_or_skip()
    yield found
    found.close()


def drained(records, wanted):
    found = []

    def look():
        found.extend(records.drain()[0])
        return wanted(found)

    until(look)
    return found


def test_a_process_that_ended_is_told_with_its_seconds(records):
    child = subprocess.Popen([sys.executable, "-S", "-c", BURN.format(seconds=0.2)])
    child.wait()
    (one,) = [r for r in drained(records, lambda f: any(r.pid == child.pid for r in f)) if r.pid == child.pid]
    assert one.ppid == os.getpid() and one.uid == os.getuid() and one.name.startswith("python")
    assert 0.19 <= one.cpu_s <= 0.4 and one.age_s >= 0.2


def test_the_seconds_of_all_threads_count(records):
    code = (
        "import threading, time\n"
        "def burn():\n end = time.thread_time() + 0.1\n while time.thread_time() < end: pass\n"
        "for _ in range(2):\n t = threading.Thread(target=burn); t.start(); t.join()\n"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    child.wait()
    (one,) = [r for r in drained(records, lambda f: any(r.pid == child.pid for r in f)) if r.pid == child.pid]
    assert one.cpu_s >= 0.19


def test_a_message_that_is_not_understood_is_no_exit(records):
    assert records._exit(b"") is None
    assert records._exit(b"\0" * 20 + b"\x02\0\x04\0") is None
    short = struct.pack("=HH", 12, 4) + struct.pack("=HH", 8, 3) + b"\x10\0\0\0"
    assert records._exit(b"\0" * 20 + short) is None


def test_a_layout_that_is_not_known_is_refused(monkeypatch):
    records_or_skip().close()
    moved = struct.Struct("=8xB63xQ32s12xI4xII228xI4xQ")  # as if the kernel had moved its fields
    monkeypatch.setattr(exits, "_RECORD", moved)
    with pytest.raises(ValueError, match="layout"):
        ExitRecords()
    assert processes.open_records()[0] is None


class Lossy:
    """Records of which some were lost, once."""

    def __init__(self):
        self.answers = [([], True), ([], False), ([], True)]

    def drain(self):
        return self.answers.pop(0)

    def close(self):
        pass


def test_lost_records_turn_exits_off_for_that_read(monkeypatch):
    monkeypatch.setattr(processes, "open_records", lambda: (Lossy(), ""))
    trees = Trees(PROC, [os.getpid()], exits=True)
    host = [next((row for row in trees.read() if row["pid"] == 0), None) for _ in range(3)]
    assert host[0] == {"pid": 0, "start": 0, "name": "host", "everything": False, "exits": True}
    assert host[1]["exits"] is False and host[1]["why"] == LOST
    assert host[2]["exits"] is True and "why" not in host[2]


def test_a_socket_that_breaks_ends_them_with_the_reason(monkeypatch):
    class Broken(Lossy):
        def drain(self):
            raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(processes, "open_records", lambda: (Broken(), ""))
    trees = Trees(PROC, [os.getpid()], exits=True, everything=True)
    assert "Bad file descriptor" in trees.read()[0]["why"]
    assert trees.exits is False and trees.read() is not None


def test_who_is_above_whom():
    one = [Exit(12, 11, 0, "c", 0, 0), Exit(11, 10, 0, "b", 0, 0), Exit(99, 98, 0, "x", 0, 0)]
    assert processes.of_whom(one, [10]) == {10: 10, 11: 10, 12: 10}


def parent_with(children_cpu_s):
    parent = Member(10)
    parent.stat = procfs.ProcessStat(10, "sh", "S", 1, 0.0, children_cpu_s, 1, 5, 0)
    return parent


def test_what_the_parent_was_told_beyond_the_records_goes_to_those_that_ended():
    short = [Exit(pid, 10, 0, "true", 0.001, 0.004) for pid in range(100)]
    parent = parent_with(0.3)
    done = processes.completed({10: short}, {10: parent})
    assert sum(one.cpu_s for one in done) == pytest.approx(0.3)
    assert parent.known_s == pytest.approx(0.3)
    # None gets more than it lived, whatever the parent says.
    done = processes.completed({10: short}, {10: parent_with(50.0)})
    assert max(one.cpu_s for one in done) <= 0.004 + 1e-12
    # A parent that does not wait for its children knows nothing.
    assert processes.completed({10: short}, {10: parent_with(0.0)}) == short


def test_a_record_is_not_about_a_younger_process():
    young = parent_with(0.0)
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    young.stat = young.stat._replace(start=int(boot_s * procfs.TICKS_PER_S))
    assert not processes.is_about(Exit(10, 1, 0, "old", 1.0, 60.0), young)
    assert processes.is_about(Exit(10, 1, 0, "young", 0.0, 0.0), young)


def totals(rows, above):
    """Last CPU seconds of every process below `above`, by pid and start."""
    mine, found = {above}, {}
    for row in rows:
        if row["pid"] in mine or row.get("ppid") in mine:
            mine.add(row["pid"])
            if "cpu_s" in row:
                found[row["pid"], row["start"]] = row["cpu_s"]
    return found


@pytest.mark.parametrize("everything", [False, True])
def test_a_double_forked_daemon_between_two_reads_is_charged(everything):
    records_or_skip().close()
    code = (
        "import os, sys, time, ctypes\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "sys.stdin.readline()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while time.process_time() < 1.0: pass\n"
        "    os._exit(0)\n"
        "os.wait(); os.wait()\n"  # both: the daemon was handed to its grandparent
        "print('done', flush=True); sys.stdin.readline()\n"
    )
    parent = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=-1, stdout=-1, text=True)
    trees = Trees(PROC, [parent.pid], exits=True, everything=everything)
    try:
        rows = trees.read()
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "done\n"
        rows += trees.read()  # only now
        own = totals(rows, parent.pid)
        told = sum(seconds for (pid, _), seconds in own.items() if pid != parent.pid)
        assert 0.95 <= told <= 1.2
    finally:
        trees.close()
        parent.communicate("\n", timeout=240)


def short_ones(count):
    """A tree that starts `count` short processes: what the table told of them, and what the kernel says."""
    line = f"read x; i=0; while [ $i -lt {count} ]; do i=$((i+1)); /bin/true; done; read x"
    shell = subprocess.Popen(["sh", "-c", line], stdin=-1, text=True)
    trees = Trees(PROC, [shell.pid], exits=True)
    try:
        rows = trees.read()
        shell.stdin.write("\n")
        shell.stdin.flush()
        seen = 0
        while seen < count:
            new = trees.read()
            rows += new
            seen += sum(bool(row.get("exit")) for row in new)
            time.sleep(0.1)
        rows += trees.read()
        stat = procfs.parse_process_stat(procfs.slurp(f"/proc/{shell.pid}/stat"))
        told = totals(rows, shell.pid)
        young = sum(seconds for (pid, _), seconds in told.items() if pid != shell.pid)
        return len(told) - 1, young, stat.children_cpu_s
    finally:
        trees.close()
        shell.communicate("\n", timeout=240)


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_many_short_processes_are_all_told(count):
    records_or_skip().close()
    number, told_s, kernel_s = short_ones(count)
    assert number == count
    assert told_s == pytest.approx(kernel_s, rel=0.1, abs=0.05)
