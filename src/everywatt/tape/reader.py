"""Reading a tape: one segment, read-only, finished or still being written."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.clocks import Anchor, UtcMap
from everywatt.core.errors import TapeDamaged, TapeError, UsageError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.spans import Note, Point, Span
from everywatt.tape import checking, codec, opening, places, schema
from everywatt.tape.accumulate import Cum, energy_channels, unpack_cum

_MOST_TABLE_BYTES: Final = 64 << 20
_LONGEST_NS: Final = 10 * 366 * 86400 * 10**9  # of one tape
_EVER: Final = (-(2**63), 2**63 - 1)


class StoredGroup(NamedTuple):
    """A group of a tape: its number there, what it is, and how often its rows should come."""

    id: int
    info: GroupInfo
    expected_period_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch that was not observed, or not surely. `channel` None: the whole group. Counts are raw."""

    group: int
    channel: str | None
    start_ns: int
    end_ns: int
    kind: str
    count: float | None
    most: float | None


class TableFrame(NamedTuple):
    """Rows of a table group as they stood at `at_ns`."""

    at_ns: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows of one group that are stored together. Columns are decoded when they are asked for.

    first_ns, last_ns  publications of the first and last row
    cum    of each energy-carrying channel at the first row, in the group's order
    breaks rows before it were lost
    """

    group: StoredGroup
    id: int
    seq: int
    first_ns: int
    last_ns: int
    n: int
    cum: tuple[Cum, ...]
    breaks: bool
    parts: tuple[tuple[int, memoryview], ...]

    def times(self) -> tuple[array[int], array[int], array[int]]:
        """read, early and late, in ns."""
        read, since_late, width = (codec.decode("q", tag, data, self.n) for tag, data in self.parts[:3])
        late = array("q", (a - b for a, b in zip(read, since_late, strict=True)))
        return read, array("q", (a - b for a, b in zip(late, width, strict=True))), late

    def column(self, index: int) -> array[float]:
        """Raw values of the group's channel at `index`."""
        tag, data = self.parts[3 + index]
        return codec.decode("d", tag, data, self.n)

    def rows(self) -> list[Row]:
        values = zip(*(self.column(i) for i in range(len(self.parts) - 3)), strict=True)
        return [Row(r, early, late, tuple(v)) for r, early, late, v in zip(*self.times(), values, strict=True)]


class Tape:
    """One segment. `trouble` holds sentences on what is missing or damaged; it is empty for a sealed, whole tape.

    `sealable` is True for one that is not sealed and has lost nothing of what was written, `ended` for one that no
    process was writing when it was opened: nothing more will come.
    """

    def __init__(self, path: Path, verify: bool | None) -> None:
        self.path = Path(path)
        self._verify = verify
        self._load()

    @classmethod
    def open(cls, path: Path, *, verify: bool | None = None) -> Tape:
        """Open a tape, also one that is still being written or was never sealed.

        `verify` checks every row now (True), as it is touched (False), or now where the file is under 64 MB (None).
        Raises NotATape, TapeTooNew, TapeDamaged (naming table and row), TapeError.
        """
        return cls(path, verify)

    def _load(self) -> None:
        opened = opening.open_file(self.path)
        self._db = opened.db
        self._inode = opened.header.inode
        self._directory: checking.Directory | None = None
        self._extent: tuple[int, int] | None = None
        self._utc: UtcMap | None = None
        self._gaps: dict[int, list[Gap]] | None = None
        self._edge_index: checking.EdgeIndex | None = None
        try:
            self._read_all(opened)
        except schema.BROKEN as error:
            self._db.close()
            raise TapeDamaged(f"{self.path} is damaged: {error}.") from None
        except BaseException:
            self._db.close()
            raise

    def _read_all(self, opened: opening.Opened) -> None:
        truncated = opened.header.truncated and not opened.log
        self._salvage = checking.Salvage(self._db, self.path) if truncated else None
        trouble: list[str] = []
        self.meta: dict[str, Any] = {}
        self._read_meta()
        self.groups: tuple[StoredGroup, ...] = tuple(self._read_groups())
        self._seal = [] if truncated else checking.read_seal(self._db, self.path)
        self.sealed = bool(self._seal)
        whole = bool(opened.log and not opened.log_cut) or bool(self.meta.get("abandoned"))
        self.sealable = whole and not self.sealed and not truncated
        # A process does not see locks of its own.
        here = any(writer.inode == opened.header.inode for writer in places.WRITERS)
        self.ended = self.sealed or not (opened.header.locked or here)
        if truncated:
            trouble.append(f"{self.path.name} is truncated: {opened.header.left}.")
        elif not self.sealed:
            trouble += checking.unsealed_sentences(self.path, self.meta, opened)
        verify = self._verify if self._verify is not None else opened.header.file_bytes < schema.VERIFY_BELOW_BYTES
        if verify and not truncated:
            checking.verify(self._db, self.path, self._seal)
        if not self.sealed:
            self._directory = checking.Directory(self._db, self.path, self._salvage)
        self._anchors = [Anchor(*row[1:]) for row in self._rows("anchor")]
        if self._salvage:
            for table in ("span", "point", "note", "gap", "edge", "tframe"):
                for _ in self._rows(table):
                    pass
            trouble += self._salvage.sentences
        self.trouble: tuple[str, ...] = tuple(trouble)
        if verify and not truncated:
            widths = {group.id: len(group.info.channels) for group in self.groups}
            for number in sorted(checking.odd_edges(self._db, widths)):
                self._leaves_out(self.group(number))

    def _rows(self, table: str, where: str = "", values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a table without their checksum, which is verified."""
        sql = f"{schema.SELECT[table]} {where} ORDER BY 1"
        rows = self._salvage.rows(table, sql, values) if self._salvage else self._db.execute(sql, values)
        try:
            for row in rows:
                yield checking.checked(self.path, table, row)
        except schema.BROKEN as error:
            raise TapeDamaged(f"{self.path} is damaged, table {table}: {error}.") from None

    @property
    def host(self) -> str:
        """The name of the host on which it was recorded; "" where that is not known."""
        return str(self.meta.get("host", {}).get("name") or "")

    def same_boot(self, other: Tape, leeway_ns: int) -> bool:
        """Whether clock and counters went on from one tape to the other: they are of one host and one boot of it.

        Where a tape (of an earlier version) does not name its boot, clocks that were zero within `leeway_ns` are one.
        """
        boots = [str(tape.meta.get("host", {}).get("boot") or "") for tape in (self, other)]
        if self.host != other.host or all(boots):
            return self.host == other.host and boots[0] == boots[1]
        return abs(self.to_utc_ns(0) - other.to_utc_ns(0)) <= leeway_ns

    def _read_meta(self) -> None:
        for key, text in self._rows("meta"):
            self.meta[str(key)] = self._json("meta", key, text)
        if not isinstance(self.meta.get("host", {}), dict):  # some imports know its name only
            self.meta["host"] = {"name": self.meta["host"] or ""}

    def _read_groups(self) -> Iterator[StoredGroup]:
        for number, text in self._rows("grp"):
            data = self._json("grp", number, text)
            try:
                yield StoredGroup(number, GroupInfo.from_dict(data), float(data["expected_period_s"]))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise TapeDamaged(
                    f"{self.path}: table grp, row {number} does not describe a group: {error!r}."
                ) from None

    def _json(self, table: str, row: Any, text: Any) -> Any:
        return checking.parsed(self.path, table, row, text)

    def spans(self) -> list[Span]:
        """Every span, in the order in which they were opened."""
        return [
            Span(uid, name, start_ns, end_ns, parent, self._json("span", number, text))
            for number, uid, parent, name, start_ns, end_ns, text in self._rows("span")
        ]

    def points(self) -> list[Point]:
        return [Point(at, name, self._json("point", i, text), span) for i, at, name, text, span in self._rows("point")]

    def notes(self) -> list[Note]:
        return [Note(at, kind, text, self._json("note", i, data)) for i, at, kind, text, data in self._rows("note")]

    def anchors(self) -> list[Anchor]:
        return list(self._anchors)

    def edges(self, group_id: int, start_ns: int | None = None, end_ns: int | None = None) -> list[Row]:
        """Rows of a group that the measured program read itself (in that time), in the order in which they came.

        Without those that do not have its channels, as recorders once took them from programs: `trouble` says so.
        """
        group = self.group(group_id)
        width = len(group.info.channels)
        asked = (start_ns or -(2**62), end_ns or 2**62)
        numbers = self._edge_numbers(group_id, *asked)
        rows: list[Row] = []
        where = "WHERE id BETWEEN ? AND ? AND grp=? AND read_ns BETWEEN ? AND ?"
        if numbers is None:
            return rows
        for _, _, read_ns, early_ns, late_ns, data in self._rows("edge", where, (*numbers, group_id, *asked)):
            if data is None or len(data) != 8 * width:
                self._leaves_out(group)
                continue
            rows.append(Row(read_ns, early_ns, late_ns, tuple(array("d", data))))
        return rows

    def _leaves_out(self, group: StoredGroup) -> None:
        width = len(group.info.channels)
        said = f"Reads at span edges of {group.info.name} that do not have its {width} values are left out."
        if said not in self.trouble:
            self.trouble = (*self.trouble, said)

    def _edge_numbers(self, group_id: int, start_ns: int, end_ns: int) -> tuple[int, int] | None:
        if not self.sealed:
            return _EVER
        if self._edge_index is None:
            try:
                self._edge_index = checking.EdgeIndex(self._db.execute("SELECT grp, id, read_ns FROM edge ORDER BY id"))
            except (*schema.BROKEN, TypeError) as error:
                raise TapeDamaged(f"{self.path} is damaged, table edge: {error}.") from None
        return self._edge_index.between(group_id, start_ns, end_ns)

    def gaps(self, group_id: int) -> list[Gap]:
        if not self.sealed:
            return [Gap(*row[1:]) for row in self._rows("gap", "WHERE grp=?", (group_id,))]
        if self._gaps is None:
            self._gaps = {}
            for row in self._rows("gap"):
                self._gaps.setdefault(row[1], []).append(Gap(*row[1:]))
        return list(self._gaps.get(group_id, ()))

    def group(self, group_id: int) -> StoredGroup:
        for group in self.groups:
            if group.id == group_id:
                return group
        raise UsageError(f"{self.path} has no group {group_id}.")

    def extent_ns(self) -> tuple[int, int]:
        """First and last instant of rows, inline reads, spans and points. TapeError if the tape has none of them.

        Segments of one long recording share rows at the instant where one ends and the next begins: each then goes to
        that instant, so that their joules add up.
        """
        if self._extent is None or not self.sealed:
            self._extent = self._find_extent()
        return self._extent

    def _find_extent(self) -> tuple[int, int]:
        bounds: list[int | None] = []
        for group in self.groups:
            bounds += self._frame_extent(group.id)
        for sql in (
            "SELECT min(at_ns), max(at_ns) FROM tframe",
            "SELECT min(read_ns), max(read_ns) FROM edge",
            "SELECT min(start_ns), max(max(start_ns, ifnull(end_ns, start_ns))) FROM span",
            "SELECT min(at_ns), max(at_ns) FROM point",
        ):
            try:
                bounds += self._db.execute(sql).fetchone()
            except schema.BROKEN:
                if self._salvage is None:
                    raise TapeDamaged(f"{self.path} is damaged: {sql} failed.") from None
        known = [bound for bound in bounds if bound is not None] or [a.monotonic_ns for a in self._anchors]
        if not known:
            raise self._nothing()
        if not all(isinstance(bound, int) for bound in known) or max(known) - min(known) > _LONGEST_NS:
            raise TapeDamaged(f"{self.path} is damaged: a time in it is impossible.")
        return self._bounded(min(known), max(known))

    def _bounded(self, first_ns: int, last_ns: int) -> tuple[int, int]:
        """What of that is this segment's, where it shares rows with those before and after it (`meta` `bounds_ns`)."""
        low_ns, high_ns = (*(self.meta.get("bounds_ns") or ()), None, None)[:2]
        low_ns = first_ns if low_ns is None else min(max(first_ns, low_ns), last_ns)
        high_ns = last_ns if high_ns is None else max(min(last_ns, high_ns), low_ns)
        return low_ns, high_ns

    def _nothing(self) -> TapeError:
        """Why there is nothing to be had: cut off, not yet written, lost with the log, or never recorded."""
        if self._salvage is not None:
            return TapeDamaged(f"No recorded data is left in {self.path}: {self.trouble[0]}")
        if self.sealed:
            return TapeError(f"{self.path} contains no rows: nothing was recorded before it was sealed.")
        return TapeError(f"{self.path} contains no rows yet: {self.trouble[0]}")

    def _frame_extent(self, group_id: int) -> tuple[int | None, int | None]:
        if self._directory is not None:
            return self._directory.extent(group_id)
        sql = "SELECT {0} FROM frame WHERE grp=? ORDER BY first_ns {1} LIMIT 1"
        try:
            first = self._db.execute(sql.format("first_ns", "ASC"), (group_id,)).fetchone()
            last = self._db.execute(sql.format("last_ns", "DESC"), (group_id,)).fetchone()
        except schema.BROKEN as error:
            raise TapeDamaged(f"{self.path} is damaged, table frame: {error}.") from None
        return (first[0] if first else None, last[0] if last else None)

    def frames(self, group_id: int, start_ns: int | None = None, end_ns: int | None = None) -> list[Frame]:
        """Frames of a group that overlap [start_ns, end_ns], with one before and one after. No bound: all."""
        return list(self.iter_frames(group_id, start_ns, end_ns))

    def iter_frames(
        self, group_id: int, start_ns: int | None = None, end_ns: int | None = None, *, tight: bool = False
    ) -> Iterator[Frame]:
        """The same, one at a time: a long tape need not fit in memory.

        `tight` leaves out the frames beside, unless they are needed to reach from before `start_ns` to after `end_ns`.
        """
        group = self.group(group_id)
        before: Frame | None = None
        try:
            for row in self._frame_rows(group_id, start_ns, end_ns, tight):
                frame = self._frame(group, checking.checked(self.path, "frame", row))
                if before is not None and (frame.seq != before.seq + 1 or frame.first_ns <= before.last_ns):
                    raise TapeDamaged(f"{self.path}: table frame, row {frame.id} does not follow row {before.id}.")
                before = frame
                yield frame
        except schema.BROKEN as error:
            raise TapeDamaged(f"{self.path} is damaged, table frame: {error}.") from None

    def _frame_rows(
        self, group_id: int, start_ns: int | None, end_ns: int | None, tight: bool
    ) -> Iterator[tuple[Any, ...]]:
        if self._directory is not None:
            for number in self._directory.between(group_id, start_ns, end_ns):
                yield self._db.execute(f"{schema.SELECT['frame']} WHERE id=?", (number,)).fetchone()
            return
        low, high = _EVER
        if tight and start_ns is not None and end_ns is not None:
            yield from self._tight_rows(group_id, start_ns, end_ns)
            return
        if start_ns is not None:
            sql = "SELECT first_ns FROM frame WHERE grp=? AND first_ns<=? ORDER BY first_ns DESC LIMIT 2"
            starts = self._db.execute(sql, (group_id, start_ns)).fetchall()
            low = starts[-1][0] if starts else low
        if end_ns is not None:
            sql = "SELECT first_ns FROM frame WHERE grp=? AND first_ns>? ORDER BY first_ns LIMIT 1"
            after = self._db.execute(sql, (group_id, end_ns)).fetchone()
            high = after[0] if after else high
        sql = f"{schema.SELECT['frame']} WHERE grp=? AND first_ns BETWEEN ? AND ? ORDER BY first_ns"
        yield from chain(self._db.execute(sql, (group_id, low, high)))  # a chain closes no cursor of a closed tape

    def _tight_rows(self, group_id: int, start_ns: int, end_ns: int) -> Iterator[tuple[Any, ...]]:
        """One statement for most windows: every look-up in a tape that is not in memory waits for the disk."""
        first = "ifnull((SELECT max(first_ns) FROM frame WHERE grp=? AND first_ns<=?), ?)"
        sql = f"{schema.SELECT['frame']} WHERE grp=? AND first_ns BETWEEN {first} AND ? ORDER BY first_ns"
        reached_ns = _EVER[0]
        for row in self._db.execute(sql, (group_id, group_id, start_ns, _EVER[0], end_ns)):
            reached_ns = row[4]
            yield row
        if reached_ns < end_ns:
            sql = f"{schema.SELECT['frame']} WHERE grp=? AND first_ns>? ORDER BY first_ns LIMIT 1"
            yield from chain(self._db.execute(sql, (group_id, end_ns)))

    def _frame(self, group: StoredGroup, row: tuple[Any, ...]) -> Frame:
        number, _, seq, first_ns, last_ns, n, cum, data = row
        try:
            channels = len(group.info.channels)
            parts = codec.split_frame(data, 3 + channels, n)
            cums = tuple(unpack_cum(cum, len(energy_channels(group.info))))
        except (ValueError, TypeError) as error:
            raise TapeDamaged(f"{self.path}: table frame, row {number} cannot be decoded: {error}.") from None
        return Frame(group, number, seq, first_ns, last_ns, n, cums, bool(data[0] & codec.BREAK), tuple(parts))

    def frames_after(self, number: int) -> list[Frame]:
        """Frames of all groups that were written after the frame with that row number: for one who follows."""
        groups = {group.id: group for group in self.groups}
        rows = list(self._rows("frame", "WHERE id>?", (number,)))
        if any(row[1] not in groups for row in rows):
            self.groups = tuple(self._read_groups())
            groups = {group.id: group for group in self.groups}
        return [self._frame(groups[row[1]], row) for row in rows if row[1] in groups]

    @property
    def version(self) -> tuple[int, int]:
        """Which file this is, and a number that changes when another process has written to it."""
        return self._inode, 0 if self.sealed else int(self._db.execute("PRAGMA data_version").fetchone()[0])

    @property
    def replaced(self) -> bool:
        """True where the file is another one now: the tape was sealed, or removed."""
        try:
            return self.path.stat().st_ino != self._inode
        except OSError:
            return True

    def tables(self, group_id: int, start_ns: int | None = None, end_ns: int | None = None) -> list[TableFrame]:
        """Tables of a group in [start_ns, end_ns], with one before and one after."""
        self.group(group_id)
        low, high = self._table_bounds(group_id, start_ns, end_ns)
        rows = list(self._rows("tframe", "WHERE grp=? AND at_ns BETWEEN ? AND ?", (group_id, low, high)))
        return [TableFrame(row[3], self._table(row)) for row in sorted(rows, key=lambda row: (row[3], row[2]))]

    def _table_bounds(self, group_id: int, start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
        low, high = _EVER
        if self._salvage is not None:
            return low, high
        try:
            if start_ns is not None:
                sql = "SELECT max(at_ns) FROM tframe WHERE grp=? AND at_ns<?"
                before = self._db.execute(sql, (group_id, start_ns)).fetchone()[0]
                low = start_ns if before is None else before
            if end_ns is not None:
                sql = "SELECT min(at_ns) FROM tframe WHERE grp=? AND at_ns>?"
                after = self._db.execute(sql, (group_id, end_ns)).fetchone()[0]
                high = end_ns if after is None else after
        except schema.BROKEN as error:
            raise TapeDamaged(f"{self.path} is damaged, table tframe: {error}.") from None
        return low, high

    def _table(self, row: tuple[Any, ...]) -> list[dict[str, Any]]:
        try:
            rows = json.loads(codec.inflate(row[5], _MOST_TABLE_BYTES))
        except (ValueError, TypeError, RecursionError) as error:
            raise TapeDamaged(f"{self.path}: table tframe, row {row[0]} cannot be decoded: {error}.") from None
        if not isinstance(rows, list) or not all(isinstance(entry, dict) for entry in rows):
            raise TapeDamaged(f"{self.path}: table tframe, row {row[0]} contains no rows.")
        return rows

    def problems(self) -> Iterator[checking.Problem]:
        """Everything wrong with pages, checksums, numbering and the seal, as (table, row, field, problem)."""
        return checking.problems(self._db, self._seal)

    def refresh(self) -> None:
        """See what was written since the tape was opened. Nothing changes for a sealed one."""
        if self.sealed:
            return
        if self.replaced or not opening.has_log(self.path):
            self._db.close()
            self._load()
            return
        self._read_meta()
        if self._db.execute("SELECT count(*) FROM grp").fetchone()[0] != len(self.groups):  # one that is there stays
            self.groups = tuple(self._read_groups())
        self._anchors = [Anchor(*row[1:]) for row in self._rows("anchor")]
        if self._directory is not None:
            self._directory.update()

    def to_utc_ns(self, monotonic_ns: int) -> int:
        """UTC nanoseconds of an instant, by the anchors around it. Raises TapeError if there is no anchor."""
        return self._need_utc().to_utc_ns(monotonic_ns)

    def from_utc_ns(self, utc_ns: int) -> int:
        """The inverse of `to_utc_ns`; where the clock was set back, the earlier of the instants."""
        return self._need_utc().from_utc_ns(utc_ns)

    def _need_utc(self) -> UtcMap:
        if not self._anchors:
            raise TapeError(f"{self.path} has no anchor to UTC.")
        if self._utc is None or len(self._utc.anchors) != len(self._anchors):
            self._utc = UtcMap(self._anchors)
        return self._utc

    def into_memory(self) -> None:
        """Read from a copy in memory from now on: the file may go. For sealed tapes."""
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            self._db.backup(copy)
        except schema.BROKEN as error:
            copy.close()
            raise TapeDamaged(f"{self.path} is damaged: {error}.") from None
        self._db.close()
        self._db = copy

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
