"""Planned stretches against publishers in closed form, on a clock that moves only when told to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from fake_clock import FakeClock

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.recorder.phase_lock import Tracker
from everywatt.recorder.schedule import PlannedReads, Schedule, plan
from everywatt.recorder.source import Source

MS = 1_000_000
S = 1000 * MS
COST_NS = 60_000


class Card:
    """A counter that is published every 100 ms, at a phase that may jump."""

    def __init__(self, number: int, clock: FakeClock, phase_ns: float, tracked: bool = True) -> None:
        facts = Facts(period_s=0.1 if tracked else 0.001)
        channel = Channel(f"gpu.{number}.energy", "J", Kind.COUNTER, f"gpu.{number}", Domain.GPU, facts=facts)
        self.info = GroupInfo(f"gpu.{number}", "x", f"gpu.{number}", (channel,), tracked=tracked)
        self.clock, self.phase_ns, self.step_ns = clock, phase_ns, (100 if tracked else 1) * MS
        self.reads = 0
        self.broken = False

    def published_ns(self, value: float) -> int:
        return round(value * self.step_ns + self.phase_ns)

    def read(self) -> list[Row]:
        self.reads += 1
        if self.broken:
            raise OSError("gone")
        before = self.clock.now_ns
        value = (before - self.phase_ns) // self.step_ns
        self.clock.now_ns += COST_NS
        return [Row(before, before - self.step_ns, before + COST_NS, (float(value),))]

    def close(self) -> None: ...


@dataclass
class Heard:
    """Whatever sources hand on."""

    period_ns: int = 100 * MS
    got: dict[str, list[Row]] = field(default_factory=dict)
    counts: tuple[int, int] = (0, 0)
    remarks: list[str] = field(default_factory=list)

    def rows(self, source: Source, rows: list[Row]) -> None:
        self.got.setdefault(source.info.name, []).extend(rows)

    def ticks(self, source: Source, late: int, missed: int) -> None:
        self.counts = self.counts[0] + late, self.counts[1] + missed

    def remark(self, at_ns: int, kind: str, text: str, **data: Any) -> None:
        self.remarks.append(text)

    def table(self, *_: Any) -> None: ...
    def gap(self, *_: Any) -> None: ...


class Lab:
    """Eight cards and a plain counter; `messages` are instants at which somebody wants to be served."""

    def __init__(self, seed: int = 3) -> None:
        rng = random.Random(seed)
        self.rng = random.Random(seed + 1)
        self.clock = FakeClock()
        self.start_ns = self.clock.now_ns
        self.heard = Heard()
        self.schedule = Schedule(self.clock.now_ns)
        self.messages: list[int] = []
        self.cards = [Card(n, self.clock, rng.random() * 100 * MS) for n in range(8)]
        self.cards.append(Card(8, self.clock, 0.0, tracked=False))
        self.sources = [Source(card, self.clock, [self.heard]) for card in self.cards]
        for source in self.sources:
            if source.info.tracked:
                source.tracker = Tracker(source.info, 100 * MS, self.clock.now_ns)
            self.schedule.add(source, 100 * MS, self.clock.now_ns)
        self.planned = PlannedReads(self.clock, self.schedule, self.wait, self.read)

    def wait(self, at_ns: int) -> bool:
        if self.messages and self.messages[0] <= at_ns:
            self.clock.now_ns = max(self.clock.now_ns, self.messages.pop(0))
            return True
        self.clock.now_ns = max(self.clock.now_ns, at_ns) + round(abs(self.rng.gauss(0, 0.1)) * MS)
        return False

    def read(self, source: Source) -> None:
        began = self.clock.now_ns
        source.read()
        source.count(*self.schedule.done(source, began, self.clock.now_ns))

    def run(self, seconds: float) -> int:
        """As the recorder does: one ordinary wake-up, then stretches of a second for as long as they go smoothly."""
        end_ns, stretches = self.clock.now_ns + round(seconds * S), 0
        while self.clock.now_ns < end_ns:
            self.wait(self.schedule.wake_ns() or 0)
            for source in self.schedule.due(self.clock.now_ns):
                self.read(source)  # type: ignore[arg-type]
            while self.clock.now_ns < end_ns and self.planned.go(self.clock.now_ns + S):
                stretches += 1
        return stretches

    def check(self, since_ns: int, width_ms: float = 3.0) -> None:
        for card in self.cards[:8]:
            rows = [row for row in self.heard.got[card.info.name] if row.read_ns > since_ns]
            published = (self.clock.now_ns - since_ns) / (100 * MS)
            assert len(rows) >= 0.97 * published - 1
            inside = [row.early_ns <= card.published_ns(row.values[0]) <= row.late_ns for row in rows]
            assert all(inside)
            widths = sorted(row.late_ns - row.early_ns for row in rows)
            assert widths[int(0.95 * len(widths))] <= width_ms * MS
            assert [row.values[0] for row in rows] == sorted({row.values[0] for row in rows})


def test_planned_stretches_see_every_publication_in_its_bracket() -> None:
    lab = Lab()
    lab.run(10)
    before, wakes, since = [card.reads for card in lab.cards], lab.planned.wakes, lab.clock.now_ns
    assert lab.run(30) >= 25
    lab.check(since)
    seconds = (lab.clock.now_ns - since) / S
    assert (lab.planned.wakes - wakes) / seconds <= 16  # ten, and a few of their own for probes
    for card, count in zip(lab.cards, before, strict=True):
        assert (card.reads - count) / seconds <= 11
    assert lab.heard.counts == (0, 0)


def test_what_was_planned_is_what_an_ordinary_schedule_does() -> None:
    lab = Lab()
    lab.run(12)
    now = lab.clock.now_ns
    stops, restless = plan(lab.schedule, now, now + S)
    assert restless == []
    plain = [stop for stop in stops if lab.sources[8] in [member.source for member in stop.members]]
    assert len(plain) in (9, 10)
    assert all((stop.at_ns - lab.schedule.origin_ns) % (100 * MS) == 0 for stop in plain)
    for stop in stops:
        for member in stop.members:
            assert member.earliest_ns <= stop.at_ns <= member.latest_ns


def test_a_phase_that_jumps_ends_the_stretch_and_is_found_again() -> None:
    lab = Lab()
    lab.run(12)
    lab.cards[3].phase_ns += 37 * MS
    lab.run(12)
    since = lab.clock.now_ns
    lab.run(10)
    lab.check(since)


def test_a_message_ends_a_stretch_and_nothing_is_lost() -> None:
    lab = Lab()
    lab.run(12)
    since = lab.clock.now_ns
    lab.messages = [since + round(step * 0.37 * S) for step in range(1, 27)]
    lab.run(10)
    lab.check(since)


def test_a_wake_up_that_comes_far_too_late_is_counted() -> None:
    lab = Lab()
    lab.run(12)
    lab.messages = [lab.clock.now_ns + 450 * MS]
    lab.clock.now_ns += 440 * MS
    lab.run(2)
    assert lab.heard.counts[1] >= 3


def test_a_sensor_that_fails_is_found_by_the_ordinary_read() -> None:
    lab = Lab()
    lab.run(12)
    lab.cards[8].broken = True
    lab.run(0.3)
    assert lab.sources[8].outage is not None
    assert lab.heard.remarks == ["gpu.8 cannot be read: OSError: gone"]


def test_a_young_lock_is_looked_at_after_each_read() -> None:
    lab = Lab()
    lab.run(3)
    stops, restless = plan(lab.schedule, lab.clock.now_ns, lab.clock.now_ns + S)
    assert len(restless) == 8
    assert {member.source for stop in stops for member in stop.members} == {lab.sources[8]}
