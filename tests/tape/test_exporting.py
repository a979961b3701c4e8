"""The same rows in every format, and back."""

import csv
import json
import math
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_clock import FakeClock

from everywatt.core.errors import MissingExtra, RunExists, UsageError
from everywatt.tape.columns import load_columns
from everywatt.tape.exporting import KINDS, export, iso
from everywatt.tape.importing import import_files, kinds, parse_utc_ns
from everywatt.tape.reader import Tape
from everywatt.tape.writer import TapeWriter


@pytest.fixture
def gappy(lab, tmp_path):
    """A tape with a wrap, a missing value and a gap."""
    clock = FakeClock()
    small = lab.write_small(tmp_path / "node7-0001.tape")
    writer = TapeWriter(tmp_path / "node7-0002.tape", {"host": "node7"}, clock=clock)
    from everywatt.core.clocks import take_anchor

    writer.anchor(take_anchor(clock))
    group = writer.add_group(lab.group(lab.counter(wrap=2.0**20, max_w=700.0), lab.gauge()), 0.1)
    values = [(0, 2**20 - 5000.0, 50_000.0), (1, 5000.0, math.nan), (2, math.nan, 60_000.5), (9, 15_000.0, 70_000.25)]
    writer.append(group, [lab.row(clock.now_ns + at * lab.period_ns, *v, width_ns=3_000_001) for at, *v in values])
    return small, writer.seal()


def read(kind, path):
    if kind == "csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    if kind == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    table = pq.read_table(path) if kind == "parquet" else pa.ipc.open_file(str(path)).read_all()
    at = table.column_names.index("time_utc")
    return table.set_column(at, "time_utc", table["time_utc"].cast(pa.int64())).to_pylist()


def plain(kind, row):
    value = row["value"]
    return (
        row["time_utc"] if isinstance(row["time_utc"], int) else parse_utc_ns(row["time_utc"], "iso", ""),
        *(int(row[name]) for name in ("monotonic_ns", "early_ns", "late_ns")),
        *(row[name] for name in ("host", "device", "channel", "unit", "kind")),
        None if value in (None, "") else float(value),
    )


def test_every_format_holds_the_same_rows(lab, tmp_path, gappy):
    _, path = gappy
    rows = {}
    for kind in KINDS:
        out = tmp_path / kind / f"run.{kind}"
        out.parent.mkdir()
        files = export([path], kind, out)
        assert [file.name for file in files] == [
            f"run.{kind}",
            f"run.spans.{kind}",
            f"run.points.{kind}",
            "run.groups.json",
        ]
        assert all(file.is_file() for file in files) and len(list(out.parent.iterdir())) == 4
        rows[kind] = [plain(kind, row) for row in read(kind, out)]
    assert len(rows["csv"]) == 8
    assert rows["csv"] == rows["jsonl"] == rows["parquet"] == rows["arrow"]
    start = FakeClock().now_ns
    utc = start + FakeClock().utc_offset_ns
    first = (utc + 1_500_000, start + 1_500_000, start - 1_500_001, start + 1_500_000)
    assert rows["csv"][0] == (*first, "node7", "gpu.0", "gpu.0.energy", "J", "counter", pytest.approx(1043.576))
    assert rows["csv"][3][-1] is None  # a missing value stays missing


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_comes_back_as_the_same_tape(lab, tmp_path, gappy, kind):
    for source in (gappy[0].path, gappy[1]):
        out = tmp_path / f"{source.stem}.{kind}"
        export([source], kind, out)
        back = import_files(kind, [out], tmp_path / f"back-{source.stem}.tape")
        with Tape.open(source) as old, Tape.open(back) as new:
            before = load_columns(old, 1, ["gpu.0.energy", "gpu.0.power"])
            after = load_columns(new, 1, ["gpu.0.energy", "gpu.0.power"])
            for name in ("gpu.0.energy", "gpu.0.power"):
                assert after.accumulated[name] == pytest.approx(before.accumulated[name] * 1e-3, rel=1e-9)
                assert after.observed_ns[name].tolist() == before.observed_ns[name].tolist()
            assert after.published.tolist() == before.published.tolist()
            assert new.spans() == old.spans() and new.points() == old.points()
            assert new.to_utc_ns(old.extent_ns()[0]) == old.to_utc_ns(old.extent_ns()[0])


def test_an_export_without_its_groups_is_still_read(lab, tmp_path, gappy):
    small, _ = gappy
    *_, groups = export([small.path], "csv", tmp_path / "a.csv")
    groups.unlink()
    with Tape.open(import_files("csv", [tmp_path / "a.csv"], tmp_path / "b.tape")) as tape:
        power = next(group for group in tape.groups if group.info.name == "gpu.0.power")
        total = load_columns(tape, power.id, ["gpu.0.power"]).accumulated["gpu.0.power"][-1]
        assert total == pytest.approx(small.value_ns * 1e-3)


def test_derived_files_are_replaced_and_recordings_are_not(lab, tmp_path, gappy):
    small, path = gappy
    export([small.path], "csv", tmp_path / "a.csv")
    export([path], "csv", tmp_path / "a.csv")
    assert len(read("csv", tmp_path / "a.csv")) == 8
    with pytest.raises(RunExists):
        import_files("csv", [tmp_path / "a.csv"], path)
    with pytest.raises(UsageError, match="one of: csv"):
        export([path], "xls", tmp_path / "a.xls")


def test_a_missing_library_names_its_extra(lab, tmp_path, gappy, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"everywatt\[analysis\]"):
        export([gappy[1]], "parquet", tmp_path / "a.parquet")
    assert export([gappy[1]], "csv", tmp_path / "a.csv")


def test_times_keep_their_nanoseconds():
    assert iso(1_794_772_230_123_456_789) == "2026-11-15T19:50:30.123456789Z"
    assert parse_utc_ns("2026-11-15T19:50:30.123456789Z", "iso", "") == 1_794_772_230_123_456_789
    assert parse_utc_ns("2026-11-15T20:50:30+01:00", "iso", "") == 1_794_772_230_000_000_000
    assert parse_utc_ns("1794772230.5", "s", "") == 1_794_772_230_500_000_000
    assert parse_utc_ns("1794772230500", "ms", "") == 1_794_772_230_500_000_000
    with pytest.raises(UsageError, match="line 3"):
        parse_utc_ns("yesterday", "iso", "line 3")


def test_a_csv_of_somebody_else(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text(
        "when,watts,volts\n" + "".join(f"{1000 + i}.25,{100 + i},230\n" for i in range(11)) + "1011.25,,230\n"
    )
    values = {"watts": {"channel": "meter.power", "unit": "W", "device": "meter", "domain": "wall"}}
    options = {"time": "when", "time_format": "s", "values": values}
    with Tape.open(import_files("csv", [path], tmp_path / "m.tape", options)) as tape:
        assert tape.groups[0].expected_period_s == 1.0
        columns = load_columns(tape, 1, ["meter.power"])
        # 101 + … + 110 W for a second each; the last row is missing.
        assert columns.accumulated["meter.power"][-1] == 1055e9
        assert tape.to_utc_ns(int(columns.read[0])) == 1_000_250_000_000
        assert tape.meta["imported_from"] == ["meter.csv"]
    with pytest.raises(UsageError, match="no column 'nope'"):
        import_files("csv", [path], tmp_path / "n.tape", {"time": "nope", "values": ["watts"]})
    with pytest.raises(UsageError, match="line 2"):
        import_files("csv", [path], tmp_path / "n.tape", {"time": "when", "values": ["watts"]})
    with pytest.raises(UsageError, match="which columns"):
        import_files("csv", [path], tmp_path / "n.tape", {"time": "when"})
    assert not (tmp_path / "n.tape").exists()


def test_what_is_known_of_a_meter_goes_with_its_csv(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text("when,watts\n" + "".join(f"{1000 + i},100\n" for i in range(11)))
    options = {
        "time": "when",
        "time_format": "s",
        "values": ["watts"],
        "unit": "W",
        "domain": "wall",
        "gain_pct": 1,
        "offset_w": "0.5",
    }
    with Tape.open(import_files("csv", [path], tmp_path / "m.tape", options)) as tape:
        facts = tape.groups[0].info.channels[0].facts
        assert (facts.gain_pct, facts.offset_w, facts.max_w) == (1.0, 0.5, None)
    with pytest.raises(UsageError, match="Column 'watts'"):
        import_files("csv", [path], tmp_path / "n.tape", {**options, "gain_pct": "much"})


def test_kinds_and_wrong_use(tmp_path):
    assert {"csv", "jsonl", "parquet", "arrow", "nvidia-smi"} <= set(kinds())
    with pytest.raises(UsageError, match="cannot be imported"):
        import_files("xls", [], tmp_path / "a.tape")
    with pytest.raises(UsageError, match="no file"):
        import_files("csv", [tmp_path / "none"], tmp_path / "a.tape")
    (tmp_path / "bad.jsonl").write_text('{"monotonic_ns": 1}\n')
    with pytest.raises(UsageError, match="not an export"):
        import_files("jsonl", [tmp_path / "bad.jsonl"], tmp_path / "a.tape")


def test_a_csv_in_kilowatts_whose_last_line_was_cut_off(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text("when,kw\n1000,0.1\n1001,0.1\n1002,0.1\n10")
    options = {"time": "when", "time_format": "s", "values": ["kw"], "unit": "kW", "domain": "wall"}
    with Tape.open(import_files("csv", [path], tmp_path / "m.tape", options)) as tape:
        channel = tape.groups[0].info.channels[0]
        assert (channel.unit, channel.scale, channel.carries_energy) == ("W", 1000.0, True)
        assert len(load_columns(tape, 1, ["kw"]).read) == 3  # and none at 10 s after 1970
    for unit, kind, scale in (("kWh", "counter", 3.6e6), ("mW", "gauge", 1e-3), ("°C", "gauge", 1.0)):
        out = tmp_path / f"{unit}.tape"
        with Tape.open(import_files("csv", [path], out, {**options, "unit": unit, "kind": kind})) as tape:
            assert tape.groups[0].info.channels[0].scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("text", "more", "match"),
    [
        (b"when,w\n1000,\xff\n", {}, "not UTF-8 text"),
        (b"when;w\n1000;five\n", {"delimiter": ";"}, "Column 'w' of .* contains no numbers"),
        (b"when,w\n1000,5\n", {"gain_pc": 1}, "'gain_pc' is not an option"),
        (b"when,w\n1000,5\n", {"delimiter": ";;"}, "not one character"),
        (b"", {}, "no column 'when'"),
    ],
)
def test_a_csv_that_cannot_be_read_is_an_error_that_says_why(tmp_path, text, more, match):
    path = tmp_path / "meter.csv"
    path.write_bytes(text)
    options = {"time": "when", "time_format": "s", "values": ["w"], "unit": "W", "domain": "wall", **more}
    with pytest.raises(UsageError, match=match):
        import_files("csv", [path], tmp_path / "m.tape", options)
    assert not (tmp_path / "m.tape").exists()
