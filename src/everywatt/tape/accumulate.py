"""The one rule for what a channel has accumulated, row by row. Its vectorised twin is in `columns`.

A row belongs to its publication, the middle of early and late. A counter adds raw counts, unwrapped; a step that its
device cannot have drawn since the counter last moved is a gap of kind `jump`, and the twin takes that from the tape. A
gauge adds raw value × nanoseconds, each value held backwards from its publication to the one before; after more than
three expected periods it covers one expected period only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from everywatt.core.channels import Channel, GroupInfo, Kind, Row
from everywatt.core.clocks import NS
from everywatt.core.counters import WRAP_MARGIN, Case, difference
from everywatt.core.domains import WHOLE
from everywatt.core.lazy_dataclass import dataclass

GAP_PERIODS: Final = 3
# A counter that steps ahead by more than its device can draw has not counted it. Boards pass their limits for a moment,
# and firmware may report a wrong one, so nothing is refused that three times the limit, or a kilowatt, explains.
JUMP_LIMITS: Final = 3.0
JUMP_LEAST_W: Final = 1_000.0
CHIP_W: Final = 5_000.0  # no chip or module draws as much: the limit of one that reports no limit
JUMP_SLACK_S: Final = 0.1  # of a step's time, and two publications
UNKNOWN_PERIOD_S: Final = 1.0
_SHORT: Final = struct.Struct("<Bdq")
_CARRY: Final = struct.Struct("<dq")


class Cum(NamedTuple):
    """A channel at the first row of a frame.

    total      raw counts (counter) or raw value × ns (gauge) since the tape's start
    observed_ns nanoseconds really observed since then
    last, last_ns  the last finite value and its publication, NaN and 0 where there was none; of a frame that was read
                   None and 0 where it is the first row's own
    """

    total: float
    observed_ns: int
    last: float | None
    last_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """A gap that a row showed. `channel` is None where it is the whole group's."""

    channel: str | None
    start_ns: int
    end_ns: int
    kind: str
    count: float | None = None
    most: float | None = None


def publication_ns(row: Row) -> int:
    """When a row's values were published, as well as is known."""
    return (row.early_ns + row.late_ns) // 2


def expected_ns(expected_period_s: float) -> int:
    """The expected period in whole nanoseconds, at least one."""
    return max(1, round(expected_period_s * NS))


def energy_channels(info: GroupInfo) -> list[int]:
    """Positions of the channels of a group that accumulate."""
    return [index for index, channel in enumerate(info.channels) if channel.carries_energy]


def most_per_s(channel: Channel) -> float | None:
    """The most raw counts a counter can make in a second."""
    return None if channel.facts.max_w is None or channel.scale <= 0 else channel.facts.max_w / channel.scale


def jump_per_s(channel: Channel) -> float:
    """Raw counts a second that no device behind a counter can draw; infinite where nothing is known of it."""
    watts = CHIP_W if channel.domain not in (*WHOLE, None) else math.inf
    if channel.facts.max_w is not None:
        watts = max(JUMP_LIMITS * channel.facts.max_w, JUMP_LEAST_W)
    return watts / channel.scale if channel.scale > 0 else math.inf


def jump_slack_s(channel: Channel) -> float:
    """Seconds beyond those between two values that a step may have been counted in."""
    period_s = channel.facts.period_s
    return JUMP_SLACK_S + 2 * (UNKNOWN_PERIOD_S if period_s is None else period_s)


def _plain_ns(channel: Channel) -> float:
    """Nanoseconds in which a counter cannot pass its range even once; infinite where range or limit is unknown."""
    wrap, rate = channel.facts.wrap, most_per_s(channel)
    return wrap / (rate * WRAP_MARGIN) * NS if wrap and rate else math.inf


def least_jump(channel: Channel) -> float:
    """Steps of a counter up to this many raw counts are never refused, however short their time."""
    return jump_per_s(channel) * jump_slack_s(channel)


@dataclass(slots=True)
class _State:
    index: int
    name: str
    counter: bool
    wrap: float | None
    most_per_s: float | None
    jump_per_s: float
    slack_s: float
    plain_ns: float  # a step ahead within so short a time cannot hide a wrap, by the rule of `core.counters`
    total: float = 0.0
    observed_ns: int = 0
    last: float = math.nan
    last_ns: int = 0
    moved_ns: int | None = None  # since when the counter has had its last value; None where that is not known

    def counter_row(self, value: float, at_ns: int) -> Found | None:
        ahead = value - self.last
        small = 0 <= ahead <= self.jump_per_s * self.slack_s and ahead < math.inf
        if small and at_ns - self.last_ns < self.plain_ns:  # nearly always
            self.total += ahead
            self.observed_ns += at_ns - self.last_ns
            self._now(value, at_ns)
            return None
        if not math.isfinite(value):
            return None
        found = None
        step = difference(
            self.last, value, wrap=self.wrap, seconds=(at_ns - self.last_ns) / NS, most_per_s=self.most_per_s
        )
        if step.case is Case.RESET:
            found = Found(self.name, self.last_ns, at_ns, "reset")
        elif step.case is not Case.MISSING and self._jumped(step.count, at_ns):
            found = Found(self.name, self.last_ns, at_ns, "jump", step.count)
        elif step.case is not Case.MISSING:
            self.total += step.count
            self.observed_ns += at_ns - self.last_ns
            if step.case is Case.MANY_WRAPS:
                found = Found(self.name, self.last_ns, at_ns, "many-wraps", step.count, step.most)
        self._now(value, at_ns)
        return found

    def _now(self, value: float, at_ns: int) -> None:
        if value != self.last:
            self.moved_ns = at_ns
        self.last, self.last_ns = value, at_ns

    def _jumped(self, count: float, at_ns: int) -> bool:
        """True for more counts than the device can have drawn since the counter last moved: one that stood still may
        catch up."""
        if self.moved_ns is None:
            return False
        return count > self.jump_per_s * ((at_ns - self.moved_ns) / NS + self.slack_s)

    def gauge_row(self, value: float, held_ns: int, at_ns: int) -> None:
        if math.isfinite(value):
            self.total += value * held_ns
            self.observed_ns += held_ns
            self.last, self.last_ns = value, at_ns


class Accumulator:
    """What every energy-carrying channel of one group has accumulated, fed row by row in order of publication."""

    def __init__(self, info: GroupInfo, expected_period_s: float) -> None:
        self.expected_ns = expected_ns(expected_period_s)
        self.last_ns: int | None = None
        self._states = [
            _State(
                i,
                c.name,
                c.kind is Kind.COUNTER,
                c.facts.wrap,
                most_per_s(c),
                jump_per_s(c),
                jump_slack_s(c),
                _plain_ns(c),
            )
            for i, c in enumerate(info.channels)
            if c.carries_energy
        ]

    @classmethod
    def resumed(
        cls,
        info: GroupInfo,
        expected_period_s: float,
        first: Row,
        cums: Sequence[Cum],
    ) -> Accumulator:
        """State from a frame's `cum`, at the frame's first row: the rows after it are to be added."""
        resumed = cls(info, expected_period_s)
        at_ns = resumed.last_ns = publication_ns(first)
        for state, (total, observed_ns, last, last_ns) in zip(resumed._states, cums, strict=True):
            state.total, state.observed_ns = total, observed_ns
            state.last, state.last_ns = (first.values[state.index], at_ns) if last is None else (last, last_ns)
        return resumed

    def add(self, row: Row, at_ns: int | None = None) -> list[Found]:
        """Take one row, and say which gaps it showed. Its publication (`at_ns`) must be after the one before."""
        at_ns = publication_ns(row) if at_ns is None else at_ns
        before = self.last_ns
        held_ns = 0 if before is None else at_ns - before
        found: list[Found] = []
        if held_ns > GAP_PERIODS * self.expected_ns:
            held_ns = self.expected_ns
            found.append(Found(None, before or 0, at_ns - held_ns, "missed"))
        for state in self._states:
            value = row.values[state.index]
            if state.counter:
                gap = state.counter_row(value, at_ns)
                if gap is not None:
                    found.append(gap)
            else:
                state.gauge_row(value, held_ns, at_ns)
        self.last_ns = at_ns
        return found

    def suspended(self) -> None:
        """The machine slept, and its clock with it: counters may have counted for long since their last value."""
        for state in self._states:
            state.moved_ns = None

    def cum(self) -> list[Cum]:
        return [Cum(s.total, s.observed_ns, s.last, s.last_ns) for s in self._states]


def pack_cum(cums: Sequence[Cum], first_ns: int) -> bytes:
    """Bytes of `frame.cum`. The last value is left out where it is the first row's own."""
    parts = []
    for cum in cums:
        if cum.last_ns == first_ns:
            parts.append(_SHORT.pack(0, cum.total, cum.observed_ns))
        else:
            parts.append(_SHORT.pack(1, cum.total, cum.observed_ns) + _CARRY.pack(cum.last, cum.last_ns))
    return b"".join(parts)


def unpack_cum(data: bytes, channels: int) -> list[Cum]:
    """The inverse."""
    cums: list[Cum] = []
    at = 0
    try:
        for _ in range(channels):
            carried, total, observed_ns = _SHORT.unpack_from(data, at)
            at += _SHORT.size
            last, last_ns = None, 0
            if carried:
                last, last_ns = _CARRY.unpack_from(data, at)
                at += _CARRY.size
            cums.append(Cum(total, observed_ns, last, last_ns))
    except struct.error:
        raise ValueError("cum ends early") from None
    if at != len(data):
        raise ValueError("cum has a wrong length")
    return cums
