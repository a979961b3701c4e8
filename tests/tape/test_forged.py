"""Tapes that somebody made on purpose: every checksum is right, and what is in the rows is of the wrong type."""

import json
from array import array

import pytest
from tapes import at, counter_group, forge, rows, write_tape

from everywatt.cli.main import main
from everywatt.core.channels import Row
from everywatt.core.errors import TapeDamaged
from everywatt.tape.reader import Tape
from everywatt.tape.validate import validate


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Two runs, `good` and `forged`."""
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path))
    ticks = rows(lambda t: 50.0 * t, 0, 3, 0.1)
    spans = [("work", 0.5, 2.5, None, {"role": "x"})]
    for name in ("good", "forged"):
        write_tape(tmp_path / f"{name}.tape", [(counter_group(), 0.1, ticks)], spans)
    return tmp_path


FORGERIES = [
    ("meta", key, "value", json.dumps(value))
    for key in ("tags", "host", "bounds_ns", "command", "meter", "period_s", "agent", "continues", "git", "note")
    for value in (5, [5], {"name": {}}, [None, {}], "x")
    if not (key in ("continues", "note") and value == "x")
] + [
    ("span", 1, "name", 5),
    ("span", 1, "uid", None),
    ("span", 1, "start_ns", "soon"),
    ("span", 1, "end_ns", 1.5),
    ("span", 1, "parent", 7),
    ("span", 1, "attributes", "[1]"),
    ("anchor", 1, "utc_ns", "x"),
    ("anchor", 1, "monotonic_ns", None),
    ("grp", 1, "info", "{}"),
    ("grp", 1, "info", "[]"),
]  # fmt: skip
VERBS = (["list"], ["list", "--sum", "project"], ["show", "forged"], ["ledger", "forged"], ["why", "forged"])


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda one: f"{one[0]}-{one[1]}-{one[2]}-{one[3]}")
def test_a_forged_row_is_no_traceback(home, forgery, capsys):
    assert forge(home / "forged.tape", *forgery)
    for words in VERBS:
        assert main(words) in (0, 1, 2, 3), words
        if words == ["list"]:
            assert "good" in capsys.readouterr().out, "one run that cannot be read must not hide the others"


def test_a_forged_row_is_named(home):
    forge(home / "forged.tape", "meta", "tags", "value", "5")
    with pytest.raises(TapeDamaged, match="table meta, row tags"):
        Tape.open(home / "forged.tape")


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("data", [array("d", [1.0, 2.0]).tobytes(), b"", b"odd", None])
def test_an_inline_read_that_does_not_fit_its_group_is_left_out(home, capsys, seal, verify, data):
    """Recorders wrote what programs sent: a program that found other channels made such rows."""
    ticks = rows(lambda t: 50.0 * t, 0, 3, 0.1)
    edges = [(0, Row(at(t), at(t), at(t), (50.0 * t,))) for t in (0.5, 1.0, 2.5)]
    spans = [("work", 0.5, 2.5, None, {})]
    path = write_tape(home / "odd.tape", [(counter_group(inline=True), 0.1, ticks)], spans, edges, seal=seal)
    assert forge(path, "edge", 2, "data", data)
    with Tape.open(path, verify=verify) as tape:
        assert tape.edges(1) == [edges[0][1], edges[2][1]]
        assert tape.edges(1, at(0.9), at(1.1)) == []
        said = "Reads at span edges of test.cpu.0.package that do not have its 1 values are left out."
        assert tape.trouble[-1] == said
        assert tape.trouble.count(said) == 1
        tape.refresh()
    assert [str(finding) for finding in validate(path)][-1] == f"{path}: table edge, field data: {said}"
    assert main(["show", "odd"]) == 0
    assert said in "".join(capsys.readouterr())
