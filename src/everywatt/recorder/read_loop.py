"""The loop that reads sensors: one thread that sleeps until the next read, reads, and hands rows to open sessions.

`ReadLoop` knows sessions, sources and the schedule, and nothing of who opened a session. The socket server is one with
clients (`recorder.server`), the agent one with a single session that is replaced by the hour (`fleet.loop`).

    run: while not stopped
      wait        sleep in select() until the schedule's next read, a flush, or something to hear
                  └─ read what is due, then hear what has come
      tend        flush sessions, slow down tables that were hurried, let go of cards that rested
      read ahead  while nothing is to be expected until the next flush: reads as planned (`schedule.PlannedReads`)
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everywatt.core.channels import NAN, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.platforms import rss_bytes
from everywatt.recorder.phase_lock import Tracker
from everywatt.recorder.schedule import PlannedReads, Schedule
from everywatt.recorder.session import Session
from everywatt.recorder.source import Pool, Source

if TYPE_CHECKING:
    from everywatt.recorder.wire import Use

# A counter that publishes less often is not waited for; one that has not moved after so many periods neither.
LONGEST_NS = 2_000_000
PATIENCE = 1.3
# Searches that may follow one another at once, and how many a second are sustained: less than 1 % of one core.
AT_ONCE = 30.0
PER_SECOND = 8.0
# A publication that was not placed to this share of a period is no news; this often another one is waited for.
NARROW = 0.25
RETRIES = 4
# A period is known to about this share.
PERIOD_KNOWN = 0.02
YOUNG_NS = 10 * NS  # after that who is on a GPU is read once a second: the run is long enough
PAUSE_NS = NS // 10  # a loop that wakes up later than this was stopped
SUSPEND_NS = NS // 20  # by so much the boot clock runs ahead of the monotonic one only in a suspend
MOST_PAUSES = 1000  # on a machine that never lets it run the notes must come to an end


class Cost(NamedTuple):
    """What the loop had cost at an instant: CPU seconds, reads, wake-ups."""

    cpu_s: float
    reads: int
    wakes: int


class ReadLoop:
    """Reads sources for open sessions until `stop`. `extra` are descriptors that only wake the loop."""

    def __init__(self, clock: Clock, extra: Sequence[int] = ()) -> None:
        now = clock.monotonic_ns()
        self.clock = clock
        self.extra = list(extra)
        self.stop = False
        self.pool = Pool(clock)
        self.schedule = Schedule(now)
        self.pinpoint = Pinpoint(clock)
        self.planned = PlannedReads(clock, self.schedule, self._idle, self._read)
        self.reads = self.wakes = self.pauses = 0
        self._select = clock.select
        self._boot_ns = clock.boottime_ns() - now
        self._last_ns = now
        self._readers: list[Any] = []
        self._hurried: set[Source] = set()
        self._resting: dict[Source, int] = {}  # sources without a session, and until when they are read all the same

    @property
    def sessions(self) -> list[Session]:
        raise NotImplementedError

    # Waiting.

    def _wake_ns(self) -> int | None:
        """When to wake up, if nothing happens before."""
        due = self.schedule.wake_ns()
        times = [session.flush_ns for session in self.sessions] + ([] if due is None else [due])
        return min(times, default=None)

    def _wait(self, wake: int | None) -> None:
        readers, writers = self._listening()
        timeout = None if wake is None else max(0.0, (wake - self.clock.monotonic_ns()) / NS)
        ready, writable, _ = self._select(readers, writers, (), timeout)
        self.wakes += 1
        self._note_pause(wake)
        # Reads first: their time matters, a message's does not.
        self._tick()
        self._hear(ready, writable)

    def _listening(self) -> tuple[list[Any], list[Any]]:
        """What wakes the loop when it has something to say, and what when it can be written to."""
        return [*self.extra], []

    def _hear(self, ready: Sequence[Any], writable: Sequence[Any]) -> None:
        """Take what has come."""
        for item in ready:
            if item in self.extra:
                os.read(item, 64)

    def _hear_lightly(self, ready: Sequence[Any]) -> bool:
        """Take what has come in a planned stretch; False where the plan has to end for it."""
        return False

    def _may_plan(self) -> bool:
        """Whether reads may be planned: not while a client waits for an answer."""
        return True

    def _read_ahead(self) -> None:
        """While nothing is to be expected until the next flush: read as planned till then, and look at it all there."""
        going = True
        while going and self.sessions and not self.stop and self._may_plan():
            self._readers = self._listening()[0]
            going = self.planned.go(min(session.flush_ns for session in self.sessions))
            self._tend()

    def _idle(self, until_ns: int) -> bool:
        """Sleep until then; True where something unforeseen has happened, or the machine was suspended.

        Spans and points that come meanwhile are no such thing, unless a card is to be read where a span begins or ends.
        """
        while True:
            self._last_ns = now = self.clock.monotonic_ns()
            ready = self._select(self._readers, (), (), (until_ns - now) / NS if until_ns > now else 0)[0]
            if not ready:
                return self.clock.boottime_ns() - self.clock.monotonic_ns() - self._boot_ns > SUSPEND_NS
            if not self._hear_lightly(ready):
                return True
            if self.clock.monotonic_ns() >= until_ns:
                return False  # reads come first

    def _note_pause(self, wake: int | None) -> None:
        """A loop that wakes up far too late was stopped; a boot clock that ran ahead shows a suspend."""
        now, boot = self.clock.monotonic_ns(), self.clock.boottime_ns()
        asleep = boot - now - self._boot_ns
        if asleep > SUSPEND_NS:
            self._boot_ns = boot - now
            self._remark(now, "suspend", f"The machine was suspended for {asleep / NS:.1f} s.", seconds=asleep / NS)
            for session in self.sessions:
                session.anchor()
                for source in session.sources:
                    session.gap(source, self._last_ns, now, "suspend")
        late = 0 if wake is None else now - wake
        if self.sessions and late > PAUSE_NS and late > 3 * self.schedule.fastest_ns() and self.pauses < MOST_PAUSES:
            self.pauses += 1
            self._remark(now, "gap", f"The recorder did not run for {late / NS:.1f} s.", start_ns=wake, end_ns=now)
        self._last_ns = now

    def _remark(self, now: int, kind: str, text: str, **data: Any) -> None:
        for session in self.sessions:
            session.remark(now, kind, text, **data)

    # Reading.

    def _tick(self) -> None:
        for source in self.schedule.due(self.clock.monotonic_ns()):
            if source in self.schedule.slots:
                self._read(source)
        self.schedule.align(self.clock.monotonic_ns())

    def _read(self, source: Source) -> None:
        slot, tracked = self.schedule.slots[source], source.tracker is not None
        began = self.clock.monotonic_ns()
        fine = source.read()
        self.reads += 1
        now = self.clock.monotonic_ns()
        if tracked:  # should it be given up, this is where the grid takes over
            slot.deadline_ns = began
        late, missed = self.schedule.done(source, began, now)
        if not fine and source.outage is not None:
            slot.hold_ns = now + source.outage.wait_ns
            return
        source.count(late, missed)
        if now - began > slot.period_ns // 2:  # it may take a third of the time, no more
            slot.hold_ns = now + 2 * (now - began)

    def _tend(self) -> None:
        """Flush sessions, set how often hurried tables are read, let go of what has rested long enough."""
        now = self.clock.monotonic_ns()
        for session in self.sessions:
            session.tend(now)
        for source in list(self._hurried):
            self._pace(source, now)
        self._let_go([source for source, until_ns in self._resting.items() if now >= until_ns])

    def _hurry(self, source: Source) -> None:
        """Read a table that wants it more often for a while: a run has just begun."""
        if source.hurried is not None:
            now = self.clock.monotonic_ns()
            source.hurry_ns = now + YOUNG_NS
            self._hurried.add(source)
            self._pace(source, now)

    def _pace(self, source: Source, now: int) -> None:
        """Set how often a hurried source is read; when the time is over, or none listens, it is no longer hurried."""
        if source in self.schedule.slots:
            self.schedule.change(source, source.asked_ns(), now)
        if now >= source.hurry_ns or source not in self.schedule.slots:
            self._hurried.discard(source)

    def _enrol(self, session: Session, source: Source) -> None:
        """Let a tape listen to a source, which delivers its first rows at once."""
        self._resting.pop(source, None)
        session.listen(source)
        now = self.clock.monotonic_ns()
        asked = source.asked_ns()
        if source not in self.schedule.slots:
            if source.info.tracked and not source.info.table and source.info.channels:
                source.tracker = Tracker(source.info, asked, now)
            self.schedule.add(source, asked, now)
            self._read(source)
            self._hurry(source)
            return
        self.schedule.change(source, asked, now)
        if source.tracker is not None and source.last is not None:
            session.rows(source, [source.last])
        elif source.outage is None:
            source.read()
            self.reads += 1

    def _let_go(self, sources: list[Source]) -> None:
        """Stop reading these: they have no listener, and none is expected."""
        for source in sources:
            self._resting.pop(source, None)
            self.schedule.slots.pop(source, None)
            self.pool.drop(source)

    def cost(self) -> Cost:
        return Cost(time.process_time(), self.reads + self.planned.reads, self.wakes + self.planned.wakes)

    def meter(self, session: Session, before: Cost) -> Use:
        """What recording has cost since `before`, when the session was opened (shared by all that were open)."""
        now = self.cost()
        return {
            "cpu_s": round(now.cpu_s - before.cpu_s, 6),
            "seconds": (self.clock.monotonic_ns() - session.started_ns) / NS,
            "rss_bytes": rss_bytes(),
            "reads": now.reads - before.reads,
            "wakes": now.wakes - before.wakes,
            "tapes": len(self.sessions),
            "pid": os.getpid(),
        }


class Pinpoint:
    """Counters that publish every millisecond, read until they publish where a span starts or ends.

    The measured program reads such a counter once at the span's edge: a value up to a millisecond old, and nothing of
    the power in that millisecond. In a window of 50 ms that is 2 % and more. The recorder hears of the edge a moment
    later and reads on until the counter has moved: that places this publication, by the counter's period those before
    it, and says how much was drawn just then. The program does not wait for it. It takes a millisecond of the
    recorder's time, so there is an allowance.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowance = AT_ONCE
        self._asked_ns = clock.monotonic_ns()

    def after_edge(self, sources: Sequence[Source]) -> None:
        """Hand on the publications around this moment of those `sources` that are read inline."""
        fast = [source for source in sources if source.info.inline and source.outage is None and _period_ns(source)]
        if not fast:
            return
        now = self._clock.monotonic_ns()
        self._allowance = min(AT_ONCE, self._allowance + PER_SECOND * (now - self._asked_ns) / NS)
        self._asked_ns = now
        if self._allowance < 1:
            return
        self._allowance -= 1
        self._search(fast, now + round(PATIENCE * max(map(_period_ns, fast))))

    def _search(self, sources: list[Source], until_ns: int) -> None:
        seen: dict[int, tuple[int, Row]] = {}
        retries = RETRIES
        while sources:
            left = []
            for source in sources:
                start_ns = self._clock.monotonic_ns()
                try:
                    row = source.group.read()[-1]  # type: ignore[union-attr]
                except Exception:  # noqa: BLE001 - a plug-in may do anything; its next regular read reports it
                    continue
                before = seen.get(id(source))
                if before is not None and row.values[0] != before[1].values[0]:
                    if row.read_ns - before[0] <= NARROW * _period_ns(source):
                        source.hand_on(_rows(source, before, row))
                        continue
                    if retries:  # we were not running when it was published
                        retries -= 1
                        until_ns = row.read_ns + round(PATIENCE * _period_ns(source))
                seen[id(source)] = (start_ns, row)
                left.append(source)
            sources = left if self._clock.monotonic_ns() < until_ns else []


def _period_ns(source: Source) -> int:
    """How often a counter publishes, 0 where that is not known or slow."""
    period_s = source.info.channels[0].facts.period_s or 0.0
    period_ns = round(period_s * NS)
    return period_ns if period_ns <= LONGEST_NS else 0


def _rows(source: Source, seen: tuple[int, Row], row: Row) -> list[Row]:
    """The publication that was seen to happen, and the one a period before it. Channels that stood still are left out.

    Rows of a group follow one another: where it was read a moment ago, the older publication may be on the tape.
    """
    start_ns, old = seen
    period_ns, late_ns = _period_ns(source), row.read_ns
    slack_ns = round(PERIOD_KNOWN * period_ns)
    pairs = [(a, b) if a != b else (NAN, NAN) for a, b in zip(old.values, row.values, strict=True)]
    before_ns, after_ns = start_ns - period_ns - slack_ns, late_ns - period_ns + slack_ns
    first = Row(old.read_ns, before_ns, after_ns, tuple([a for a, _ in pairs]))
    second = Row(row.read_ns, start_ns, late_ns, tuple([b for _, b in pairs]))
    last = source.last
    if last is not None and last.early_ns + last.late_ns >= first.early_ns + first.late_ns:
        return [second]
    return [first, second]
