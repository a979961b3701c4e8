"""Columns of a tape as numpy arrays, with what each row had accumulated: the vectorised twin of `accumulate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from itertools import pairwise
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from everywatt.core.channels import Channel, Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import TapeDamaged, UsageError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.tape import codec
from everywatt.tape.accumulate import GAP_PERIODS, Cum, energy_channels, expected_ns, least_jump, most_per_s
from everywatt.tape.reader import Frame, StoredGroup, Tape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
# Rows of a tape that still grows: of the newest, as many are kept decoded once there are more than the first number.
MOST_GROWN_ROWS: Final = 60_000
KEPT_ROWS: Final = 20_000
# Rows for which a column that grows has room at first.
_GROWING_ROWS: Final = 1 << 16
_DIFF = {codec.DIFF_1: np.int8, codec.DIFF_2: np.int16, codec.DIFF_4: np.int32}


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of one group, oldest first.

    read, early, late  ns; `published` is the middle of early and late, strictly rising
    values       raw, NaN where a channel gave nothing
    accumulated  raw counts (counter) or raw value × ns (gauge) since the tape's start, for energy-carrying channels
    observed_ns  nanoseconds really observed since then
    carried      the last finite value before the first row (None: the first row's own) and its publication
    """

    read: Ints
    early: Ints
    late: Ints
    published: Ints
    values: dict[str, Floats] = field(default_factory=dict)
    accumulated: dict[str, Floats] = field(default_factory=dict)
    observed_ns: dict[str, Ints] = field(default_factory=dict)
    carried: dict[str, tuple[float | None, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.read)

    def between(self, start_ns: int, end_ns: int) -> Columns:
        """The rows published in [start_ns, end_ns], with one before and one after."""
        low = max(int(np.searchsorted(self.published, start_ns, side="right")) - 1, 0)
        high = int(np.searchsorted(self.published, end_ns, side="left")) + 1
        if low == 0 and high >= len(self):
            return self
        cut = slice(low, high)
        read, early, late, published = (column[cut] for column in self._times)
        values, accumulated, observed_ns = (
            {name: column[cut] for name, column in table.items()} for table in self._tables
        )
        carried = self.carried if low == 0 else {}
        return Columns(read, early, late, published, values, accumulated, observed_ns, carried)

    def then(self, later: Columns) -> Columns:
        """These rows and later ones of the same channels."""
        if not len(self):
            return later
        read, early, late, published = map(np.concatenate, zip(self._times, later._times, strict=True))
        values, accumulated, observed_ns = (
            {name: np.concatenate((column, more[name])) for name, column in table.items()}
            for table, more in zip(self._tables, later._tables, strict=True)
        )
        return Columns(read, early, late, published, values, accumulated, observed_ns, self.carried)

    @property
    def _times(self) -> tuple[Ints, ...]:
        return self.read, self.early, self.late, self.published

    @property
    def _tables(self) -> tuple[dict[str, Any], ...]:
        return self.values, self.accumulated, self.observed_ns


def load_columns(
    tape: Tape,
    group_id: int,
    channels: Sequence[str],
    start_ns: int | None = None,
    end_ns: int | None = None,
    *,
    tight: bool = False,
) -> Columns:
    """Rows of the whole frames that overlap [start_ns, end_ns], with one frame before and one after.

    `tight` leaves those out, unless they are needed to reach from before `start_ns` to after `end_ns`.
    """
    return columns_of(tape, tape.group(group_id), tape.iter_frames(group_id, start_ns, end_ns, tight=tight), channels)


def columns_of(tape: Tape, group: StoredGroup, frames: Iterable[Frame], channels: Sequence[str]) -> Columns:
    """Columns of frames of one group that follow one another."""
    names = [channel.name for channel in group.info.channels]
    for name in channels:
        if name not in names:
            raise UsageError(f"Group {group.info.name} has no channel {name}.")
    wanted = list(dict.fromkeys(channels))
    indexes = [names.index(name) for name in wanted]
    sums: list[tuple[Cum, ...]] = []  # of the first row of each frame
    pieces: list[list[NDArray[Any]]] = []
    parts = [0, 1, 2, *(3 + index for index in indexes)]
    for frame in frames:
        sums.append(frame.cum)
        pieces.append(_decode(tape, frame, parts))
    starts = np.cumsum([0, *(len(piece[0]) for piece in pieces)], dtype=np.int64)[:-1]
    # The rows of one frame are taken as they are: copying them would take as long as decoding.
    joined = pieces[0] if len(pieces) == 1 else [np.concatenate(column) for column in zip(*pieces, strict=True)]
    if not joined:
        joined = [np.empty(0, np.int64)] * 3 + [np.empty(0, np.float64)] * len(indexes)
    read, since_late, width = joined[:3]
    late = read - since_late
    early = late - width
    # Half of the sum, without the overflow that a sum may have.
    columns = Columns(read, early, late, early + (late - early) // 2)
    energy = energy_channels(group.info)
    for name, index, values in zip(wanted, indexes, joined[3:], strict=True):
        columns.values[name] = values
        if index in energy:
            cums = [one[energy.index(index)] for one in sums]
            columns.accumulated[name], columns.observed_ns[name] = accumulate_columns(
                group.info.channels[index],
                expected_ns(group.expected_period_s),
                columns.values[name],
                columns.published,
                starts,
                cums,
                partial(jumps, tape, group, name),
            )
            if cums:
                columns.carried[name] = cums[0][2:]
    return columns


def jumps(tape: Tape, group: StoredGroup, channel: str) -> list[int]:
    """The publications at which a counter had stepped by more than its device can draw: those steps do not count."""
    return [gap.end_ns for gap in tape.gaps(group.id) if gap.kind == "jump" and gap.channel == channel]


def read_times(tape: Tape, group: StoredGroup) -> Ints:
    """When each row was read, and nothing else."""
    times = [_decode(tape, frame, [0])[0] for frame in tape.iter_frames(group.id)]
    return np.concatenate(times) if times else np.empty(0, np.int64)


def ticks_by_frame(
    tape: Tape, group: StoredGroup, channels: Sequence[str], start_ns: int | None = None, end_ns: int | None = None
) -> tuple[Ints, NDArray[np.float32], dict[str, Floats]] | None:
    """Publications, the nanoseconds to which they are known, and of each channel its raw values, or for an energy
    counter its accumulated counts.

    As `load_columns` gives them, frame by frame: a fraction of the memory and time. None where a counter's value is
    missing, falls or jumps: then `load_columns` knows the rule.
    """
    names = [entry.name for entry in group.info.channels]
    energy = energy_channels(group.info)
    indexes = [names.index(name) for name in channels]
    parts = [0, 1, 2, *(3 + index for index in indexes)]
    times, widths = _Growing(np.int64), _Growing(np.float32)  # half the memory, and no digit of widths counts
    columns = [_Growing(np.float64) for _ in channels]
    for frame in tape.iter_frames(group.id, start_ns, end_ns):
        read, since_late, width, *decoded = _decode(tape, frame, parts)
        times.extend(read - since_late - (width - width // 2))
        widths.extend(width)
        for grown, index, column in zip(columns, indexes, decoded, strict=True):
            if index in energy and group.info.channels[index].kind is Kind.COUNTER:
                counts = _counts(column, frame.cum[energy.index(index)].total, group.info.channels[index])
                if counts is None:
                    return None
                column = counts
            grown.extend(column)
    return times.rows(), widths.rows(), {name: grown.rows() for name, grown in zip(channels, columns, strict=True)}


class _Growing:
    """A column that frames are put into one after the other.

    Joining their parts in the end would need twice the memory, and small parts go back to the system each time:
    getting it again took a sixth of the time of a question.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self._room = np.empty(_GROWING_ROWS, dtype)
        self._count = 0

    def extend(self, values: NDArray[Any]) -> None:
        end = self._count + len(values)
        if end > len(self._room):
            room = np.empty(2 * end, self._room.dtype)
            room[: self._count] = self.rows()
            self._room = room
        self._room[self._count : end] = values
        self._count = end

    def rows(self) -> NDArray[Any]:
        return self._room[: self._count]


def _counts(values: Floats, start: float, channel: Channel) -> Floats | None:
    """What a counter had accumulated at each row of a frame; None where a value is missing, falls or may jump."""
    # A frame fits in the processor's cache, a whole column does not.
    steps = np.empty(len(values))
    steps[0] = start
    with np.errstate(invalid="ignore"):  # inf - inf: a NaN, which is seen in the next line
        np.subtract(values[1:], values[:-1], out=steps[1:])
    most = steps[1:].max(initial=0.0)
    rising = steps[1:].min(initial=0.0) >= 0.0 and np.isfinite(most) and most <= least_jump(channel)
    return np.cumsum(steps, out=steps) if np.isfinite(values[0]) and rising else None


def _decode(tape: Tape, frame: Frame, parts: Sequence[int]) -> list[NDArray[Any]]:
    """Some columns of a frame: its first three are times, the others the channels'."""
    try:
        return [_stored("<i8" if part < 3 else "<f8", *frame.parts[part], frame.n) for part in parts]
    except codec.CodecError as error:
        raise TapeDamaged(f"{tape.path}: table frame, row {frame.id} cannot be decoded: {error}.") from None


def _stored(kind: str, tag: int, data: memoryview, rows: int) -> NDArray[Any]:
    """A stored column as an array of that type (`<i8`, `<f8`); differences of floats are whole numbers, so exact."""
    how, raw = codec.raw_column(tag, data, rows)
    if how == codec.PLAIN:
        return np.frombuffer(raw, kind)
    out = np.empty(rows, kind)
    out[0] = np.frombuffer(raw, kind, 1)[0]
    if how == codec.CONSTANT:
        out[1:] = out[0]
        return out
    out[1:] = np.frombuffer(raw, _DIFF[how], offset=8)
    return np.cumsum(out, out=out)


def accumulate_columns(
    channel: Channel,
    expected: int,
    values: Floats,
    published: Ints,
    starts: Ints,
    cums: Sequence[Cum],
    jumps: Callable[[], Sequence[int]] = tuple,
) -> tuple[Floats, Ints]:
    """The rule of `accumulate` for whole columns; `starts` are the first rows of frames, `cums` their own sums.

    `jumps` gives the publications whose step was refused, and is asked only where a step is that large.
    """
    if not len(values):
        return np.empty(0), np.empty(0, np.int64)
    if channel.kind is Kind.COUNTER:
        steps, observed = _counter_steps(channel, values, published, starts, cums, jumps)
    else:
        steps, observed = _gauge_steps(expected, values, published)
    steps[starts] = [cum.total for cum in cums]
    observed[starts] = [cum.observed_ns for cum in cums]
    bounds = [*starts.tolist(), len(values)]
    for low, high in pairwise(bounds):
        # One running sum for each frame, from its own start: the very additions that the writer made.
        np.cumsum(steps[low:high], out=steps[low:high])
        np.cumsum(observed[low:high], out=observed[low:high])
    return steps, observed


def _gauge_steps(expected: int, values: Floats, published: Ints) -> tuple[Floats, Ints]:
    held = np.empty(len(values), np.int64)
    held[0] = 0
    np.subtract(published[1:], published[:-1], out=held[1:])
    held[held > GAP_PERIODS * expected] = expected
    held[~np.isfinite(values)] = 0
    with np.errstate(invalid="ignore"):
        steps = values * held
    steps[held == 0] = 0.0
    return steps, held


def _counter_steps(
    channel: Channel,
    values: Floats,
    published: Ints,
    starts: Ints,
    cums: Sequence[Cum],
    jumps: Callable[[], Sequence[int]],
) -> tuple[Floats, Ints]:
    """`core.counters.difference` for whole columns, from the last finite value to each finite one."""
    finite = np.isfinite(values)
    last, last_ns = _last_finite(values, published, finite, starts, cums)
    elapsed = published - last_ns
    with np.errstate(invalid="ignore"):
        steps = values - last
        back = np.flatnonzero(steps < 0)
    if len(back):
        good, wrapped = _wraps(channel, steps[back], last[back], elapsed[back])
        steps[back] = np.where(good, wrapped, np.nan)
    far = np.flatnonzero(steps > least_jump(channel))
    if len(far):
        steps[far[np.isin(published[far], np.array(jumps(), np.int64))]] = np.nan
    lost = np.isnan(steps) | ~finite
    steps[lost], elapsed[lost] = 0.0, 0
    return steps, elapsed


def _wraps(channel: Channel, steps: Floats, last: Floats, elapsed: Ints) -> tuple[NDArray[np.bool_], Floats]:
    """Which steps back a wrap explains, and the counts they then stand for."""
    wrap = channel.facts.wrap
    if not wrap:
        return np.zeros(len(steps), np.bool_), steps
    wrapped = steps + wrap
    rate = most_per_s(channel)
    most = wrap / 2 if rate is None else rate * np.maximum(elapsed / NS, 0.0) * 1.5
    return (last <= wrap) & (wrapped <= most), wrapped


def _last_finite(
    values: Floats,
    published: Ints,
    finite: NDArray[np.bool_],
    starts: Ints,
    cums: Sequence[Cum],
) -> tuple[Floats, Ints]:
    """For each row the last finite value before it in its frame, else what the frame carried over.

    First rows of frames do not count: their sums are the frame's own.
    """
    if finite.all():
        return np.concatenate(([np.nan], values[:-1])), np.concatenate(([0], published[:-1]))
    rows = np.arange(len(values))
    latest = np.maximum.accumulate(np.where(finite, rows, -1))
    before = np.concatenate(([-1], latest[:-1]))
    lengths = np.diff(np.append(starts, len(values)))
    inside = before >= np.repeat(starts, lengths)
    carried = np.repeat([np.nan if cum.last is None else cum.last for cum in cums], lengths)
    carried_ns = np.repeat(np.array([cum.last_ns for cum in cums], np.int64), lengths)
    at = np.maximum(before, 0)
    return np.where(inside, values[at], carried), np.where(inside, published[at], carried_ns)


@dataclass(slots=True)
class _Grown:
    """What was read so far of some channels of a group: from `since_ns` on, up to the frame `last`.

    A frame of a live tape holds a second, so what is around a window are hundreds of them, and one who follows a tape
    asks for nearly the same ones again and again: each is decoded once. One that was written stays as it is until the
    tape is sealed.
    """

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
            if rows > MOST_GROWN_ROWS:
                return False
    if frames:
        there.last = frames[-1].id
        there.columns = there.columns.then(columns_of(tape, tape.group(group_id), frames, channels))
    return True


def _trim(there: _Grown) -> None:
    if len(there.columns) > MOST_GROWN_ROWS:
        there.since_ns = int(there.columns.published[-KEPT_ROWS])
        there.columns = there.columns.between(there.since_ns, int(there.columns.published[-1]))
