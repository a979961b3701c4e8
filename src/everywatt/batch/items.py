"""The work items: rows of a CSV or JSON lines manifest, or lines of text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.core.errors import UsageError

INPUT_COLUMNS = ("input", "path", "file", "source_path", "filename")
ID_COLUMNS = ("id", "chunk_id", "name")
SIZE_COLUMNS = ("size", "size_bytes", "bytes", "duration_s", "duration", "length", "seconds")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_RESERVED = ("input", "gpu", "index")


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work. `index` counts from 0 in the manifest; `id` is unique in it; `size` orders the work."""

    index: int
    id: str
    input: str
    row: Mapping[str, str] = field(default_factory=dict)
    size: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"index": self.index, "id": self.id, "input": self.input, "row": dict(self.row), "size": self.size}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Item:
        """The inverse of `to_dict`."""
        return cls(int(data["index"]), str(data["id"]), str(data["input"]), dict(data["row"]), data.get("size"))


def read_items(path: Path, *, size_column: str | None = None) -> list[Item]:
    """The items of a manifest: `.csv` and `.tsv` with a header, `.jsonl`, else one item a line. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return parse_items(text, path.suffix.lower(), size_column=size_column, what=str(path))


def parse_items(text: str, kind: str, *, size_column: str | None = None, what: str = "the list") -> list[Item]:
    """The items of a text; `kind` is `.csv`, `.tsv`, `.jsonl` or anything else for lines."""
    if kind in (".csv", ".tsv"):
        rows = _csv_rows(text, "\t" if kind == ".tsv" else ",", what)
    elif kind in (".jsonl", ".ndjson"):
        rows = _json_rows(text, what)
    else:
        rows = [{"input": line} for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not rows:
        raise UsageError(f"{what} holds no items.")
    if size_column is not None and size_column not in rows[0]:
        raise UsageError(f"{what} has no column '{size_column}'; it has: {', '.join(rows[0])}.")
    seen: dict[str, int] = {}
    return [_item(index, row, seen, size_column) for index, row in enumerate(rows)]


def _csv_rows(text: str, delimiter: str, what: str) -> list[dict[str, str]]:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    lines = [line for line in reader if any(cell.strip() for cell in line)]
    if not lines:
        return []
    header = [name.strip() for name in lines[0]]
    if len(set(header)) < len(header) or not all(header):
        raise UsageError(f"{what}: the header needs a different name for each column, and has {', '.join(header)}.")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            raise UsageError(f"{what}: row {number} has {len(line)} cells, the header {len(header)}.")
    return [dict(zip(header, line, strict=True)) for line in lines[1:]]


def _json_rows(text: str, what: str) -> list[dict[str, str]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{what}: line {number} is not JSON: {error}.") from None
        if isinstance(data, str):
            data = {"input": data}
        if not isinstance(data, dict) or not data:
            raise UsageError(f"{what}: line {number} is neither an object nor a text.")
        rows.append({str(key): value if isinstance(value, str) else json.dumps(value) for key, value in data.items()})
    return rows


def _item(index: int, row: Mapping[str, str], seen: dict[str, int], size_column: str | None) -> Item:
    named = next((row[name] for name in INPUT_COLUMNS if name in row), next(iter(row.values())))
    label = next((row[name] for name in ID_COLUMNS if row.get(name)), named)
    seen[label] = seen.get(label, 0) + 1
    unique = label if seen[label] == 1 else f"{label}#{seen[label]}"
    return Item(index, unique, named, row, _size(row, size_column))


def _size(row: Mapping[str, str], column: str | None) -> float | None:
    names = SIZE_COLUMNS if column is None else (column,)
    for name in names:
        if name in row:
            return _number(row[name])
    start, end = _number(row.get("start_ms", "")), _number(row.get("end_ms", ""))
    return None if start is None or end is None else end - start


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_words(words: Sequence[str], items: Iterable[Item]) -> None:
    """UsageError where a placeholder of the command is in no column of the items."""
    if not words:
        raise UsageError("There is no command to run.", cure="everywatt batch ITEMS -- CMD {input}")
    columns = {name for item in items for name in item.row}
    for name in (name for word in words for name in _PLACEHOLDER.findall(word)):
        if name not in _RESERVED and name not in columns:
            raise UsageError(f"No item has a column '{name}'; they have: {', '.join(sorted(columns))}.")


def fill(words: Sequence[str], item: Item, gpu: str) -> list[str]:
    """The command of one item: `{input}`, `{column}`, `{gpu}` and `{index}` replaced; other braces stay."""
    known = {**item.row, "input": item.input, "gpu": gpu, "index": str(item.index)}
    return [_PLACEHOLDER.sub(lambda found: known.get(found.group(1), found.group(0)), word) for word in words]
