"""Files of JSON lines beside a tape."""

from __future__ import annotations

import os

from everywatt.bench.experiment import JsonLines, numbered_lines, read_lines


def test_a_full_disk_loses_lines_and_says_so(tmp_path) -> None:
    (tmp_path / "lines.jsonl").symlink_to("/dev/full")
    lines = JsonLines(tmp_path / "lines.jsonl")
    lines.write({"a": 1})
    assert "No space left" in lines.close()


def test_half_a_line_of_a_killed_run_stays_alone(tmp_path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b'{"a": 1}\n[2]\n\n{"b": ')
    lines = JsonLines(file)
    for value in ("ü", os.fsdecode(b"caf\xe9"), float("inf")):
        lines.write({"a": value})
    assert lines.close() == ""
    torn: list[int] = []
    assert [number for number, _ in numbered_lines(file, torn)] == [1, 5, 6, 7]
    assert torn == [4]
    assert [line["a"] for line in read_lines(file)] == [1, "ü", os.fsdecode(b"caf\xe9"), None]
    assert "ü" in file.read_text()
    assert list(read_lines(tmp_path / "none")) == []
