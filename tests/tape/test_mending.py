"""Tapes that a killed recorder left: sealed and taken out of the spool later, and never under a writer's hands."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from everywatt.api.run import load
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Row
from everywatt.core.clocks import NS
from everywatt.energy.sources import sources
from everywatt.ledger.use.account import Cells
from everywatt.tape.columns import load_columns
from everywatt.tape.mending import empty_spool, seal_left
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import find_run, list_runs
from everywatt.tape.writer import TapeWriter

# A recorder: 50 rows of 1 kJ each, written, and 50 more when it is told. With a spool its folder is as if on a network.
RECORDER = """
import sys, time
from pathlib import Path
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Row
from everywatt.core.clocks import SystemClock, take_anchor
from everywatt.core.spans import Span
from everywatt.tape.writer import TapeWriter
path, spool, mounts = (Path(text) if text else None for text in sys.argv[1:4])
writer = TapeWriter(path, {"host": {"name": "here"}}, **({"spool": spool, "mounts": mounts} if spool else {}))
start = time.monotonic_ns()
writer.anchor(take_anchor(SystemClock()))
channel = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU)
group = writer.add_group(GroupInfo("gpu.0", "test", "gpu.0", (channel,)), 0.1)
writer.span_open(Span("s1", "run", start, start + 49 * 10**8))
for first in (0, 50):
    rows = [Row(at, at, at, (1000.0 * i,)) for i in range(first, first + 50) for at in [start + i * 10**8]]
    writer.append(group, rows)
    writer.flush()
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def recorder(tmp_path):
    """Starts a recorder at a path; the process that is given back has written its rows."""
    started = []

    def start(path, spool="", mounts=""):
        command = [sys.executable, "-c", RECORDER, str(path), str(spool), str(mounts)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def age(path, seconds=60):
    """As if nothing had touched the tape for a while."""
    then = time.time() - seconds
    for side in ("", "-wal"):
        os.utime(f"{path}{side}", (then, then))


def joules(path):
    with Tape.open(path) as tape:
        return load_columns(tape, 1, ["gpu.0.energy"]).accumulated["gpu.0.energy"].tolist()


def sealed_by_load(path):
    (tape,) = load(path).tapes
    with tape:
        return tape.sealed


def test_a_killed_tape_is_sealed_when_it_is_loaded(recorder, tmp_path):
    path = tmp_path / "a.tape"
    kill(recorder(path))
    path.chmod(0o600)
    truth = joules(path)
    assert truth == [1000.0 * i for i in range(50)]
    age(path)
    run = load(path)
    assert run.tapes[0].sealed and run.trouble == []
    assert joules(path) == truth
    assert path.stat().st_mode & 0o777 == 0o600
    assert run.energy(between=(0, 4.9)).joules == pytest.approx(49_000)
    assert any("The recorder ended without sealing" in text for text in run.quality()["warnings"])
    assert run.meta["sealed_later"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tape"]


def test_a_run_that_is_repaired_is_not_the_last_one(recorder, tmp_path):
    """Of two runs with names of their own, the older one stays the older."""
    older, newer = tmp_path / "mine", tmp_path / "yours"
    for run, seconds in ((older, 120), (newer, 60)):
        run.mkdir()
        kill(recorder(run / "here-0001.tape"))
        age(run / "here-0001.tape", seconds)
        os.utime(run, (time.time() - seconds,) * 2)
    assert list_runs(tmp_path) == [older, newer]
    assert sealed_by_load(older)
    assert list_runs(tmp_path) == [older, newer]
    assert find_run("last", tmp_path) == newer


def test_a_tape_that_is_being_written_is_left_alone(recorder, tmp_path):
    path = tmp_path / "a.tape"
    process = recorder(path)
    age(path)
    assert not seal_left(path)
    assert not sealed_by_load(path)
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    kill(process)
    age(path)
    assert seal_left(path)
    assert joules(path) == [1000.0 * i for i in range(100)]


def test_a_recorder_that_sleeps_still_holds_its_tape(recorder, tmp_path):
    path = tmp_path / "a.tape"
    process = recorder(path)
    process.send_signal(signal.SIGSTOP)
    age(path, 3600)
    assert not seal_left(path)
    process.send_signal(signal.SIGCONT)


def test_a_tape_of_a_moment_ago_is_left_alone(recorder, tmp_path):
    """Its recorder may be about to open it again."""
    path = tmp_path / "a.tape"
    kill(recorder(path))
    assert not seal_left(path)
    assert not sealed_by_load(path)
    assert seal_left(path, quiet_s=0.0)
    assert not seal_left(path, quiet_s=0.0)


def test_a_reader_keeps_a_tape_as_it_is(recorder, tmp_path):
    path = tmp_path / "a.tape"
    kill(recorder(path))
    age(path)
    with Tape.open(path):
        assert not seal_left(path)
    assert seal_left(path)


def test_a_tape_of_another_user_is_read_and_not_written(recorder, tmp_path, monkeypatch):
    path = tmp_path / "a.tape"
    kill(recorder(path))
    age(path)
    before = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    monkeypatch.setattr("everywatt.tape.mending.user_id", lambda: path.stat().st_uid + 1)
    run = load(path)
    assert run.energy(between=(0, 4.9)).joules == pytest.approx(49_000)
    assert not run.tapes[0].sealed and "not sealed" in run.trouble[0]
    for tape in run.tapes:
        tape.close()
    after = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    assert {name: after[name] for name in before if not name.endswith("-shm")} == {
        name: found for name, found in before.items() if not name.endswith("-shm")
    }, "its index of the log is shared memory, which every reader of SQLite marks"


def test_what_has_lost_something_stays_unsealed_and_says_so(recorder, tmp_path):
    """Without its log a tape must go on saying that rows may be missing."""
    path = tmp_path / "a.tape"
    kill(recorder(path))
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    before = path.read_bytes()
    db.close()
    for side in ("-wal", "-shm"):
        (tmp_path / f"a.tape{side}").unlink(missing_ok=True)
    path.write_bytes(before)
    os.utime(path, (time.time() - 60,) * 2)
    assert not seal_left(path)
    assert "is missing" in load(path).trouble[0]


def test_a_log_that_is_damaged_is_not_thrown_away(recorder, tmp_path):
    path = tmp_path / "a.tape"
    kill(recorder(path))
    log = tmp_path / "a.tape-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    age(path)
    assert not seal_left(path)
    assert log.read_bytes() == bytes(data)


def network(tmp_path, folder):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / {folder} rw - nfs4 server:/x rw\n")
    return mounts


def test_a_killed_tape_leaves_the_spool(recorder, tmp_path):
    share, spool = tmp_path / "share", tmp_path / "spool"
    share.mkdir()
    process = recorder(share / "a.tape", spool, network(tmp_path, share))
    (left,) = spool.glob("*.tape")
    age(left)
    assert empty_spool(spool) == []
    kill(process)
    assert empty_spool(spool) == [share / "a.tape"]
    assert list(spool.iterdir()) == []
    assert joules(share / "a.tape") == [1000.0 * i for i in range(50)]
    with Tape.open(share / "a.tape") as tape:
        assert tape.sealed


def test_a_spooled_tape_stays_where_its_place_is_taken_or_gone(recorder, tmp_path):
    share, spool = tmp_path / "share", tmp_path / "spool"
    share.mkdir()
    kill(recorder(share / "a.tape", spool, network(tmp_path, share)))
    (left,) = spool.glob("*.tape")
    age(left)
    (share / "a.tape").write_text("somebody was faster")
    assert empty_spool(spool) == []
    assert (share / "a.tape").read_text() == "somebody was faster"
    (share / "a.tape").unlink()
    share.rmdir()
    os.utime(left, (time.time() - 60,) * 2)
    assert empty_spool(spool) == []
    assert joules(left) == [1000.0 * i for i in range(50)]
    share.mkdir()
    assert empty_spool(spool) == [share / "a.tape"]


def test_no_spool_no_trouble(tmp_path):
    assert empty_spool(tmp_path / "none") == []
    (tmp_path / "junk.tape").write_text("no tape")
    os.utime(tmp_path / "junk.tape", (0, 0))
    assert empty_spool(tmp_path) == []
    assert not seal_left(tmp_path / "junk.tape")


def looked_at_s(path):
    """How much of the only channel of a tape idle power is looked for in."""
    with Tape.open(path) as tape:
        cells = Cells()
        cells.update(sources(tape)[0])
        return len(cells.joules) * cells.step_ns / NS


def test_a_tape_whose_recorder_was_killed_a_moment_ago_has_ended(recorder, tmp_path):
    path = tmp_path / "a.tape"
    process = recorder(path)
    assert looked_at_s(path) == 2.25  # of 4.9 s: the newest publications of other channels may be missing
    process.kill()
    process.wait()
    assert looked_at_s(path) == 4.75


def test_a_tape_that_this_process_writes_has_not_ended(tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {})
    channel = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU)
    group = writer.add_group(GroupInfo("gpu.0", "test", "gpu.0", (channel,)), 0.1)
    writer.append(group, [Row(at, at, at, (float(at),)) for at in range(0, 5 * NS, NS // 10)])
    writer.flush()
    assert looked_at_s(writer.path) == 2.25
    writer.abandon()
    assert looked_at_s(writer.path) == 4.75
