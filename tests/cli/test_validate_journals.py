"""Journals beside a tape: a finding names the file, the line and the field."""

import json

import pytest

from everywatt.cli.validate import journal_findings

QUERY = {"id": "q1", "level": "concurrency 1", "answer": {"status": "ok", "piece_ns": [1]}}


def told(folder):
    return [(f.file.name, f.row, f.field, f.problem) for f in journal_findings(folder)]


def test_each_line_and_field_that_is_wrong_is_named(tmp_path):
    damaged = [
        json.dumps(QUERY),
        json.dumps(QUERY | {"id": None}),
        "{half",
        json.dumps(QUERY | {"answer": {"status": 7, "piece_ns": []}}),
        json.dumps(QUERY)[:20],
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(damaged))
    found = told(tmp_path)
    assert [one[:3] for one in found] == [
        ("queries.jsonl", 2, "id"),
        ("queries.jsonl", 3, None),
        ("queries.jsonl", 4, "answer.status"),
        ("queries.jsonl", 5, None),
    ]
    assert found[0][3] == "null is not a string."
    assert found[2][3] == "7 is not a string."
    assert found[3][3].startswith("The last line is incomplete and was skipped: ")


@pytest.mark.parametrize(
    ("line", "field", "problem"),
    [
        ({"kind": "item", "id": "a", "index": True, "input": "a", "row": {}}, "index", "true is not a whole number."),
        ({"kind": "start", "id": "a", "attempt": 1, "device": "cpu"}, "lane", "null is not a whole number."),
        ({"x": 1}, "kind", "None is not one of batch, item, start, end, collected."),
        ([], None, "Not a JSON object."),
    ],
)
def test_lines_of_a_batch_by_their_kind(tmp_path, line, field, problem):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "batch.jsonl").write_text(json.dumps(line) + "\n")
    assert told(tmp_path) == [("batch.jsonl", 1, field, problem)]


def test_what_is_whole_or_not_ours_is_not_named(tmp_path):
    (tmp_path / "queries.jsonl").write_text(json.dumps(QUERY) + "\n\n")
    (tmp_path / "llm.json").write_text("{}")
    (tmp_path / "notes.jsonl").write_text("what I like")
    assert told(tmp_path) == []
    (tmp_path / "llm.json").write_bytes(b"\xff")
    assert [one[0] for one in told(tmp_path)] == ["llm.json"]
