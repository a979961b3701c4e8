"""The agent's tape: segments in one folder, one of them live, rotated by the hour, kept within bounds of disk and age.

What a reader has not taken yet (remote write) is kept, unless the bound on the disk says otherwise; then it is counted.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from everywatt.core.channels import Row
from everywatt.core.clocks import NS, Clock
from everywatt.fleet.exporting import SAMPLES
from everywatt.recorder.session import EARLY_NS, Session
from everywatt.recorder.source import Source
from everywatt.tape.accumulate import publication_ns
from everywatt.tape.run_store import next_segment

SHARED_ROWS = 64  # of each group, that two segments share at most
LONGEST_NS = 10 * NS  # a group that is slower than this is cut between two of its rows
_NUMBER = re.compile(r"-(\d+)\.tape$")


class SegmentSession(Session):
    """A segment being written.

    `before` is called in time for what it adds to be flushed, `after` then, with whether the tape took all of it.
    `resumed` are rows, by group, that it begins with: the last ones of an agent before.
    """

    def __init__(
        self,
        path: Path,
        meta: Mapping[str, Any],
        period_ns: int,
        clock: Clock,
        proc: Path,
        *,
        before: Callable[[int], bool],
        after: Callable[[int, bool], None],
        flush_every_ns: int | None = None,
        resumed: Mapping[str, Row] | None = None,
    ) -> None:
        super().__init__(path, meta, period_ns, clock, proc)
        self._rows_first = dict(resumed or {})
        self.bounds_ns: tuple[int | None, int | None] = meta.get("bounds_ns") or (None, None)
        self._newest: dict[str, deque[Row]] = {}
        self._before, self._after = before, after
        # What was told must be on the tape.
        self._samples = self.writer.add_group(SAMPLES, period_ns / 1e9, prompt=True)
        self.sample_count = 0
        if flush_every_ns is not None:
            self.flush_every_ns = flush_every_ns
            self.flush_ns = self.started_ns + flush_every_ns

    def listen(self, source: Source) -> None:
        super().listen(source)
        row = self._rows_first.pop(source.info.name, None)
        if row is not None:
            self.rows(source, [row])

    def tell(self, at_ns: int, rows: list[dict[str, Any]]) -> None:
        """Keep samples."""
        if rows:
            self.sample_count += sum(row["c"] for row in rows if "c" in row)
            self._safely(self.writer.append_table, self._samples, at_ns, rows)

    def flush_now(self, now_ns: int) -> None:
        """Settle and flush, whatever the time."""
        self._flush(now_ns)

    @property
    def written(self) -> bool:
        """Whether the tape has taken everything."""
        return self._trouble is None

    def write(self, now_ns: int) -> None:
        """Flush what was told, without settling."""
        super()._flush(now_ns)

    def _flush(self, now_ns: int) -> None:
        if not self._before(now_ns):
            self.flush_ns = now_ns + 2 * EARLY_NS  # the processes are about to be read
            return
        super()._flush(now_ns)
        self._after(now_ns, self.written)

    def rows(self, source: Source, rows: Sequence[Row]) -> None:
        super().rows(source, rows)
        kept = self._newest.get(source.info.name)
        if kept is None:
            kept = self._newest[source.info.name] = deque(maxlen=SHARED_ROWS)
        kept.extend(rows)

    def cut_ns(self, now_ns: int) -> int:
        """Where to end: the last instant up to which every group with energy that answers has told all."""
        newest = [
            publication_ns(source.last)
            for source in self.sources
            if source.last is not None and source.outage is None and any(c.carries_energy for c in source.info.channels)
        ]
        return max(min(newest, default=now_ns), now_ns - LONGEST_NS)

    def end(self, cut_ns: int) -> None:
        """Say where this segment ends, though it has rows beyond."""
        self.bounds_ns = (self.bounds_ns[0], cut_ns)
        self._safely(self.writer.set_meta, "bounds_ns", self.bounds_ns)

    def prime(self, source: Source, before: SegmentSession, cut_ns: int) -> None:
        """Begin where the segment before ends: rows around that instant are on both."""
        self.listen(source)
        if source.info.table:
            # It then tells everything again.
            source.group.follow(())  # type: ignore[union-attr]
            return
        rows = list(before._newest.get(source.info.name, ()))
        first = max((place for place, row in enumerate(rows) if publication_ns(row) <= cut_ns), default=0)
        if rows:  # one more, since a counter needs two
            self.rows(source, rows[max(first - 1, 0) :])


def number_of(path: Path) -> int:
    """The number of a segment, -1 where its name has none."""
    match = _NUMBER.search(path.name)
    return int(match.group(1)) if match else -1


def segments(folder: Path) -> list[Path]:
    """All segments of a folder in order."""
    return sorted((path for path in folder.glob("*.tape") if number_of(path) >= 0), key=number_of)


def size_bytes(path: Path) -> int:
    """What a segment takes, with its log."""
    whole = 0
    for side in ("", "-wal"):
        with contextlib.suppress(OSError):
            whole += Path(f"{path}{side}").stat().st_size
    return whole


def new_path(folder: Path, host: str, at_least: int = 1) -> Path:
    """The next free segment; its number is never one that was used before."""
    path = next_segment(folder, host)
    stem = path.name.rpartition("-")[0]
    return path.with_name(f"{stem}-{max(number_of(path), at_least):04d}.tape")


def prune(
    folder: Path,
    *,
    live: Path,
    most_bytes: int,
    oldest_utc_s: float,
    sent: Path | None,
    drop: Callable[[Path], None],
) -> int:
    """Remove segments beyond the bounds, oldest first; gives the bytes that are left.

    `sent` is the first segment that a reader still needs (None: nobody reads). One at or after it goes only because of
    `most_bytes`, and `drop` is told of it.
    """
    found = segments(folder)
    sizes = {path: size_bytes(path) for path in found}
    whole = sum(sizes.values())
    for path in found:
        if path == live:
            break
        needed = sent is not None and number_of(path) >= number_of(sent)
        with contextlib.suppress(OSError):
            old = path.stat().st_mtime < oldest_utc_s
            if whole <= most_bytes and (needed or not old):
                if not needed:
                    continue
                break
            if needed:
                drop(path)
            for side in ("", "-wal", "-shm"):
                Path(f"{path}{side}").unlink(missing_ok=True)
            whole -= sizes[path]
    return whole


def connect(path: Path) -> sqlite3.Connection:
    """A segment open for reading. The log of one that a kill left is made good first, which writes."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
    )


def samples_group(db: sqlite3.Connection) -> int | None:
    """The number of the group of samples on a tape; None where there is none, or no tape at all yet."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name='grp'").fetchone():
        return None  # its agent was killed while it made the file
    found = db.execute("SELECT id FROM grp WHERE json_extract(info, '$.name')=?", (SAMPLES.name,)).fetchone()
    return None if found is None else int(found[0])


def table_rows(path: Path, after: int, most: int) -> list[tuple[int, bytes]]:
    """Number and bytes of tables of samples after a number, at most so many; the file is let go of at once."""
    db = connect(path)
    try:
        group = samples_group(db)
        if group is None:
            return []
        sql = "SELECT id, data FROM tframe WHERE grp=? AND id>? ORDER BY id LIMIT ?"
        return [(int(number), bytes(data)) for number, data in db.execute(sql, (group, after, most))]
    finally:
        db.close()
