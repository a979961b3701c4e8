"""The tracker against a publisher in closed form, whose every publication time is known."""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import dataclass, field

import pytest

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.recorder.phase_lock import State, Tracker

MS = 1_000_000
S = 1000 * MS
START = 5_000 * S


@dataclass
class Publisher:
    """Publishes every `period_ms`, with a phase, uniform jitter, and equal values now and then."""

    period_ms: float
    phase_ms: float = 0.0
    jitter_ms: float = 0.0
    equal: float = 0.0
    skip: float = 0.0
    counter: bool = True
    constant: bool = False
    seconds: float = 30.0
    seed: int = 1
    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        value, k = 100.0, 0
        while k * self.period_ms < (self.seconds + 3) * 1000:
            if rng.random() >= self.skip:
                at = START - S + (self.phase_ms + k * self.period_ms + rng.uniform(-1, 1) * self.jitter_ms) * MS
                self.times.append(round(at))
                if not self.constant and rng.random() >= self.equal:
                    value = value + rng.randint(1, 50) if self.counter else 100.0 + rng.random()
                self.values.append(value)
            k += 1

    def newest(self, t_ns: int) -> int:
        return bisect.bisect_right(self.times, t_ns) - 1


def group(declared_ms: float | None, kind: Kind) -> GroupInfo:
    facts = Facts(period_s=None if declared_ms is None else declared_ms / 1000)
    return GroupInfo(
        "gpu.0", "fake", "gpu.0", (Channel("gpu.0.energy", "J", kind, "gpu.0", Domain.GPU, facts=facts),), tracked=True
    )


@dataclass
class Outcome:
    rows: list[tuple[Row, int]]  # the row and the index of the publication that it shows
    reads: list[int]
    tracker: Tracker


def follow(
    publisher: Publisher,
    *,
    declared_ms: float | None = None,
    asked_ms: float = 100.0,
    cost_ms: float = 0.1,
    late_ms: float = 0.2,
    seed: int = 2,
) -> Outcome:
    rng = random.Random(seed)
    kind = Kind.COUNTER if publisher.counter else Kind.GAUGE
    tracker = Tracker(group(declared_ms, kind), round(asked_ms * MS), START)
    now, rows, reads = START, [], []
    while now < START + publisher.seconds * S:
        window = tracker.due
        wake = max(now, (window.earliest_ns + window.latest_ns) // 2) + round(abs(rng.gauss(0, late_ms)) * MS)
        looked = wake + round(rng.random() * cost_ms * MS)
        index = publisher.newest(looked)
        now = wake + round(cost_ms * MS)
        reads.append(wake)
        rows += [(row, index) for row in tracker.feed(wake, now, Row(now, now, now, (publisher.values[index],)))]
    return Outcome(rows, reads, tracker)


def settled(outcome: Outcome, after_s: float = 1.0) -> list[tuple[Row, int]]:
    return [(row, index) for row, index in outcome.rows if row.read_ns > START + after_s * S]


def check(
    publisher: Publisher, outcome: Outcome, width_ms: float = 2.5, calls: float = 1.3, holds: float = 0.99
) -> None:
    rows = settled(outcome)
    times = publisher.times
    assert outcome.tracker.state is State.LOCKED
    inside = [row.early_ns <= times[index] <= row.late_ns for row, index in rows]
    assert sum(inside) >= holds * len(inside)
    widths = sorted(row.late_ns - row.early_ns for row, _ in rows)
    assert widths[int(0.95 * len(widths))] <= width_ms * MS
    errors = [abs((row.early_ns + row.late_ns) / 2 - times[index]) for row, index in rows]
    assert sum(errors) / len(errors) <= 1 * MS
    reads = [t for t in outcome.reads if t > START + 2 * S]
    rate = len(reads) / ((reads[-1] - reads[0]) / S)
    assert rate <= calls * 1000 / publisher.period_ms
    published = publisher.newest(outcome.reads[-1]) - publisher.newest(START + S)
    assert len(rows) >= 0.97 * published


@pytest.mark.parametrize("phase", [0.0, 13.0, 48.5, 77.7, 99.9])
@pytest.mark.parametrize(
    ("period", "declared"),
    [(100.0, 100.0), (100.02, 100.0), (98.7, 100.0), (20.0, 20.0), (20.003, None), (100.0, None), (50.0, None)],
)
@pytest.mark.parametrize("counter", [True, False])
def test_locks_on_to_any_phase_and_period(phase: float, period: float, declared: float | None, counter: bool) -> None:
    publisher = Publisher(period, phase, counter=counter)
    check(publisher, follow(publisher, declared_ms=declared, asked_ms=min(period, 100.0)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("jitter", [0.1, 0.3, 0.6, 1.0])
def test_jitter_of_the_hardware_widens_the_bracket_as_far_as_needed(jitter: float, seed: int) -> None:
    publisher = Publisher(100.0, 31.0, jitter_ms=jitter, seed=seed, seconds=40)
    holds = {0.1: 0.99, 0.3: 0.985, 0.6: 0.75, 1.0: 0.75}[jitter]  # large ones are learnt in the first seconds
    check(publisher, follow(publisher, declared_ms=100.0, seed=seed), width_ms=2.5 + 5 * jitter, holds=holds)


@pytest.mark.parametrize("counter", [True, False])
@pytest.mark.parametrize(("period", "asked"), [(100.0, 100.0), (20.0, 20.0), (20.0, 100.0)])
def test_brackets_hold_publications_that_stray_by_two_milliseconds(period: float, asked: float, counter: bool) -> None:
    inside = []
    for seed in range(6):
        publisher = Publisher(period, 11.0, jitter_ms=1.0, seed=seed, seconds=30, counter=counter)
        outcome = follow(publisher, declared_ms=period, asked_ms=asked, seed=seed)
        rows = settled(outcome, 8.0)
        inside += [row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows]
    assert sum(inside) >= 0.93 * len(inside)


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_machine_that_wakes_us_late_widens_nothing_wrongly(seed: int) -> None:
    publisher = Publisher(100.0, 31.0, seed=seed)
    outcome = follow(publisher, declared_ms=100.0, late_ms=3.0, cost_ms=0.5, seed=seed)
    rows = settled(outcome, 2.0)
    assert len(rows) >= 0.93 * 280
    assert all(row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows)
    assert sorted(row.late_ns - row.early_ns for row, _ in rows)[len(rows) // 2] <= 4 * MS


@pytest.mark.parametrize("declared", [None, 20.0, 100.0])
@pytest.mark.parametrize("seed", range(6))
def test_no_wrong_period_is_locked_on_to_however_late_we_wake(seed: int, declared: float | None) -> None:
    publisher = Publisher(20.0, 3.0 * seed, seed=seed)
    outcome = follow(publisher, declared_ms=declared, asked_ms=100.0, late_ms=1.5, cost_ms=0.5, seed=seed)
    if outcome.tracker.locked:
        assert outcome.tracker.period_ns == pytest.approx(20 * MS, rel=2e-3)
    rows = settled(outcome, 3.0)
    assert sum(row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows) >= 0.97 * len(rows)


def test_equal_values_of_a_gauge_are_no_contradiction() -> None:
    publisher = Publisher(100.0, 31.0, counter=False, equal=0.4)
    check(publisher, follow(publisher, declared_ms=100.0))


def test_publications_that_the_hardware_skips_are_absent() -> None:
    publisher = Publisher(100.0, 31.0, skip=0.03)
    outcome = follow(publisher, declared_ms=100.0)
    check(publisher, outcome)
    assert outcome.tracker.absent > 0
    indices = [index for _, index in outcome.rows]
    assert len(indices) == len(set(indices))


def test_a_steady_gauge_still_gives_a_row_each_period() -> None:
    publisher = Publisher(100.0, 31.0, counter=False, constant=True)
    outcome = follow(publisher, declared_ms=100.0)
    rows = settled(outcome)
    assert outcome.tracker.state is State.FREE
    assert 0.97 * 290 <= len(rows) <= 291
    assert all(row.early_ns == row.late_ns - 100 * MS for row, _ in rows)
    assert all(row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows)
    assert len(outcome.reads) < 30 * 10 * 1.3


def test_a_wrongly_declared_period_is_unlearnt() -> None:
    publisher = Publisher(20.0, 3.0)
    outcome = follow(publisher, declared_ms=100.0, asked_ms=20.0)
    assert outcome.tracker.period_ns == pytest.approx(20 * MS, rel=1e-3)
    check(publisher, outcome)


def test_reads_no_more_often_than_asked_and_still_knows_the_time() -> None:
    publisher = Publisher(20.0, 3.0)
    outcome = follow(publisher, declared_ms=20.0, asked_ms=100.0)
    rows = settled(outcome, 1.5)
    assert 0.95 * 285 <= len(rows) <= 1.3 * 290
    assert all(row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows)
    assert max(row.late_ns - row.early_ns for row, _ in rows) <= 3.2 * MS
    assert len([t for t in outcome.reads if t > START + 2 * S]) / 28 <= 13


@pytest.mark.parametrize("phase_ms", [120, 420, 820])
def test_reads_are_where_they_are_aimed_at(phase_ms: int) -> None:
    publisher = Publisher(100.0, 41.7, seconds=30.0)
    tracker = follow(Publisher(100.0, 41.7, seconds=20.0), declared_ms=100.0, asked_ms=1000.0).tracker
    assert tracker.locked
    at = START + 22 * S + phase_ms * MS
    tracker.aim(at)
    found = []
    while (window := tracker.due).latest_ns < at + 3 * S:
        found += [window] if window.latest_ns - window.earliest_ns > 50 * MS else []  # the others are probes
        now = sum(window) // 2
        tracker.feed(now, now, Row(now, now, now, (publisher.values[publisher.newest(now)],)))
    shares = [w.earliest_ns - 3 * MS <= at + k * S <= w.latest_ns + 3 * MS for k, w in enumerate(found[-3:])]
    assert shares == [True] * 3, "within one publication of the instant, a second apart"


def test_a_sensor_that_answers_every_five_seconds_is_named() -> None:
    publisher = Publisher(5000.0, 700.0, seconds=60)
    outcome = follow(publisher, declared_ms=None, asked_ms=100.0)
    assert outcome.tracker.trouble is not None
    assert "gpu.0.energy" in outcome.tracker.trouble
    assert "5 s" in outcome.tracker.trouble
    assert outcome.tracker.period_ns == pytest.approx(5000 * MS, rel=0.02)
    late = [row for row, _ in outcome.rows if row.read_ns > START + 40 * S]
    assert 3 <= len(late) <= 5


def test_a_phase_that_jumps_is_found_again() -> None:
    publisher = Publisher(100.0, 31.0, seconds=30)
    middle = bisect.bisect_right(publisher.times, START + 15 * S)
    publisher.times[middle:] = [t + 37 * MS for t in publisher.times[middle:]]
    outcome = follow(publisher, declared_ms=100.0)
    rows = [(row, index) for row, index in outcome.rows if row.read_ns > START + 22 * S]
    assert len(rows) >= 75
    assert all(row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows)
    assert max(row.late_ns - row.early_ns for row, _ in rows) <= 2.5 * MS


def test_values_that_are_missing_give_no_rows_and_no_crash() -> None:
    tracker = Tracker(group(100.0, Kind.GAUGE), 100 * MS, START)
    now = START
    for step in range(400):
        now = max(now, tracker.due.earliest_ns)
        tracker.feed(now, now + 1000, Row(now, now, now, (float("nan") if step % 3 else float(step),)))
        now += 1000
    assert now < START + 60 * S


def test_publications_on_both_sides_of_a_span_edge_are_read() -> None:
    """A sensor that publishes every 10 ms and is read every 100 ms: edges are as sharp as its publications."""
    publisher, rng = Publisher(10.0, 3.0, seconds=20), random.Random(1)
    tracker = Tracker(group(None, Kind.COUNTER), 100 * MS, START)
    edges = sorted(START + rng.randint(3 * S, 19 * S) for _ in range(40))
    waiting, now, shown, reads = list(edges), START, set(), 0
    while now < START + publisher.seconds * S:
        window = tracker.due
        wake = max(now, (window.earliest_ns + window.latest_ns) // 2)
        if waiting and waiting[0] < wake:
            told = max(now, waiting[0] + MS // 5)
            tracker.edge(waiting.pop(0), told)
            now = told
            continue
        wake += round(abs(rng.gauss(0, 0.2)) * MS)
        index = publisher.newest(wake + MS // 20)
        now, reads = wake + MS // 10, reads + 1
        if tracker.feed(wake, now, Row(now, now, now, (publisher.values[index],))):
            shown.add(index)
    sides = [publisher.newest(edge) + side in shown for edge in edges for side in (0, 1)]
    assert sum(sides) >= 0.85 * len(sides)
    assert reads < 20 * 10 * 3


def test_a_gauge_that_seldom_changes_keeps_its_rows_and_finds_its_lock_again() -> None:
    """A square wave of 7 s: two publications in 35 differ from the one before."""
    publisher = Publisher(100.0, 31.0, counter=False, constant=True, seconds=40)
    publisher.values = [100.0 + 200.0 * ((k // 35) % 2) - 50.0 * (k % 35 == 0) for k in range(len(publisher.times))]
    outcome = follow(publisher, declared_ms=100.0, late_ms=0.5)
    assert max(b[1] - a[1] for a, b in itertools.pairwise(outcome.rows)) <= 2
    late = [(row, index) for row, index in outcome.rows if row.read_ns > START + 25 * S]
    assert outcome.tracker.state is State.LOCKED
    assert all(row.early_ns <= publisher.times[index] <= row.late_ns for row, index in late)
    widths = sorted(row.late_ns - row.early_ns for row, _ in late)
    assert widths[len(widths) // 2] < 40 * MS


def test_a_load_that_is_switched_every_seconds_is_no_slow_gauge() -> None:
    publisher = Publisher(100.0, 31.0, counter=False, constant=True, seconds=40)
    publisher.values = [100.0 + 200.0 * ((k // 35) % 2) for k in range(len(publisher.times))]
    outcome = follow(publisher, declared_ms=100.0)
    assert outcome.tracker.trouble is None
    assert len(outcome.rows) >= 0.97 * 400


@pytest.mark.parametrize("period", [1.0, 1.9])
@pytest.mark.parametrize("late", [0.2, 1.5])
def test_a_publisher_too_quick_to_be_placed_is_not_taken_for_one_as_slow_as_our_polls(
    period: float, late: float
) -> None:
    """Every read of a burst sees a change, so a publication is never older than the longest time between two."""
    publisher = Publisher(period, 0.3, seconds=10)
    outcome = follow(publisher, late_ms=late)
    rows = settled(outcome)
    assert outcome.tracker.state is State.FREE and len(rows) > 80
    inside = [row.early_ns <= publisher.times[index] <= row.late_ns for row, index in rows]
    assert sum(inside) >= 0.99 * len(inside)
    assert max(row.late_ns - row.early_ns for row, _ in rows) < 8 * MS


def test_a_quick_publisher_that_stands_still_may_have_become_slow() -> None:
    publisher = Publisher(1.0, seconds=10)
    stop = publisher.newest(START + 5 * S)
    publisher.values[stop:] = [publisher.values[stop]] * (len(publisher.values) - stop)
    rows = settled(follow(publisher), 6.0)
    assert rows and all(row.late_ns - row.early_ns >= 100 * MS for row, _ in rows)


def test_a_quick_publisher_is_read_twice_where_a_span_starts_or_ends() -> None:
    publisher = Publisher(1.0, 0.3, seconds=10)
    tracker = follow(publisher).tracker
    now = START + 10 * S + 30 * MS
    assert tracker.edge(now - MS // 5, now)
    reads = []
    for _ in range(3):
        wake = tracker.due.latest_ns
        value = publisher.values[publisher.newest(wake)]
        rows = tracker.feed(wake, wake + MS // 10, Row(wake, wake, wake, (value,)))
        assert len(rows) == 1
        reads.append(wake - now)
    assert reads[0] == 0 and MS < reads[1] < 12 * MS and reads[2] > 20 * MS
