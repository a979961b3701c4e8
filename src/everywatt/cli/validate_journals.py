"""The files that a batch or a benchmark keeps beside its tape: every line, and the fields that are read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everywatt.batch.journal import JOURNAL
from everywatt.bench.llm.records import PLAN, QUERIES, SCORES
from everywatt.bench.precision.journal import FILE as PRECISION
from everywatt.tape.validate import Finding

Fields = Mapping[str, type | tuple[type, ...]]
ANY_KIND = "*"
NUMBER = (int, float)
WORDS: Mapping[type | tuple[type, ...], str] = {
    str: "string",
    int: "whole number",
    dict: "object",
    list: "list",
    NUMBER: "number",
}
_QUERY: Fields = {"id": str, "level": str, "answer": dict, "answer.status": str, "answer.piece_ns": list}
KINDS: Mapping[str, Mapping[str, Fields]] = {
    JOURNAL: {
        "batch": {"command": list, "devices": list},
        "item": {"id": str, "index": int, "input": str, "row": dict},
        "start": {"id": str, "attempt": int, "device": str, "lane": int},
        "end": {"id": str, "attempt": int, "status": str, "ended": dict},
        "collected": {"part": str},
    },
    PRECISION: {
        "request": {"job": dict, "conduct": dict},
        "checked": {"precision": str, "told": dict},
        "timed": {"precision": str, "block": int, "place": int, "seconds": NUMBER, "told": dict},
        "layers": {"precision": str, "pass_s": NUMBER},
        "sensitivity": {"layers": list, "plan": list},
    },
    QUERIES: {ANY_KIND: _QUERY},
    SCORES: {ANY_KIND: {"id": str, "level": str, "score": dict}},
}
"""For each file the kinds of line, and the required fields of each; a dot leads into a nested object."""


def journal_findings(path: Path) -> list[Finding]:
    """What is wrong with the journals in a folder and those below it; the row of a finding is its line."""
    found = []
    for file in sorted(path.rglob("*.json*")) if path.is_dir() else ():
        if file.name in KINDS:
            found += list(_lines(file, KINDS[file.name]))
        elif file.name == PLAN:
            found += list(_whole(file))
    return found


def _whole(file: Path) -> Iterator[Finding]:
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        yield Finding(file, None, None, None, f"The file cannot be read: {error}.")
        return
    if not isinstance(data, dict):
        yield Finding(file, None, None, None, "Not a JSON object.")


def _lines(file: Path, kinds: Mapping[str, Fields]) -> Iterator[Finding]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        yield Finding(file, None, None, None, f"The file cannot be read: {error.strerror}.")
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            torn = "The last line is incomplete and was skipped" if number == len(lines) else "Not valid JSON"
            yield Finding(file, None, number, None, f"{torn}: {error}.")
            continue
        yield from _fields(file, number, data, kinds)


def _fields(file: Path, number: int, data: Any, kinds: Mapping[str, Fields]) -> Iterator[Finding]:
    if not isinstance(data, dict):
        yield Finding(file, None, number, None, "Not a JSON object.")
        return
    kind = ANY_KIND if ANY_KIND in kinds else data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        yield Finding(file, None, number, "kind", f"{kind!r} is not one of {', '.join(kinds)}.")
        return
    for name, types in kinds[kind].items():
        value: Any = data
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, types) or isinstance(value, bool):
            yield Finding(file, None, number, name, f"{_short(value)} is not a {WORDS[types]}.")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"
