"""What is wrong with a tape is named: file, table, row, field."""

import sqlite3

from fake_clock import FakeClock

from everywatt.core.spans import Span
from everywatt.tape import codec, schema
from everywatt.tape.accumulate import Cum, pack_cum
from everywatt.tape.validate import validate
from everywatt.tape.writer import TapeWriter


def change(path, table, row, column, value, *, honest=False):
    """Change one field, with a right checksum where it is to look honest."""
    db = sqlite3.connect(path)
    key = schema.COLUMNS[table][0]
    db.execute(f"UPDATE {table} SET {column}=? WHERE {key}=?", (value, row))
    if honest:
        values = db.execute(f"{schema.SELECT[table]} WHERE {key}=?", (row,)).fetchone()[:-1]
        db.execute(f"UPDATE {table} SET crc=? WHERE {key}=?", (codec.checksum(table, values), row))
    db.commit()
    db.close()


def test_a_whole_tape_has_no_findings(lab, tmp_path):
    small = lab.write_small(tmp_path / "run" / "a.tape", rows=5000)
    assert validate(small.path) == validate(tmp_path) == []


def test_unsealed_is_a_finding(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", seal=False)
    (finding,) = validate(small.path)
    assert "not sealed" in finding.problem


def test_table_row_and_field_are_named(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    change(small.path, "point", 2, "value", "9")
    findings = validate(tmp_path)
    assert (findings[0].file, findings[0].table, findings[0].row, findings[0].field) == (small.path, "point", 2, "crc")
    assert str(findings[0]) == f"{small.path}: table point, row 2, field crc: the checksum does not match."


def test_a_row_that_was_taken_out(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape")
    db = sqlite3.connect(small.path)
    db.execute("DELETE FROM tframe WHERE id=3")
    db.commit()
    findings = validate(small.path)
    assert [(f.table, f.row) for f in findings] == [("tframe", 4), ("tframe", None)]


def test_sums_that_do_not_follow_are_found_though_every_checksum_is_right(lab, tmp_path):
    small = lab.write_small(tmp_path / "a.tape", seal=False)
    db = sqlite3.connect(small.path)
    first_ns = db.execute("SELECT first_ns FROM frame WHERE id=3").fetchone()[0]
    db.close()
    cum = pack_cum([Cum(1.0, 2 * 10**9, 0.0, first_ns), Cum(2e14, 2 * 10**9, 0.0, first_ns)], first_ns)
    change(small.path, "frame", 3, "cum", cum, honest=True)
    problems = [str(f) for f in validate(small.path) if f.table]
    assert any(
        "row 3, field cum: The cumulative sum of gpu.0.energy is inconsistent." in problem for problem in problems
    )
    assert not any("gpu.0.power" in problem and "row 3" in problem for problem in problems)


def test_odd_spans(tmp_path):
    writer = TapeWriter(tmp_path / "a.tape", {}, clock=FakeClock())
    writer.span_open(Span("a", "back", 100, 50))
    writer.span_open(Span("b", "orphan", 1, 2, parent="nobody"))
    writer.seal()
    assert [(f.table, f.row, f.field) for f in validate(tmp_path)] == [("span", 1, "end_ns"), ("span", 2, "parent")]


def test_what_is_no_tape(tmp_path):
    assert "no tape in this folder" in validate(tmp_path)[0].problem
    (tmp_path / "x.tape").write_text("x")
    assert "not a tape" in validate(tmp_path)[0].problem
    assert "no file" in validate(tmp_path / "y.tape")[0].problem
