"""Any tape as a live sensor: the same channels, the same totals, in the present.

The setting `replay.tape` is the path of a tape, `replay.speed` (1) how many times faster than recorded it is played. At
another speed than 1 powers are multiplied by it, so that the joules stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, GroupInfo, Kind, Row
from everywatt.core.clocks import Clock
from everywatt.core.errors import SensorError, TapeError, UsageError
from everywatt.sensors.base import Report, Request, State, TableRow
from everywatt.tape.reader import StoredGroup, Tape


class Replay:
    """The sensor: one group for each group of the tape."""

    name = "replay"
    after = ()

    def __init__(self, request: Request) -> None:
        self._options: Mapping[str, Any] = request.options.get("replay", {})
        self._clock = request.machine.clock

    def probe(self) -> Report:
        """Usable where the tape opens and holds a value."""
        if not self._options.get("tape"):
            cure = 'set tape = "FILE.tape" in [sensor.replay] of your settings'
            return Report(self.name, State.ABSENT, why="No tape was given to replay.", cure=cure, power=False)
        try:
            with Tape.open(Path(self._options["tape"])) as tape:
                self._speed()
                samples = {name: value for group in tape.groups for name, value in _samples(tape, group)}
                power = any(channel.carries_energy for group in tape.groups for channel in group.info.channels)
        except (TapeError, UsageError) as error:
            return Report(self.name, State.UNUSABLE, why=str(error), cure=error.cure)
        if not any(value is not None for value in samples.values()):
            return Report(self.name, State.UNUSABLE, why="The tape contains no values.", samples=samples)
        return Report(self.name, State.USABLE, samples=samples, power=power)

    def _speed(self) -> float:
        speed = float(self._options.get("speed", 1.0))
        if not 0 < speed < float("inf"):
            raise UsageError(f"replay.speed is {speed}; it must be above 0.")
        return speed

    def groups(self) -> Sequence[ReplayGroup | ReplayTable]:
        """Groups that start to play together, at the first read of any of them."""
        tape = Tape.open(Path(self._options["tape"]))
        shift = _Shift(tape.extent_ns()[0], self._speed(), self._clock)
        return [(ReplayTable if group.info.table else ReplayGroup)(tape, group, shift) for group in tape.groups]


@dataclass(slots=True)
class _Shift:
    """From the tape's time to the present."""

    start_ns: int
    speed: float
    clock: Clock
    now_start_ns: int | None = None

    def __call__(self, at_ns: int) -> int:
        if self.now_start_ns is None:
            self.now_start_ns = self.clock.monotonic_ns()
        since = at_ns - self.start_ns
        return self.now_start_ns + (since if self.speed == 1.0 else round(since / self.speed))


class ReplayGroup:
    """Rows of one group as they fall due."""

    def __init__(self, tape: Tape, group: StoredGroup, shift: _Shift) -> None:
        self.info = _present(group.info, shift.speed)
        self._shift = shift
        power = [channel.kind is Kind.GAUGE and channel.unit == "W" for channel in group.info.channels]
        self._factors = [shift.speed if one else 1.0 for one in power]
        self._rows = chain.from_iterable(frame.rows() for frame in tape.iter_frames(group.id))
        self._next = next(self._rows, None)

    def read(self) -> Sequence[Row]:
        """The rows that have fallen due since the last read; none after the end of the tape."""
        due: list[Row] = []
        self._shift(self._shift.start_ns)  # the first read of any group starts the clock
        now_ns = self._shift.clock.monotonic_ns()
        try:
            while self._next is not None and (read_ns := self._shift(self._next.read_ns)) <= now_ns:
                row = self._next
                values = row.values
                if self._shift.speed != 1.0:
                    values = tuple(value * factor for value, factor in zip(values, self._factors, strict=True))
                due.append(Row(read_ns, self._shift(row.early_ns), self._shift(row.late_ns), values))
                self._next = next(self._rows, None)
        except TapeError as error:
            raise SensorError(f"The tape cannot be replayed further: {error.message}") from None
        return due

    def close(self) -> None:
        self._rows = chain()
        self._next = None


class ReplayTable:
    """Tables of one group as they fall due."""

    def __init__(self, tape: Tape, group: StoredGroup, shift: _Shift) -> None:
        self.info = replace(group.info, sensor="replay")
        self._shift = shift
        self._tables = tape.tables(group.id)

    def read_table(self) -> tuple[int, Sequence[TableRow]]:
        """The rows of the next table that is due, at its own time; empty if no table is due."""
        self._shift(self._shift.start_ns)
        now_ns = self._shift.clock.monotonic_ns()
        if self._tables and (at_ns := self._shift(self._tables[0].at_ns)) <= now_ns:
            return at_ns, self._tables.pop(0).rows
        return now_ns, []

    def follow(self, pids: Sequence[int]) -> None:
        """A recording holds the processes that it holds: there is nothing to follow."""

    def close(self) -> None:
        self._tables = []


def _present(info: GroupInfo, speed: float) -> GroupInfo:
    """The group as it is now: rows carry their own publication times, so nothing is tracked or read inline."""
    channels = info.channels
    if speed != 1.0:
        channels = tuple(_faster(channel, speed) for channel in channels)
    return replace(info, sensor="replay", channels=channels, inline=False, tracked=False)


def _faster(channel: Channel, speed: float) -> Channel:
    facts = channel.facts
    period_s = None if facts.period_s is None else facts.period_s / speed
    window_s = None if facts.window_s is None else facts.window_s / speed
    max_w = None if facts.max_w is None else facts.max_w * speed
    return replace(channel, facts=replace(facts, period_s=period_s, window_s=window_s, max_w=max_w))


def _samples(tape: Tape, group: StoredGroup) -> Iterator[tuple[str, float | None]]:
    """The first value of each channel, in its unit."""
    first = None if group.info.table else next(tape.iter_frames(group.id), None)
    for index, channel in enumerate(group.info.channels):
        values = [] if first is None else [value for value in first.column(index) if value == value]
        yield channel.name, values[0] * channel.scale if values else None
