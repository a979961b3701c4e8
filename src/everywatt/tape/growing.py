"""Columns of a tape that is being written: each frame is decoded once, however often it is queried.

A frame of a live tape holds a second, so what is around a window are hundreds of them, and one who follows a tape asks
for nearly the same ones again and again. A frame that was written stays as it is until the tape is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from everywatt.core.lazy_dataclass import dataclass
from everywatt.tape.columns import Columns, columns_of, load_columns
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
    """Rows of a live tape between two instants, and one on either side, as `load_columns` gives them.

    What lies far back is read for itself: from there to the newest frame may be hours.
    """
    known = _known.setdefault(tape, {})
    key = (group_id, tuple(sorted(set(channels))))
    file = tape.version[0]
    there = known.get(key)
    if there is None or there.file != file:
        there = known[key] = _Grown(file, start_ns, -1, columns_of(tape, tape.group(group_id), (), key[1]))
    if start_ns >= there.since_ns and _grow(tape, group_id, key[1], there):
        found = there.columns.between(start_ns, end_ns)
        _trim(there)
        return found
    if there.last < 0:
        del known[key]  # nothing near the end was asked for yet
    return load_columns(tape, group_id, channels, start_ns, end_ns, tight=True).between(start_ns, end_ns)


def _grow(tape: Tape, group_id: int, channels: Sequence[str], there: _Grown) -> bool:
    """Take the frames that were written since; False, with nothing taken, where they are too many."""
    from_ns = int(there.columns.published[-1]) if len(there.columns) else there.since_ns
    frames, rows = [], 0
    for frame in tape.iter_frames(group_id, from_ns):
        if frame.id > there.last:
            frames.append(frame)
            rows += frame.n
            if rows > MOST_ROWS:
                return False
    if frames:
        there.last = frames[-1].id
        there.columns = _joined(there.columns, columns_of(tape, tape.group(group_id), frames, channels))
    return True


def _trim(there: _Grown) -> None:
    if len(there.columns) > MOST_ROWS:
        there.since_ns = int(there.columns.published[-KEPT_ROWS])
        there.columns = there.columns.between(there.since_ns, int(there.columns.published[-1]))


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
