"""Publications that the driver keeps itself stand in for reads of our own, where they have proved to say the same.

A driver may keep the last power readings of a card, each with its time, and give all of them in one call. Where power
is the mean over exactly the time between two publications of the energy counter, those readings say what the counter
said at each publication: the counter itself then has to be read once a second only, and its joules are placed in
between in proportion to the readings. That is never taken for granted. Many cards look at a part of each period only,
or publish power at another instant than energy: for those every publication is read as ever. The proof is a row of
publications that were read and in which every step of the counter is what the reading says, while power changed; and
each later read of the counter is held against the sum of the readings since the one before. One that does not agree
ends it for a while.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from everywatt.core.channels import Kind, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import EverywattError
from everywatt.recorder.planned_tracker import PlannedTracker
from everywatt.recorder.publication_schedule import Line, guard_ns

# A step of the counter may differ from its reading by this share, as if a publication were 0.2 ms early: less than its
# bracket leaves open anyway; and by so many of its smallest steps.
SHARE = 2e-3
QUANTA = 2.0
# So many steps in a row have to agree, and so many of them be unlike the one before: steady power proves little.
AGREEING, UNLIKE = 20, 10
EARLY_NS = 200_000  # a reading this much before the bracket of a publication is of this publication
STRAY_NS = 3_000_000  # the driver's times have moved by as much against the publications: one of them has another phase
LOOSE_NS = 500_000  # publications that stray by as much are read themselves
FIRST_PAUSE_NS = 10 * NS  # after a contradiction, twice as long each time
LONGEST_PAUSE_NS = 600 * NS
MOST_PENDING = 8
MOST_MISSED = 8  # publications that were not read between two that were
LEARN_NS = NS // 2  # a look costs a call into the driver
WAIT_NS = 4 * NS  # for power that changes

Read = tuple[int, int, Row]


class StandIn:
    """What the driver of one group keeps, and whether it may stand in. `group` has `keeps`, `kept` and `filled`."""

    def __init__(self, group: Any, clock: Clock) -> None:
        channels = group.info.channels
        first, kept = channels[0], channels[group.keeps]
        self._group, self._clock = group, clock
        self._counts = first.kind is Kind.COUNTER
        self._quantum = (first.facts.quantum or 0.0) / first.scale
        self._unit = kept.scale / first.scale / NS if self._counts else 1.0
        self.standing = False
        self.filled = 0
        self._agreed = self._unlike = 0
        self._last: Row | None = None  # of the publications that were read or filled
        self._pending: list[Row] = []  # publications that were read and not yet compared
        self._step: float | None = None  # of the counter at the publication before
        self._index = -1
        self._probes: list[tuple[int, int, int, float]] = []  # number, began, ended, first channel
        self._lag_ns: int | None = None  # of the driver's time of a reading behind its publication
        self._pause_ns = FIRST_PAUSE_NS
        self._not_before_ns = 0

    def feed(self, tracker: PlannedTracker, reads: Sequence[Read]) -> list[Row]:
        """`feed_all`, with the publications since the read before that were not read themselves."""
        if not self.standing:
            rows = tracker.feed_all(reads)
            self._learn(tracker, rows)
            self._remember(tracker, rows)
            tracker.sparse = self.standing
            return rows
        rows = []
        for read in reads:
            found = self._look(tracker, read)
            rows += found
            self._remember(tracker, found)
        if self.standing and _loose(tracker):
            self._refuse(reads[-1][1])
            tracker.doubt()
        tracker.sparse = self.standing
        return rows

    def lost(self) -> None:
        """The device does not answer: what it keeps is proved anew."""
        self.standing, self._last, self._step, self._lag_ns = False, None, None, None
        self._pending.clear()
        self._probes.clear()
        self._agreed = self._unlike = 0

    def _kept(self) -> tuple[Sequence[int], Sequence[float]]:
        try:
            kept: tuple[Sequence[int], Sequence[float]] = self._group.kept()
        except EverywattError:
            return (), ()  # the next read of the sensor tells what is wrong
        return kept

    def _remember(self, tracker: PlannedTracker, rows: Sequence[Row]) -> None:
        if rows:
            self._last, self._index = rows[-1], tracker.index

    def _learn(self, tracker: PlannedTracker, rows: Sequence[Row]) -> None:
        """Hold the publications that were read against what the driver kept of them."""
        line = tracker.line
        if line is None or not tracker.locked or not tracker.wants_all or _loose(tracker):
            self._pending.clear()
            self._step, self._agreed, self._unlike = None, 0, 0
            return
        self._pending += rows
        now_ns = self._pending[-1].read_ns if self._pending else 0
        if now_ns < self._not_before_ns or len(self._pending) < 2:
            del self._pending[:-MOST_PENDING]
            return
        self._not_before_ns = now_ns + (LEARN_NS if self._agreed < AGREEING else WAIT_NS)
        times, values = self._kept()
        pending, self._pending = self._pending, self._pending[-1:]
        for before, row in pairwise(pending):
            if self._agrees(before, row, times, values, line.period_ns) is False:
                self._agreed = self._unlike = 0
                if tracker.calm(now_ns):  # a young lock may be a wrong one
                    self._refuse(now_ns)
                return
        if self._agreed >= AGREEING and self._unlike >= UNLIKE:
            self.standing, self._pause_ns = True, FIRST_PAUSE_NS
            self._pending.clear()

    def _agrees(
        self, before: Row, row: Row, times_ns: Sequence[int], values: Sequence[float], period_ns: float
    ) -> bool | None:
        """Whether a publication agrees with what was kept since the one before it; None where that cannot be told."""
        step_before = self._step
        self._step = None
        count = round((row.late_ns - before.late_ns) / period_ns)
        if not times_ns:
            return False
        if not 1 <= count <= MOST_MISSED or row.late_ns - row.early_ns > period_ns / 4:
            return None
        starts = [row.early_ns - period_ns * place for place in range(count)]
        places = [_place(times_ns, start, start + period_ns) for start in starts]
        found = [values[place] for place in places if place is not None]
        if len(found) < count:
            return None
        step = row.values[0] - before.values[0] if self._counts else row.values[0]
        said = sum(found) * self._unit * period_ns if self._counts else found[0]
        allowed = self._allowed(said, count)
        if not abs(step - said) <= allowed:
            return False
        if count == 1:
            self._agreed += 1
            self._unlike += step_before is not None and abs(step - step_before) > 2 * allowed
            self._step = step
        return True

    def _allowed(self, said: float, publications: int) -> float:
        share = SHARE * abs(said) if self._counts else 0.0
        return float(share + QUANTA * self._quantum * min(publications, 2))

    def _refuse(self, now_ns: int) -> None:
        self.standing, self._step, self._lag_ns = False, None, None
        self._probes.clear()
        self._agreed = self._unlike = 0
        self._not_before_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS)

    def _look(self, tracker: PlannedTracker, read: Read) -> list[Row]:
        """The publications up to this read."""
        before_ns, after_ns, row = read
        line, last, index = tracker.line, self._last, self._index
        if line is None or last is None or tracker.index != index or not tracker.locked:
            return tracker.feed_all([read])
        newest = line.sure(before_ns)
        if newest != line.possible(after_ns):
            # A probe. Whether this publication had happened is told by the next read at a safe moment.
            self._probes = [*self._probes[-5:], (newest + 1, before_ns, after_ns, row.values[0])]
            tracker.probed(before_ns, after_ns)
            return []
        if newest < index + 2:
            if newest == index + 1:
                self._settle_probes(line, index, [last.values[0], row.values[0]])
            return tracker.feed_all([read])
        filled = self._fill(line, index, last, newest, row)
        if filled is None:
            # Which publication this read shows is not known then either: the next two tell.
            self._refuse(after_ns)
            tracker.doubt()
            tracker.absent += newest - index
            tracker.lost(after_ns, after_ns)
            return []
        self._settle_probes(line, index, [one.values[0] for one in (last, *filled, row)])
        tracker.jump(before_ns, after_ns, row.values[0], newest, self._clock.monotonic_ns())
        return [*filled, Row(row.read_ns, *line.band(newest), row.values)]

    def _settle_probes(self, line: Line, index: int, firsts: Sequence[float]) -> None:
        """Tell the line what probes saw, now that the values before and after are known (from number `index` on)."""
        probes, self._probes = self._probes, []
        for k, before_ns, after_ns, value in probes:
            if not index < k < index + len(firsts):
                continue
            old, new = firsts[k - 1 - index], firsts[k - index]
            if abs(new - old) <= 2 * self._allowed(new - old, 1):
                continue  # a gauge that stands still shows nothing
            early_ns, late_ns = line.band(k)
            if abs(value - new) < abs(value - old):
                line.add(k, min(early_ns, after_ns) - guard_ns(line), after_ns)
            else:
                line.add(k, before_ns, max(late_ns, before_ns) + guard_ns(line))

    def _fill(self, line: Line, index: int, last: Row, newest: int, row: Row) -> list[Row] | None:
        """The publications between numbers `index` and `newest`, which were read; None where what was kept differs."""
        times, values = self._kept()
        bands = line.bands(index + 1, newest + 1)
        places = [_place(times, one[0], two[0]) for one, two in pairwise(bands)]
        known = [place for place in places if place is not None]
        readings = [values[place] for place in known]
        if len(known) < newest - index or self._strays([times[place] for place in known], bands):
            return None
        firsts = self._firsts(last.values[0], row.values[0], readings, line.period_ns)
        if firsts is None:
            return None
        self.filled += len(firsts)
        del bands[-2:]  # the last publication was read
        filled = self._group.filled(firsts, readings[:-1], [late_ns for _, late_ns in bands])
        return [
            Row(late_ns, early_ns, late_ns, values) for (early_ns, late_ns), values in zip(bands, filled, strict=True)
        ]

    def _strays(self, times_ns: Sequence[int], bands: Sequence[tuple[int, int]]) -> bool:
        """True where readings come sooner or later after their publications than they did: one has another phase."""
        lags = [at - (early + late) // 2 for at, (early, late) in zip(times_ns, bands, strict=False)]
        usual, self._lag_ns = self._lag_ns, lags[-1]
        return usual is not None and any(abs(lag - usual) > STRAY_NS for lag in lags)

    def _firsts(self, first: float, last: float, readings: Sequence[float], period_ns: float) -> list[float] | None:
        """The first channel at each publication before the last one; None where the last one contradicts them."""
        if not self._counts:
            agrees = abs(last - readings[-1]) <= self._allowed(0.0, 1)
            return list(readings[:-1]) if agrees else None
        total = sum(readings)
        said = total * self._unit * period_ns
        if total <= 0 or not abs(last - first - said) <= self._allowed(said, len(readings)):
            return None
        each, sums, so_far = (last - first) / total, [], 0.0
        for reading in readings[:-1]:
            so_far += reading
            sums.append(float(round(first + so_far * each)) if self._quantum >= 1 else first + so_far * each)
        return sums


def _loose(tracker: PlannedTracker) -> bool:
    """True where publications come at no regular times, or no longer at those that were known."""
    return tracker.line is None or tracker.line.jitter_ns > LOOSE_NS


def _place(times_ns: Sequence[int], early_ns: float, next_ns: float) -> int | None:
    """Where the last reading stands that was taken from one publication to the next, None where there is none."""
    place = bisect_left(times_ns, next_ns - EARLY_NS) - 1
    return place if place >= 0 and times_ns[place] >= early_ns - EARLY_NS else None
