"""A box on a pty, captured: no frame is lost across rotations, kills, unplugging and a full disk."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from waiting import until

from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.meters import journal as journal_module
from everywatt.meters import ring_buffer
from everywatt.meters.archive import read_archive
from everywatt.meters.block import Oddities, join
from everywatt.meters.capture import FIRST_WAIT_S, Capture, Reader, next_turn_ns
from everywatt.meters.journal import Journal, journal_blocks, journals, kind_of, tail_of, whole_size
from everywatt.meters.omegawatt_csv import read_blocks
from everywatt.meters.omegawatt_serial import BAUD, Decoder
from everywatt.meters.ring_buffer import RingBuffer, ring_path
from everywatt.meters.stats import stats
from everywatt.sim.omegawatt import OmegawattBox, numbered

pytest.importorskip("pyarrow")
SOURCE = Path(__file__).resolve().parents[2] / "src"


def start(port, archive, *words):
    command = [sys.executable, "-m", "everywatt", "meter", "capture", str(port), "--archive", str(archive)]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen([*command, "--meter", "box", *words], env=environ, stderr=subprocess.PIPE, text=True)


def numbers(archive):
    block = join(read_archive(archive))
    return np.rint(block.watts[:, 0] + 65536 * block.watts[:, 1]).astype(int).tolist(), block


def journal_bytes(archive):
    return sum(path.stat().st_size for _, _, path in journals(archive))


def journal_rows(archive):
    """Rows in journals; none yet where one has just been made."""
    if any(kind_of(path) is None for _, _, path in journals(archive)):
        return 0
    return sum(len(block) for _, _, path in journals(archive) for block in journal_blocks(path, Oddities()))


def last_number(archive):
    """The last frame that is in a journal."""
    frames = Decoder().feed(tail_of(journals(archive)[-1][2])[1])
    return frames[-1].number if frames else None


def play(archive, seconds):
    """A box that plays numbered frames; a capture that is told to rotate, is killed, goes on and is ended."""
    box = OmegawattBox(lambda number: numbered(number, 12), count=round(100 * seconds))
    first = start(box.path, archive)
    until(lambda: journals(archive))
    box.start()
    until(lambda: journal_bytes(archive) > 6_000)
    first.send_signal(signal.SIGHUP)
    until(lambda: list((archive / "raw").glob("*.parquet")) if (archive / "raw").is_dir() else [])
    first.kill()
    first.communicate()
    second = start(box.path, archive)
    assert box.wait(60 + 3 * seconds)
    until(lambda: last_number(archive) == box.sent - 1)
    second.send_signal(signal.SIGTERM)
    told = second.communicate(timeout=120)[1]
    box.unplug()
    assert second.returncode == 0, told
    return box.sent


@pytest.fixture(autouse=True)
def no_ring_is_left(tmp_path):
    """A capture that has ended leaves no ring in shared memory, which is 4 MB each."""
    yield
    for archive in (tmp_path, tmp_path / "a"):
        assert not ring_path(archive, "box").exists()


def test_no_frame_is_lost_across_a_rotation_and_a_kill(tmp_path):
    sent = play(tmp_path, 6)
    found, block = numbers(tmp_path)
    assert found == list(range(sent)) and sent == 600
    assert (np.diff(block.utc_ns) > 0).all()
    assert len(list((tmp_path / "raw").glob("*.parquet"))) == 2 and journals(tmp_path) == []


@pytest.mark.long
def test_a_minute_of_frames(tmp_path):
    sent = play(tmp_path, 60)
    assert numbers(tmp_path)[0] == list(range(sent)) and sent == 6000


KILLED = """
import os, signal, sys
from pathlib import Path
from everywatt.meters import capture, journal

moment, append = sys.argv[3], journal.Journal.append


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def counted(self, at, data):
    now = self.size + len(data) > 2000  # before the last frames, however many come at once
    if now and moment == "rotating":
        one.rotate()
    if now and moment == "landed":
        die()
    append(self, at, data)
    if now and moment == "written":
        die()


journal.Journal.append = counted
if moment == "rotating":
    capture.Capture._carry = die
one = capture.Capture(sys.argv[1], Path(sys.argv[2]), "box", "serial", turn=None)
one.run()
"""


@pytest.mark.parametrize("moment", ["landed", "written", "rotating"])
def test_no_frame_is_lost_or_doubled_at_any_moment_of_a_kill(tmp_path, moment):
    box = OmegawattBox(lambda number: numbered(number, 12), count=100, period_s=0.003)
    command = [sys.executable, "-c", KILLED, box.path, str(tmp_path), moment]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    first = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    until(lambda: journals(tmp_path))
    box.start()
    told = first.communicate(timeout=240)[1]
    assert first.returncode == -signal.SIGKILL, told
    second = start(box.path, tmp_path)
    assert box.wait(60)
    until(lambda: journals(tmp_path) and last_number(tmp_path) == 99)
    second.send_signal(signal.SIGTERM)
    told = second.communicate(timeout=240)[1]
    box.unplug()
    assert second.returncode == 0, told
    assert numbers(tmp_path)[0] == list(range(100))
    assert not ring_path(tmp_path, "box").exists()


def waiting_bytes(port):
    """Bytes of a pty that can be read: the kernel hands them over in a thread of its own."""
    found, fd = array("i", [0]), os.open(port, os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.ioctl(fd, termios.FIONREAD, found)
    finally:
        os.close(fd)
    return found[0]


def test_what_the_kernel_holds_at_the_end_is_taken_too(tmp_path):
    """A capture that is told to end just after frames came has them all."""
    box = OmegawattBox(count=30, period_s=0.0)
    capture = Capture(box.path, tmp_path, "box", "serial", turn=None)
    box.start()
    assert box.wait(30)
    capture.stop()
    until(lambda: waiting_bytes(box.path) == len(numbered(0)) * 30)
    done = capture.run()
    box.unplug()
    assert done.frames == 30 and numbers(tmp_path)[0] == list(range(30))


def test_a_reader_that_is_stopped_before_its_thread_runs_takes_what_there_is(tmp_path):
    (tmp_path / "port").write_bytes(b"frames")
    ring = RingBuffer(None)
    reader = Reader(str(tmp_path / "port"), BAUD, ring)
    reader.stop()
    reader.start()
    reader.join()
    taken = [data for _, data in ring.take()]
    ring.close(remove=True)
    assert taken == [b"frames"]


def test_a_ring_that_is_full_waits_and_goes_round(tmp_path, monkeypatch):
    monkeypatch.setattr(ring_buffer, "SLOTS", 4)
    read, write = os.pipe()
    os.set_blocking(read, False)
    ring = RingBuffer(tmp_path / "ring")
    found = []
    for number in range(11):
        os.write(write, b"%d" % number)
        ring.fill(read, number)
        assert ring.full == (number % 4 == 3)
        if ring.full:
            found += ring.take()
    with pytest.raises(BlockingIOError):
        ring.fill(read, 99)
    ring.close(remove=False)
    again = RingBuffer(tmp_path / "ring")
    found += again.take()
    assert found == [(number, b"%d" % number) for number in range(11)]
    again.close(remove=True)
    os.close(write)
    os.close(read)
    assert not (tmp_path / "ring").exists()


def test_an_unplugged_box_that_comes_back(tmp_path):
    one, two = (OmegawattBox(count=50, period_s=0.002) for _ in range(2))
    link = tmp_path / "ttyUSB0"
    link.symlink_to(one.path)
    process = start(link, tmp_path / "a")
    until(lambda: journals(tmp_path / "a"))
    one.start().wait(30)
    until(lambda: journal_rows(tmp_path / "a") == 50)
    one.unplug()
    link.unlink()
    link.symlink_to(two.path)
    two.start().wait(30)
    until(lambda: journal_rows(tmp_path / "a") == 100)
    process.send_signal(signal.SIGTERM)
    told = process.communicate(timeout=240)[1]
    two.unplug()
    assert "unplugged" in told and "is back" in told
    assert numbers(tmp_path / "a")[0] == [*range(50), *range(50)]


def test_a_named_pipe_whose_writers_come_and_go(boxes, tmp_path):
    fifo = tmp_path / "meter"
    os.mkfifo(fifo)
    head, *rows = boxes.text(60, 6).splitlines(keepends=True)
    process = start(fifo, tmp_path / "a", "--text")
    until(lambda: journals(tmp_path / "a"))
    for part in ([head, *rows[:20]], rows[20:40], rows[40:]):
        with fifo.open("w") as file:
            file.writelines(part)
    until(lambda: journal_rows(tmp_path / "a") == 60)
    process.send_signal(signal.SIGTERM)
    told = process.communicate(timeout=240)[1]
    assert process.returncode == 0 and "unplugged" not in told, told
    assert join(read_archive(tmp_path / "a")).watts[:, 2].tolist() == [boxes.watts(3, row) for row in range(60)]


def test_a_pipe_that_ends_ends_the_capture(boxes, tmp_path):
    command = [sys.executable, "-m", "everywatt", "meter", "capture", "-", "--text", "--archive", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [*command, "--meter", "box"],
        env=environ,
        input=boxes.text(5000, 6),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert join(read_archive(tmp_path)).watts[:, 2].tolist() == [boxes.watts(3, row) for row in range(5000)]


def test_what_opens_and_gives_nothing_is_not_asked_all_the_time(tmp_path):
    told = []

    def tell(text):
        told.append(text)
        if sum("unplugged" in one for one in told) == 3:
            capture.stop()

    capture = Capture("/dev/null", tmp_path, "box", "serial", turn=None, tell=tell)
    began_s = time.monotonic()
    assert capture.run().outages >= 3
    assert time.monotonic() - began_s >= FIRST_WAIT_S * (1 + 2 + 4), "each wait is twice the one before"


def test_text_from_a_pipe_rotated_within_a_line(boxes, tmp_path):
    capture = Capture("-", tmp_path, "box", "text", turn=None)
    data = boxes.text(200, 6).encode()
    for at in range(0, len(data), 997):
        capture._take(data[at : at + 997], time.time_ns())
        if at == 997 * 5:
            capture.rotate()
    capture._finish()
    block = join(read_archive(tmp_path))
    assert block.watts[:, 2].tolist() == [boxes.watts(3, row) for row in range(200)]
    assert capture.progress.rotations == 1 and len(list((tmp_path / "raw").glob("*.parquet"))) == 2


def test_a_full_disk_keeps_rows_in_memory_and_loses_none(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal" / "box-1700000000000000000.journal", "serial")
    real, full = os.write, [True]

    def write(fd, data):
        if full[0] and fd == journal._fd:
            real(fd, data[: len(data) // 2])  # a part of it still fitted
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(journal_module.os, "write", write)
    for number in range(10):
        journal.append(1_700_000_000 * NS + number * 10_000_000, numbered(number))
    assert journal.trouble and journal.waiting_bytes > 0
    full[0] = False
    journal.append(1_700_000_000 * NS + 100_000_000, numbered(10))
    assert journal.trouble is None and journal.lost_bytes == 0
    journal.close()
    assert join(journal_blocks(journal.path, Oddities())).watts[:, 0].tolist() == list(range(11))


def test_what_does_not_fit_into_memory_is_dropped_and_counted(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "box-1700000000000000000.journal", "serial")
    monkeypatch.setattr(journal_module, "MOST_WAITING_BYTES", 1000)
    monkeypatch.setattr(journal_module.os, "write", lambda fd, data: 0)
    for number in range(20):
        journal.append(number, numbered(number))
    assert journal.lost_bytes > 0 and journal.waiting_bytes <= 1000


@pytest.mark.parametrize("cut", [1, 5, 13, 40])
def test_a_torn_journal_goes_on_after_its_last_whole_record(tmp_path, cut):
    path = tmp_path / "journal" / "box-1700000000000000000.journal"
    journal = Journal(path, "serial")
    for number in range(5):
        journal.append(10**18 + number * 10**7, numbered(number))
    journal.close()
    os.truncate(path, path.stat().st_size - cut)
    again = Journal(path, "serial")
    again.append(10**18 + 10**9, numbered(7))
    with pytest.raises(UsageError, match="another capture"):
        Journal(path, "serial")
    again.close()
    assert join(journal_blocks(path, Oddities())).watts[:, 0].tolist() == [0, 1, 2, 3, 7]


def test_a_journal_with_a_damaged_time_is_read_up_to_it(tmp_path):
    path = tmp_path / "box-1700000000000000000.journal"
    journal = Journal(path, "serial")
    for number in range(5):
        journal.append(10**18 + number * 10**7, numbered(number))
    journal.close()
    data = bytearray(path.read_bytes())
    at = len(b"EWJ1 serial\n") + 3 * (12 + len(numbered(0)))
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)
    assert join(journal_blocks(path, Oddities())).watts[:, 0].tolist() == [0, 1, 2]
    assert whole_size(path) == at


def clocked(folder, steps):
    """A capture of frames that are read at given instants, each with the number that it should have."""
    capture = Capture("-", folder, "box", "serial", turn=None)
    number = 0
    for at_s, count, rotate in steps:
        capture._take(b"".join(numbered(number + n) for n in range(count)), 1_700_000_000 * NS + round(at_s * NS))
        number += count
        if rotate:
            capture.rotate()
    capture._finish()
    return number


def test_frames_that_are_read_late_keep_their_times_also_across_a_rotation(tmp_path):
    # Held up for 2 s: 200 frames at once, in three goes, and the port turned in between.
    sent = clocked(tmp_path, [(0.0, 1, False), (2.0, 80, False), (2.0, 60, True), (2.001, 60, False), (2.01, 1, False)])
    found, block = numbers(tmp_path)
    assert found == list(range(sent))
    steps_s = np.diff(block.utc_ns) / NS
    assert np.allclose(steps_s[1:140], 0.01, atol=0.0001) and (steps_s > 0).all()


def test_a_clock_that_is_set_back_starts_a_new_file_with_the_times_that_it_has_now(tmp_path):
    sent = clocked(tmp_path, [(3600.0, 5, False), (3600.05, 5, False), (10.0, 5, False), (10.05, 5, False)])
    found, block = numbers(tmp_path)
    assert sorted(found) == list(range(sent)) and len(list((tmp_path / "raw").glob("*.parquet"))) == 2
    assert np.allclose((block.utc_ns / NS - 1_700_000_000)[[9, 19]], [10.05, 3600.05], atol=0.001)


def test_the_hour_of_the_rotation(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    try:
        for day, hours in (
            (datetime(2026, 3, 28, 7), 23),
            (datetime(2026, 10, 24, 7), 25),
            (datetime(2026, 1, 31, 7), 24),
        ):
            turn = next_turn_ns(round(day.timestamp()) * NS, (7, 0))
            assert turn - round(day.timestamp()) * NS == hours * 3600 * NS
    finally:
        monkeypatch.undo()
        time.tzset()


def test_bad_frames_of_text_are_those_of_the_statistics(boxes, tmp_path):
    lines = boxes.text(200, 6).splitlines()
    for place, flag in ((20, "false"), (21, "FALSE"), (40, "false")):
        at, _, *cells = lines[place].split(",")
        lines[place] = ",".join([at, flag, *("" for _ in cells)])
    at, flag, _, *cells = lines[60].split(",")
    lines[60] = ",".join([at, flag, "nan", *cells])
    capture = Capture("-", tmp_path, "box", "text", turn=None)
    data = "\n".join([*lines, ""]).encode()
    for piece in (data[:5000], data[5000:]):
        capture._take(piece, time.time_ns())
    told = stats(read_blocks([data], Oddities()))
    capture._finish()
    assert told is not None and capture.progress.bad == told.bad == 4
