"""What a recording asks of the table of processes: all of them or some, and what it is about."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from everywatt.core.errors import UsageError
from everywatt.recorder.client import record
from everywatt.sensors import procfs
from everywatt.tape.reader import Tape


def open_(lab, name, **options):
    return record(lab.tape(name), meta={}, sensors=["use"], **options)


def rows_of(path, name="use.processes"):
    tape = Tape.open(path)
    group = next(group for group in tape.groups if group.info.name == name)
    return [row for _, rows in tape.tables(group.id) for row in rows]


def follow_notes(path):
    return [note.data for note in Tape.open(path).notes() if note.kind == "follow"]


def test_one_that_asks_for_everything_leaves_the_others_as_they_are(lab) -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        one = open_(lab, "a/host-0001.tape", pids=[child.pid], memory="pss")
        all_ = open_(lab, "b/host-0001.tape", everything=True)
        time.sleep(0.3)  # for three readings of both
        mine, everybody = one.close().path, all_.close().path
    finally:
        child.kill()
        child.wait()
    strangers = {1, os.getpid()}
    own = {row["pid"] for row in rows_of(mine)} - {0}
    assert child.pid in own and not strangers & own
    assert not any(row.get("everything") for row in rows_of(mine))
    (row,) = [row for row in rows_of(mine) if row["pid"] == child.pid][:1]
    assert row["uss_bytes"] <= row["pss_bytes"]
    whole = rows_of(everybody)
    assert whole[0]["everything"] is True and {1, os.getpid(), child.pid} <= {row["pid"] for row in whole}
    assert not any("pss_bytes" in row for row in whole)
    assert follow_notes(mine) == [{"pids": [child.pid], "starts": [pytest.approx(row["start"])]}]
    assert follow_notes(everybody) == []


def test_what_is_followed_later_is_noted_too(lab) -> None:
    recording = open_(lab, "a/host-0001.tape")
    recording.follow([os.getpid(), 4_190_000])
    path = recording.close().path
    start = procfs.start_of("/proc", os.getpid())
    assert follow_notes(path) == [{"pids": [os.getpid(), 4_190_000], "starts": [start, None]}]


def test_a_last_look_has_the_seconds_of_a_zombie(lab) -> None:
    recording = open_(lab, "a/host-0001.tape", reaper=os.getpid())
    code = "import time\nwhile time.process_time() < 0.3: pass"
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    recording.follow([child.pid])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert recording.read_tables(5.0)["ok"] is True
    child.wait()
    rows = rows_of(recording.close().path)
    assert max(row.get("cpu_s", 0) for row in rows if row["pid"] == child.pid) >= 0.3
    assert all(row["reaper"] and row["meter"] for row in rows if row["pid"] == os.getpid())


def test_a_recorder_that_is_gone_is_not_replaced_for_a_last_look(lab) -> None:
    recording = open_(lab, "a/host-0001.tape")
    (recorder,) = lab.recorders()
    os.kill(recorder, 9)
    lab.wait_gone()
    began = time.monotonic()
    assert recording.read_tables(0.2) is None
    assert time.monotonic() - began < 25 and lab.recorders() == []
    recording.close()


def test_memory_is_rss_or_pss(lab) -> None:
    with pytest.raises(UsageError, match="rss or pss"):
        open_(lab, "a/host-0001.tape", memory="vms")
