"""The store of a site: Parquet on the shared filesystem, written by many nodes, read by DuckDB.

    STORE/jobs/date=2026-11-15/NODE.1794765346932382660.parquet    what a node appended, one file each time
    STORE/jobs/date=2026-11-15/compact.parquet                     what `slurm daily` made of them
    STORE/nodes/date=2026-11-15/…                                  the hours of nodes, in the same way

A file has one writer and gets its name when it is whole, so nodes never wait for one another; a node that has appended
often in a day makes one file of its own. A job lies under the day of its end (UTC). Of two records of the same job on
the same node the later one counts, so appending again is harmless.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import EverywattError, MissingExtra, UsageError
from everywatt.slurm.locks import exclusive
from everywatt.slurm.schema import HOUR_KEY, JOB_KEY, JobOnNode, NodeHour, arrow, hour_schema, job_schema

COMPACT: Final = "compact.parquet"
MOST_PARTS: Final = 32  # of a node and day; more are made into one by the node itself
TRIES: Final = 3
_LOCK: Final = ".compacting"
_DAY = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


class Store:
    """A site's jobs and nodes' hours under one folder."""

    def __init__(self, path: Path, leave_out: Collection[Path] = ()) -> None:
        self.path = path
        self.leave_out = frozenset(leave_out)  # files that are known to be broken

    def append(self, rows: Sequence[JobOnNode], node: str) -> list[Path]:
        """Add records of jobs on one node; gives the files (one for each day)."""
        return self._append("jobs", [(_day(row.end_s), row.row()) for row in rows], node, job_schema())

    def append_hours(self, rows: Sequence[NodeHour], node: str) -> list[Path]:
        """Add hours of one node."""
        return self._append("nodes", [(_day(row.hour_s), row.row()) for row in rows], node, hour_schema())

    def jobs(self, since_s: float, until_s: float, where: str = "true", values: Sequence[Any] = ()) -> Any:
        """Jobs on nodes that ended in [since, until) as an Arrow table. `where` is SQL with `?` for the values."""
        sql = f"SELECT * FROM jobs WHERE end_s >= ? AND end_s < ? AND ({where}) ORDER BY end_s, job_id, node"
        return self.query(sql, [since_s, until_s, *values], since_s, until_s)

    def query(self, sql: str, values: Sequence[Any], since_s: float, until_s: float) -> Any:
        """The answer of DuckDB over views `jobs` and `nodes` of those days, as an Arrow table.

        A file that is broken is left out, and is in `leave_out` from then on.
        """
        for left in reversed(range(TRIES)):
            try:
                return self._query(sql, values, since_s, until_s)
            except _duckdb().Error as error:
                new = {path for path, _ in broken_files(self.path)} - self.leave_out
                self.leave_out |= new
                # A file that was there when we looked may be a part of a larger one by now.
                if not left or not (new or isinstance(error, _duckdb().IOException)):
                    why = str(error).partition("\n")[0][:300]
                    raise EverywattError(f"The store cannot be read: {why}") from None
        raise AssertionError

    def _query(self, sql: str, values: Sequence[Any], since_s: float, until_s: float) -> Any:
        connection = connect()
        try:
            connection.execute("SET TimeZone = 'UTC'")
            for kind, key, schema in (("jobs", JOB_KEY, job_schema()), ("nodes", HOUR_KEY, hour_schema())):
                self._view(connection, kind, key, schema, since_s, until_s)
            return connection.sql(sql, params=list(values)).to_arrow_table()
        finally:
            connection.close()

    def days(self, kind: str = "jobs") -> list[date]:
        """The days that have records, oldest first."""
        folder = self.path / kind
        found = (_DAY.fullmatch(entry.name) for entry in folder.iterdir()) if folder.is_dir() else iter(())
        return sorted(date.fromisoformat(match[1]) for match in found if match)

    def compact(self, day: date, kind: str = "jobs") -> int:
        """Make one file of a day's; gives how many there were. 0 where there was nothing to do, or another does it."""
        folder = self.path / kind / f"date={day.isoformat()}"
        return _join(folder, kind, _parts, folder / COMPACT)

    def _append(self, kind: str, rows: Iterable[tuple[str, dict[str, Any]]], node: str, schema: Any) -> list[Path]:
        by_day: dict[str, list[dict[str, Any]]] = {}
        now_s = time.time()
        for day, row in rows:
            by_day.setdefault(day, []).append({**row, "written_s": row["written_s"] or now_s})
        files = []
        for day, of_day in by_day.items():
            folder = self.path / kind / f"date={day}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{safe_node(node)}.{time.time_ns()}.parquet"
            pa, _ = arrow()
            _write(path, pa.Table.from_pylist(of_day, schema=schema))
            if len(mine := _parts_of(folder, node)) > MOST_PARTS:
                path = folder / f"{safe_node(node)}.{time.time_ns()}.parquet"
                _join(folder, kind, lambda where: _parts_of(where, node), path)
                path = path if path.exists() else mine[-1]
            files.append(path)
        return files

    def _view(
        self, connection: Any, kind: str, key: Sequence[str], schema: Any, since_s: float, until_s: float
    ) -> None:
        """A view of some days. Days that are compact need no search for doubles, so they are cheap."""
        pieces = []
        whole: list[Path] = []
        for day in self._between(kind, since_s, until_s):
            folder = self.path / kind / f"date={day.isoformat()}"
            parts = [path for path in _parts(folder) if path not in self.leave_out]
            compact = [path for path in (folder / COMPACT,) if path.exists() and path not in self.leave_out]
            if parts:
                pieces.append(_latest([*parts, *compact], key))
            else:
                whole += compact
        if whole:
            pieces.append(f"SELECT * FROM {_read(whole)}")
        # A table without rows brings the columns that files of an earlier version lack.
        connection.register(f"no_{kind}", schema.empty_table())
        pieces.append(f"SELECT * FROM no_{kind}")
        union = " UNION ALL BY NAME ".join(f"({piece})" for piece in pieces)
        connection.execute(f"CREATE VIEW {kind} AS SELECT {_names(schema)} FROM ({union})")

    def _between(self, kind: str, since_s: float, until_s: float) -> list[date]:
        first, last = _as_date(since_s), _as_date(until_s)
        return [day for day in self.days(kind) if first <= day <= last]


def broken_files(store: Path) -> Iterator[tuple[Path, str]]:
    """Files of a store that cannot be read, and why."""
    for kind in ("jobs", "nodes"):
        for path in sorted((store / kind).glob("date=*/*.parquet")):
            if not path.name.startswith(".") and (why := _why_broken(path)) is not None:
                yield path, why


def _why_broken(path: Path) -> str | None:
    pa, pq = arrow()
    try:
        pq.ParquetFile(path).close()
    except (OSError, pa.ArrowException) as error:
        return str(error).partition("\n")[0][:200]
    return None


def safe_node(node: str) -> str:
    """A node's name as a part of a file name. UsageError where it is none."""
    if not re.fullmatch(r"[\w-][\w.-]{0,200}", node):
        raise UsageError(f"'{node}' is not a valid node name.", cure="use letters, digits, - and .")
    return node


def _day(unix_s: float) -> str:
    return _as_date(unix_s).isoformat()


def _as_date(unix_s: float) -> date:
    limit_s = 253_370_764_800.0  # the year 9999
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=min(max(unix_s, 0.0), limit_s))).date()


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if path.name != COMPACT and not path.name.startswith("."))


def _parts_of(folder: Path, node: str) -> list[Path]:
    """What one node appended; a node's name may be the beginning of another's."""
    name = re.compile(rf"{re.escape(node)}\.\d+\.parquet")
    return [path for path in _parts(folder) if name.fullmatch(path.name)]


def _join(folder: Path, kind: str, parts_in: Callable[[Path], list[Path]], into: Path) -> int:
    """One file of several of a day's, and of the file itself; gives how many there were. One at a time a day."""
    if not parts_in(folder):
        return 0
    with exclusive(folder / _LOCK) as mine:
        # What there is is asked under the lock: another one may have made one file of it just now.
        parts = [path for path in parts_in(folder) if _why_broken(path) is None] if mine else []
        if not parts:
            return 0
        files = [*parts, *([into] if into.exists() else [])]
        key, schema = (JOB_KEY, job_schema()) if kind == "jobs" else (HOUR_KEY, hour_schema())
        connection = connect()
        try:
            order = "end_s, job_id, node" if kind == "jobs" else "hour_s, node, device"
            connection.register("nothing", schema.empty_table())
            union = f"({_latest(files, key)}) UNION ALL BY NAME SELECT * FROM nothing"
            sql = f"SELECT {_names(schema)} FROM ({union}) ORDER BY {order}"
            table = connection.sql(sql).to_arrow_table().cast(schema)
        finally:
            connection.close()
        _write(into, table)
        for part in parts:
            part.unlink(missing_ok=True)
    return len(files)


def connect() -> Any:
    """A connection of DuckDB's that prints nothing: its bar of a long query would be in the midst of our JSON."""
    connection = _duckdb().connect()
    connection.execute("SET enable_progress_bar = false")
    return connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "analysis") from None
    return duckdb


def _read(files: Sequence[Path]) -> str:
    """DuckDB's reader of those files. Names are quoted; columns are joined by name, so that old files open."""
    listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in files)
    return f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"


def _latest(files: Sequence[Path], key: Sequence[str]) -> str:
    """One record for each key: the whole one before the torn one, then the latest."""
    by = ", ".join(key)
    order = "complete DESC, written_s DESC" if "job_id" in key else "written_s DESC"
    return f"SELECT * FROM {_read(files)} QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {order}) = 1"


def _names(schema: Any) -> str:
    return ", ".join(schema.names)


def _write(path: Path, table: Any) -> None:
    """A Parquet file that appears whole or not at all."""
    _, pq = arrow()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        pq.write_table(table, part, compression="zstd", row_group_size=131_072)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
