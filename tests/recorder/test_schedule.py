from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.recorder.phase_lock import Tracker
from everywatt.recorder.schedule import Schedule

MS = 1_000_000
S = 1000 * MS
START = 7_000 * S


@dataclass(eq=False)
class Group:
    """As much of a source as the schedule looks at."""

    name: str = "a"
    sensor: str = ""
    tracker: Tracker | None = None

    @property
    def info(self) -> Any:
        return self


def run(
    schedule: Any, seconds: float, cost_ns: int, late_ns: int = 0, counted: list[tuple[bool, int]] | None = None
) -> list[int]:
    """The times of all reads; `counted` gets what the schedule says of each: late, and how many were missed."""
    now, reads, counted = START, [], [] if counted is None else counted
    while True:
        wake = schedule.wake_ns()
        assert wake is not None
        now = max(now, wake + late_ns)
        if now >= START + seconds * S:
            return reads
        for key in schedule.due(now):
            reads.append(now)
            began, now = now, now + cost_ns
            counted.append(schedule.done(key, began, now))


def test_a_slow_read_does_not_make_the_schedule_drift() -> None:
    schedule: Any = Schedule(START)
    schedule.add(Group(), 100 * MS, START)
    reads = run(schedule, 60, 15 * MS, counted=(counted := []))
    assert abs(len(reads) - 600) <= 1
    assert {(t - START) % (100 * MS) for t in reads} == {0}
    assert set(counted) == {(False, 0)}


def test_late_and_missed_ticks_are_counted() -> None:
    schedule: Any = Schedule(START)
    schedule.add(a := Group(), 100 * MS, START)
    assert schedule.done(a, START, START + MS) == (False, 0)
    assert schedule.done(a, START + 106 * MS, START + 107 * MS) == (True, 0)
    assert schedule.done(a, START + 450 * MS, START + 451 * MS) == (True, 2)
    assert schedule.slots[a].deadline_ns == START + 500 * MS


def test_a_read_that_takes_longer_than_its_period_misses_ticks() -> None:
    schedule: Any = Schedule(START)
    schedule.add(Group(), 100 * MS, START)
    reads = run(schedule, 10, 250 * MS, counted=(counted := []))
    assert 33 <= len(reads) <= 35
    assert sum(missed for _, missed in counted) == 2 * len(reads)


def test_groups_share_a_grid() -> None:
    schedule: Any = Schedule(START)
    schedule.add(Group("fast"), 100 * MS, START + 33 * MS)
    schedule.add(Group("slow"), S, START + 34 * MS)
    reads = run(schedule, 10, 0)
    assert len(set(reads)) <= 102


def test_slow_groups_take_turns() -> None:
    schedule: Any = Schedule(START)
    for number in range(10):
        schedule.add(Group(sensor=f"sensor {number}"), S, START)
    reads = run(schedule, 10, 0)
    later = [t for t in reads if t > START + S]
    assert max(later.count(t) for t in set(later)) == 1


def test_slow_groups_of_one_sensor_are_read_together() -> None:
    schedule: Any = Schedule(START)
    for group in [Group(sensor=sensor) for sensor in ("cards", "cards", "use", "cards")]:
        schedule.add(group, S, START)
        schedule.done(group, START, START)
    turns = [(slot.deadline_ns - START) % S for slot in schedule.slots.values()]
    assert turns == [0, 0, 100 * MS, 0]


def test_a_faster_period_takes_over() -> None:
    schedule: Any = Schedule(START)
    schedule.add(a := Group(), S, START)
    schedule.done(a, START, START)
    schedule.change(a, 100 * MS, START + 50 * MS)
    assert schedule.wake_ns() == START + 100 * MS


def test_eight_tracked_groups_need_about_one_wake_up_a_period() -> None:
    rng = random.Random(4)
    schedule: Any = Schedule(START)
    phases = [rng.random() * 100 * MS for _ in range(8)]
    widths = []
    for number in range(8):
        facts = Facts(period_s=0.1)
        channel = Channel(f"gpu.{number}.energy", "J", Kind.COUNTER, f"gpu.{number}", Domain.GPU, facts=facts)
        tracker = Tracker(GroupInfo(f"gpu.{number}", "x", "x", (channel,), tracked=True), 100 * MS, START)
        schedule.add(Group(tracker=tracker), 100 * MS, START)
    phase_of = dict(zip(schedule.slots, phases, strict=True))
    schedule.add(Group("rapl"), 100 * MS, START)
    now, wakes, reads, rows = START, 0, 0, 0
    while now < START + 30 * S:
        wake = schedule.wake_ns()
        assert wake is not None
        now = max(now, wake) + round(abs(rng.gauss(0, 0.1)) * MS)
        late = now > START + 10 * S
        wakes += late
        for key in schedule.due(now):
            began, now = now, now + 60_000
            tracker = key.tracker
            if tracker is not None:
                truth = (began - START + phase_of[key]) // (100 * MS)
                out = tracker.feed(began, now, Row(now, now, now, (float(truth),)))
                reads += late
                rows += late * len(out)
                widths += [row.late_ns - row.early_ns for row in out if late]
            schedule.done(key, began, now)
    assert rows >= 0.98 * 8 * 200
    assert reads <= 1.3 * 8 * 200
    assert sorted(widths)[int(len(widths) * 0.95)] <= 3 * MS
    # One a period for all, and a few of their own for probes (which have to be at their instants).
    assert wakes <= 20 * (2.2 * 10 + 8 * 2 / 3 + 8)
