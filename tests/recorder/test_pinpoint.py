"""Fast counters read on after a span's edge, against publications in closed form and a clock that is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.recorder.read_loop import AT_ONCE, Pinpoint
from everywatt.recorder.source import Source

US = 1_000
MS = 1_000 * US
PHASE_NS = 313 * US


@dataclass
class Ticking:
    """A clock that goes on by a little with every look at it."""

    now_ns: int = 5_000_000 * MS
    step_ns: int = 2 * US

    def monotonic_ns(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


@dataclass
class Package:
    """Publishes every millisecond; its second channel only every fourth time."""

    clock: Ticking
    period_s: float | None = 0.001
    paused_ns: dict[int, int] = field(default_factory=dict)
    reads: int = 0
    broken: bool = False

    def __post_init__(self) -> None:
        facts = Facts(period_s=self.period_s)
        channels = tuple(
            Channel(f"cpu.0.{part}.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, facts=facts) for part in "ab"
        )
        self.info = GroupInfo("rapl.cpu.0", "rapl", "cpu.0", channels, inline=True)

    def read(self) -> list[Row]:
        if self.broken:
            raise OSError("gone")
        self.reads += 1
        start = self.clock.monotonic_ns()
        self.clock.now_ns += self.paused_ns.pop(self.reads, 0)
        k = (self.clock.monotonic_ns() - PHASE_NS) // MS
        end = self.clock.monotonic_ns()
        return [Row(end, start - MS, end, (float(k), float(k // 4)))]

    def close(self) -> None: ...


@dataclass
class Tape:
    """What came of it."""

    period_ns: int = 100 * MS
    got: list[Row] = field(default_factory=list)

    def rows(self, source: Source, rows: list[Row]) -> None:
        self.got += rows


def search(package: Package, times: int = 1) -> list[Row]:
    source, tape = Source(package, package.clock), Tape()  # type: ignore[arg-type]
    source.listeners.append(tape)  # type: ignore[arg-type]
    pinpoint = Pinpoint(package.clock)  # type: ignore[arg-type]
    for _ in range(times):
        pinpoint.after_edge([source])
    return tape.got


def published_ns(value: float) -> int:
    return PHASE_NS + round(value) * MS


def test_the_next_publication_and_the_one_before_are_placed_to_microseconds() -> None:
    first, second = search(Package(Ticking()))
    assert second.values[0] == first.values[0] + 1
    for row, most_us in ((first, 70), (second, 30)):
        assert row.early_ns <= published_ns(row.values[0]) <= row.late_ns
        assert row.late_ns - row.early_ns <= most_us * US


def test_a_channel_that_stood_still_is_left_out() -> None:
    for start_ms in range(4):
        first, second = search(Package(Ticking(5_000_000 * MS + start_ms * MS)))
        moved = second.values[0] % 4 == 0
        assert [math.isnan(row.values[1]) for row in (first, second)] == [not moved] * 2


def test_a_publication_during_a_pause_is_no_news_and_the_next_one_is_waited_for() -> None:
    package = Package(Ticking(), paused_ns={4: 3 * MS})
    first, second = search(package)
    assert second.late_ns - second.early_ns <= 30 * US
    assert first.early_ns <= published_ns(first.values[0]) <= first.late_ns


def test_there_is_an_allowance() -> None:
    package = Package(Ticking())
    rows = search(package, times=200)
    assert len(rows) <= 2 * (AT_ONCE + 2)


def test_slow_counters_and_broken_ones_are_not_waited_for() -> None:
    slow, unknown, broken = Package(Ticking(), 0.1), Package(Ticking(), None), Package(Ticking(), broken=True)
    assert [search(package) for package in (slow, unknown, broken)] == [[], [], []]
    assert slow.reads == unknown.reads == 0
