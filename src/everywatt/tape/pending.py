"""What a tape has taken and not yet written: chunks of rows, other rows, and the bound on their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import groupby
from operator import itemgetter, sub
from typing import Any, Final, NamedTuple

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import dumps
from everywatt.core.lazy_dataclass import dataclass
from everywatt.tape import codec, schema
from everywatt.tape.accumulate import Accumulator, Cum, Found, pack_cum, publication_ns

CHUNK_ROWS: Final = 1024
_MOST_OTHERS: Final = 200_000


class PendingTable(NamedTuple):
    """Rows of a table group at one instant, as JSON."""

    group: int
    at_ns: int
    n: int
    json: bytes


@dataclass(slots=True)
class Chunk:
    """Rows of one group that will be one frame, with where its channels stood at the first of them."""

    group: int
    cum: list[Cum]
    first_ns: int
    breaks: bool
    rows: list[Row] = field(default_factory=list)
    last_ns: int = 0


class _Group:
    def __init__(self, info: GroupInfo, expected_period_s: float, prompt: bool = False) -> None:
        self.info = info
        self.prompt = prompt or any(channel.carries_energy for channel in info.channels)
        self.accumulator = Accumulator(info, expected_period_s)
        self.chunk: Chunk | None = None
        self.seq = 0
        self.table_seq = 0
        self.dropped = 0
        self.breaks = False
        self.losses: tuple[int, int, int] | None = None

    def lost(self, start_ns: int, end_ns: int, rows: int) -> None:
        """Remember a stretch of rows that had to be dropped."""
        if self.losses is None:
            self.losses = (start_ns, end_ns, rows)
        else:
            self.losses = (self.losses[0], max(end_ns, self.losses[1]), self.losses[2] + rows)


class Buffer:
    """Rows on their way to the file."""

    def __init__(self, most_values: int) -> None:
        self._most_values = most_values
        self._groups: list[_Group] = []
        self._closed: list[Chunk] = []
        self._tables: list[PendingTable] = []
        self._others: list[tuple[str, tuple[Any, ...]]] = []
        self._ids: dict[str, int] = {}
        self._values = 0
        self._in_flight: tuple[int, int, int] = (0, 0, 0)
        self._tables_wait = False
        self.refused = 0

    def add_group(self, info: GroupInfo, expected_period_s: float, prompt: bool = False) -> int:
        """A group's number, from 1. `prompt`: its rows go with every flush, also if they carry no energy."""
        self._groups.append(_Group(info, expected_period_s, prompt))
        return len(self._groups)

    def next_id(self, table: str) -> int:
        self._ids[table] = self._ids.get(table, 0) + 1
        return self._ids[table]

    def put(self, sql: str, row: tuple[Any, ...]) -> None:
        """One row of any table but frames."""
        self._others.append((sql, row))

    def append(self, group: int, rows: Sequence[Row]) -> list[Found]:
        """Accumulate rows; gives the gaps they showed."""
        state = self._group(group)
        for row in rows:
            self.must_fit(group, row)
        if len(rows) > 1:
            rows = sorted(rows, key=publication_ns)
        return [gap for row in rows for gap in self._append_one(state, group, row)]

    def must_fit(self, group: int, row: Row) -> None:
        """UsageError where a row has not the channels of its group: no reader would know what its values are."""
        info = self._group(group).info
        if len(row.values) != len(info.channels):
            raise UsageError(
                f"Group {info.name} has {len(info.channels)} channels, but a row has {len(row.values)} values."
            )

    def suspended(self, group: int) -> None:
        """The machine slept since the last row of a group."""
        self._group(group).accumulator.suspended()

    def _append_one(self, state: _Group, group: int, row: Row) -> list[Found]:
        at_ns = publication_ns(row)
        if state.accumulator.last_ns is not None and at_ns <= state.accumulator.last_ns:
            state.dropped += 1
            return []
        found = state.accumulator.add(row, at_ns)
        self._take(state, group, row, at_ns)
        return found

    def _group(self, group: int) -> _Group:
        if not 1 <= group <= len(self._groups):
            raise UsageError(f"There is no group {group} on this tape.")
        return self._groups[group - 1]

    def _take(self, state: _Group, group: int, row: Row, at_ns: int) -> None:
        chunk = state.chunk
        if chunk is None:
            chunk = state.chunk = Chunk(group, state.accumulator.cum(), at_ns, state.breaks)
            state.breaks = False
        chunk.rows.append(row)
        chunk.last_ns = at_ns
        self._values += len(row.values) + 3
        if len(chunk.rows) >= CHUNK_ROWS:
            self._closed.append(chunk)
            state.chunk = None
        if self._values > self._most_values:
            self._drop_oldest()

    def append_table(self, row: PendingTable) -> None:
        self._group(row.group)
        self._tables.append(row)
        self._values += len(row.json) // 8
        if self._values > self._most_values:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Make room: the oldest chunk of rows, else the oldest table, goes; a gap and a note will say so."""
        if self._closed:
            chunk = self._closed.pop(0)
            state = self._group(chunk.group)
            self._values -= len(chunk.rows) * (len(state.info.channels) + 3)
            state.lost(chunk.first_ns, chunk.last_ns, len(chunk.rows))
            follower = next((c for c in (*self._closed, state.chunk) if c is not None and c.group == chunk.group), None)
            if follower is None:
                state.breaks = True
            else:
                follower.breaks = True
        elif self._tables:
            table = self._tables.pop(0)
            self._values -= len(table.json) // 8
            self._group(table.group).lost(table.at_ns, table.at_ns, table.n)

    def report_losses(self) -> bool:
        """Write a gap and a note for what had to be dropped; False if nothing was dropped."""
        said = False
        for group, state in enumerate(self._groups, 1):
            if state.losses is None:
                continue
            start_ns, end_ns, rows = state.losses
            gap = (self.next_id("gap"), group, None, start_ns, end_ns, "lost", None, None)
            self.put(schema.INSERT["gap"], codec.sealed_row("gap", gap))
            text = f"The tape could not be written for so long that {rows} rows of {state.info.name} were dropped."
            self._note(end_ns, text, {"group": group, "rows": rows})
            state.losses, said = None, True
        if self.refused:
            self._note(
                0, f"{self.refused} points or inline reads were dropped while the tape could not be written.", {}
            )
            self.refused, said = 0, True
        return said

    def _note(self, at_ns: int, text: str, data: dict[str, Any]) -> None:
        note = (self.next_id("note"), at_ns, "lost", text, dumps(data))
        self.put(schema.INSERT["note"], codec.sealed_row("note", note))

    def refuse(self) -> bool:
        """True, and counted, where no more small rows can be kept."""
        full = len(self._others) >= _MOST_OTHERS
        self.refused += full
        return full

    def close_chunks(self, energy_only: bool = False) -> None:
        """From here on new rows go to new frames. `energy_only`: those of other groups, and tables, wait for more."""
        self._tables_wait = energy_only
        for state in self._groups:
            if state.chunk is not None and (state.prompt or not energy_only):
                self._closed.append(state.chunk)
                state.chunk = None

    def statements(self) -> Iterator[tuple[str, Iterable[tuple[Any, ...]]]]:
        """All that is to be written, in order; `written` then forgets it."""
        tables = self._first_prompt() if self._tables_wait else len(self._tables)
        self._in_flight = (len(self._closed), tables, len(self._others))
        for sql, rows in groupby(self._others, key=itemgetter(0)):
            yield sql, [row for _, row in rows]
        if self._closed:
            seqs = {group: state.seq for group, state in enumerate(self._groups, 1)}
            rows = ((chunk.group, *encode_chunk(chunk)) for chunk in self._closed)
            yield schema.INSERT["frame"], self._numbered("frame", rows, seqs)
        if tables:
            seqs = {group: state.table_seq for group, state in enumerate(self._groups, 1)}
            packed = ((row.group, row.at_ns, row.n, codec.deflate(row.json)) for row in self._tables[:tables])
            yield schema.INSERT["tframe"], self._numbered("tframe", packed, seqs)

    def _first_prompt(self) -> int:
        """Put tables that cannot wait before the others; how many they are."""
        prompt = [row for row in self._tables if self._group(row.group).prompt]
        if prompt:
            self._tables = prompt + [row for row in self._tables if not self._group(row.group).prompt]
        return len(prompt)

    def _numbered(self, table: str, rows: Iterable[tuple[Any, ...]], seqs: dict[int, int]) -> Iterator[tuple[Any, ...]]:
        """Rows that begin with their group, with their numbers in the table and in the group."""
        for number, (group, *columns) in enumerate(rows, self._ids.get(table, 0) + 1):
            seqs[group] += 1
            yield codec.sealed_row(table, (number, group, seqs[group], *columns))

    def written(self) -> None:
        frames, tables, others = self._in_flight
        for chunk in self._closed[:frames]:
            state = self._group(chunk.group)
            state.seq += 1
            self._values -= len(chunk.rows) * (len(state.info.channels) + 3)
        for row in self._tables[:tables]:
            self._group(row.group).table_seq += 1
            self._values -= len(row.json) // 8
        self._ids["frame"] = self._ids.get("frame", 0) + frames
        self._ids["tframe"] = self._ids.get("tframe", 0) + tables
        del self._closed[:frames], self._tables[:tables], self._others[:others]

    def dropped(self) -> dict[str, int]:
        """Rows that came out of order, by group."""
        return {state.info.name: state.dropped for state in self._groups if state.dropped}


def encode_chunk(chunk: Chunk) -> tuple[Any, ...]:
    """first_ns, last_ns, n, cum and data of the frame that a chunk becomes."""
    rows = chunk.rows
    reads, earlies, lates, values = zip(*rows, strict=True)
    columns = [
        codec.encode_ints(reads),
        codec.encode_ints(list(map(sub, reads, lates))),
        codec.encode_ints(list(map(sub, lates, earlies))),
    ]
    columns += map(codec.encode_floats, zip(*values, strict=True))
    data = codec.encode_frame(columns, len(rows), codec.BREAK if chunk.breaks else 0)
    return chunk.first_ns, chunk.last_ns, len(rows), pack_cum(chunk.cum, chunk.first_ns), data
