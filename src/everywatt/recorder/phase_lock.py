"""Locking on to a publisher: when to read a `tracked` group, and when its values were published.

The hardware publishes every P at a phase of its own. A short burst of reads brackets one change of the primary value;
probes in the middle of the predicted bracket halve it until it is about 1 ms wide; from then on one read a period at
any safe moment between two publications sees every value, and the time of its publication is known from the line
(`publication_schedule`). A pair of probes around the predicted instant checks the lock every few seconds. Evidence
comes from changes only: that a gauge did not change says nothing, since equal values happen.

The tracking of a phase, with publications at |, reads at r, and what is known of a publication's time in [ ]:

    published      |         |         |         |         |         |         |
    burst        rrr r r r                                                             a change between two reads
    bracket        [ ]       [  ]      [   ]     [    ]                                wider with every period
    probes                    r          r                                             in its middle: before or after?
    bracket                  []        []        []        []        []        []
    locked                                   r         r         r         r           one read between two publications
    check                                             r|r                              every few seconds

Where the lock is calm, the reads of the coming second can be planned (`outlook`, `commit`) and fed later.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from itertools import pairwise

from everywatt.core.channels import GroupInfo, Kind, Row
from everywatt.recorder.publication_schedule import MS, Line, Search, Window, guard_ns, safe_window

TARGET_NS = 1.0 * MS
CHECK_NS = 3_000 * MS
SETTLE_NS = 1_000 * MS
CALM_NS = 6_000 * MS
CALM_TARGET_NS = 1.6 * MS
CALM_CHECK_NS = 8_000 * MS
SLOW_FACTOR = 5
PROBES_AT_START = 40.0
PROBES_PER_PERIOD = 0.2
LEAD = 1.5
CLOSER, CLOSER_PERIODS = 5, 12
FAN = 8  # steps from probe to probe at one publication at most


class State(StrEnum):
    """How much is known of the schedule."""

    BURST = "burst"  # looking for a change
    LOCKED = "locked"  # publications are predicted
    FREE = "free"  # no change to lock on: plain polls


class Tracker:
    """Fed with reads, it says when to read next and gives the publications, one row each.

    `asked_ns` is the period the run wants, `due` when to read next. `trouble` is a sentence where the sensor is far
    slower than that.
    """

    def __init__(self, info: GroupInfo, asked_ns: int, now_ns: int) -> None:
        primary = info.channels[0]
        declared = primary.facts.period_s
        self.name = primary.name
        self.asked_ns = asked_ns
        self.trouble: str | None = None
        self.state = State.BURST
        self.line: Line | None = None
        self.absent = 0
        self._counter = primary.kind is Kind.COUNTER
        declared_ns = None if declared is None else round(declared * 1e9)
        self._seen = Search(declared_ns, self._counter, now_ns)
        self.due = Window(now_ns, now_ns)
        self._last: tuple[int, int, float] | None = None
        self._index = 0
        self._unreported = False
        self._stale = 0
        self._search = 0
        self._misses = 0
        self._closer_ns = now_ns  # until when polls without a lock are closer together
        self._late_ns = 0.0  # how late probes usually are
        self._moving = False  # the last publication read was a change
        self._awaited = False
        self._probing = self._settling = False
        self._moved, self._chances = 0.0, 0.0
        self._recent: deque[tuple[int, int]] = deque(maxlen=5)
        self._reported_ns = now_ns
        self._edge_ns: int | None = None
        self._failures = 0
        self._next_burst_ns = now_ns
        self._probes: list[int] = []
        self._tokens = PROBES_AT_START
        self._probed_ns = self._checked_ns = self._target_ns = self._locked_ns = now_ns
        self._planned_ns = now_ns

    @property
    def period_ns(self) -> int | None:
        """How often the hardware publishes, as far as is known."""
        if self.line is not None:
            return round(self.line.period_ns)
        return self._seen.declared_ns

    @property
    def locked(self) -> bool:
        return self.state is State.LOCKED

    def ask(self, asked_ns: int, now_ns: int) -> None:
        self.asked_ns = asked_ns
        if self.state is not State.BURST:
            self._target_ns = now_ns
            self._plan(now_ns)

    def aim(self, at_ns: int) -> None:
        """Where not every publication is read: the reads are wanted here and every `asked_ns` from here, so that they
        share the wake-ups of others."""
        self._target_ns = at_ns

    def edge(self, at_ns: int, now_ns: int) -> bool:
        """A span starts or ends: where not every publication is read, those on both sides of the instant are.

        True where the next read is another one than was planned.
        """
        if now_ns - at_ns > self.asked_ns:
            return False
        if self.line is None:
            if self.state is not State.FREE or self._seen.quick_ns is None:
                return False
            self._edge_ns, self.due = at_ns, Window(now_ns, now_ns)
            return True
        if self._dense:
            return False
        self._edge_ns = at_ns
        self._probes.clear()
        if self.line.possible(now_ns) > self._index:
            self._probing = False
            self.due = Window(now_ns, now_ns)
        else:
            self._plan(now_ns)
        return True

    def feed(self, before_ns: int, after_ns: int, row: Row) -> list[Row]:
        """Take in one read that was made between `before_ns` and `after_ns`; gives the publications it shows."""
        value = row.values[0]
        if self._probing:
            self._late_ns += (min(max(before_ns - self.due.latest_ns, 0), MS) - self._late_ns) / 8
        last, self._last = self._last, (before_ns, after_ns, value)
        missing = value != value or (last is not None and last[2] != last[2])
        changed = last is not None and not missing and value != last[2]
        since = before_ns if last is None else last[0]
        if changed:
            self._recent.append((since, after_ns))
        if self.state is State.LOCKED:
            rows = self._locked(since, before_ns, after_ns, row, changed, missing or last is None)
        else:
            rows = self._unlocked(since, after_ns, row, changed, first=last is None)
        self._plan(after_ns)
        return rows

    def lost(self, now_ns: int, retry_ns: int) -> None:
        """A read failed: the next one is due at `retry_ns`, and nothing is taken from the last value."""
        self._last = None
        self._probes.clear()
        self.due = Window(retry_ns, retry_ns)
        if self.state is State.BURST:
            self._start_burst(now_ns)

    # Unlocked: a burst, or plain polls.

    def _unlocked(self, since: int, after: int, row: Row, changed: bool, first: bool) -> list[Row]:
        self._seen.reads += 1
        if changed:
            self._seen.change(since, after, certain=self.state is State.FREE)
        searching = self.state is State.BURST or after < self._closer_ns
        if self.state is State.BURST:
            if self._seen.over(after):
                self._end_burst(after)
        elif changed:
            self._consider(since, after)
        # A gauge that does not change was still published; a counter was not.
        if searching and not changed and not first and (self._counter or after - self._reported_ns < self.asked_ns):
            return []
        self._reported_ns = after
        quick = self._seen.quick_ns
        if quick is not None and not changed and after - since > 2 * quick:
            quick = self._seen.quick_ns = None  # it does not change, or has become slower
        age = self._seen.declared_ns or quick or (after - since if changed else max(after - since, self.asked_ns))
        early = after - age
        return [Row(row.read_ns, max(early, since) if changed else early, after, row.values)]

    def _start_burst(self, now: int) -> None:
        self.state, self.line = State.BURST, None
        self._seen.start(now)
        self._probes.clear()

    def _end_burst(self, now: int) -> None:
        self._seen.hurry()
        if self._seen.changes and not self._seen.everywhere and self._lock(now):
            return
        if self._seen.closer():
            self._start_burst(now)
            return
        self.state = State.FREE
        self._failures += 1
        if not self._counter and self._seen.declared_ns is not None:
            # A gauge between two levels changes once, and then not for a while: that next change is worth some polls.
            self._closer_ns = now + CLOSER_PERIODS * self._seen.declared_ns
        self._next_burst_ns = now + min(1_000 * MS << min(self._failures, 6), 60_000 * MS)
        self._target_ns = now
        self._seen.changes.clear()

    def _lock(self, now: int) -> bool:
        """Lay a line through the changes seen, or look again; False where they do not fit one."""
        line = self._seen.lay()
        if line is None:
            if self._seen.again:
                self._start_burst(now)
            return self._seen.again
        self.line, self.state = line, State.LOCKED
        self._index = line.brackets[-1][0]
        self._stale, self._unreported, self._misses = 0, False, 0
        self._moved = self._chances = 0.0
        self._tokens = max(self._tokens, PROBES_AT_START / 2)
        self._checked_ns = self._target_ns = self._locked_ns = now
        self._seen.changes.clear()
        if line.period_ns > SLOW_FACTOR * self.asked_ns:
            self._complain(line.period_ns)
        return True

    def _complain(self, period_ns: float) -> None:
        period_s, asked_s = period_ns / 1e9, self.asked_ns / 1e9
        self.trouble = f"{self.name} changes about every {period_s:.2g} s, although {asked_s:.2g} s was requested."

    def _consider(self, since: int, now: int) -> None:
        """A poll saw a change: enough of them far apart are a slow schedule, otherwise a burst finds the phase."""
        if self._slow(now):
            return
        if self._closer_ns > now and self._seen.place(since, now) and self._lock(now):
            return
        if len(self._seen.changes) > 8:
            del self._seen.changes[0]
        gaps = [b[0] - a[1] for a, b in pairwise(self._seen.changes)]
        if now >= self._next_burst_ns and (not gaps or min(gaps) < 3 * self.asked_ns):
            self._seen.declared_ns = self._seen.original_ns
            self._start_burst(now)

    def _slow(self, now: int) -> bool:
        """True where the last changes came at regular, long distances, and are now the schedule."""
        if len(self._recent) < 4:
            return False
        recent = list(self._recent)
        floor = SLOW_FACTOR * max(self.asked_ns, (self.period_ns or 0) if self.locked else 0)
        if recent[-1][1] - recent[-2][0] < floor:
            return False  # nearly always
        gaps = [(b[0] + b[1] - a[0] - a[1]) / 2 for a, b in pairwise(recent)]
        if min(gaps) < floor or max(gaps) > 1.3 * min(gaps):
            return False
        if max(late - early for early, late in recent) > min(gaps) / 2:
            return False  # it was we who were slow: between two reads that far apart it may have changed more often
        if not self._counter:
            # A gauge that is constant between regular changes may as well show a load that is switched on and off:
            # it is polled as before, so that nothing is missed, and doubted only where its period is not known.
            if self._seen.original_ns is None:
                self._complain(sum(gaps) / len(gaps))
            return False
        self._seen.declared_ns, self._seen.changes = round(sum(gaps) / len(gaps)), recent
        if not self._lock(now):
            return False
        self._complain(self._seen.declared_ns)
        return True

    # Locked: every read has an index on the line.

    def _locked(self, since: int, before: int, after: int, row: Row, changed: bool, blind: bool) -> list[Row]:
        line = self.line
        assert line is not None
        if blind:
            self._index = max(self._index, line.sure(before))
            return []
        if not changed:
            return self._unchanged(line, before, after, row)
        self._awaited, self._moving = False, True
        self._stale, self._moved = 0, self._moved * 0.98 + 1
        self._chances = self._chances * 0.98 + 1
        if self._slow(after):
            return []
        first, newest = line.sure(since) + 1, line.possible(after)
        if first < newest:
            # More than one lies between this read and the last; the newest counts where it is certain.
            if line.sure(before) != newest:
                self._unreported = True
                return []
            early, late = line.band(newest)
            return self._emit(newest, early, min(late, after), row)
        if first > newest:  # no publication was due: the jitter is larger than thought, or the schedule is another
            first = round((((since + after) / 2) - sum(line.band(0)) / 2) / line.period_ns)
            early, late = line.band(first)
            self._search = 1 if since >= late else -1
            if not line.surprise(first, since, after):
                return self._contradicted(since, after, row)
        else:
            early, late = line.band(first)
            if (since > early or after < late) and not line.add(first, since, after):
                return self._contradicted(since, after, row)
        early, late = line.band(first)
        return self._emit(first, max(early, since), min(late, after), row)

    def _unchanged(self, line: Line, before: int, after: int, row: Row) -> list[Row]:
        index = line.sure(before)
        if self._unreported and line.possible(after) != index:
            return []  # the next publication may be what it shows
        if index <= self._index or self._probing:  # after a probe the publication may still come
            return []
        self._moving = False
        if not (self._unreported and self._counter):
            self._chances, self._moved = self._chances * 0.98 + 1, self._moved * 0.98
        if self._unreported or not self._counter:
            return self._emit(index, *line.band(index), row)
        coarse = self._chances > 5 and self._moved < 0.9 * self._chances
        if coarse and not self._settling and self._seen.declared_ns is not None:  # a counter that often does not move
            return self._emit(index, *line.band(index), row)
        self._index = index
        self.absent += 1
        self._stale += 1
        if self._stale >= 3 or (coarse and self._seen.declared_ns is None):
            self._stale = 0
            self._start_burst(before)
        return []

    def _contradicted(self, since: int, after: int, row: Row) -> list[Row]:
        self._start_burst(after)
        self._seen.changes.append((since, after))
        return [Row(row.read_ns, since, after, row.values)]

    def _emit(self, index: int, early: int, late: int, row: Row) -> list[Row]:
        self._unreported = False
        if index <= self._index:
            return []
        if self._dense:
            self.absent += index - self._index - 1
        self._index = index
        self._reported_ns = late
        return [Row(row.read_ns, min(early, late), late, row.values)]

    # When to read next.

    @property
    def _dense(self) -> bool:
        """True where every publication is read: they are wanted, or the lock is young and still learns the period."""
        assert self.line is not None
        return self._settling or self.asked_ns <= 1.5 * self.line.period_ns

    def _plan(self, now: int) -> None:
        if self.state is State.BURST:
            at = now + self._seen.spacing_ns
            self.due = Window(at, at)
        elif self.state is State.FREE:
            if self._edge_ns is not None:
                # One read was made at a span's edge; another one after the next publication shuts its cell.
                at, self._edge_ns = now + 2 * (self._seen.quick_ns or 0), None
                self.due = Window(at, at)
                return
            step = max(self.asked_ns, self._seen.declared_ns or 0)
            if now < self._closer_ns:
                step = (self._seen.declared_ns or step) // CLOSER
            while self._target_ns <= now:
                self._target_ns += step
            self.due = Window(self._target_ns, self._target_ns + step // 10)
        else:
            assert self.line is not None
            self._plan_locked(self.line, now)

    def _plan_locked(self, line: Line, now: int) -> None:
        if line.width(line.possible(now)) > 0.6 * line.period_ns:
            self._seen.faded = line
            self.state, self.line, self._target_ns = State.FREE, None, now
            self._plan(now)
            return
        self._settling = now < self._locked_ns + SETTLE_NS
        if self._edge_ns is not None and self._index <= line.possible(self._edge_ns):
            self._probing = False
            self.due = safe_window(line, max(line.possible(self._edge_ns) + 1, line.sure(now)), now)
            return
        self._edge_ns = None
        waiting = bool(self._probes)
        self._probes = [at for at in self._probes if at > now]
        if waiting and not self._probes and not self._dense:
            # Probes on both sides of predicted publications that keep seeing no change: the line is a wrong one.
            self._misses = self._misses + 1 if self._awaited else 0
            if self._misses >= (2 if self._counter else 6):
                self._start_burst(now)
                self._plan(now)
                return
        guard = guard_ns(line)
        if not self._probes and now >= self._planned_ns:
            coming = line.possible(now + guard) + 1
            if coming > self._index and (not self._dense or self._index == coming - 1):
                self._probes = self._new_probes(line, coming, now)
        self._probing = bool(self._probes)
        if self._probes:
            self.due = Window(self._probes[0], self._probes[0])
            return
        if self._dense:
            k = max(self._index + 1, line.sure(now - guard))
        else:
            while self._target_ns <= now or line.sure(self._target_ns) <= self._index:
                self._target_ns += self.asked_ns
            k = line.sure(self._target_ns)
        self.due = safe_window(line, k, now)

    def _new_probes(self, line: Line, coming: int, now: int) -> list[int]:
        """Instants at which a read halves or checks the bracket of the coming publication."""
        periods = (now - self._probed_ns) / max(line.period_ns, self.asked_ns)
        self._tokens = min(PROBES_AT_START, self._tokens + PROBES_PER_PERIOD * periods)
        self._probed_ns = now
        early, late = line.band(coming)
        cost = 0 if self._last is None else self._last[1] - self._last[0]
        # One that comes late into the band does not show what was published before it.
        lead = cost + round(LEAD * self._late_ns)
        around = [early - lead, late] if self._dense else [early - lead, late, late + 2 * guard_ns(line)]
        if self._search and self._tokens >= 6:
            side, self._search = self._search, 0
            self._tokens -= 6
            steps = [0, MS // 2, MS, 4 * MS, 12 * MS, 32 * MS]
            fan = [late + step for step in steps] if side > 0 else [early - lead - step for step in reversed(steps)]
            return [at for at in fan if abs(at - late) < line.period_ns / 3 and at > now]
        # Each probe is a wake-up of its own, so they are frequent only while the lock is young.
        calm = self._dense and now > self._locked_ns + CALM_NS
        most = (CALM_TARGET_NS if calm else TARGET_NS) + 4 * line.jitter_ns + cost
        wide = late - early > most
        every = CALM_CHECK_NS if calm and line.settled else CHECK_NS if calm or line.settled else CHECK_NS // 6
        check = now - self._checked_ns > max(every, 5 * line.period_ns)
        if not wide and not check:
            return []
        middle = (early + late - cost) // 2
        if check and wide and now - self._checked_ns < 4 * CHECK_NS:
            check = False  # halving comes first
        if not self._counter and self._moved < 0.5 * self._chances:
            # A constant gauge shows nothing; one that has just moved will probably move again, and that
            # chance has to be used.
            if self._moving and wide:
                return self._fan(early - lead, late, most, now)
            if not wide or self._tokens < 2 * FAN or coming % 7 not in (0, 3):
                return []
        self._awaited = True
        probes = around if check else [middle] if self._dense else [around[0], middle, around[2]]
        if self._tokens < len(probes) or probes[0] <= now:
            return []
        self._tokens -= len(probes)
        if check or not self._dense:
            self._checked_ns = now
        return probes

    def _fan(self, early: int, late: int, most: float, now: int) -> list[int]:
        """Probes from one end of a bracket to the other, in steps of the width that is wanted."""
        steps = min(math.ceil((late - early) / most), FAN, int(self._tokens) - 1)
        if steps < 1:
            return []
        probes = [at for at in (early + (late - early) * i // steps for i in range(steps + 1)) if at > now]
        self._tokens -= len(probes)
        return probes

    # Planned ahead: when a calm lock will be read in the coming second.

    def outlook(self, now_ns: int, until_ns: int) -> list[Window]:
        """When to read until `until_ns`, probes that are due first; the reads may then be fed later, all in one go.

        Nothing where every read has to be looked at before the next one is planned: the lock is young, is searched
        for, or what is published often stays the same.
        """
        line = self.line
        if line is None or self._last is None or not self._dense or now_ns <= self._locked_ns + CALM_NS:
            return []
        if self._search or self._unreported or self._edge_ns is not None:
            return []
        end_ns, guard, k = until_ns + round(line.period_ns), guard_ns(line), self._index + 1
        if line.width(line.possible(end_ns)) > 2 * CALM_TARGET_NS + 4 * line.jitter_ns:
            return []
        if self._moved < 0.9 * self._chances:
            return []
        windows = [Window(at, at) for at in self._probes if at > now_ns]
        while (late := line.latest(k)) < end_ns:
            windows.append(Window(late + guard, line.band(k + 1)[0] - guard))
            k += 1
        return windows

    def commit(self, last: Window) -> None:
        """The windows up to this one will be kept, and what was read in them is fed afterwards: only the read in the
        last one is followed by new probes."""
        self._planned_ns = last.earliest_ns

    def release(self, now_ns: int) -> None:
        """What was committed will not be kept after all."""
        if self._planned_ns <= now_ns:
            return
        self._planned_ns = now_ns
        if self.state is State.LOCKED:
            self._plan(now_ns)
