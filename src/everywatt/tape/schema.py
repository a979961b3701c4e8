"""What is inside a tape file: the tables and their columns."""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION_ID: Final = 0x45574154
VERSION: Final = 1
VERIFY_BELOW_BYTES: Final = 64 << 20
MOST_BLOB_BYTES: Final = 64 << 20
# What sqlite3 raises for damaged bytes; its own messages may hold bytes that are no text.
BROKEN: Final = (sqlite3.Error, UnicodeDecodeError, OverflowError)

# The order is the order in a sealed file: what is small and needed to make sense of the rest comes first.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "meta": ("key", "value"),
    "grp": ("id", "info"),
    "anchor": ("id", "monotonic_ns", "utc_ns", "boottime_ns", "error_ns"),
    "span": ("id", "uid", "parent", "name", "start_ns", "end_ns", "attributes"),
    "point": ("id", "at_ns", "name", "value", "span"),
    "note": ("id", "at_ns", "kind", "text", "data"),
    "gap": ("id", "grp", "channel", "start_ns", "end_ns", "kind", "count", "most"),
    "edge": ("id", "grp", "read_ns", "early_ns", "late_ns", "data"),
    "tframe": ("id", "grp", "seq", "at_ns", "n", "data"),
    "frame": ("id", "grp", "seq", "first_ns", "last_ns", "n", "cum", "data"),
    "seal": ("id", "sealed_ns", "counts"),
}
_TYPES: Final = {
    "key": "TEXT PRIMARY KEY",
    "id": "INTEGER PRIMARY KEY",
    "count": "REAL",
    "most": "REAL",
    "cum": "BLOB",
    "data": "BLOB",
    "n": "INTEGER",
    "grp": "INTEGER",
    "seq": "INTEGER",
}


def _create(table: str) -> str:
    columns = [f"{name} {type_of(table, name)}" for name in COLUMNS[table]]
    # The checksum comes before the blobs, so that metadata never needs a row's overflow pages.
    at = next((i for i, name in enumerate(COLUMNS[table]) if name in ("cum", "data")), len(columns))
    columns.insert(at, "crc INTEGER")
    return f"CREATE TABLE {table}({', '.join(columns)}){' WITHOUT ROWID' if table == 'meta' else ''}"


def type_of(table: str, name: str) -> str:
    if name.endswith("_ns"):
        return "INTEGER"
    if table == "note" and name == "data":
        return "TEXT"
    return _TYPES.get(name, "TEXT")


TABLES: Final[dict[str, str]] = {table: _create(table) for table in COLUMNS}
# A live tape has none: an index would be touched at one place for every group in every flush.
INDEXES: Final[dict[str, str]] = {
    "frame_at": "CREATE INDEX frame_at ON frame(grp, first_ns)",
    "tframe_at": "CREATE INDEX tframe_at ON tframe(grp, at_ns)",
}
INSERT: Final[dict[str, str]] = {
    table: f"INSERT INTO {table}({', '.join((*columns, 'crc'))}) VALUES({', '.join('?' * (len(columns) + 1))})"
    for table, columns in COLUMNS.items()
}
REPLACE: Final[dict[str, str]] = {table: "INSERT OR REPLACE" + text[6:] for table, text in INSERT.items()}
SELECT: Final[dict[str, str]] = {
    table: f"SELECT {', '.join((*columns, 'crc'))} FROM {table}" for table, columns in COLUMNS.items()
}
