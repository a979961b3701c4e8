"""Kills, full disks, folders that vanish: nothing that was flushed is lost, and nothing goes unsaid."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fake_clock import FakeClock
from tapes import counter_group, rows, write_tape

import everywatt.core
from everywatt.core.errors import RunExists, TapeError
from everywatt.tape import places
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter

SOURCE = str(Path(everywatt.core.__file__).parents[2])

WRITER = """
import sys
from pathlib import Path
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Row
from everywatt.tape.writer import TapeWriter
channels = (Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU),)
writer = TapeWriter(Path(sys.argv[1]), {}, checkpoint_s=0.02)
group = writer.add_group(GroupInfo("gpu.0", "test", "gpu.0", channels), 0.1)
rows, flushes = 0, int(sys.argv[2])
for _ in range(flushes):
    times = range(rows * 1000 + 1000, (rows + 10) * 1000 + 1000, 1000)
    writer.append(group, [Row(t, t, t, (float(t // 1000),)) for t in times])
    writer.flush()
    rows += 10
    print(rows, flush=True)
print("sealing", flush=True)
writer.seal()
print("sealed", flush=True)
"""


def start(path, flushes):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(flushes)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
        text=True,
    )


def check_rows(path, lines):
    """Every flushed row is there, and at most one flush that was not yet said to be."""
    flushed = max((int(line) for line in lines if line.isdigit()), default=0)
    with Tape.open(path) as tape:
        assert tape.sealed == (tape.trouble == ())
        if flushed == 0 and not tape.groups:
            return
        columns = load_columns(tape, 1, ["gpu.0.energy"])
        assert flushed <= len(columns) <= flushed + 10
        assert columns.values["gpu.0.energy"].tolist() == [float(i + 1) for i in range(len(columns))]
        assert len(columns) == 0 or columns.accumulated["gpu.0.energy"][-1] == len(columns) - 1


def kill_while_writing(tmp_path, times, seed):
    random_ = random.Random(seed)
    for i in range(times):
        path = tmp_path / f"{i}.tape"
        process = start(path, 10**6)
        process.stdout.readline()
        time.sleep(random_.random() * 0.15)  # a moment at random
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split()
        process.wait()
        check_rows(path, ["10", *lines])


def kill_while_sealing(tmp_path, times, seed):
    random_ = random.Random(seed)
    ends = set()
    for i in range(times):
        path = tmp_path / f"s{i}.tape"
        process = start(path, 300)
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "sealing":
                break
        time.sleep(random_.random() * 0.04)  # a moment at random
        process.send_signal(signal.SIGKILL)
        process.communicate()
        check_rows(path, lines)
        with Tape.open(path) as tape:
            ends.add(tape.sealed)
    return ends


def test_kill_while_writing(tmp_path):
    kill_while_writing(tmp_path, 5, 1)


def test_kill_while_sealing(tmp_path):
    kill_while_sealing(tmp_path, 5, 2)


@pytest.mark.long
def test_kill_many_times(tmp_path):
    kill_while_writing(tmp_path, 200, 3)
    assert kill_while_sealing(tmp_path, 100, 4) == {True, False}


def rows_of(lab, first, count, period_ns=100_000_000):
    return [lab.row(10**12 + i * period_ns, float(i), float(i % 7)) for i in range(first, first + count)]


def new_writer(lab, path, **options):
    writer = TapeWriter(path, {}, clock=FakeClock(), **options)
    return writer, writer.add_group(lab.group(lab.counter(), lab.gauge()), 0.1)


def test_a_full_disk_loses_nothing(lab, tmp_path):
    writer, group = new_writer(lab, tmp_path / "a.tape")
    writer.append(group, rows_of(lab, 0, 50))
    writer.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    failures = 0
    try:
        for i in range(20):
            writer.append(
                group, [lab.row(10**12 + (50 + i * 500 + k) * 10**8, float(i * 500 + k), k * 1.1) for k in range(500)]
            )
            try:
                writer.flush()
            except TapeError as error:
                failures += 1
                assert "cannot be written" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failures > 5
    with Tape.open(writer.seal()) as tape:
        assert sum(frame.n for frame in tape.frames(group)) == 50 + 20 * 500
        assert tape.gaps(group) == [] or {gap.kind for gap in tape.gaps(group)} == {"reset"}


def test_a_disk_that_is_full_from_the_start_leaves_no_file(lab, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(TapeError, match="cannot be written"):
            TapeWriter(tmp_path / "a.tape", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
    TapeWriter(tmp_path / "a.tape", {}).abandon()


def test_memory_is_bounded_and_the_loss_is_told(lab, tmp_path):
    folder = tmp_path / "run"
    writer, group = new_writer(lab, folder / "a.tape", most_values=2000)
    writer.append(group, rows_of(lab, 0, 10))
    writer.flush()
    shutil.move(folder, tmp_path / "away")
    for i in range(1, 101):
        writer.append(group, rows_of(lab, i * 10, 10))
        with pytest.raises(TapeError, match="removed"):
            writer.flush()
    shutil.move(tmp_path / "away", folder)
    writer.append(group, rows_of(lab, 1010, 10))
    with Tape.open(writer.seal()) as tape:
        columns = load_columns(tape, group, ["gpu.0.energy", "gpu.0.power"])
        kept = columns.values["gpu.0.energy"]
        assert kept[-1] == 1019.0 and 300 < len(kept) < 500
        # The totals are those of all rows: what was dropped had been accumulated.
        assert columns.accumulated["gpu.0.energy"].tolist() == kept.tolist()
        assert columns.observed_ns["gpu.0.energy"][-1] == 1019 * 10**8
        power = sum(i % 7 for i in range(1, 1020)) * 1e8
        assert columns.accumulated["gpu.0.power"][-1] == power
        (gap,) = [gap for gap in tape.gaps(group) if gap.kind == "lost"]
        assert gap.start_ns == 10**12 + 10 * 10**8 and gap.end_ns == 10**12 + (int(kept[10]) - 1) * 10**8
        assert "were dropped" in tape.notes()[0].text
        assert sum(frame.breaks for frame in tape.frames(group)) == 1


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_removed_recording_is_put_back(lab, tmp_path, what):
    folder = tmp_path / "runs" / "one"
    writer, group = new_writer(lab, folder / "a.tape")
    writer.append(group, rows_of(lab, 0, 50))
    writer.flush()
    if what == "folder":
        shutil.rmtree(folder)
    else:
        for file in folder.iterdir():
            file.unlink()
    writer.append(group, rows_of(lab, 50, 50))
    if what == "folder":
        with pytest.raises(TapeError, match="removed"):
            writer.flush()
    else:
        writer.flush()
        writer.append(group, rows_of(lab, 100, 10))
        writer.flush()
        with Tape.open(folder / "a.tape") as tape:
            assert len(load_columns(tape, group, ["gpu.0.energy"])) == 110
        assert sorted(os.listdir(folder)) == ["a.tape", "a.tape-shm", "a.tape-wal"]
    with Tape.open(writer.seal()) as tape:
        values = load_columns(tape, group, ["gpu.0.energy"]).values["gpu.0.energy"].tolist()
        assert values == list(range(100 if what == "folder" else 110))
        assert "restored" in tape.notes()[0].text


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TapeError, match="cannot be written: File exists"):
        TapeWriter(tmp_path / "file" / "a.tape", {})


def as_nobody(code, *arguments):
    """Run Python without root's rights (root may write anywhere)."""
    script = (
        "import os, sys, shutil, tempfile, json\nfrom pathlib import Path\n"
        "from everywatt.core.errors import TapeError\n"
        "from everywatt.tape.reader import Tape\nfrom everywatt.tape.writer import TapeWriter\n"
        f"if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n{code}"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/tmp"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_folder():
    """A folder that anybody may enter. Not one of pytest's: every pytest that starts shuts the folder above those."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_read_only_folder(lab, open_folder):
    folder = open_folder / "closed"
    folder.mkdir(mode=0o555)
    out = as_nobody(
        "try: TapeWriter(Path(sys.argv[1]), {})\nexcept TapeError as error: print(error)",
        folder / "a.tape",
    )
    assert "Permission denied" in out and "EVERYWATT_HOME" in out


def test_an_unsealed_tape_in_a_read_only_folder(lab, open_folder):
    folder = open_folder / "closed"
    folder.mkdir()
    process = start(folder / "a.tape", 10**6)
    while process.stdout.readline().strip() != "30":
        pass
    process.send_signal(signal.SIGKILL)
    flushed = int(["30", *process.communicate()[0].split()][-1])
    Path(f"{folder}/a.tape-shm").unlink(missing_ok=True)
    folder.chmod(0o555)
    try:
        out = as_nobody(
            "tape = Tape.open(Path(sys.argv[1]))\n"
            "print(json.dumps([sum(f.n for f in tape.frames(1)), tape.sealed, tape.trouble]))",
            folder / "a.tape",
        )
    finally:
        folder.chmod(0o755)
    rows, sealed, (sentence,) = json.loads(out)
    assert flushed <= rows <= flushed + 10 and not sealed and "not sealed" in sentence


def fake_mounts(tmp_path, kind, point):
    path = tmp_path / "mountinfo"
    path.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {point} rw,relatime shared:1 - {kind} host:/x rw\n")
    return path


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "beegfs", "gpfs", "fuse.sshfs", "9p", "ceph"])
def test_a_network_filesystem_is_known(tmp_path, kind):
    share = tmp_path / "my share"
    mounts = fake_mounts(tmp_path, kind, str(share).replace(" ", "\\040"))
    assert places.filesystem(share / "runs" / "a.tape", mounts) == kind
    assert places.is_network(kind)
    assert places.filesystem(tmp_path / "my share2", mounts) == "ext4"
    assert not places.is_network("ext4") and not places.is_network("fuse.ext2") and not places.is_network(None)


def test_a_tape_on_a_network_filesystem_is_spooled_and_moved(lab, tmp_path):
    share, spool = tmp_path / "share", tmp_path / "spool"
    mounts = fake_mounts(tmp_path, "nfs4", share)
    writer, group = new_writer(lab, share / "a.tape", spool=spool, mounts=mounts)
    writer.append(group, rows_of(lab, 0, 50))
    writer.flush()
    assert list(share.iterdir()) == [] and writer.live_path.parent == spool
    assert writer.seal() == share / "a.tape"
    assert [path.name for path in share.iterdir()] == ["a.tape"] and list(spool.iterdir()) == []
    with Tape.open(share / "a.tape") as tape:
        assert tape.sealed and len(load_columns(tape, group, ["gpu.0.energy"])) == 50
        assert tape.notes()[0].kind == "spool"


def test_a_spooled_tape_never_overwrites(lab, tmp_path):
    share, spool = tmp_path / "share", tmp_path / "spool"
    mounts = fake_mounts(tmp_path, "nfs4", share)
    writer, _ = new_writer(lab, share / "a.tape", spool=spool, mounts=mounts)
    (share / "a.tape").write_text("somebody was faster")
    with pytest.raises(RunExists):
        writer.seal()
    assert (share / "a.tape").read_text() == "somebody was faster"
    (kept,) = spool.iterdir()
    assert Tape.open(kept).sealed


def test_a_reader_that_will_not_let_go_leaves_the_tape_whole(lab, tmp_path):
    import sqlite3

    writer, group = new_writer(lab, tmp_path / "a.tape")
    writer.append(group, rows_of(lab, 0, 50))
    writer.flush()
    writer._db.execute("PRAGMA busy_timeout=50")
    reader = sqlite3.connect(tmp_path / "a.tape", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()
    writer.append(group, rows_of(lab, 50, 10))
    with pytest.raises(TapeError, match="open in a reader"):
        writer.seal()
    reader.close()
    with Tape.open(writer.seal()) as tape:
        assert len(load_columns(tape, group, ["gpu.0.energy"])) == 60
    assert os.listdir(tmp_path) == ["a.tape"]


def test_a_tape_is_closed_while_its_rows_are_read(tmp_path, monkeypatch):
    """As by an export that finds its disk full: it printed a traceback below its message."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    tape = Tape.open(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, rows(lambda t: 50.0 * t, 0, 6, 0.1))]))
    reading = tape.iter_frames(tape.groups[0].id)
    next(reading)
    tape.close()
    reading.close()
    assert printed == []
