"""Files, archives and their copies: every row once, joules equal in all of them."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from everywatt.cli.common.group import dispatch
from everywatt.core.clocks import NS
from everywatt.core.errors import RunExists, UsageError
from everywatt.core.foreign import Limits
from everywatt.core.plugins import arrow
from everywatt.meters import importing
from everywatt.meters.archive import downsample, meters_in, read_archive, store
from everywatt.meters.block import Oddities, join
from everywatt.meters.importing import blocks_of
from everywatt.meters.parquet import GROUP_ROWS, read_parquet, writing
from everywatt.meters.stats import stats

pytest.importorskip("pyarrow")


@pytest.fixture
def recording(boxes, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(boxes.text(3000, 6), encoding="utf-8")
    return path


def all_of(path, *period):
    return join(blocks_of(path, Oddities(), *period))


def test_csv_gzip_zip_and_parquet_hold_the_same(recording, tmp_path):
    text = recording.read_bytes()
    packed, zipped = tmp_path / "log.csv.gz", tmp_path / "11_16_2026_USB0.zip"
    packed.write_bytes(gzip.compress(text))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("log_omegawatt_of_the_day", text)
    columns = tmp_path / "log.parquet"
    assert sum(map(len, writing(columns, blocks_of(recording, Oddities())))) == 3000
    truth = all_of(recording)
    for other in map(all_of, (packed, zipped, columns)):
        assert np.array_equal(other.watts, truth.watts) and np.array_equal(other.utc_ns, truth.utc_ns)
        assert np.array_equal(other.amps, truth.amps) and np.array_equal(other.volts, truth.volts)


@pytest.mark.parametrize("name", ["../up.csv", "/etc/passwd", "a/../../b", "C:\\x", "..\\up"])
def test_names_that_lead_out_are_refused(recording, tmp_path, name):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, recording.read_bytes())
    with pytest.raises(UsageError, match="leads out"):
        all_of(path)


def test_bombs_are_refused(boxes, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "LIMITS", Limits(free_bytes=1 << 20))
    grows = boxes.text(2, 6).encode() + b"\n" * (8 << 20)
    bomb, packed = tmp_path / "bomb.zip", tmp_path / "bomb.gz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("log", grows)
    packed.write_bytes(gzip.compress(grows))
    for path in (bomb, packed):
        with pytest.raises(UsageError, match="250 times"):
            all_of(path)


@pytest.mark.parametrize("damage", [b"PK\x03\x04junk", b"\x1f\x8bjunk", b""])
def test_damaged_files_are_an_error_that_names_them(tmp_path, damage):
    path = tmp_path / "odd.zip"
    path.write_bytes(damage)
    with pytest.raises(UsageError, match=r"odd\.zip"):
        all_of(path)


def test_an_archive_gives_back_every_row_and_refuses_the_same_twice(recording, boxes, tmp_path):
    stored = store(tmp_path / "a", "usb0", blocks_of(recording, Oddities()))
    assert [file.parent.name for file in stored] == ["raw", "second", "minute"]
    assert list(meters_in(tmp_path / "a")) == ["usb0"]
    block = join(read_archive(tmp_path / "a"))
    assert np.array_equal(block.watts, all_of(recording).watts)
    with pytest.raises(RunExists):
        store(tmp_path / "a", "usb0", blocks_of(recording, Oddities()))
    start = boxes.ORIGIN_S * NS + NS
    part = join(read_archive(tmp_path / "a", "usb0", start, start + NS, [5]))
    assert len(part) == 100 and part.plugs == 1 and part.watts[0, 0] == boxes.watts(5, 100)


def test_copies_by_second_and_minute_have_the_joules_of_the_rows(recording, boxes, tmp_path):
    _, second, minute = store(tmp_path / "a", "m", blocks_of(recording, Oddities()))
    _, pq = arrow()
    for path, cells in ((second, 30), (minute, 2)):  # 30 s that begin at hh:mm:11 end within the same minute's 41
        table = pq.read_table(path)
        assert table.num_rows in (cells, cells - 1)
        for plug in (1, 6):
            total = table[f"j{plug}"].to_numpy().sum()
            assert total == pytest.approx(boxes.joules(plug, 3000), rel=1e-9)
        assert table["rows"].to_numpy().sum() == 3000
        low, mean, high = (table[f"{what}3"].to_numpy() for what in ("min", "mean", "max"))
        assert (low <= mean + 1e-4).all() and (mean <= high + 1e-4).all()


@pytest.mark.parametrize("cut", [1, 7, 99, 100, 101, 1500])
def test_cells_do_not_depend_on_how_rows_come(recording, boxes, cut):
    block = all_of(recording)
    parts = [block.take(slice(at, at + cut)) for at in range(0, len(block), cut)][:60]
    rows = sum(map(len, parts))
    cells = list(downsample(parts, 1.0))
    starts = np.concatenate([piece.start_ns for piece in cells])
    assert (np.diff(starts) == NS).all()
    joules = sum(piece.joules.sum(axis=0) for piece in cells)
    assert joules[2] == pytest.approx(boxes.joules(3, rows), rel=1e-9)


def test_a_gap_is_not_covered(recording, boxes):
    block = all_of(recording)
    holed = block.take(np.r_[0:1000, 2000:3000].astype(np.int64))
    found = stats([holed])
    assert found.rows == 2000 and found.coverage == pytest.approx((9.99 + 9.99 + 0.01) / 29.99)
    cells = list(downsample([holed], 1.0))
    assert sum(piece.observed_s.sum() for piece in cells) == pytest.approx(19.99)
    assert sum(piece.joules.sum() for piece in cells) == pytest.approx(sum(p.joules for p in found.plugs))


def test_only_the_rows_of_the_period_are_read(boxes, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(boxes.text(3000, 6), encoding="utf-8")
    assert GROUP_ROWS > 3000
    list(writing(tmp_path / "x.parquet", blocks_of(path, Oddities())))
    beyond = (boxes.ORIGIN_S + 3600) * NS
    assert list(read_parquet(tmp_path / "x.parquet", beyond)) == []


def test_the_command_tells_rows_energy_and_coverage(recording, boxes, capsys):
    assert dispatch(["meter", "stats", str(recording), "--plug", "1,5"]) == 0
    out = capsys.readouterr()
    line = next(line for line in out.out.splitlines() if line.startswith("1+5"))
    assert "3000" in line and "100 %" in line
    assert f"{boxes.joules(1, 3000) + boxes.joules(5, 3000):.0f} J" in line
    assert "3000 rows" in out.err and "50.0 % of them repeat" in out.err


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (["--plug", "9"], "no plug 9"),
        (["--plug", "0"], "is not a plug"),
        (["--node", "n1"], "requires a map"),
        (["--start", "2031-01-01"], "No rows"),
    ],
)
def test_wrong_questions_are_answered(recording, capsys, words, say):
    assert dispatch(["meter", "stats", str(recording), *words]) in (2, 3)
    assert say in capsys.readouterr().err


def test_a_run_of_the_same_joules(recording, boxes, tmp_path, capsys):
    from everywatt.api.run import load

    out = tmp_path / "run.tape"
    assert dispatch(["import", "omegawatt", str(recording), "--out", str(out), "--set", "plugs=1,5"]) == 0
    run = load(out)
    assert run.energy().joules == pytest.approx(boxes.joules(1, 3000) + boxes.joules(5, 3000), rel=1e-6)
    assert run.energy(device="wall.5").joules == pytest.approx(boxes.joules(5, 3000), rel=1e-6)
    assert io.StringIO(capsys.readouterr().out).readline().strip() == str(out)
