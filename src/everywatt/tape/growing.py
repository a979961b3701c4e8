"""Columns of a tape that is being written: each frame is decoded once, however often somebody asks.

A frame of a live tape holds a second, so what is around a window are hundreds of them, and one who follows a tape asks
for nearly the same ones again and again. A frame that was written stays as it is until the tape is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from everywatt.tape.columns import Columns, columns_of
from everywatt.tape.reader import Tape

MOST_ROWS: Final = 60_000
KEPT_ROWS: Final = 20_000


@dataclass(slots=True)
class _Grown:
    """What was read so far of some channels of a group: from `since_ns` on, up to the frame `last`."""

    file: int
    since_ns: int
    last: int
    columns: Columns


_known: WeakKeyDictionary[Tape, dict[tuple[int, tuple[str, ...]], _Grown]] = WeakKeyDictionary()


def grown_columns(tape: Tape, group_id: int, channels: Sequence[str], start_ns: int, end_ns: int) -> Columns:
    """Rows of a live tape between two instants, and one on either side, as `load_columns` gives them."""
    known = _known.setdefault(tape, {})
    key = (group_id, tuple(sorted(set(channels))))
    file = tape.version[0]
    there = known.get(key)
    if there is None or there.file != file or start_ns < there.since_ns:
        there = known[key] = _Grown(file, start_ns, -1, columns_of(tape, tape.group(group_id), (), key[1]))
    _grow(tape, group_id, key[1], there)
    found = there.columns.between(start_ns, end_ns)
    if len(there.columns) > MOST_ROWS:
        there.since_ns = int(there.columns.published[-KEPT_ROWS])
        there.columns = there.columns.between(there.since_ns, int(there.columns.published[-1]))
    return found


def _grow(tape: Tape, group_id: int, channels: Sequence[str], there: _Grown) -> None:
    """Take the frames that were written since."""
    from_ns = int(there.columns.published[-1]) if len(there.columns) else there.since_ns
    frames = [frame for frame in tape.iter_frames(group_id, from_ns) if frame.id > there.last]
    if not frames:
        return
    there.last = frames[-1].id
    there.columns = _joined(there.columns, columns_of(tape, tape.group(group_id), frames, channels))


def _joined(first: Columns, then: Columns) -> Columns:
    if not len(first):
        return then
    times = [np.concatenate((getattr(first, name), getattr(then, name))) for name in _TIMES]
    more = [
        {key: np.concatenate((column, getattr(then, name)[key])) for key, column in getattr(first, name).items()}
        for name in ("values", "accumulated", "observed_ns")
    ]
    return Columns(times[0], times[1], times[2], times[3], times[4], more[0], more[1], more[2], first.carried)


_TIMES: Final = ("read", "early", "late", "published", "breaks")
