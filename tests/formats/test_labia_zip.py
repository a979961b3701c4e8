"""Zips as Lab-IA keeps them: names, what is inside, and that they say what the archive says."""

import json
import os
import random
import time
import zipfile
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from everywatt.api.run import load
from everywatt.cli.main import main
from everywatt.core.clocks import NS
from everywatt.formats.labia import MEMBER, by_second, day_name, write_zips
from everywatt.meters.archive import read_archive
from everywatt.meters.block import Oddities, join
from everywatt.meters.capture import Capture
from everywatt.meters.importing import blocks_of
from everywatt.meters.omegawatt_csv import read_blocks
from everywatt.meters.stats import stats
from everywatt.tape.importing import import_files

pytest.importorskip("pyarrow")


@pytest.fixture
def paris(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("utc", "name"),
    [
        ("2026-11-15T06:00:00", "11_16_2026_USB0"),  # 07:00 in Paris: the day that ends on the 16th begins
        ("2026-11-15T05:59:59", "11_15_2026_USB0"),
        ("2026-12-31T12:00:00", "01_01_2027_USB0"),
        ("2026-10-25T00:30:00", "10_25_2026_USB0"),  # the night in which clocks go back
    ],
)
def test_a_zip_is_named_after_the_day_on_which_it_ends(paris, utc, name):
    assert day_name("ttyUSB0", int(np.datetime64(utc, "ns").astype(int)), (7, 0)) == name


def captured(boxes, folder, rows=350):
    capture = Capture("-", folder, "usb1", "text", turn=(7, 0), zips=True)
    data = boxes.text(rows, 6).encode()
    for at in range(0, len(data), 4096):
        capture._take(data[at : at + 4096], time.time_ns())
    capture._finish()
    return capture.progress.packed


def test_a_capture_writes_them_and_they_hold_every_row(boxes, tmp_path):
    packed = captured(boxes, tmp_path)
    full, small = [path for path in packed if path.endswith(".zip")]
    assert os.path.dirname(full).endswith("omegawatt") and os.path.basename(full).endswith("_2025_USB1.zip")
    with zipfile.ZipFile(full) as inside:
        assert inside.namelist() == [MEMBER]
        lines = inside.read(MEMBER).decode().splitlines()
    assert "Starting logging" in lines[0] and "detect '6' plugs.#timestamp,#frame_is_ok" in lines[1]
    assert lines[2:] == boxes.text(350, 6).splitlines()[1:]
    from_zip, from_archive = join(blocks_of(tmp_path / full, Oddities())), join(read_archive(tmp_path))
    assert np.array_equal(from_zip.watts, from_archive.watts)
    assert np.array_equal(from_zip.utc_ns, from_archive.utc_ns)
    seconds = join(blocks_of(tmp_path / small, Oddities()))
    assert seconds.utc_ns.tolist() == [(boxes.ORIGIN_S + n + 1) * NS for n in range(4)]


def test_the_small_copy_has_the_energy_of_the_rows(boxes):
    def blocks():
        return read_blocks([boxes.text(1001, 6).encode()], Oddities())

    whole = stats(blocks(), total="all")
    small = join(by_second(blocks))
    assert len(small) == 10
    assert small.watts.sum(axis=1).sum() == pytest.approx(whole.total.joules, rel=1e-3)
    assert small.volts[3].tolist() == pytest.approx([230.1, 0, 0])


def test_nothing_is_overwritten_and_nothing_is_written_twice(boxes, tmp_path):
    def blocks(first=0):
        return lambda: iter([join(read_blocks([boxes.text(200, 6).encode()], Oddities())).take(slice(first, None))])

    assert len(write_zips(tmp_path, "usb0", (7, 0), blocks())) == 2
    assert write_zips(tmp_path, "usb0", (7, 0), blocks()) == [], "done again after a kill: it is there"
    again = write_zips(tmp_path, "usb0", (7, 0), blocks(100))
    assert [path.name.endswith("_USB0_2.zip") for path in again] == [True, True]
    assert write_zips(tmp_path, "usb0", (7, 0), lambda: iter([])) == []


def _day_zip(folder, day, plugs=6):
    """Readings of 100 W every minute from 07:00 of the day before to 07:00, local time, as one zip."""
    edges = [int(datetime(at.year, at.month, at.day, 7).timestamp()) for at in (day - timedelta(days=1), day)]
    cells = ",".join("0.4,100.0" for _ in range(plugs))
    rows = [f"{second}.000000000,true,230.0,0.0,0.0,{cells}" for second in range(edges[0] + 60, edges[1] + 1, 60)]
    head = ",".join(f"#current{n},#activepow{n}" for n in range(1, plugs + 1))
    text = f"x;INFO;detect '{plugs}' plugs.#timestamp,#frame_is_ok,#U1,#U2,#U3,{head}\n" + "\n".join(rows) + "\n"
    with zipfile.ZipFile(folder / f"{day:%m_%d_%Y}_USB0.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(MEMBER, text)
    return folder / f"{day:%m_%d_%Y}_USB0.zip"


def test_any_period_is_covered_across_days_and_the_night_in_which_clocks_go_back(paris, tmp_path, capsys):
    """Three days around the end of summer time; periods begin and end anywhere, also at the edge of a file."""
    zips = [_day_zip(tmp_path, date(2026, 10, day)) for day in (24, 25, 26)]
    first, last = (int(datetime(2026, 10, day, 7).timestamp()) for day in (23, 26))
    assert last - first == 3 * 86400 + 3600
    draw = random.Random(22)
    edges = [int(datetime(2026, 10, day, 7).timestamp()) for day in (24, 25)]
    periods = [sorted(60 * draw.randrange(first // 60 + 1, last // 60) for _ in range(2)) for _ in range(3)]
    for start, end in [*periods, (edges[0], edges[1] + 7200), (edges[1] - 1800, edges[1] + 5400)]:
        when = [datetime.fromtimestamp(at, UTC).isoformat() for at in (start, end)]
        words = ["meter", "stats", *map(str, zips), "--plug", "1", "--start", when[0], "--end", when[1], "--json"]
        assert main(words) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["plugs"][0]["joules"] == pytest.approx(100.0 * (end - start - 60)), (start, end)
        assert told["coverage"] == 1.0
    how = {"plugs": "1", "start": datetime.fromtimestamp(edges[0], UTC).isoformat()}
    tape = import_files("omegawatt", zips, tmp_path / "a.tape", how)
    assert load(tape).energy().joules == pytest.approx(100.0 * (last - edges[0]), rel=1e-3), "one row of the first file"
