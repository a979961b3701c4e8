"""Following a tape that is being written: each look gives what came since the last, whatever the tape's length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from everywatt.core.channels import Row
from everywatt.tape.accumulate import publication_ns
from everywatt.tape.reader import Frame, StoredGroup, Tape


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one group that are new. `frame` is the frame that the first of them is the first row of, else None."""

    group: StoredGroup
    rows: list[Row]
    frame: Frame | None = None


class Follower:
    """What is new on a tape at each look. A row is returned once, also if the tape is sealed in between.

    `back_ns` is how far before the tape's end the first look reaches; None: to its start. `until_ns`: as if the tape
    ended there.
    """

    def __init__(self, tape: Tape, *, back_ns: int | None = None, until_ns: int | None = None) -> None:
        self.tape = tape
        self._until_ns = until_ns
        self._back_ns = back_ns
        self._frame = 0
        self._returned_ns: dict[int, int] = {}  # group → publication of the newest row returned
        self._began = False

    @property
    def finished(self) -> bool:
        """True where the tape is sealed, so that nothing more will come."""
        return self.tape.sealed

    def look(self) -> list[Rows]:
        """What came since the last look, by group; the first one gives what is there."""
        if not self._began:
            self._began = True
            return self._first()
        if self.tape.sealed:
            return []
        if self.tape.replaced:
            self.tape.refresh()
            # A sealed tape has other frames with other numbers: rows are known by their publication.
            return list(self._since(dict(self._returned_ns)))
        return self._news()

    def _first(self) -> list[Rows]:
        end_ns = self.tape.extent_ns()[1] if self._until_ns is None else self._until_ns
        since = None if self._back_ns is None else end_ns - self._back_ns
        found = list(self._since(dict.fromkeys((g.id for g in self.tape.groups), since)))
        self._frame = max((rows.frame.id for rows in found if rows.frame is not None), default=0)
        return found

    def _since(self, since: Mapping[int, int | None]) -> Iterator[Rows]:
        for group in self.tape.groups:
            if group.info.table:
                continue
            for frame in self.tape.frames(group.id, since.get(group.id), self._until_ns):
                yield from self._unseen(frame)

    def _news(self) -> list[Rows]:
        found: list[Rows] = []
        for frame in self.tape.frames_after(self._frame):
            self._frame = frame.id
            found += self._unseen(frame)
        return found

    def _unseen(self, frame: Frame) -> Iterator[Rows]:
        newest_ns = self._returned_ns.get(frame.group.id)
        if newest_ns is not None and frame.last_ns <= newest_ns:
            return
        rows = frame.rows()
        if self._until_ns is not None:
            rows = [row for row in rows if publication_ns(row) <= self._until_ns]
        fresh = rows if newest_ns is None else [row for row in rows if publication_ns(row) > newest_ns]
        if fresh:
            self._returned_ns[frame.group.id] = publication_ns(fresh[-1])
            yield Rows(frame.group, fresh, frame if len(fresh) == len(rows) else None)

    def close(self) -> None:
        self.tape.close()
