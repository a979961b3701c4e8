"""What a tape can say of its own state: checksums, the seal, what is missing, what can be salvaged, where rows are."""

from __future__ import annotations

import json
import reprlib
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import TapeDamaged
from everywatt.tape import codec, schema
from everywatt.tape.opening import Opened
from everywatt.tape.sealing import Tally

# What rows may hold: a checksum says that a row is as it was written, not that it makes sense. A shape is a type, a
# tuple of shapes (any of them), `[shape]` (a list of it), or a table: `{"name": shape}` for the keys that are read here
# (others are free, and None is as good as missing), `{ANY: shape}` for all keys.
ANY: Final = "*"
_NUMBER: Final = (int, float)
_NONE: Final = type(None)
_TEXT: Final = (str, _NONE)
_WORDS: Final = (str, [str], _NONE)
_MAY_BE_NONE: Final = frozenset(("parent", "end_ns", "span", "channel", "count", "most", "cum", "data"))
_TYPES: Final[dict[str, tuple[type, ...]]] = {"INTEGER": (int,), "REAL": (int, float), "TEXT": (str,), "BLOB": (bytes,)}
COLUMNS: Final[dict[str, tuple[tuple[str, tuple[type, ...]], ...]]] = {
    table: tuple(
        (name, _TYPES[schema.type_of(table, name).partition(" ")[0]] + (_NONE,) * (name in _MAY_BE_NONE))
        for name in names
    )
    for table, names in schema.COLUMNS.items()
}
_HOST: Final = {
    "name": str,
    "cpus": _NUMBER,
    "packages": [int],
    "memory_bytes": _NUMBER,
    "cpu": str,
    "kernel": str,
    "boot": str,
}
META: Final[dict[str, Any]] = {
    "abandoned": bool,
    "agent": {"devices": {ANY: {"group": str, "channel": str, "at_ns": int, "uj": int}}, "owners": list},
    "bounds_ns": ([(int, _NONE)], _NONE),
    "checkpoint_s": (*_NUMBER, _NONE),
    "command": _WORDS,
    "continues": _TEXT,
    "cwd": _TEXT,
    "everywatt": _TEXT,
    "git": (_NONE, {"commit": str, "branch": str, "dirty": bool}),
    "host": (_HOST, str, _NONE),
    "in_process": bool,
    "meter": (dict, _NONE),
    "note": _TEXT,
    "period_s": (*_NUMBER, _NONE),
    "place": _TEXT,
    "profile": _TEXT,
    "python": _TEXT,
    "quality": (dict, _NONE),
    "tags": dict,
    "user": _TEXT,
}
_CHANNEL: Final = {
    "name": str, "unit": str, "kind": str, "device": str, "domain": str, "scale": _NUMBER, "pedigree": str,
    "mirror_of": str, "facts": {"cards": str, "calibrated": bool} | dict.fromkeys(
        (
            "period_s", "window_s", "quantum", "wrap", "max_w", "gain_pct", "offset_w", "gain", "bias_w", "correlation",
            "freedom", "gain_alike", "offset_alike",
        ),
        _NUMBER,
    ),
}  # fmt: skip
_GROUP: Final = {
    "name": str, "sensor": str, "device": str, "channels": [_CHANNEL], "cadence": str, "label": str, "uuid": str,
    "inline": bool, "tracked": bool, "table": bool, "expected_period_s": _NUMBER,
}  # fmt: skip
JSON: Final[dict[str, Any]] = {
    "grp": _GROUP,
    "note": dict,
    "point": object,
    "seal": {ANY: [int]},
    "span": dict,
}


def checked(path: Path, table: str, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """The row without its checksum. Raises TapeDamaged where that does not match."""
    if row is None:
        raise TapeDamaged(f"{path}: table {table} lost a row.")
    if codec.checksum(table, row[:-1]) != row[-1]:
        raise TapeDamaged(f"{path}: table {table}, row {row[0]}: the checksum does not match.")
    if column := _odd_column(table, row[:-1]):
        raise TapeDamaged(f"{path}: table {table}, row {row[0]}: its {column} is of a type that it never has.")
    return row[:-1]


def _odd_column(table: str, row: tuple[Any, ...]) -> str | None:
    """The first column of a row that does not hold what it should."""
    for (name, types), value in zip(COLUMNS[table], row, strict=True):
        if not isinstance(value, types):
            return name
    return None


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value that was read from JSON has a shape: numbers are int or float and nothing derived from them."""
    if type(value) is shape or shape is object:
        return True
    if isinstance(shape, tuple):
        return type(value) in shape or any(_fits(value, one) for one in shape if isinstance(one, (dict, list)))
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(one, shape[0]) for one in value)
    if not isinstance(shape, dict) or not isinstance(value, dict):
        return False
    if ANY in shape:
        return all(_fits(one, shape[ANY]) for one in value.values())
    # The keys that are there, and not all that may be, and without a call for each plain value: a group of 200 channels
    # is looked at whenever a tape is opened.
    for key, one in value.items():
        want = shape.get(key)
        known = one is None or want is None or type(one) is want or (type(want) is tuple and type(one) in want)
        if not known and not _fits(one, want):
            return False
    return True


def parsed(path: Path, table: str, row: Any, text: Any) -> Any:
    """JSON of a column, of the shape that its table has."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise TapeDamaged(f"{path}: table {table}, row {row} is not JSON.") from None
    shape = META.get(row, object) if table == "meta" else JSON[table]
    if not _fits(value, shape):
        raise TapeDamaged(f"{path}: table {table}, row {row} has the wrong type: {reprlib.repr(value)}.")
    return value


def read_seal(db: sqlite3.Connection, path: Path) -> list[Mapping[str, object]]:
    """What the seal says of each table; empty where the tape is not sealed."""
    rows = [checked(path, "seal", row) for row in db.execute(schema.SELECT["seal"])]
    if len(rows) > 1:
        raise TapeDamaged(f"{path}: table seal has {len(rows)} rows.")
    seals = [parsed(path, "seal", 1, row[2]) for row in rows]
    indexes = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type='index'")}
    if seals and not indexes.issuperset(schema.INDEXES):
        raise TapeDamaged(f"{path}: the tape is sealed, but an index is missing.")
    return seals


def unsealed_sentences(path: Path, meta: Mapping[str, Any], opened: Opened) -> list[str]:
    """What can be missing from a tape that was not sealed."""
    if meta.get("abandoned"):
        return [f"{path.name} was closed without being sealed."]
    interval = meta.get("checkpoint_s")
    lately = f"{interval:g} s" if isinstance(interval, int | float) else "some time"
    if opened.log_cut:
        return [
            f"{path.name} is not sealed, and the log beside it is damaged: up to {lately} at its end, and everything "
            "written after the damage, is missing."
        ]
    if opened.log:
        return [
            f"{path.name} is not sealed: it is still recording, or its recorder has died; rows not yet flushed are "
            "missing."
        ]
    if opened.log is None:
        return [f"{path.name} is not sealed, and the log beside it cannot be read: up to {lately} may be missing."]
    return [
        f"{path.name} is not sealed, and the log beside it ({path.name}-wal) is missing: up to {lately} before its "
        "end, and everything after that, may be lost."
    ]


def verify(db: sqlite3.Connection, path: Path, seal: list[Mapping[str, object]]) -> None:
    """Check every page and every row now. Raises TapeDamaged naming table and row."""
    for table, row, _, what in problems(db, seal):
        where = "" if table is None else f"table {table}{'' if row is None else f', row {row}'}: "
        raise TapeDamaged(f"{path}: {where}{what}")


Problem = tuple[str | None, Any, str | None, str]


def problems(db: sqlite3.Connection, seal: list[Mapping[str, object]]) -> Iterator[Problem]:
    """Everything wrong with pages, checksums, numbering and the seal, as (table, row, field, problem)."""
    try:
        for (text,) in db.execute("PRAGMA integrity_check(5)"):
            if text != "ok":
                yield None, None, None, f"its pages are damaged: {text}."
    except schema.BROKEN as error:
        yield None, None, None, f"its pages are damaged: {error}."
    for table in schema.COLUMNS:
        if table == "seal":
            continue
        tally = Tally()
        try:
            yield from _table_problems(db, table, tally)
        except (*schema.BROKEN, ValueError) as error:
            yield table, None, None, f"the table cannot be read: {error}."
            continue
        wanted = seal[0].get(table) if seal and isinstance(seal[0], dict) else None
        if seal and wanted != tally.result():
            yield table, None, None, f"it has {tally.count} rows that differ from the {wanted} that were sealed."


def _table_problems(db: sqlite3.Connection, table: str, tally: Tally) -> Iterator[Problem]:
    seqs: dict[int, int] = {}
    numbered = schema.COLUMNS[table][0] == "id"
    for row in db.execute(f"{schema.SELECT[table]} ORDER BY 1"):
        if not isinstance(row[-1], int) or codec.checksum(table, row[:-1]) != row[-1]:
            yield table, row[0], "crc", "the checksum does not match."
            continue
        tally.add(row[-1])
        if numbered and row[0] != tally.count:
            yield table, row[0], "id", f"rows before it are missing: it should be row {tally.count}."
            return
        if table in ("frame", "tframe"):
            seqs[row[1]] = seqs.get(row[1], 0) + 1
            if row[2] != seqs[row[1]]:
                yield table, row[0], "seq", f"frames of group {row[1]} are missing before it."
                return


def odd_edges(db: sqlite3.Connection, widths: Mapping[int, int]) -> set[int]:
    """Groups, of these with so many channels, with inline reads that do not have their channels."""
    sizes = db.execute("SELECT DISTINCT grp, length(data) FROM edge").fetchall()
    return {group for group, size in sizes if group in widths and size != 8 * widths[group]}


class Salvage:
    """Reads what is left of a file that was cut off, and says where each table ends."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self.path = path
        self.sentences: list[str] = []
        self._said: set[str] = set()

    def rows(self, table: str, sql: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        last: Any = None
        try:
            for row in self.db.execute(sql, values):
                if codec.checksum(table, row[:-1]) != row[-1]:
                    raise sqlite3.DatabaseError("checksum")
                last = row[0]
                yield row
        except schema.BROKEN:
            self.say(table, last)

    def say(self, table: str, last: Any) -> None:
        if table not in self._said:
            self._said.add(table)
            where = "nothing of it is left" if last is None else f"everything after row {last} is lost"
            self.sentences.append(f"Table {table}: {where}.")


class Directory:
    """Which frames an unsealed tape holds, by group; such a tape has no index."""

    def __init__(self, db: sqlite3.Connection, path: Path, salvage: Salvage | None) -> None:
        self._db = db
        self._path = path
        self._salvage = salvage
        self._last = 0
        self._entries: dict[int, tuple[list[int], list[int], list[int]]] = {}
        self.update()

    def update(self) -> None:
        rows: Iterable[tuple[Any, ...]]
        if self._salvage is not None:
            left = self._salvage.rows("frame", f"{schema.SELECT['frame']} ORDER BY id")
            rows = [(row[0], row[1], row[3], row[4]) for row in left]
        else:
            sql = "SELECT id, grp, first_ns, last_ns FROM frame WHERE id>? ORDER BY id"
            rows = self._db.execute(sql, (self._last,))
        for number, group, first_ns, last_ns in rows:
            ids, firsts, lasts = self._entries.setdefault(group, ([], [], []))
            ids.append(number)
            firsts.append(first_ns)
            lasts.append(last_ns)
            self._last = number

    def between(self, group: int, start_ns: int | None, end_ns: int | None) -> list[int]:
        """Row numbers of the frames that overlap, with one before and one after."""
        ids, firsts, _ = self._entries.get(group, ([], [], []))
        low = 0 if start_ns is None else max(0, bisect_right(firsts, start_ns) - 2)
        high = len(ids) if end_ns is None else bisect_right(firsts, end_ns) + 1
        return ids[low:high]

    def extent(self, group: int) -> tuple[int | None, int | None]:
        """First and last publication of a group."""
        _, firsts, lasts = self._entries.get(group, ([], [], []))
        return (firsts[0], lasts[-1]) if firsts else (None, None)


class EdgeIndex:
    """Row numbers of inline reads of a sealed tape by group and time, from (group, number, read_ns) in order of number.

    The table has no index, and windows ask it again and again.
    """

    def __init__(self, rows: Iterable[tuple[int, int, int]]) -> None:
        self._ids: dict[int, array[int]] = {}
        # Threads read nearly in order: what counts is the latest time up to a row, and the soonest from it on.
        self._latest: dict[int, array[int]] = {}
        self._soonest: dict[int, array[int]] = {}
        for group, number, read_ns in rows:
            latest = self._latest.setdefault(group, array("q"))
            self._ids.setdefault(group, array("q")).append(number)
            self._soonest.setdefault(group, array("q")).append(read_ns)
            latest.append(max(read_ns, latest[-1]) if latest else read_ns)
        for soonest in self._soonest.values():
            for place in range(len(soonest) - 2, -1, -1):
                soonest[place] = min(soonest[place], soonest[place + 1])

    def between(self, group: int, start_ns: int, end_ns: int) -> tuple[int, int] | None:
        """The least and the greatest number that a read of that time may have; None if there is no such read."""
        if group not in self._ids:
            return None
        first = bisect_left(self._latest[group], start_ns)
        last = bisect_right(self._soonest[group], end_ns) - 1
        return (self._ids[group][first], self._ids[group][last]) if first <= last else None
