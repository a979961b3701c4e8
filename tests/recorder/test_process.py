"""What only real processes and the real clock show: starting, forking, signals, kills, the CPU mask, lateness."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from everywatt.core.errors import RecorderError
from everywatt.recorder.client import Recording, record
from everywatt.recorder.wire import SOCKET
from everywatt.tape.reader import Tape

pytestmark = pytest.mark.realtime  # processes of their own; nothing asserted is nearer than a few milliseconds
HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"


def start(lab, name: str = "run/host-0001.tape", **options) -> Recording:
    return record(lab.tape(name), meta={"tag": "t"}, sensors=["fake"], **options)


def table(path: Path, sql: str) -> list[tuple]:
    db = sqlite3.connect(path)  # plain SQL: the file's own words, not the reader's
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def notes(path: Path) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in table(path, "select kind, text from note order by id")]


def test_publications_of_a_real_clock_are_bracketed(lab) -> None:
    recording = start(lab)
    time.sleep(2.5)  # for the phase of a publication to be found, and then some publications
    closed = recording.close()
    assert closed.cost["rss_bytes"] < 25e6
    found = publications(closed.path, "fake.gpu")
    late = [row for row in found if row[0] > found[0][0] + 1_200_000_000]
    assert len(late) >= 5
    # The truth: 37 ms after a tenth of a second. A read just behind a publication belongs to that one.
    errors = [((early + late_ns) / 2 - 37e6 + 50e6) % 100e6 - 50e6 for _, early, late_ns in late]
    held = [abs(error) <= (late_ns - early) / 2 + 1e5 for error, (_, early, late_ns) in zip(errors, late, strict=True)]
    assert sum(held) >= 0.5 * len(held), "a machine that is held up places some of them wrongly"


def publications(path: Path, group: str) -> list[tuple[int, int, int]]:
    tape = Tape.open(path)
    try:
        number = next(g.id for g in tape.groups if g.info.name == group)
        return [tuple(row[:3]) for frame in tape.frames(number) for row in frame.rows()]
    finally:
        tape.close()


def test_clients_that_start_at_once_get_one_recorder(lab) -> None:
    code = (
        "import sys, time; from everywatt.recorder.client import record\n"
        "r = record(sys.argv[1], meta={}, sensors=['fake']); time.sleep(0.3); print(r.close().cost['pid'])"
    )
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(lab.tape(f"{n}/h-0001.tape"))], stdout=subprocess.PIPE, env=environ(lab)
        )
        for n in range(4)
    ]
    pids = {program.communicate(timeout=240)[0].strip() for program in programs}
    assert [program.returncode for program in programs] == [0] * 4
    assert len(pids) == 1


def environ(lab) -> dict[str, str]:
    return {**os.environ, **lab.environ, "PYTHONPATH": f"{SRC}:{HERE}"}


def test_threads_share_a_recording(lab) -> None:
    recording = start(lab)

    def work() -> None:
        for _ in range(200):
            recording.span_close(recording.span_open("t"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    closed = recording.close(linger=False)
    assert table(closed.path, "select count(*), count(distinct uid), count(end_ns) from span") == [(800, 800, 800)]


def test_a_forked_child_leaves_the_parents_tape_alone(lab) -> None:
    recording = start(lab)
    pid = os.fork()
    if pid == 0:
        uid = recording.span_open("child")
        recording.span_close(uid)
        try:
            recording.close()
        except RecorderError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    recording.span_close(recording.span_open("parent"))
    closed = recording.close(linger=False)
    assert table(closed.path, "select name from span") == [("parent",)]


def test_status_replaces_a_dead_recorder_too(lab) -> None:
    recording = start(lab)
    os.kill(lab.recorders()[0], signal.SIGKILL)
    assert recording.status()["rows"]["fake.counter"] >= 1
    assert recording.close(linger=False).path.name == "host-0002.tape"


def test_a_recorder_that_is_told_to_leave_seals_first(lab) -> None:
    recording = start(lab)
    os.kill(lab.recorders()[0], signal.SIGTERM)
    lab.wait_gone()
    assert table(lab.tape(), "select count(*) from seal") == [(1,)]
    assert any("was stopped" in text for _, text in notes(lab.tape()))
    assert recording.close(linger=False).path.name == "host-0002.tape"


HOST = """
import sys, time
from everywatt.recorder.client import record
r = record(sys.argv[1], meta={}, sensors=["fake"])
u = r.span_open("forever")
print("go", flush=True)
while True:
    r.span_close(r.span_open("s")); time.sleep(0.01)
"""


def test_a_killed_host_leaves_a_sealed_tape(lab) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST, str(lab.tape())], stdout=subprocess.PIPE, env=environ(lab))
    assert host.stdout is not None
    host.stdout.readline()
    time.sleep(0.4)  # for some spans to be open and closed
    host.kill()
    host.wait()
    host.stdout.close()
    lab.wait_gone()
    assert table(lab.tape(), "select count(*) from seal") == [(1,)]
    assert ("client", "Recording ended early: the measured program exited without closing it.") in notes(lab.tape())
    assert table(lab.tape(), "select count(*) from span where end_ns is null")[0][0] >= 1
    assert table(lab.tape(), "select count(*) from frame where grp=1")[0][0] >= 1


def kill_once(lab, number: int, wait_s: float) -> None:
    """Kill the recorder at a random moment: at most one flush interval (1 s, and a little) is missing."""
    path = lab.tape(f"k{number}/host-0001.tape")
    recording = record(path, meta={}, sensors=["fake"])
    time.sleep(wait_s)  # until the random moment
    killed_ns = time.monotonic_ns()
    os.kill(lab.recorders()[0], signal.SIGKILL)
    Tape.open(path).close()
    if wait_s > 1.3:
        reads = [row[0] for row in publications(path, "fake.counter")]
        assert max(reads) > killed_ns - 1_500_000_000
        assert len(reads) >= 0.9 * (max(reads) - min(reads)) / 1e8
    recording.close(linger=False)


def test_a_tape_opens_when_its_recorder_was_killed(lab) -> None:
    for number, wait_s in enumerate((0.0, 0.1)):
        kill_once(lab, number, wait_s)


@pytest.mark.long
def test_a_thousand_kills(lab) -> None:
    rng = random.Random(5)
    for number in range(int(os.environ.get("EVERYWATT_TEST_KILLS", "1000"))):
        kill_once(lab, number, rng.random() * 2.5)


def test_without_a_recorder_counters_are_still_read(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = lab.folder / "file"
    blocked.write_text("")
    monkeypatch.setenv("EVERYWATT_RUNTIME_DIR", str(blocked / "rt"))
    recording = start(lab)
    assert any("fake.gpu" in note.partition("Not recorded: ")[2] for note in recording.notes)
    assert [group.name for group in recording.groups] == ["fake.counter"]
    uid = recording.span_open("work")
    time.sleep(0.05)  # the length of the span
    recording.span_close(uid)
    assert recording.status()["rows"] == {"fake.counter": 2}
    closed = recording.close()
    assert closed.path == lab.tape()
    assert table(closed.path, "select count(*) from edge") == [(2,)]
    assert any("no recorder process" in text for _, text in notes(closed.path))
    assert lab.recorders() == []


def test_an_interpreter_that_is_not_known_is_no_trouble(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    recording = start(lab)
    assert any("does not know its Python" in note for note in recording.notes)
    recording.span_close(recording.span_open("work"))
    assert table(recording.close().path, "select count(*) from span where end_ns is not null") == [(1,)]


def test_a_child_of_a_recording_without_recorder_writes_nothing(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    recording = start(lab)
    pid = os.fork()
    if pid == 0:
        recording.span_close(recording.span_open("child"))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    recording.span_close(recording.span_open("parent"))
    assert table(recording.close().path, "select name from span") == [("parent",)]


def test_a_removed_socket_makes_the_recorder_leave_when_its_tapes_are_closed(lab) -> None:
    recording = start(lab)
    (lab.runtime / SOCKET).unlink()
    recording.span_close(recording.span_open("still works"))
    time.sleep(0.3)  # for the recorder to see that its socket is gone
    closed = recording.close(linger=False)
    assert table(closed.path, "select count(*) from span") == [(1,)]
    lab.wait_gone()


def test_a_recorder_that_may_not_idle_serves_its_client_and_leaves(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYWATT_RECORDER_IDLE_S", "0")
    recording = start(lab)
    recording.span_close(recording.span_open("served"))
    closed = recording.close(linger=False)
    assert table(closed.path, "select name from span") == [("served",)]
    assert table(closed.path, "select count(*) from note where kind = 'recorder'") == [(0,)]
    lab.wait_gone()


def test_a_runtime_folder_of_a_very_long_name(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYWATT_RUNTIME_DIR", str(lab.runtime / ("x" * 120)))
    closed = start(lab).close(linger=False)
    assert "pid" in closed.cost


def test_the_recorder_inherits_no_mask_no_session_and_never_imports_main(lab) -> None:
    main = lab.folder / "host.py"
    main.write_text(
        "import os, sys, time\nprint('main', flush=True)\nos.sched_setaffinity(0, {0})\n"
        "from everywatt.recorder.client import record\n"
        "r = record(sys.argv[1], meta={}, sensors=['fake']); time.sleep(0.2)\n"
        "pid = r.status()['pid']\n"
        "print(len(os.sched_getaffinity(pid)), os.getsid(pid) != os.getsid(0), os.readlink(f'/proc/{pid}/cwd'))\n"
        "r.close(linger=False)\n"
    )
    done = subprocess.run(
        [sys.executable, str(main), str(lab.tape())], capture_output=True, text=True, env=environ(lab), timeout=240
    )
    assert done.stdout.splitlines() == ["main", f"{os.cpu_count()} True /"], done.stderr
    assert done.stderr == ""


@pytest.mark.serial
def test_ticks_keep_their_deadlines_beside_a_busy_loop(lab) -> None:
    """Half of them within 2.5 ms: the median does not see other things that the machine may do."""
    recording = start(lab, period_s=0.01)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        sum(range(100))
    closed = recording.close(linger=False)
    reads = [row[0] for row in publications(closed.path, "fake.counter")][5:-1]
    phases = sorted(read % 10_000_000 for read in reads)
    typical = phases[len(phases) // 2]
    late = sorted(min((read - typical) % 10_000_000, (typical - read) % 10_000_000) for read in reads)
    assert late[len(late) // 2] <= 2_500_000
