"""What a driver keeps of a card's power, in place of reads of its counter: on a clock that moves only when told to."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import FakeClock
from everywatt.core.errors import SensorError
from everywatt.recorder.planned_reads import Cruise
from everywatt.recorder.planned_tracker import PlannedTracker
from everywatt.recorder.schedule import Schedule
from everywatt.recorder.source import Source

MS = 1_000_000
S = 1000 * MS
COST_NS = 60_000
STEP_NS = 100 * MS


def joules(t_ns: float, steady: bool = False) -> float:
    """Energy in closed form: 150 W and a swing of 100 W that takes 1.7 s; or 150 W and nothing else."""
    t_s = t_ns / S
    swing = 0.0 if steady else 100 * 1.7 / math.tau * (1 - math.cos(math.tau * t_s / 1.7))
    return 150 * t_s + swing


class Card:
    """A counter in mJ and the mean power in mW, published every 100 ms; the driver keeps the last 40 readings.

    `window_ns` of each period is what power sees, `apart_ns` how much later it is published than the counter.
    """

    def __init__(
        self,
        clock: FakeClock,
        phase_ns: int,
        *,
        window_ns: int = STEP_NS,
        apart_ns: int = 0,
        steady: bool = False,
        counts: bool = True,
    ) -> None:
        facts = Facts(period_s=0.1, quantum=1e-3)
        energy = Channel("gpu.0.energy", "J", Kind.COUNTER, "gpu.0", Domain.GPU, 1e-3, facts=facts)
        power = Channel("gpu.0.power", "W", Kind.GAUGE, "gpu.0", Domain.GPU, 1e-3, facts=facts)
        average = Channel("gpu.0.power_average", "W", Kind.GAUGE, "gpu.0", Domain.GPU, 1e-3, facts=facts)
        channels = (energy, power, average) if counts else (power, average)
        self.info = GroupInfo("gpu.0", "x", "gpu.0", channels, tracked=True)
        self.keeps = 1 if counts else 0
        self.clock, self.phase_ns, self.window_ns, self.apart_ns = clock, phase_ns, window_ns, apart_ns
        self.steady, self.counts = steady, counts
        self.reads = self.looks = 0
        self.broken = self.silent = False

    def counter(self, k: int) -> float:
        return float(math.floor(joules(k * STEP_NS + self.phase_ns, self.steady) * 1e3))

    def power(self, k: int) -> float:
        end_ns = k * STEP_NS + self.phase_ns + self.apart_ns
        drawn = joules(end_ns, self.steady) - joules(end_ns - self.window_ns, self.steady)
        return float(round(drawn / self.window_ns * S * 1e3))

    def values(self, now_ns: int) -> tuple[float, ...]:
        k = (now_ns - self.phase_ns) // STEP_NS
        watts = self.power((now_ns - self.phase_ns - self.apart_ns) // STEP_NS)
        return (self.counter(k), watts, watts) if self.counts else (watts, watts)

    def read(self) -> list[Row]:
        self.reads += 1
        if self.broken:
            raise SensorError("gone")
        before = self.clock.now_ns
        values = self.values(before)
        self.clock.now_ns += COST_NS
        return [Row(before, before - STEP_NS, before + COST_NS, values)]

    def kept(self) -> tuple[list[int], list[float]]:
        self.looks += 1
        if self.silent:
            raise SensorError("no samples")
        last = (self.clock.now_ns - self.phase_ns - self.apart_ns) // STEP_NS
        numbers = range(last - 39, last + 1)
        times = [k * STEP_NS + self.phase_ns + self.apart_ns for k in numbers]
        return times, [self.power(k) for k in numbers]

    def filled(self, firsts: list[float], kept: list[float], reads_ns: list[int]) -> list[tuple[float, ...]]:
        pairs = zip(firsts, kept, strict=True)
        return [(first, watts, NAN) if self.counts else (first, NAN) for first, watts in pairs]

    def close(self) -> None: ...


class Package:
    """A plain counter that is read every 100 ms, so that there is a grid."""

    def __init__(self, clock: FakeClock) -> None:
        facts = Facts(period_s=0.001)
        channel = Channel("cpu.0.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, facts=facts)
        self.info = GroupInfo("cpu.0", "x", "cpu.0", (channel,))
        self.clock = clock

    def read(self) -> list[Row]:
        now = self.clock.now_ns
        self.clock.now_ns += COST_NS // 3
        return [Row(now, now - MS, now, (float(now // MS),))]

    def close(self) -> None: ...


class Lab:
    """One card and one package, read as the recorder does it."""

    def __init__(self, phase_ns: int = 37 * MS, **options: Any) -> None:
        self.rng = random.Random(5)
        self.clock = FakeClock()
        self.card = Card(self.clock, phase_ns, **options)
        self.period_ns = STEP_NS
        self.rows_of: dict[str, list[Row]] = {"gpu.0": [], "cpu.0": []}
        self.missed = 0
        self.messages: list[int] = []
        self.schedule = Schedule(self.clock.now_ns)
        self.sources = [Source(group, self.clock, [self]) for group in (self.card, Package(self.clock))]
        self.gpu = self.sources[0]
        self.gpu.tracker = PlannedTracker(self.card.info, STEP_NS, self.clock.now_ns)
        for source in self.sources:
            self.schedule.add(source, STEP_NS, self.clock.now_ns, source.tracker)
        self.cruise = Cruise(self.clock, self.schedule, self.wait, self.read)

    def rows(self, source: Source, rows: list[Row]) -> None:
        self.rows_of[source.info.name] += rows

    def ticks(self, source: Source, late: int, missed: int) -> None:
        self.missed += missed

    def remark(self, *_: Any, **__: Any) -> None: ...
    def table(self, *_: Any) -> None: ...
    def gap(self, *_: Any) -> None: ...

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
        if source.outage is not None:
            self.schedule.hold(source, self.clock.now_ns + source.outage.wait_ns)

    def run(self, seconds: float) -> None:
        end_ns = self.clock.now_ns + round(seconds * S)
        while self.clock.now_ns < end_ns:
            self.wait(self.schedule.wake_ns() or 0)
            for source in self.schedule.due(self.clock.now_ns):
                self.read(source)  # type: ignore[arg-type]
            while self.clock.now_ns < end_ns and self.cruise.go(self.clock.now_ns + S):
                pass

    def told(self, since_ns: int) -> list[Row]:
        return [row for row in self.rows_of["gpu.0"] if row.late_ns > since_ns]

    def check(self, since_ns: int) -> list[Row]:
        """Every publication since then is there once, in its bracket, with the counter's own value to 3 mJ."""
        rows = self.told(since_ns)
        numbers = []
        for row in rows:
            k = round((row.early_ns + row.late_ns - 2 * self.card.phase_ns) / 2 / STEP_NS)
            assert row.early_ns <= k * STEP_NS + self.card.phase_ns <= row.late_ns
            assert row.late_ns - row.early_ns < 4 * MS
            expected = self.card.counter(k) if self.card.counts else self.card.power(k)
            assert abs(row.values[0] - expected) <= (3 if self.card.counts else 0)
            numbers.append(k)
        assert all(b == a + 1 for a, b in pairwise(numbers))
        return rows


@pytest.fixture
def standing() -> Lab:
    lab = Lab()
    lab.run(14)
    assert lab.gpu.standin is not None and lab.gpu.standin.standing
    return lab


def test_a_counter_is_read_about_once_a_second_and_every_publication_is_told(standing: Lab) -> None:
    lab, since = standing, standing.clock.now_ns
    reads = lab.card.reads
    lab.run(40)
    rows = lab.check(since)
    assert len(rows) >= 390
    assert lab.card.reads - reads <= 160  # a read each second, and every few seconds one with probes in it
    assert sum(row.values[2] != row.values[2] for row in rows) >= 240  # what was not read is not told
    assert lab.missed == 0


def test_a_gauge_alone_is_kept_as_well() -> None:
    lab = Lab(counts=False)
    lab.run(14)
    assert lab.gpu.standin is not None and lab.gpu.standin.standing
    since, reads = lab.clock.now_ns, lab.card.reads
    lab.run(30)
    assert len(lab.check(since)) >= 290
    assert lab.card.reads - reads <= 150


@pytest.mark.parametrize(
    "options",
    [{"window_ns": 25 * MS}, {"apart_ns": 40 * MS}, {"apart_ns": 5 * MS}, {"steady": True}],
    ids=["part-time", "apart", "a little apart", "steady"],
)
def test_what_is_not_proved_is_read(options: dict[str, Any]) -> None:
    lab = Lab(**options)
    lab.run(12)
    since, reads, looks = lab.clock.now_ns, lab.card.reads, lab.card.looks
    lab.run(30)
    assert lab.gpu.standin is not None and not lab.gpu.standin.standing
    assert lab.gpu.standin.filled == 0
    assert len(lab.check(since)) >= 290
    assert lab.card.reads - reads >= 290
    assert lab.card.looks - looks <= (4 if not options.get("steady") else 9)


@pytest.mark.parametrize("every_s", [0.3, 0.45, 0.67, 0.9])
def test_a_message_in_the_midst_of_a_second_loses_nothing(standing: Lab, every_s: float) -> None:
    lab, since = standing, standing.clock.now_ns
    lab.messages = [since + round(step * every_s * S) for step in range(1, 40)]
    lab.run(12)
    assert len(lab.check(since)) >= 105  # up to a second is not told yet
    assert lab.missed == 0


def test_readings_that_no_longer_agree_are_not_believed(standing: Lab) -> None:
    lab = standing
    lab.card.window_ns = 25 * MS
    lab.run(3)
    since, reads = lab.clock.now_ns, lab.card.reads
    assert lab.gpu.standin is not None and not lab.gpu.standin.standing
    lab.run(6)
    assert len(lab.check(since)) >= 55
    assert lab.card.reads - reads >= 55


def test_joules_of_a_second_that_does_not_agree_are_the_counters_own(standing: Lab) -> None:
    lab, since = standing, standing.clock.now_ns
    lab.card.window_ns = 25 * MS
    lab.run(2)
    rows = lab.told(since)
    for row in rows:
        k = round((row.early_ns + row.late_ns - 2 * lab.card.phase_ns) / 2 / STEP_NS)
        assert abs(row.values[0] - lab.card.counter(k)) <= 3
    assert lab.missed >= 3  # and what was not read is said to be missing


def test_a_driver_that_keeps_nothing_any_more_is_read_again(standing: Lab) -> None:
    lab = standing
    lab.card.silent = True
    lab.run(3)
    since = lab.clock.now_ns
    lab.run(6)
    assert len(lab.check(since)) >= 55


def test_a_card_that_was_lost_proves_itself_anew(standing: Lab) -> None:
    lab = standing
    lab.card.broken = True
    lab.run(2)
    assert lab.gpu.standin is not None and not lab.gpu.standin.standing
    lab.card.broken = False
    lab.run(25)
    assert lab.gpu.standin.standing
    since = lab.clock.now_ns
    lab.run(10)
    assert len(lab.check(since)) >= 95


def test_a_phase_that_jumps_is_found_by_the_drivers_times(standing: Lab) -> None:
    lab = standing
    lab.run(20)
    lab.card.phase_ns += 23 * MS
    lab.run(9)
    since = lab.clock.now_ns
    lab.run(10)
    assert len(lab.check(since)) >= 95


@pytest.mark.parametrize("ppm", [0, 20, 200])
def test_times_of_the_driver_that_drift_move_no_publication(ppm: int) -> None:
    lab = Lab()
    began, kept = lab.clock.now_ns, lab.card.kept

    def late() -> tuple[list[int], list[float]]:
        times, values = kept()
        return [at + round(max(at - began, 0) * ppm * 1e-6) % (20 * MS) for at in times], values

    lab.card.kept = late  # type: ignore[method-assign]
    lab.run(14)
    since = lab.clock.now_ns
    lab.run(60)
    assert len(lab.check(since)) >= 590


def test_without_planned_stretches_publications_are_told_at_once(standing: Lab) -> None:
    lab = standing
    for _ in range(30):  # at the end of a run, with probes due or not
        lab.run(1.3)
        end_ns = lab.clock.now_ns + 6 * S // 10
        while lab.clock.now_ns < end_ns:
            lab.wait(lab.schedule.wake_ns() or 0)
            for source in lab.schedule.due(lab.clock.now_ns):
                lab.read(source)  # type: ignore[arg-type]
        assert lab.clock.now_ns - lab.rows_of["gpu.0"][-1].late_ns < 3 * STEP_NS
