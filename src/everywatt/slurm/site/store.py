"""The store of a site: files on the shared filesystem, written by many nodes, read by DuckDB.

    STORE/jobs/date=2026-11-15/NODE.1794765346932382660.jsonl      what a node appended, one file each time
    STORE/jobs/date=2026-11-15/compact.parquet                     what `slurm daily` made of them
    STORE/nodes/date=2026-11-15/…                                  the hours of nodes, in the same way

A file has one writer and gets its name when it is whole, so nodes never wait for one another; a node that has appended
often in a day makes one file of its own. A job lies under the day of its end (UTC). Of two records of the same job on
the same node the later one counts, so appending again is harmless. Nodes write lines of JSON, which needs no library;
where they are read and compacted pyarrow and DuckDB are needed. Earlier versions appended Parquet, which is still read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.files import replace_text, replacing
from everywatt.core.foreign import text_lines
from everywatt.core.plugins import arrow, library
from everywatt.slurm.locks import exclusive
from everywatt.slurm.schema import KINDS, NODE_ENDS, SUMMED, TIMES, JobOnNode, Kind, NodeHour, ends_sql

FOREVER_S: Final = 253_370_764_800.0  # 9999-01-01, unix seconds: after the end of every job
QUARANTINE: Final = "quarantine"
COMPACT: Final = "compact.parquet"
SUFFIXES: Final = (".jsonl", ".parquet")
MOST_PARTS: Final = 32  # of a node and day; more are made into one by the node itself
TRIES: Final = 3
_SUMS: Final = "everywatt_sums"
COMPACTING: Final = ".compacting"  # the lock of a day's files
_DAY = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


def day_bounds_s(day: date) -> tuple[float, float]:
    """First instant of a day, and of the day after it (UTC)."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start.timestamp(), (start + timedelta(days=1)).timestamp()


def day_of(unix_s: float) -> date:
    """The day (UTC) of an instant, from 1970 to the year 9999."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=min(max(unix_s, 0.0), FOREVER_S))).date()


def days_of(since_s: float, until_s: float) -> tuple[date, ...]:
    """Every day (UTC) of a time that ends before `until_s`."""
    first, last = day_of(since_s).toordinal(), day_of(until_s - 1e-6).toordinal()
    return tuple(date.fromordinal(number) for number in range(first, last + 1))


class Store:
    """A site's jobs and nodes' hours under one folder."""

    def __init__(self, path: Path, leave_out: Collection[Path] = ()) -> None:
        self.path = path
        self.leave_out = frozenset(leave_out)  # files that are known to be broken

    def append(self, rows: Sequence[JobOnNode], node: str) -> list[Path]:
        """Add records of jobs on one node; gives the files (one for each day)."""
        return self._append("jobs", [(day_of(row.end_s).isoformat(), row.row()) for row in rows], node)

    def append_hours(self, rows: Sequence[NodeHour], node: str) -> list[Path]:
        return self._append("nodes", [(day_of(row.hour_s).isoformat(), row.row()) for row in rows], node)

    def name_quarantined(self, node: str, names: Sequence[str]) -> None:
        """Say which files of a node's spool were put aside, in place of what was said before."""
        path = self.path / QUARANTINE / f"{safe_node(node)}.json"
        if names:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps(list(names)))
        else:
            path.unlink(missing_ok=True)

    def quarantined(self) -> dict[str, list[str]]:
        """Files of spools that were put aside, by node."""
        found = {}
        for path in sorted((self.path / QUARANTINE).glob("*.json")):
            try:
                found[path.stem] = [str(name) for name in json.loads(path.read_text(encoding="utf-8"))]
            except (OSError, ValueError, TypeError):
                found[path.stem] = [f"{path} cannot be read"]
        return found

    def jobs(
        self,
        since_s: float,
        until_s: float,
        where: str = "true",
        values: Sequence[Any] = (),
        columns: Sequence[str] = ("*",),
    ) -> Any:
        """Jobs on nodes that ended in [since, until) as an Arrow table. `where` is SQL with `?` for the values."""
        wanted = f"end_s >= ? AND end_s < ? AND ({where})"
        sql = f"SELECT {', '.join(columns)} FROM jobs WHERE {wanted} ORDER BY end_s, job_id, node"
        return self.query(sql, [since_s, until_s, *values], since_s, until_s)

    def query(
        self, sql: str, values: Sequence[Any], since_s: float, until_s: float, without: Collection[date] = ()
    ) -> Any:
        """The answer of DuckDB over views `jobs` and `nodes` of those days (but for some), as an Arrow table.

        A file that is broken is left out, and is in `leave_out` from then on.
        """
        for left in reversed(range(TRIES)):
            try:
                return self._query(sql, values, since_s, until_s, without)
            except (_duckdb().Error, arrow()[0].ArrowInvalid, FileNotFoundError) as error:
                new = {path for path, _ in broken_files(self.path)} - self.leave_out
                self.leave_out |= new
                # A file that was there when we looked may be a part of a larger one by now.
                if not left or not (new or isinstance(error, (_duckdb().IOException, FileNotFoundError))):
                    why = str(error).partition("\n")[0][:300]
                    raise EverywattError(f"The store cannot be read: {why}") from None
        raise AssertionError

    def _query(self, sql: str, values: Sequence[Any], since_s: float, until_s: float, without: Collection[date]) -> Any:
        with connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for kind in KINDS:
                if re.search(rf"\b(FROM|JOIN)\s+{kind}\b", sql, re.IGNORECASE):  # a view opens all of its files
                    days = [day for day in self._between(kind, since_s, until_s) if day not in without]
                    self._view(connection, kind, days)
            return connection.sql(sql, params=list(values)).to_arrow_table()

    def days(self, kind: str = "jobs") -> list[date]:
        """The days that have records, oldest first."""
        folder = self.path / kind
        found = (_DAY.fullmatch(entry.name) for entry in folder.iterdir()) if folder.is_dir() else iter(())
        return sorted(date.fromisoformat(match[1]) for match in found if match)

    def day_sums(self, since_s: float, until_s: float) -> dict[date, dict[str, Any]]:
        """Microjoules and times of all nodes of days that are compact and whole within a time, by their heads."""
        found = {}
        for day in self._between("nodes", since_s, until_s):
            first_s, end_s = day_bounds_s(day)
            folder = self.path / "nodes" / f"date={day.isoformat()}"
            path = folder / COMPACT
            inside = first_s >= since_s and end_s <= until_s
            if inside and path not in self.leave_out and not _parts(folder) and (sums := _stored_sums(path)):
                found[day] = sums
        return found

    def compact(self, day: date, kind: str = "jobs") -> int:
        """Make one file of a day's; gives how many there were. 0 where there was nothing to do, or another does it."""
        folder = self.path / kind / f"date={day.isoformat()}"
        return _join(folder, kind, folder / COMPACT)

    def _append(self, kind: str, rows: Iterable[tuple[str, dict[str, Any]]], node: str) -> list[Path]:
        by_day: dict[str, list[dict[str, Any]]] = {}
        now_s = time.time()
        for day, row in rows:
            by_day.setdefault(day, []).append({**row, "written_s": row["written_s"] or now_s})
        files = []
        for day, of_day in by_day.items():
            folder = self.path / kind / f"date={day}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{safe_node(node)}.{time.time_ns()}.jsonl"
            _write_lines(path, of_day)
            if len(_parts_of(folder, node)) > MOST_PARTS:
                path = _join_lines(folder, kind, node) or path
            files.append(path)
        return files

    def _view(self, connection: Any, kind: str, days: Iterable[date]) -> None:
        """A view of some days. Days that are compact need no search for doubles, so they are cheap."""
        schema, pieces = KINDS[kind].schema(), []
        whole: list[Path] = []
        for day in days:
            folder = self.path / kind / f"date={day.isoformat()}"
            parts = [path for path in _parts(folder) if path not in self.leave_out]
            compact = [path for path in (folder / COMPACT,) if path.exists() and path not in self.leave_out]
            if parts:
                pieces.append(_latest(_read(connection, [*parts, *compact], schema), KINDS[kind]))
            else:
                whole += compact
        if whole:
            pieces.append(_read(connection, whole, schema))
        # A table without rows brings the columns that files of an earlier version lack.
        connection.register(f"no_{kind}", schema.empty_table())
        pieces.append(f"SELECT * FROM no_{kind}")
        union = " UNION ALL BY NAME ".join(f"({piece})" for piece in pieces)
        connection.execute(f"CREATE VIEW {kind} AS SELECT {_names(schema)} FROM ({union})")

    def _between(self, kind: str, since_s: float, until_s: float) -> list[date]:
        first, last = day_of(since_s), day_of(until_s)
        return [day for day in self.days(kind) if first <= day <= last]


def whole(sum_: str) -> str:
    """SQL for a sum of microjoules. A site of a thousand nodes draws more than 64 bits of them in a year."""
    return f"CAST({sum_} AS DECIMAL(38, 0))"


# Records of earlier versions do not say which part of the hour they are of.
_LENGTH_MS: Final = "1000 * CASE WHEN to_s > from_s THEN to_s - from_s ELSE 3600 END"
SUM_TERMS = ", ".join(
    f"{whole(f'coalesce(sum({term}), 0)')} AS {name}"
    for name, term in (
        *((name, name) for name in SUMMED),
        *zip(TIMES, (f"coverage * {_LENGTH_MS}", _LENGTH_MS), strict=True),
    )
)
SUM_TERMS += "".join(f", {whole(term)} AS {name}" for name, term in ends_sql(NODE_ENDS).items())


def plain_rows(table: Any) -> list[dict[str, Any]]:
    """The rows of an answer, sums of microjoules as whole numbers."""
    pa, _ = arrow()
    sums = [
        name for name, kind in zip(table.schema.names, table.schema.types, strict=True) if pa.types.is_decimal(kind)
    ]
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows if sums else ():
        row.update({name: int(row[name]) for name in sums if row[name] is not None})
    return rows


def broken_files(store: Path) -> Iterator[tuple[Path, str]]:
    """Files of a store that cannot be read, and why."""
    for kind, rows in KINDS.items():
        for path in sorted((store / kind).glob("date=*/*")):
            if path.suffix in SUFFIXES and not path.name.startswith(".") and (why := _why_broken(path, rows.schema())):
                yield path, why


def _why_broken(path: Path, schema: Any) -> str | None:
    pa, pq = arrow()
    try:
        if path.suffix == ".jsonl":
            _lines_table([path], schema)
        else:
            pq.ParquetFile(path).close()
    except (OSError, pa.ArrowException) as error:
        return str(error).partition("\n")[0][:200]
    return None


def safe_node(node: str) -> str:
    """A node's name as a part of a file name. UsageError where it is not a valid one."""
    if not re.fullmatch(r"[\w-][\w.-]{0,200}", node):
        raise UsageError(f"'{node}' is not a valid node name.", cure="use letters, digits, - and .")
    return node


def files_of_day(folder: Path) -> list[Path]:
    """All files of a day's folder that hold records."""
    return [*_parts(folder), *(path for path in (folder / COMPACT,) if path.exists())]


def _parts(folder: Path) -> list[Path]:
    found = (path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
    return sorted(path for path in found if path.name != COMPACT)


def _parts_of(folder: Path, node: str) -> list[Path]:
    """What one node appended; a node's name may be the beginning of another's."""
    name = re.compile(rf"{re.escape(node)}\.\d+\.jsonl")
    return [path for path in _parts(folder) if name.fullmatch(path.name)]


def _join(folder: Path, kind: str, into: Path) -> int:
    """One file of all of a day's, and of the file itself; gives how many there were. One at a time a day."""
    if not folder.is_dir() or not _parts(folder):
        return 0
    schema = KINDS[kind].schema()
    with exclusive(folder / COMPACTING) as mine:
        # What there is is asked under the lock: another one may have made one file of it just now.
        parts = [path for path in _parts(folder) if _why_broken(path, schema) is None] if mine else []
        if not parts:
            return 0
        files = [*parts, *([into] if into.exists() else [])]
        with connect() as connection:
            connection.register("nothing", schema.empty_table())
            rows = _latest(_read(connection, files, schema), KINDS[kind])
            union = f"({rows}) UNION ALL BY NAME SELECT * FROM nothing"
            sql = f"SELECT {_names(schema)} FROM ({union}) ORDER BY {KINDS[kind].order}"
            table = connection.sql(sql).to_arrow_table().cast(schema)
        replace_parquet(into, with_sums(table) if kind == "nodes" else table)
        for part in parts:
            part.unlink(missing_ok=True)
    return len(files)


def with_sums(table: Any) -> Any:
    """Hours of nodes with their sums in the head of the table: a year of them need not be read for its total."""
    with connect() as connection:
        connection.register("hours", table)
        (sums,) = plain_rows(connection.sql(f"SELECT {SUM_TERMS} FROM hours").to_arrow_table())
    return table.replace_schema_metadata({_SUMS: json.dumps(sums)})


def _stored_sums(path: Path) -> dict[str, Any] | None:
    """The sums in the head of a file; None where it has none: it is of an earlier version, or broken.

    The first versions that wrote sums wrote no times (those count as 0, and so for no coverage) and no intervals.
    """
    pa, pq = arrow()
    try:
        kept = json.loads((pq.read_metadata(path).metadata or {})[_SUMS.encode()])
        sums = {name: int(kept[name]) for name in SUMMED}
        ends = {name: kept.get(name) for name in NODE_ENDS}
        return sums | ends | {name: int(kept.get(name, 0)) for name in TIMES}
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException):
        return None


def _join_lines(folder: Path, kind: str, node: str) -> Path | None:
    """One file of all that a node appended to a day; None where it cannot be made just now."""
    with exclusive(folder / COMPACTING) as mine:
        parts = _parts_of(folder, node) if mine else []
        try:
            rows = [json.loads(line) for part in parts for line in text_lines(part.read_text(encoding="utf-8"))]
            latest = {tuple(row[name] for name in KINDS[kind].key): row for row in sorted(rows, key=_rank)}
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a file that is broken: `slurm validate` names it, and the others stay as they are
        if not latest:
            return None
        path = folder / f"{safe_node(node)}.{time.time_ns()}.jsonl"
        _write_lines(path, list(latest.values()))
        for part in parts:
            part.unlink(missing_ok=True)
    return path


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Of two records of the same the whole one counts before the torn one, then the later one (as in `_latest`)."""
    return bool(row.get("complete", True)), float(row["written_s"])


def connect() -> Any:
    """A connection of DuckDB's that prints nothing: its bar of a long query would be in the midst of our JSON."""
    connection = _duckdb().connect()
    connection.execute("SET enable_progress_bar = false")
    return connection


def _duckdb() -> Any:
    return library("duckdb", "analysis")


def _read(connection: Any, files: Sequence[Path], schema: Any) -> str:
    """SQL for all rows of those files. Names are quoted; columns are joined by name, so that old files open."""
    pieces = []
    if lines := [path for path in files if path.suffix == ".jsonl"]:
        name = f"lines_{len(connection.sql('SHOW TABLES').fetchall())}"
        connection.register(name, _lines_table(lines, schema))
        pieces.append(f"SELECT * FROM {name}")
    if listed := ", ".join("'" + str(path).replace("'", "''") + "'" for path in files if path.suffix != ".jsonl"):
        pieces.append(f"SELECT * FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)")
    return " UNION ALL BY NAME ".join(pieces)


def _lines_table(files: Sequence[Path], schema: Any) -> Any:
    """The rows of files of JSON lines; columns that are not in the schema are left out."""
    pa, _ = arrow()
    import pyarrow.json as pj

    data = b"".join(path.read_bytes() for path in files)
    if not data.endswith(b"\n"):
        raise pa.ArrowInvalid("the file is cut off")
    how = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pj.read_json(pa.BufferReader(data), pj.ReadOptions(block_size=len(data)), how)


def _latest(rows: str, kind: Kind) -> str:
    """One record for each key: the whole one before the torn one, then the latest."""
    by = ", ".join(kind.key)
    return f"SELECT * FROM ({rows}) QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {kind.best}) = 1"


def _names(schema: Any) -> str:
    return ", ".join(schema.names)


def replace_parquet(path: Path, table: Any) -> None:
    """A Parquet file that appears whole or not at all."""
    _, pq = arrow()
    with replacing(path) as part:
        pq.write_table(table, part, compression="zstd", row_group_size=131_072)


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A file of JSON lines that appears whole or not at all, and is on disk then."""
    with replacing(path, durable=True) as part, part.open("wb") as file:
        for row in rows:
            file.write(json.dumps(_finite(row), ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has neither infinity nor NaN."""
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in row.items()}
