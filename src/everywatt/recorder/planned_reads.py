"""Quiet stretches: the reads of the coming second are planned at once, made in few steps, and looked at together.

A process that wakes up ten times a second finds its code and its data gone from the processor's caches, so that every
step there costs several times what it costs in a loop. So between two flushes a wake-up only takes values
(`Source.take`) at stops that were planned beforehand, and all that was taken is looked at in one go before it is
written (`Source.settle`). What cannot be foreseen ends the stretch at once: a message, a value that did not change when
it should have, a wake-up that comes far too late. Cards whose phase is still sought are read and looked at as ever,
between the stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple

from everywatt.core.clocks import Clock
from everywatt.core.lazy_dataclass import dataclass
from everywatt.recorder.planned_tracker import PlannedTracker
from everywatt.recorder.publication_schedule import Window
from everywatt.recorder.schedule import SLACK, Schedule, Slot
from everywatt.recorder.source import Source

SHORTEST_NS = 250_000_000  # less than this is not worth a plan
PAUSE_NS = 300_000_000  # after a stretch that ended before it had so many stops as a plan is worth
WORTH_STOPS = 3
FAR_NS = 1 << 62


class Member(NamedTuple):
    """Whom to read at a stop, and within which bounds of time what comes is as foreseen."""

    source: Source
    earliest_ns: int = 0
    latest_ns: int = FAR_NS


class Stop(NamedTuple):
    """One wake-up and who is read at it, fast ones first."""

    at_ns: int
    members: tuple[Member, ...]


class Restless(NamedTuple):
    """A tracked source whose next read depends on what the last one showed."""

    source: Source
    slot: Slot
    tracker: PlannedTracker


@dataclass(slots=True)
class _Train:
    """The windows of a tracked source; of the next one when it begins and when it is high time."""

    source: Source
    tracker: PlannedTracker
    windows: list[Window]
    period_ns: int
    next: int = 0
    first_ns: int = 0
    last_ns: int = 0

    def turn(self) -> bool:
        """Look at the next window; False where there is none."""
        if self.next >= len(self.windows):
            return False
        window = self.windows[self.next]
        self.first_ns, self.last_ns = window.earliest_ns, _last_ns(window)
        return True


class _Seat(NamedTuple):
    """A member and its turn at a stop: fast ones first, and of those whoever has a deadline."""

    period_ns: int
    rank: int
    place: int
    member: Member


def plan(schedule: Schedule, now_ns: int, until_ns: int) -> tuple[list[Stop], list[Restless]]:
    """The stops until `until_ns`, and the sources that cannot be planned. No stops where somebody is on hold.

    The rules are those of `Schedule.wake_ns` and `Schedule.due`: whoever may be read at a fixed deadline is read there.
    """
    deadlines: dict[int, list[_Seat]] = {}
    trains: list[_Train] = []
    restless: list[Restless] = []
    for place, (source, slot) in enumerate(schedule.slots.items()):
        if not isinstance(source, Source) or source.outage is not None or slot.hold_ns > now_ns:
            return [], []
        tracker = source.tracker
        if tracker is None:
            seat, at = _Seat(slot.period_ns, 0, place, Member(source)), slot.deadline_ns
            while at < until_ns:
                deadlines.setdefault(at, []).append(seat)
                at = schedule.after(slot, at)
            deadlines.setdefault(at, [])  # the first one that is not kept: who can wait for it does
            continue
        windows = tracker.outlook(now_ns, until_ns)
        if windows:
            trains.append(_Train(source, tracker, windows, slot.period_ns))
        else:
            restless.append(Restless(source, slot, tracker))
    stops = _stops(deadlines, trains, until_ns)
    for train in trains:
        if train.next:
            train.tracker.commit(train.windows[train.next - 1])
    return stops, restless


def _stops(deadlines: dict[int, list[_Seat]], trains: list[_Train], until_ns: int) -> list[Stop]:
    """One stop at each deadline, and those between for who cannot wait, until there is a train without a window."""
    stops: list[Stop] = []
    times = [*sorted(deadlines), FAR_NS]
    going, passed = all(train.turn() for train in trains), 0
    soonest = min((train.first_ns for train in trains), default=FAR_NS)
    while going:
        at = deadline = times[passed]
        aboard: list[_Train] = []
        if soonest <= deadline:
            aboard = [train for train in trains if train.last_ns < deadline]
            if aboard:
                latest = min(train.last_ns for train in aboard)
                at = (max(train.first_ns for train in trains if train.first_ns <= latest) + latest) // 2
            aboard = [train for train in aboard or trains if train.first_ns <= at]
        if at >= until_ns:
            break
        seats = [_seat(place, train) for place, train in enumerate(aboard)]
        if at == deadline:
            seats += deadlines[at]
            passed += 1
        seats.sort()
        stops.append(Stop(at, tuple([seat.member for seat in seats])))
        if aboard:
            going = all(train.turn() for train in aboard)
            soonest = min(train.first_ns for train in trains)
    return stops


def _seat(place: int, train: _Train) -> _Seat:
    """A place in the next window of a train, which is used up."""
    window = train.windows[train.next]
    train.next += 1
    return _Seat(train.period_ns, 1, place, Member(train.source, *window))


def _last_ns(window: Window) -> int:
    """The last moment at which a read within a window is safe from a wake-up that comes late."""
    return window.latest_ns - (window.latest_ns - window.earliest_ns) // SLACK


@dataclass
class Cruise:
    """Carries out planned stretches. `wait(at_ns)` sleeps and gives True where something else has happened;
    `read(source)` reads one and looks at it at once."""

    clock: Clock
    schedule: Schedule
    wait: Callable[[int], bool]
    read: Callable[[Source], None]
    reads: int = 0
    wakes: int = 0
    _taken: dict[Source, None] = field(default_factory=dict)
    _not_before_ns: int = 0

    def go(self, until_ns: int) -> bool:
        """Read until `until_ns`, or until something unforeseen happens: then, and where nothing was done, False."""
        now = self.clock.monotonic_ns()
        if until_ns - now < SHORTEST_NS or now < self._not_before_ns:
            return False
        stops, restless = plan(self.schedule, now, until_ns)
        if not stops:
            self._not_before_ns = now + PAUSE_NS
            return False
        tolerance = self.schedule.fastest_ns() // 2
        done = 0
        while done < len(stops) and self._stop(stops[done], restless, tolerance):
            done += 1
        self.settle()
        now = self.clock.monotonic_ns()
        if done < len(stops):
            self._not_before_ns = now + (PAUSE_NS if done < WORTH_STOPS else 0)
            for source in self.schedule.slots:
                if isinstance(source, Source) and source.tracker is not None:
                    source.tracker.release(now)
        self.schedule.align(now)
        return done == len(stops)

    def _stop(self, stop: Stop, restless: Sequence[Restless], tolerance: int) -> bool:
        at = stop.at_ns
        if restless and not self._between(restless, at):
            return False
        if self.wait(at):
            return False
        self.wakes += 1
        monotonic_ns = self.clock.monotonic_ns
        began = monotonic_ns()
        if began - at > tolerance:
            return False
        taken = self._taken
        foreseen = True
        for source, earliest, latest in stop.members:
            taken[source] = None
            if not source.take(earliest, latest):
                foreseen = False
        for source, slot, tracker in restless:
            if tracker.due.earliest_ns <= monotonic_ns() and slot.hold_ns <= began:
                self.read(source)
                foreseen = foreseen and slot.tracker is not None and source.outage is None
        return foreseen and monotonic_ns() - began < tolerance

    def _between(self, restless: Sequence[Restless], at: int) -> bool:
        """Read the restless ones that cannot wait for the next stop, each at its own time."""
        while True:
            pressing = [entry for entry in restless if _last_ns(entry.tracker.due) < at]
            if not pressing:
                return True
            moments = [sum(entry.tracker.due) // 2 for entry in pressing]
            if self.wait(max(min(moments), pressing[0].slot.hold_ns)):
                return False
            self.wakes += 1
            now = self.clock.monotonic_ns()
            for source, slot, tracker in pressing:
                if tracker.due.earliest_ns <= now and slot.hold_ns <= now:
                    self.read(source)
                if slot.tracker is None or source.outage is not None:
                    return False

    def settle_plain(self, sources: Sequence[Source]) -> None:
        """Look at once at what was taken of those of `sources` that publish as they are read: newer rows are coming."""
        self._settle([source for source in sources if source.tracker is None and source in self._taken])

    def settle(self) -> None:
        """Look at all that was taken."""
        self._settle(list(self._taken))

    def _settle(self, sources: Sequence[Source]) -> None:
        for source in sources:
            del self._taken[source]
            times = source.settle()
            self.reads += len(times)
            if source.tracker is not None:
                self.schedule.slots[source].hold_ns = 0
                continue
            late = missed = 0
            for before, after in times:
                behind, lost = self.schedule.done(source, before, after)
                late, missed = late + behind, missed + lost
            source.count(late, missed)
