"""Plug to node: what a map says, and what cannot be right."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everywatt.api.run import load
from everywatt.cli.common.group import dispatch
from everywatt.core.errors import UsageError
from everywatt.meters.plugmap import labia_feeds, load_map

FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
TWO = """
[[plug]]
plug = 1
node = "n51"
supply = "left"
phase = 1
[[plug]]
plug = 5
node = "n51"
phase = 1
until = 2026-06-01
[[plug]]
plug = 5
node = "n52"
from = 2026-06-01
"""


@pytest.fixture
def map_file(tmp_path):
    def write(text, name="map.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_node_with_two_supplies_and_dates(map_file):
    table = load_map(map_file(TWO))
    assert table.nodes == ["n51", "n52"]
    assert [feed.plug for feed in table.feeds_of("n51", end_ns=1_700_000_000 * 10**9)] == [1, 5]
    with pytest.raises(UsageError, match="part of the period"):
        table.feeds_of("n51", start_ns=0, end_ns=1_900_000_000 * 10**9)
    with pytest.raises(UsageError, match="no node 'n99'"):
        table.feeds_of("n99")


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ('[[plug]]\nplug = 0\nnode = "a"', "not a number from 1"),
        ("[[plug]]\nplug = 1", "has no node"),
        ('[[plug]]\nplug = 1\nnode = "a"\nphase = 4', "not 1, 2 or 3"),
        ('[[plug]]\nplug = 1\nnode = "a"\nphsae = 1', "unknown key 'phsae'"),
        ('[[plug]]\nplug = 1\nnode = "a"\n[[plug]]\nplug = 1\nnode = "b"', "'a' and 'b' at the same time"),
        ('[[plug]]\nplug = 1\nnode = "a"\nfrom = 2026-02-01\nuntil = 2026-01-01', "until is not after from"),
        ("", "maps no plug"),
        ("plug = 3", "not a list"),
        ("[[plug", "cannot be read"),
    ],
)
def test_a_wrong_map_says_what_is_wrong(map_file, text, say):
    with pytest.raises(UsageError, match=say):
        load_map(map_file(text))


def test_a_phase_without_voltage_is_an_error_that_names_both(map_file, boxes, tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text(boxes.text(10, 6), encoding="utf-8")
    wrong = map_file(TWO.replace("phase = 1", "phase = 2", 1))
    assert dispatch(["meter", "map", str(log), "--map", str(wrong)]) == 2
    told = capsys.readouterr().err
    assert "plug 1" in told and "phase 2" in told and "0.0 V" in told
    assert dispatch(["meter", "stats", str(log), "--node", "n51", "--map", str(wrong), "--end", "2026-01-01"]) == 2
    assert "phase 2" in capsys.readouterr().err
    right = map_file(TWO)
    assert dispatch(["meter", "stats", str(log), "--node", "n51", "--map", str(right), "--end", "2026-01-01"]) == 0
    assert "n51" in capsys.readouterr().out


def test_tables_of_lab_ia(map_file):
    table = {"n51": [30, 42], "n102": {"columns": [26, 28], "alims": ["G", "D"]}}
    feeds = load_map(map_file(json.dumps(table), "usb1.json")).feeds
    assert [(feed.node, feed.plug, feed.supply) for feed in feeds] == [
        ("n51", 13, ""),
        ("n51", 19, ""),
        ("n102", 11, "G"),
        ("n102", 12, "D"),
    ]
    with pytest.raises(UsageError, match="not power columns"):
        labia_feeds({"n1": [7]})


@FUZZ
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "columns", "alims"]), inner),
        max_leaves=8,
    )
)
def test_any_table_is_feeds_or_an_error(table):
    try:
        feeds = labia_feeds(table)
    except UsageError:
        return
    assert all(feed.plug >= 1 for feed in feeds)


CHANGED = """
[[plug]]
plug = 1
node = "n1"
until = 2026-11-15T06:00:00
[[plug]]
plug = 2
node = "n1"
from = 2026-11-15T06:00:00
"""


def test_a_node_has_the_plugs_of_the_time_of_the_recording(map_file, boxes, tmp_path, capsys):
    """Before its change a node was fed by plug 1, then by plug 2: a recording is of one or the other, never of both."""
    log, text = tmp_path / "log.csv", boxes.text(200, 6)
    log.write_text(text)
    path = map_file(CHANGED)
    words = ["meter", "stats", str(log), "--map", str(path), "--node", "n1"]
    began_s = int(text.splitlines()[1].partition(".")[0])

    def change(at_s):
        path.write_text(CHANGED.replace("2026-11-15T06:00:00", datetime.fromtimestamp(at_s, UTC).strftime("%FT%TZ")))

    for at_s, plug in ((began_s - 1000, "2"), (began_s + 1000, "1")):
        change(at_s)
        assert dispatch(words) == 0
        rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
        assert rows == [plug, "n1"]
        tape = tmp_path / f"{plug}.tape"
        assert dispatch(["import", "omegawatt", str(log), "--set", f"map={path}", "--out", str(tape)]) == 0
        assert list(load(tape).devices()) == [f"wall.n1.{plug}"]
        capsys.readouterr()
    change(began_s + 1)
    assert dispatch(words) == 2
    assert "change at" in capsys.readouterr().err
    assert dispatch(["import", "omegawatt", str(log), "--set", f"map={path}", "--out", str(tmp_path / "x.tape")]) == 2
    assert "change at" in capsys.readouterr().err


def test_the_plug_of_a_wrong_phase_is_named_by_its_own_number(map_file, boxes, tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text(boxes.text(50, 6))
    path = map_file('[[plug]]\nplug = 5\nnode = "n1"\nphase = 3\n')
    assert dispatch(["meter", "stats", str(log), "--map", str(path), "--node", "n1"]) == 2
    assert "plug 5 is mapped to phase 3, whose voltage is 0.0 V" in capsys.readouterr().err
