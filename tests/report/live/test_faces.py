"""Snapshots as JSON lines, CSV and tables."""

import csv
import io
import json
from dataclasses import replace

import pytest
from snapshots import OWNERS, snapshot

from everywatt.core.errors import UsageError
from everywatt.report.live import faces
from everywatt.report.live.snapshot import Owners


def test_a_json_line_holds_everything_on_one_line():
    text = faces.json_line(snapshot(2))
    assert "\n" not in text
    data = json.loads(text)
    assert (data["schema"], data["kind"]) == ("everywatt/1", "snapshot")
    assert data["power_w"] == 241.0 and data["energy"]["joules"] == 14460.0
    assert [device["name"] for device in data["devices"]] == ["cpu.0", "gpu.0", "gpu.1"]
    assert data["devices"][1]["averages_w"] == {"1s": 100.0, "5s": 99.0, "15s": 98.0}
    assert data["devices"][0]["temperature_c"] is None
    assert data["owners"]["entries"][0]["owner"] == {
        "kind": "process",
        "id": "7:1",
        "label": "python train.py --epochs 90",
    }


def test_csv_has_one_row_for_each_device_and_is_appended_to(tmp_path):
    path = tmp_path / "power.csv"
    for _ in range(2):
        table = faces.CsvFile(str(path), io.StringIO())
        table.write(snapshot(2))
        table.close()
    rows = list(csv.DictReader(path.open()))
    assert [row["device"] for row in rows] == ["cpu.0", "gpu.0", "gpu.1"] * 2
    assert rows[1]["power_w"] == "100" and rows[1]["energy_j"] == "6000" and rows[1]["throttled"] == "0"
    assert rows[0]["temperature_c"] == ""
    assert rows[0]["time"] == "2023-11-14T22:13:20.000+00:00"


def test_csv_refuses_a_file_with_something_else(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(UsageError, match="has another format"):
        faces.CsvFile(str(path), io.StringIO())
    assert path.read_text() == "dear diary\n"
    with pytest.raises(UsageError, match="cannot be written"):
        faces.CsvFile(str(tmp_path / "no" / "such" / "folder.csv"), io.StringIO())


def test_csv_to_stdout():
    out = io.StringIO()
    table = faces.CsvFile("-", out)
    table.write(snapshot(0))
    table.close()
    assert out.getvalue().splitlines()[0] == ",".join(faces.CSV_HEAD)
    assert len(out.getvalue().splitlines()) == 2


def test_many_owners_are_cut_and_still_add_up():
    many = tuple(replace(OWNERS.entries[1], id=str(i), label=f"p{i}", power_w=1.0, joules=2.0) for i in range(100))
    shown = snapshot(owners=Owners("process", (*many, *OWNERS.entries[2:])))
    rows = faces.owners_of(shown)
    assert len(rows) <= faces.MOST_OWNERS
    rest = next(row for row in rows if "more owners" in row.label)
    count = int(rest.label.split()[0])
    assert count + sum(row.kind == "process" for row in rows) == 100
    assert rest.power_w == count
    assert {"idle", "unattributed"} <= {row.label for row in rows}


def test_the_owners_that_are_cut_have_an_interval():
    many = tuple(
        replace(OWNERS.entries[1], id=str(i), label=f"p{i}", joules=2.0, low=1.0, high=4.0) for i in range(100)
    )
    rest = next(row for row in faces.owners_of(snapshot(owners=Owners("process", many))) if "more owners" in row.label)
    count = int(rest.label.split()[0])
    assert (rest.low, rest.joules, rest.high) == (count, 2 * count, 4 * count)


def test_the_tables_of_now():
    shown = snapshot(1)
    devices, owners = faces.tables(shown)
    assert devices.headers[:3] == ["DEVICE", "POWER", "1 S"] and owners.headers[:2] == ["OWNER", "KIND"]
    assert devices.rows[1][:2] == ("gpu.0", "100.0 W")
    assert devices.rows[1][5] == "6000 J ± 60"
    assert "8400 J ± 140 in 60.0 s · cpu+gpu · counter" in faces.heading(shown)


def test_a_narrow_terminal_loses_the_columns_that_say_least():
    devices = faces.tables(snapshot(2))[0]
    spare = {column.name: column.spare for column in devices.columns}
    assert spare["DEVICE"] == spare["POWER"] == spare["ENERGY"] == 0, "always there"
    assert sorted((name for name in spare if spare[name]), key=spare.__getitem__)[:2] == ["STATE", "1 S"]
