"""Tables of other meters: what a web page of a box gives, and what is no table."""

import gzip

import pytest

from everywatt.api.run import load
from everywatt.core.errors import UsageError
from everywatt.tape.importing import import_files

TABLE = "Zeit\tP1 (W)\tP2 (W)\n" + "".join(
    f"15.11.2026 10:00:{second:02d}\t20,5\t{'' if second == 4 else 40}\n" for second in range(11)
)
HOW = {
    "time": "Zeit",
    "time_format": "%d.%m.%Y %H:%M:%S",
    "zone_h": 1,
    "values": ["P1 (W)", "P2 (W)"],
    "unit": "W",
    "device": "wall",
    "domain": "wall",
    "gain_pct": 1.0,
}


def test_a_table_of_a_web_page_has_every_column_and_its_gaps(tmp_path):
    """Tabs, decimal commas, local time, an empty cell: 10 s of 20.5 W, and 9 s of 40 W."""
    (tmp_path / "box.tsv").write_text(TABLE)
    run = load(import_files("csv", [tmp_path / "box.tsv"], tmp_path / "box.tape", HOW))
    energy = run.energy()
    assert energy.scope == "wall" and energy.joules == pytest.approx(205 + 360)
    assert {name: part.joules for name, part in energy.parts} == {
        "wall.P1 (W)": pytest.approx(205.0),
        "wall.P2 (W)": pytest.approx(360.0),
    }
    assert energy.part("wall.P2 (W)").coverage == pytest.approx(0.9)
    assert str(run.started).startswith("2026-11-15 09:00:00")


def test_a_counter_of_kilowatt_hours(tmp_path):
    (tmp_path / "e.csv").write_text("t;E\n0;1000\n1800;1000,5\n3600;1001\n")
    how = {"time": "t", "time_format": "s", "values": "E", "unit": "kWh", "kind": "counter", "domain": "wall"}
    assert load(import_files("csv", [tmp_path / "e.csv"], tmp_path / "e.tape", how)).energy().joules == pytest.approx(
        3.6e6
    )


@pytest.mark.parametrize(
    ("data", "how", "why"),
    [
        (b"\xff\xff\x00t", {}, "not UTF-8 text"),
        (b"t\x00,\x00w\x00", {}, "zero byte"),
        (b"", {}, "no column"),
        (b"t,w\n", {}, "contains no rows"),
        (b"t,w\n7,5\n7,6\n", {}, "a single instant"),
        (b"t,w\n0,abc\n", {}, "contains no numbers"),
        (b"t,w\nsoon,5\n", {}, "line 2: 'soon' is not a time"),
        (b"t,w\n0,5\n", {"delimiter": "::"}, "not one character"),
        (b"t,w\n0,5\n", {"unit": "kWh"}, "kWh is not a unit of a gauge"),
        (b"t,w\n0,5\n", {"domain": ""}, "needs a domain"),
        (b"t,w\n0,5\n", {"zone_h": "CET"}, "not a number of hours"),
        (b"t,w\n0," + b"5" * 200_000 + b"\n", {}, "line 2: field larger"),
    ],
)
def test_what_is_no_table_is_refused_in_a_sentence(tmp_path, data, how, why):
    (tmp_path / "x.csv").write_bytes(data)
    given = {"time": "t", "time_format": "s", "values": "w", "unit": "W", "domain": "wall", **how}
    with pytest.raises(UsageError, match=why):
        import_files("csv", [tmp_path / "x.csv"], tmp_path / "x.tape", given)
    assert not list(tmp_path.glob("x.tape*"))


def test_a_packed_table_that_was_cut_off(tmp_path):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(TABLE.encode())[:60])
    with pytest.raises(UsageError, match="compressed data is truncated"):
        import_files("csv", [tmp_path / "x.csv.gz"], tmp_path / "x.tape", HOW)


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(UsageError, match="is a folder, and csv is read from files"):
        import_files("csv", [tmp_path], tmp_path / "a.tape")
