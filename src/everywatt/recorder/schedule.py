"""When to read which group: absolute deadlines that do not drift, and as few wake-ups as possible.

A plain group is due at fixed instants of one common grid. A tracked group is due anywhere within a window between two
publications, so windows that overlap share one wake-up, at a fixed deadline where one falls into them. Where a group
publishes just at the grid's instants the grid is moved to where none does.

A process that wakes up ten times a second finds its code and its data gone from the processor's caches, so that every
step there costs several times what it costs in a loop. So the reads of the coming second, up to the next flush, are
planned at once (`plan`). A wake-up then only fetches values (`Source.read_raw`), and all of them are looked at in one
go before they are written (`Source.process`). The plan of a second with a counter that is read every 100 ms (R), and
two cards that publish at | and may be read anywhere in [ ]:

    deadlines of R   .    .    .    .    .    .    .    .    .    .    flush
    windows of A    |[  ]|[  ]|[  ]|[  ]|[  ]|[  ]|[  ]|[  ]|[  ]|[  ]|
    windows of B     |[            ]|[            ]|[            ]|
    stops            RA   RA   RAB  RA   RA   RAB  RA   RA   RAB  RA

A card is read at a deadline that falls into its window, else at a stop of its own in the part of the window that it
shares with others. What cannot be foreseen ends the plan at once: a message, a value that did not change when it should
have, a wake-up that comes far too late. Cards whose phase is still sought are read and looked at one by one, between
the stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple

from everywatt.core.clocks import Clock
from everywatt.core.lazy_dataclass import dataclass
from everywatt.recorder.phase_lock import Tracker
from everywatt.recorder.publication_schedule import Window
from everywatt.recorder.source import Source

MS = 1_000_000
LATE_NS = 5 * MS
SLACK = 16
CLEAR_NS = 4 * MS  # a fixed deadline this near to a publication cannot be shared with its group
ALIGN_NS = 2_000 * MS
SLOW_NS = 1000 * MS
SHORTEST_NS = 250_000_000  # less than this is not worth a plan
PAUSE_NS = 300_000_000  # after a stretch that ended before it had so many stops as a plan is worth
WORTH_STOPS = 3
FAR_NS = 1 << 62


@dataclass
class Figures:
    """How well the schedule of one group was kept."""

    asked_ns: int
    expected_ns: int
    since_ns: int
    rows: int = 0
    late: int = 0
    missed: int = 0

    def to_dict(self, now_ns: int) -> dict[str, float | int]:
        """Requested, expected (the sensor may be slower) and achieved rate in Hz; late and missed ticks."""
        seconds = max(now_ns - self.since_ns, 1) / 1e9
        return {
            "requested_hz": round(1e9 / self.asked_ns, 6),
            "expected_hz": round(1e9 / self.expected_ns, 6),
            "achieved_hz": round(self.rows / seconds, 4),
            "rows": self.rows,
            "late": self.late,
            "missed": self.missed,
        }

    def trouble(self, now_ns: int) -> str | None:
        """A sentence where ticks are missing, or far fewer came than can be expected."""
        seconds = (now_ns - self.since_ns) / 1e9
        expected = seconds * 1e9 / self.expected_ns
        if expected >= 20 and self.rows < 0.8 * expected:
            return (
                f"{1000000000.0 / self.expected_ns:.3g} rows/s were expected and {self.rows / seconds:.3g} rows/s "
                "were recorded."
            )
        if self.missed > 0.01 * expected + 1 or self.late > 0.05 * expected + 5:
            return f"{self.missed} ticks were missed and {self.late} late, of about {expected:.0f}."
        return None


@dataclass
class Slot:
    """One group's place in the schedule: a deadline on the grid, unless its tracker says when to read it."""

    period_ns: int
    deadline_ns: int
    offset_ns: int = 0  # from the grid: slow groups of different sensors take turns
    hold_ns: int = 0  # after a failure: not before this


@dataclass
class Schedule:
    """The slots of all groups, and the next wake-up. `origin_ns` is where the common grid starts."""

    origin_ns: int
    slots: dict[Source, Slot] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _align_ns: int = 0

    def add(self, source: Source, period_ns: int, now_ns: int) -> None:
        """A group that is read at once, and then every `period_ns`.

        Slow groups of one sensor are read in one go: the first of them finds the processor's caches cold, and the
        others cost two thirds of it.
        """
        turn = self._turns.setdefault(source.info.sensor, len(self._turns)) if period_ns >= SLOW_NS else 0
        self.slots[source] = Slot(period_ns, now_ns, period_ns // 10 * (turn % 10))

    def change(self, source: Source, period_ns: int, now_ns: int) -> None:
        """Another period from now on."""
        slot = self.slots[source]
        if slot.period_ns != period_ns:
            slot.period_ns = period_ns
            slot.deadline_ns = min(slot.deadline_ns, self.after(slot, now_ns))
            if source.tracker is not None:
                source.tracker.ask(period_ns, now_ns)

    def wake_ns(self) -> int | None:
        """The next wake-up, or None if there is nothing to read."""
        fixed = latest = None
        firsts = []
        for source, slot in self.slots.items():  # every wake-up comes here: one plain loop
            hold, tracker = slot.hold_ns, source.tracker
            if tracker is None:
                at = slot.deadline_ns if slot.deadline_ns > hold else hold
                if fixed is None or at < fixed:
                    fixed = at
                continue
            window = tracker.due
            firsts.append(window.earliest_ns if window.earliest_ns > hold else hold)
            # Not at the last moment: a wake-up that comes late would miss the publication.
            last = window.latest_ns - (window.latest_ns - window.earliest_ns) // SLACK
            if last < hold:
                last = hold
            if latest is None or last < latest:
                latest = last
        if latest is None or (fixed is not None and fixed <= latest):
            # Whoever is free to be read at the fixed deadline is read there; the others get a wake-up of their own.
            return fixed
        return (max(first for first in firsts if first <= latest) + latest) // 2

    def fastest_ns(self) -> int:
        """The shortest period of all groups; 1 s if there are no groups."""
        return min((slot.period_ns for slot in self.slots.values()), default=1_000 * MS)

    def due(self, now_ns: int) -> list[Source]:
        """The groups to read now: probes first, then those with a deadline, slow ones last."""
        found: list[tuple[int, int, int, Source]] = []
        patient: list[tuple[int, int, int, int, Source]] = []
        fixed = None
        for source, slot in self.slots.items():
            if source.tracker is None:
                at = slot.deadline_ns
                if fixed is None or at < fixed:
                    fixed = at
                if at <= now_ns and slot.hold_ns <= now_ns:
                    found.append((slot.period_ns, 1, len(found), source))
                continue
            # A probe that is a moment away joins in only at its own time: its instant is its purpose.
            earliest, latest = source.tracker.due
            if earliest > now_ns or slot.hold_ns > now_ns:
                continue
            if earliest == latest:
                found.append((0, 0, len(found), source))
            else:
                patient.append((latest - (latest - earliest) // SLACK, slot.period_ns, 2, len(patient), source))
        # Whoever can wait for the next deadline does: reads of many groups in one go cost least.
        found += [entry[1:] for entry in patient if fixed is None or fixed <= now_ns or entry[0] < fixed]
        found.sort()
        return [entry[3] for entry in found]

    def done(self, source: Source, began_ns: int, now_ns: int) -> tuple[bool, int]:
        """A group was read (`began_ns`): its next deadline is set. Gives whether it was late, and ticks missed."""
        slot = self.slots[source]
        slot.hold_ns = 0
        if source.tracker is not None:
            return False, 0
        behind = began_ns - slot.deadline_ns
        slot.deadline_ns = self.after(slot, slot.deadline_ns)
        missed = 0
        if slot.deadline_ns <= now_ns:
            ahead = self.after(slot, now_ns)
            missed = (ahead - slot.deadline_ns) // slot.period_ns
            slot.deadline_ns = ahead
        late = behind > max(LATE_NS, slot.period_ns // 20)
        return late, missed

    def align(self, now_ns: int) -> None:
        """Move the grid away from publications, into the widest pause between them, so that all share its wake-ups."""
        if now_ns < self._align_ns:
            return
        self._align_ns = now_ns + ALIGN_NS
        trackers = [source.tracker for source in self.slots if source.tracker is not None]
        plain = [slot for source, slot in self.slots.items() if source.tracker is None]
        period_ns = min((slot.period_ns for slot in plain), default=0)
        phases = sorted(
            (tracker.due.earliest_ns - self.origin_ns) % period_ns for tracker in trackers if _even(tracker, period_ns)
        )
        # A group is not read in the last moments before its next publication, so more room is wanted on that side.
        ahead_ns = period_ns // SLACK + CLEAR_NS
        if not phases or (phases[0] > ahead_ns and phases[-1] < period_ns - CLEAR_NS // 4):
            return
        pauses = zip(phases, [*phases[1:], phases[0] + period_ns], strict=True)
        width, start = max((after - before, before) for before, after in pauses)
        if width < ahead_ns + CLEAR_NS:
            return
        self.origin_ns += (start + (width - ahead_ns) // 2) % period_ns
        for slot in plain:
            slot.deadline_ns = min(slot.deadline_ns, self.after(slot, now_ns))

    def after(self, slot: Slot, now_ns: int) -> int:
        """The first instant of the grid after `now_ns`."""
        start = self.origin_ns + slot.offset_ns
        return start + ((now_ns - start) // slot.period_ns + 1) * slot.period_ns


def _even(tracker: Tracker, period_ns: int) -> bool:
    """True for a locked group that publishes about once in `period_ns` and is not being probed just now."""
    window, published_ns = tracker.due, tracker.period_ns
    if not tracker.locked or published_ns is None or window.latest_ns - window.earliest_ns < period_ns // 2:
        return False
    return abs(published_ns - period_ns) < period_ns // 50


class Member(NamedTuple):
    """Whom to read at a stop, and within which bounds of time what comes is as foreseen."""

    source: Source
    earliest_ns: int = 0
    latest_ns: int = FAR_NS


class Stop(NamedTuple):
    """One wake-up and who is read at it, fast ones first."""

    at_ns: int
    members: tuple[Member, ...]


class Unplanned(NamedTuple):
    """A tracked source whose next read depends on what the last one showed."""

    source: Source
    slot: Slot
    tracker: Tracker


@dataclass(slots=True)
class _Windows:
    """The windows of a tracked source; of the next one when it begins and when it is high time."""

    source: Source
    tracker: Tracker
    windows: list[Window]
    period_ns: int
    next: int = 0
    first_ns: int = 0
    last_ns: int = 0

    def turn(self) -> bool:
        """Look at the next window; False if there are no more windows."""
        if self.next >= len(self.windows):
            return False
        window = self.windows[self.next]
        self.first_ns, self.last_ns = window.earliest_ns, _last_ns(window)
        return True


class _Planned(NamedTuple):
    """A read at a stop and its order there: fast ones first, and of those whoever has a deadline."""

    period_ns: int
    rank: int
    place: int
    member: Member


def plan(schedule: Schedule, now_ns: int, until_ns: int) -> tuple[list[Stop], list[Unplanned]]:
    """The stops until `until_ns`, and the sources that cannot be planned. No stops where one is on hold.

    The rules are those of `Schedule.wake_ns` and `Schedule.due`: whoever may be read at a fixed deadline is read there.
    """
    deadlines: dict[int, list[_Planned]] = {}
    tracked: list[_Windows] = []
    unplanned: list[Unplanned] = []
    for place, (source, slot) in enumerate(schedule.slots.items()):
        if source.outage is not None or slot.hold_ns > now_ns:
            return [], []
        tracker = source.tracker
        if tracker is None:
            entry, at = _Planned(slot.period_ns, 0, place, Member(source)), slot.deadline_ns
            while at < until_ns:
                deadlines.setdefault(at, []).append(entry)
                at = schedule.after(slot, at)
            deadlines.setdefault(at, [])  # the first one that is not kept: who can wait for it does
            continue
        windows = tracker.outlook(now_ns, until_ns)
        if windows:
            tracked.append(_Windows(source, tracker, windows, slot.period_ns))
        else:
            unplanned.append(Unplanned(source, slot, tracker))
    stops = _stops(deadlines, tracked, until_ns)
    for one in tracked:
        if one.next:
            one.tracker.commit(one.windows[one.next - 1])
    return stops, unplanned


def _stops(deadlines: dict[int, list[_Planned]], tracked: list[_Windows], until_ns: int) -> list[Stop]:
    """One stop at each deadline, and those between for who cannot wait, until a tracked source has no window left."""
    stops: list[Stop] = []
    times = [*sorted(deadlines), FAR_NS]
    going, passed = all(one.turn() for one in tracked), 0
    soonest = min((one.first_ns for one in tracked), default=FAR_NS)
    while going:
        at = deadline = times[passed]
        joining: list[_Windows] = []
        if soonest <= deadline:
            joining = [one for one in tracked if one.last_ns < deadline]
            if joining:
                latest = min(one.last_ns for one in joining)
                at = (max(one.first_ns for one in tracked if one.first_ns <= latest) + latest) // 2
            joining = [one for one in joining or tracked if one.first_ns <= at]
        if at >= until_ns:
            break
        entries = [_entry(place, one) for place, one in enumerate(joining)]
        if at == deadline:
            entries += deadlines[at]
            passed += 1
        entries.sort()
        stops.append(Stop(at, tuple([entry.member for entry in entries])))
        if joining:
            going = all(one.turn() for one in joining)
            soonest = min(one.first_ns for one in tracked)
    return stops


def _entry(place: int, one: _Windows) -> _Planned:
    """A read in the next window of a source, which is used up."""
    window = one.windows[one.next]
    one.next += 1
    return _Planned(one.period_ns, 1, place, Member(one.source, *window))


def _last_ns(window: Window) -> int:
    """The last moment at which a read within a window is safe from a wake-up that comes late."""
    return window.latest_ns - (window.latest_ns - window.earliest_ns) // SLACK


@dataclass
class PlannedReads:
    """Carries out planned stretches. `wait(at_ns)` sleeps and gives True where something else has happened;
    `read(source)` reads one and looks at it at once."""

    clock: Clock
    schedule: Schedule
    wait: Callable[[int], bool]
    read: Callable[[Source], None]
    reads: int = 0
    wakes: int = 0
    _unprocessed: dict[Source, None] = field(default_factory=dict)
    _not_before_ns: int = 0

    def go(self, until_ns: int) -> bool:
        """Read until `until_ns`, or until something unforeseen happens: then, and where nothing was done, False."""
        now = self.clock.monotonic_ns()
        if until_ns - now < SHORTEST_NS or now < self._not_before_ns:
            return False
        stops, unplanned = plan(self.schedule, now, until_ns)
        if not stops:
            self._not_before_ns = now + PAUSE_NS
            return False
        tolerance = self.schedule.fastest_ns() // 2
        done = 0
        while done < len(stops) and self._stop(stops[done], unplanned, tolerance):
            done += 1
        self.process()
        now = self.clock.monotonic_ns()
        if done < len(stops):
            self._not_before_ns = now + (PAUSE_NS if done < WORTH_STOPS else 0)
            for source in self.schedule.slots:
                if source.tracker is not None:
                    source.tracker.release(now)
        self.schedule.align(now)
        return done == len(stops)

    def _stop(self, stop: Stop, unplanned: Sequence[Unplanned], tolerance: int) -> bool:
        at = stop.at_ns
        if unplanned and not self._between(unplanned, at):
            return False
        if self.wait(at):
            return False
        self.wakes += 1
        monotonic_ns = self.clock.monotonic_ns
        began = monotonic_ns()
        if began - at > tolerance:
            return False
        unprocessed = self._unprocessed
        foreseen = True
        for source, earliest, latest in stop.members:
            unprocessed[source] = None
            if not source.read_raw(earliest, latest):
                foreseen = False
        for source, slot, tracker in unplanned:
            if tracker.due.earliest_ns <= monotonic_ns() and slot.hold_ns <= began:
                self.read(source)
                foreseen = foreseen and source.tracker is not None and source.outage is None
        return foreseen and monotonic_ns() - began < tolerance

    def _between(self, unplanned: Sequence[Unplanned], at: int) -> bool:
        """Read the unplanned ones that cannot wait for the next stop, each at its own time."""
        while True:
            pressing = [entry for entry in unplanned if _last_ns(entry.tracker.due) < at]
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
                if source.tracker is None or source.outage is not None:
                    return False

    def process(self, plain: Sequence[Source] | None = None) -> None:
        """Look at all that was taken; or only at that of `plain` sources, which publish as they are read."""
        for source in list(self._unprocessed):
            if plain is not None and (source.tracker is not None or source not in plain):
                continue
            del self._unprocessed[source]
            slot, tracked = self.schedule.slots[source], source.tracker is not None
            times = source.process()
            self.reads += len(times)
            if tracked:
                slot.hold_ns, slot.deadline_ns = 0, self.clock.monotonic_ns()
                continue
            late = missed = 0
            for before, after in times:
                behind, lost = self.schedule.done(source, before, after)
                late, missed = late + behind, missed + lost
            source.count(late, missed)
