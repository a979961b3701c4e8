"""What changes while a simulated machine runs: limits and loads as an append-only list in a mapped file.

Each event holds the joules at its time, so the truth at t needs the last event before t and nothing older. Every
process of the machine maps the same file; the C side reads it without a lock and appends limits under the same lock.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from everywatt.core.errors import SimError
from everywatt.sim.curves import Curve, Load

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<QQ48x")
_EVENT = struct.Struct("<dddd")
_COUNT = struct.Struct("<Q")
ROOM_LIMITS = 4_096
ROOM_LOADS = 8_000_000  # a sparse file of 256 MB: a day of changes every 10 ms


class Event(NamedTuple):
    """From `t_s` on: the joules so far, the power that is asked for (load curves), and the limit."""

    t_s: float
    joules: float
    raw_w: float
    limit_w: float


def joules_since_start(curve: Curve, events: Sequence[Event], t_s: float) -> float:
    """The exact joules from the machine's start to `t_s`."""
    low, high = 0, len(events)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if events[middle].t_s <= t_s else (low, middle)
    event = events[low]
    if isinstance(curve, Load):
        return event.joules + min(event.raw_w, event.limit_w) * (t_s - event.t_s)
    return event.joules + curve.energy_j(event.t_s, t_s, event.limit_w)


class EventLog(Sequence[Event]):
    """The events of one device."""

    def __init__(self, path: Path, curve: Curve) -> None:
        self.path = path
        self.curve = curve
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, 0)
        # One store of eight bytes: struct writes them one by one, and a reader in between would find no event at all.
        self._count = memoryview(self._map)[: _COUNT.size].cast("Q")

    @classmethod
    def create(cls, path: Path, curve: Curve, limit_w: float) -> EventLog:
        """A new list whose first event is the machine's start."""
        room = ROOM_LOADS if isinstance(curve, Load) else ROOM_LIMITS
        with path.open("wb") as file:
            file.write(_HEADER.pack(1, room))
            file.write(_EVENT.pack(0.0, 0.0, curve.low_w, limit_w))
            file.truncate(_HEADER.size + room * _EVENT.size)
        return cls(path, curve)

    def __len__(self) -> int:
        return int(self._count[0])

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        """One event, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return Event(*_EVENT.unpack_from(self._map, _HEADER.size + place * _EVENT.size))

    def joules(self, t_s: float) -> float:
        """The exact joules from the machine's start to `t_s`."""
        return joules_since_start(self.curve, self, t_s)

    def append(self, t_s: float, *, raw_w: float | None = None, limit_w: float | None = None) -> None:
        """From `t_s` on, another power that is asked for, or another limit."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            count, last = len(self), self[-1]
            at = max(t_s, last.t_s)
            raw = last.raw_w if raw_w is None else raw_w
            limit = last.limit_w if limit_w is None else limit_w
            where = _HEADER.size + count * _EVENT.size
            if where + _EVENT.size > len(self._map):
                raise SimError(f"The simulated device of {self.path.name} changed more often than its file can hold.")
            _EVENT.pack_into(self._map, where, at, self.joules(at), raw, limit)
            self._count[0] = count + 1
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file."""
        self._count.release()
        self._map.close()
        os.close(self._fd)


def finite(limit_w: float) -> float:
    """A limit that a text file can hold."""
    return limit_w if math.isfinite(limit_w) else 1e9
