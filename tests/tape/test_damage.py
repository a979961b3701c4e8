"""Every prefix and every damaged byte: the same joules, or a clear word; never a wrong figure."""

import random
import shutil
import sqlite3
import struct
import zlib

import pytest
from fake_clock import FakeClock

from everywatt.core.errors import NotATape, TapeDamaged, TapeError, TapeTooNew
from everywatt.tape import codec, schema
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


def everything(tape):
    """All that a tape says, joules first."""
    columns = load_columns(tape, 1, ["gpu.0.energy", "gpu.0.power"])
    return {
        "energy": columns.accumulated["gpu.0.energy"].tolist(),
        "power": columns.accumulated["gpu.0.power"].tolist(),
        "observed": columns.observed_ns["gpu.0.energy"].tolist(),
        "published": columns.published.tolist(),
        "rest": (tape.meta, tape.groups, tape.spans(), tape.points(), tape.notes(), tape.anchors(), tape.edges(1)),
        "tables": tape.tables(2),
        "extent": tape.extent_ns(),
    }


def damage(path, at, bit):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bit]))


def check_damaged(path, truth, *, sealed):
    """True where the damage was noticed."""
    try:
        with Tape.open(path) as tape:
            found = everything(tape)
            if tape.trouble and sealed:
                return True  # it said so
            assert found == truth
            assert tape.sealed == sealed
            return False
    except TapeError as error:
        assert str(error)
        return True


def try_bytes(tmp_path, small, positions, *, sealed):
    with Tape.open(small.path) as tape:
        truth = everything(tape)
    whole = small.path.read_bytes()
    noticed = 0
    path = tmp_path / "damaged.tape"
    for at, bit in positions:
        path.write_bytes(whole)
        damage(path, at, bit)
        try:
            noticed += check_damaged(path, truth, sealed=sealed)
        except AssertionError:
            raise AssertionError(f"byte {at} ^ {bit}") from None
    return noticed


def test_a_sample_of_damaged_bytes(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    random_ = random.Random(11)
    size = small.path.stat().st_size
    positions = [(at, 1 << random_.randrange(8)) for at in range(100)]
    used = [at for at, byte in enumerate(small.path.read_bytes()) if byte and at >= 100]
    positions += [(at, random_.randrange(1, 256)) for at in random_.sample(used, 200)]
    positions += [(random_.randrange(size), random_.randrange(1, 256)) for _ in range(100)]
    assert try_bytes(tmp_path, small, positions, sealed=True) > 150


def test_a_sample_of_damaged_bytes_of_an_unsealed_tape(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", seal=False)
    assert sqlite3.connect(small.path).execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    random_ = random.Random(12)
    used = [at for at, byte in enumerate(small.path.read_bytes()) if byte]
    positions = [(at, random_.randrange(1, 256)) for at in random_.sample(used, 200)]
    assert try_bytes(tmp_path, small, positions, sealed=False) > 120


@pytest.mark.long
def test_every_damaged_byte(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", rows=20)
    random_ = random.Random(13)
    positions = [(at, 1 << random_.randrange(8)) for at in range(small.path.stat().st_size)]
    assert try_bytes(tmp_path, small, positions, sealed=True) > 1000


def prefixes(tmp_path, small, lengths):
    with Tape.open(small.path) as tape:
        truth = everything(tape)
    whole = small.path.read_bytes()
    path = tmp_path / "short.tape"
    opened = rows = 0
    for length in lengths:
        path.write_bytes(whole[:length])
        try:
            tape = Tape.open(path)
        except TapeError as error:
            assert "is truncated: " in str(error) if length >= 100 else "is not a tape" in str(error), (length, error)
            continue
        with tape:
            opened += 1
            assert tape.trouble and "truncated" in tape.trouble[0], length
            assert not tape.sealed
            if tape.groups:
                columns = load_columns(tape, 1, ["gpu.0.energy", "gpu.0.power"])
                rows = max(rows, len(columns))
                assert columns.accumulated["gpu.0.energy"].tolist() == truth["energy"][: len(columns)]
                assert columns.accumulated["gpu.0.power"].tolist() == truth["power"][: len(columns)]
                tape.spans(), tape.points(), tape.notes(), tape.edges(1), tape.tables(2)
    return opened, rows


def test_every_kind_of_prefix(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", rows=2000)
    size = small.path.stat().st_size
    lengths = [*range(0, 101, 5), *range(101, size, 611), *range(0, size, 4096), size - 1]
    opened, rows = prefixes(tmp_path, small, lengths)
    assert opened > 10 and rows > 0


def test_a_tape_says_why_it_holds_nothing(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", rows=2000)
    cut = tmp_path / "cut.tape"
    cut.write_bytes(small.path.read_bytes()[:8192])
    with (
        Tape.open(cut) as tape,
        pytest.raises(TapeDamaged, match=r"No recorded data is left in .*truncated: 8192 of \d+ bytes"),
    ):
        tape.extent_ns()
    empty = TapeWriter(tmp_path / "empty.tape", {})
    with Tape.open(empty.path) as tape, pytest.raises(TapeError, match=r"contains no rows yet: .* is not sealed"):
        tape.extent_ns()
    sealed = empty.seal()
    with Tape.open(sealed) as tape, pytest.raises(TapeError, match=r"nothing was recorded before it was sealed"):
        tape.extent_ns()


@pytest.mark.long
def test_every_prefix(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", rows=200)
    opened, _ = prefixes(tmp_path, small, range(small.path.stat().st_size))
    assert opened > 1000


def test_what_is_not_a_tape(tmp_path):
    with pytest.raises(NotATape, match="no file"):
        Tape.open(tmp_path / "none.tape")
    (tmp_path / "text.tape").write_text("hello " * 100)
    with pytest.raises(NotATape):
        Tape.open(tmp_path / "text.tape")
    db = sqlite3.connect(tmp_path / "other.tape")
    db.execute("CREATE TABLE t(x)")
    db.commit()
    with pytest.raises(NotATape):
        Tape.open(tmp_path / "other.tape")
    with pytest.raises(TapeError):
        Tape.open(tmp_path)


def test_a_tape_from_the_future(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    db = sqlite3.connect(small.path)
    db.execute("PRAGMA user_version=2")
    with pytest.raises(TapeTooNew, match="format 2") as error:
        Tape.open(small.path)
    assert error.value.cure == "pip install --upgrade everywatt"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT load_extension('x'); END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE more(x)",
        "DROP INDEX frame_at",
        "ALTER TABLE note ADD COLUMN y",
        "DROP TABLE edge",
    ],
)
def test_a_schema_of_somebody_else_is_refused(lab, tmp_path, statement):
    small = lab.write_small(tmp_path / "a.tape")
    db = sqlite3.connect(small.path)
    db.execute(statement)
    db.commit()
    db.close()
    with pytest.raises(TapeDamaged):
        Tape.open(small.path)


def forge(path, change):
    """Change the first frame and give it a right checksum: only the seal can know."""
    db = sqlite3.connect(path)
    values = list(db.execute(f"{schema.SELECT['frame']} LIMIT 1").fetchone()[:-1])
    change(values)
    db.execute("DELETE FROM frame WHERE id=?", (values[0],))
    db.execute(schema.INSERT["frame"], codec.sealed_row("frame", values))
    db.commit()
    db.close()


def bomb(values):
    values[7] = bytes([codec.DEFLATED]) + zlib.compress(b"\0" * (200 << 20), 9)


def lying_count(values):
    values[5] = 60_000


def huge_count(values):
    values[5] = 2**40


def text_instead(values):
    values[7] = "text"


def odd_tag(values):
    values[7] = bytes([0]) + struct.pack("<BI", 99, 0) * 6


@pytest.mark.parametrize("change", [bomb, lying_count, huge_count, text_instead, odd_tag])
def test_a_malicious_frame_is_only_data(lab, tmp_path, change):
    small = lab.write_small(tmp_path / "a.tape")
    forge(small.path, change)
    with pytest.raises(TapeDamaged, match="table frame"):
        Tape.open(small.path)
    with Tape.open(small.path, verify=False) as tape, pytest.raises(TapeDamaged, match="table frame, row 1"):
        load_columns(tape, 1, ["gpu.0.energy"])


def test_a_deep_json_is_only_data(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", seal=False)
    db = sqlite3.connect(small.path)
    db.execute(schema.INSERT["meta"], codec.sealed_row("meta", ("deep", "[" * 100_000)))
    db.commit()
    db.close()
    with pytest.raises(TapeDamaged, match="table meta, row deep"):
        Tape.open(small.path)


def test_a_lost_log_is_told(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", seal=False)
    script = sqlite3.connect(small.path)
    script.execute("PRAGMA wal_autocheckpoint=0")
    script.execute("BEGIN IMMEDIATE")  # keeps the log from being folded in
    shutil.copy(small.path, tmp_path / "b.tape")
    with Tape.open(tmp_path / "b.tape") as tape:
        (sentence,) = tape.trouble
    assert "b.tape-wal" in sentence and "10 s" in sentence


def live_copy(lab, tmp_path, folder):
    """A tape with its log, as a kill leaves them."""
    clock = FakeClock()
    writer = TapeWriter(tmp_path / "live.tape", {}, clock=clock)
    group = writer.add_group(lab.group(lab.counter(), lab.gauge()), 0.1)
    for i in range(30):
        writer.append(group, [lab.row(10**12 + i * lab.period_ns, i * 5.0, 7.0)])
        writer.flush()
    folder.mkdir()
    shutil.copy(tmp_path / "live.tape", folder / "a.tape")
    shutil.copy(tmp_path / "live.tape-wal", folder / "a.tape-wal")
    return folder / "a.tape"


def test_damage_in_the_log_is_told(lab, tmp_path):
    path = live_copy(lab, tmp_path, tmp_path / "copy")
    log = tmp_path / "copy" / "a.tape-wal"
    whole, main = log.read_bytes(), path.read_bytes()
    with Tape.open(path) as tape:
        (sentence,) = tape.trouble
        assert "damaged" not in sentence
        truth = load_columns(tape, 1, ["gpu.0.energy"]).accumulated["gpu.0.energy"].tolist()
    assert len(truth) == 30
    random_ = random.Random(5)
    cut = 0
    for at in [*range(0, 32, 3), *random_.sample(range(32, len(whole)), 60)]:
        for side in ("-shm", "-wal", ""):
            (tmp_path / "copy" / f"a.tape{side}").unlink(missing_ok=True)
        path.write_bytes(main)
        log.write_bytes(whole)
        damage(log, at, 1 << random_.randrange(8))
        try:
            with Tape.open(path) as tape:
                rows = (
                    load_columns(tape, 1, ["gpu.0.energy"]).accumulated["gpu.0.energy"].tolist() if tape.groups else []
                )
                assert rows == truth[: len(rows)]
                if len(rows) < 29:  # the last flush may be missing from any unsealed tape
                    assert "damaged" in tape.trouble[0], (at, len(rows))
                    cut += 1
        except TapeDamaged:
            cut += 1
    assert cut > 40


def test_every_prefix_of_the_log(lab, tmp_path):
    path = live_copy(lab, tmp_path, tmp_path / "copy")
    log = tmp_path / "copy" / "a.tape-wal"
    whole, main = log.read_bytes(), path.read_bytes()
    counts = set()
    for length in range(0, len(whole), 1999):
        for side in ("-shm", "-wal", ""):
            (tmp_path / "copy" / f"a.tape{side}").unlink(missing_ok=True)
        path.write_bytes(main)
        log.write_bytes(whole[:length])
        with Tape.open(path) as tape:
            assert "not sealed" in tape.trouble[0]
            if tape.groups:
                rows = load_columns(tape, 1, ["gpu.0.energy"]).accumulated["gpu.0.energy"].tolist()
                assert rows == [i * 5.0 for i in range(len(rows))]
                counts.add(len(rows))
    assert len(counts) > 10
