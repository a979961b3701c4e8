"""The work items: rows of a CSV or JSON lines manifest, or lines of text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict

INPUT_COLUMNS = ("input", "path", "file", "source_path", "filename")
ID_COLUMNS = ("id", "chunk_id", "name")
SIZE_COLUMNS = ("size", "size_bytes", "bytes", "duration_s", "duration", "length", "seconds")
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")
_RESERVED = ("input", "gpu", "index")
MOST_ODD = 3


@dataclass(frozen=True, slots=True)
class Item(ToDict):
    """One piece of work. `index` counts from 0 in the manifest; `id` is unique in it; `size` orders the work."""

    index: int
    id: str
    input: str
    row: Mapping[str, str] = field(default_factory=dict)
    size: float | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Item:
        return cls(int(data["index"]), str(data["id"]), str(data["input"]), dict(data["row"]), data.get("size"))


Warn = Callable[[str], None]


def read_items(path: Path, *, size_column: str | None = None, warn: Warn = lambda text: None) -> list[Item]:
    """The items of a manifest: `.csv` and `.tsv` with a header, `.jsonl`, else one item a line. Raises UsageError.

    `warn` is called with invalid sizes and their lines: such items run as of unknown size.
    """
    text = decoded(b"".join(foreign.pieces(path, foreign.SMALL)), str(path))
    return parse_items(text, path.suffix.lower(), size_column=size_column, what=str(path), warn=warn)


def decoded(data: bytes, what: str) -> str:
    """The text of a list, in UTF-8 with or without a mark at its beginning. UsageError names the line that is not."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{what}: line {line} is not UTF-8.", cure="iconv -f latin1 -t utf-8") from None


def parse_items(
    text: str,
    kind: str,
    *,
    size_column: str | None = None,
    what: str = "the item list",
    warn: Warn = lambda text: None,
) -> list[Item]:
    """The items of a text; `kind` is `.csv`, `.tsv`, `.jsonl` or anything else for lines."""
    if kind in (".csv", ".tsv"):
        rows = foreign.csv_rows(text, what, "\t" if kind == ".tsv" else ",")
    elif kind in (".jsonl", ".ndjson"):
        rows = _json_rows(text, what)
    else:
        rows = [(n, {"input": line}) for n, line in _lines(text) if not line.lstrip().startswith("#")]
    if not rows:
        raise UsageError(f"{what} contains no items.")
    if size_column is not None and size_column not in rows[0][1]:
        raise UsageError(f"{what} has no column '{size_column}'; it has: {', '.join(rows[0][1])}.")
    sizes = [_size(row, size_column) for _, row in rows]
    odd = [f"line {line}: {why}" for (line, _), (_, why) in zip(rows, sizes, strict=True) if why]
    if odd:
        more = f", and {len(odd) - MOST_ODD} more" if len(odd) > MOST_ODD else ""
        warn(f"{what} has invalid sizes; these items run with unknown size: {'; '.join(odd[:MOST_ODD])}{more}")
    ids = _ids([row for _, row in rows])
    return [
        Item(n, ids[n], _input(row), row, size) for n, ((_, row), (size, _)) in enumerate(zip(rows, sizes, strict=True))
    ]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that hold something, with their numbers. Only a newline ends one: names may hold any other sign."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _json_rows(text: str, what: str) -> list[tuple[int, dict[str, str]]]:
    rows = []
    for number, line in _lines(text):
        try:
            data = foreign.parse_json(line)
        except ValueError as error:
            raise UsageError(f"{what}: line {number} is not JSON: {error}.") from None
        if isinstance(data, str):
            data = {"input": data}
        if not isinstance(data, dict) or not data:
            raise UsageError(f"{what}: line {number} is neither an object nor a string.")
        row = {str(key): value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
        rows.append((number, row))
    return rows


def _input(row: Mapping[str, str]) -> str:
    return next((row[name] for name in INPUT_COLUMNS if name in row), next(iter(row.values())))


def _ids(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A name for each item, no two alike: the second `a` is `a#2`, unless another item has that name."""
    labels = [next((row[name] for name in ID_COLUMNS if row.get(name)), _input(row)) for row in rows]
    taken = set(labels)
    last: dict[str, int] = {}
    ids = []
    for label in labels:
        name, number = label, last.get(label, 0) + 1
        while number > 1 and (name := f"{label}#{number}") in taken:
            number += 1
        last[label] = number
        ids.append(name)
    return ids


def _size(row: Mapping[str, str], column: str | None) -> tuple[float | None, str]:
    """The size of an item, or None and what was found instead."""
    names = SIZE_COLUMNS if column is None else (column,)
    name = next((name for name in names if name in row), None)
    if name is not None:
        return _number(row, name)
    (start, odd), (end, also_odd) = _number(row, "start_ms"), _number(row, "end_ms")
    if start is None or end is None:
        return None, odd or also_odd
    if end < start:
        return None, f"end_ms {row['end_ms']} is before start_ms {row['start_ms']}"
    return end - start, ""


def _number(row: Mapping[str, str], name: str) -> tuple[float | None, str]:
    text = row.get(name, "").strip()
    try:
        value = float(text or "nan")
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value >= 0:
        return value, ""
    return None, "" if text in ("", "null") else f"{name} is '{text[:40]}'"


def check_words(words: Sequence[str], items: Sequence[Item]) -> None:
    """UsageError where a placeholder of the command is no column of all items."""
    if not words:
        raise UsageError("No command was given.", cure="everywatt batch ITEMS -- CMD {input}")
    columns = {name for item in items for name in item.row}
    for name in (name for word in words for name in _PLACEHOLDER.findall(word)):
        if name in _RESERVED:
            continue
        if name not in columns:
            raise UsageError(f"No item has a column '{name}'; they have: {', '.join(sorted(columns))}.")
        if without := [item.id for item in items if name not in item.row]:
            raise UsageError(f"Item '{without[0]}' has no '{name}', which the command needs.")


def unused(words: Sequence[str], items: Sequence[Item]) -> str:
    """What to say of a command that does the same for every item; empty where it names something of them."""
    if len(items) < 2 or any({*_PLACEHOLDER.findall(word)} - {"gpu"} for word in words):
        return ""
    braces = any("{}" in word for word in words)
    why = "{} is not replaced, {input} is" if braces else "it contains neither {input} nor {index}"
    return f"the command is the same for all {len(items)} items: {why}"


def fill(words: Sequence[str], item: Item, gpu: str) -> list[str]:
    """The command of one item: `{input}`, `{column}`, `{gpu}` and `{index}` replaced; other braces stay."""
    known = {**item.row, "input": item.input, "gpu": gpu, "index": str(item.index)}
    return [_PLACEHOLDER.sub(lambda found: known.get(found.group(1), found.group(0)), word) for word in words]
