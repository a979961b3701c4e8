"""A tracker that can be planned ahead: when a calm lock will be read in the coming second, and its reads fed later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from everywatt.core.channels import Row
from everywatt.recorder.period_search import MS
from everywatt.recorder.phase_lock import CALM_NS, CALM_TARGET_NS, State, Tracker
from everywatt.recorder.publication_schedule import Line, Window, guard_ns

LONGEST_NS = 1_600 * MS  # without a read, where others know the publications: drivers keep them for 2 s


class PlannedTracker(Tracker):
    """A tracker whose windows can be known beforehand (`outlook`, `commit`) and whose reads may be fed in one go."""

    def feed_all(self, reads: Sequence[tuple[int, int, Row]]) -> list[Row]:
        """`feed`, for reads (began, ended, row) that were kept for a while; those of a calm lock in few steps."""
        rows = self._steady_run(reads) if self.state is State.LOCKED else []
        for before, after, row in reads[len(rows) :]:
            rows += self.feed(before, after, row)
        return rows

    def _steady_run(self, reads: Sequence[tuple[int, int, Row]]) -> list[Row]:
        """What `_steady` gives for the first of these reads, one after the other, up to one that it does not take."""
        line, last, rows = self.line, self._last, []
        if line is None or last is None or self._probing or self._search or self._unreported:
            return []
        since, _, value_before = last
        previous, (early, late) = line.latest(self._index), line.band(self._index + 1)
        for before, after, row in reads:
            value = row.values[0]
            soon, next_late = line.band(self._index + 2)
            if not (previous <= since < early and late < before and after < soon and abs(value - value_before) > 0):
                break
            if after >= self._quiet_ns or next_late + 2 * self._guard_ns > line.band(self._index + 3)[0]:
                break
            rows.append(Row(row.read_ns, early, late, row.values))
            self._last = (before, after, value)
            self._recent.append((since, after))
            self._awaited, self._stale = False, 0
            self._moved, self._chances = self._moved * 0.98 + 1, self._chances * 0.98 + 1
            self._index, self._told_ns = self._index + 1, late
            since, value_before, previous, early, late = before, value, late, soon, next_late
        if rows:
            self.due = Window(late + self._guard_ns, line.band(self._index + 2)[0] - self._guard_ns)
        return rows

    @property
    def index(self) -> int:
        """The number of the newest publication that was told."""
        return self._index

    @property
    def wants_all(self) -> bool:
        """True where every publication is to be told."""
        return self.line is not None and self._dense

    def calm(self, now_ns: int) -> bool:
        """True where a lock is old enough to be relied on, every publication is wanted, and nothing is searched for."""
        if self.line is None or self._last is None or self.state is not State.LOCKED or not self._dense:
            return False
        return (
            not (self._search or self._unreported or self._edge_ns is not None) and now_ns > self._locked_ns + CALM_NS
        )

    def jump(self, before_ns: int, after_ns: int, value: float, index: int, now_ns: int) -> None:
        """A read at a safe moment after publication `index`, all before it being known by other means.

        What comes next is planned from `now_ns` on.
        """
        line = self.line
        if line is None:
            return
        self._recent.extend(pairwise([line.latest(k) for k in range(max(self._index, index - 5), index + 1)]))
        self._last = (before_ns, after_ns, value)
        self._awaited, self._stale, self._unreported = False, 0, False
        self._moved, self._chances = self._moved * 0.98 + 1, self._chances * 0.98 + 1
        self._index, self._told_ns = index, line.latest(index)
        self._plan(now_ns)

    def probed(self, before_ns: int, after_ns: int) -> None:
        """A probe was made whose value somebody else looks at, after a read at a safe moment: that one comes first."""
        self._mind_lateness(before_ns)
        if self.line is not None:
            self._planned_ns = max(self._planned_ns, after_ns + round(self.line.period_ns))
        self._plan(after_ns)

    def doubt(self) -> None:
        """The lock is to be checked as soon as possible."""
        self._checked_ns = 0

    def outlook(self, now_ns: int, until_ns: int) -> list[Window]:
        """When to read until `until_ns`, probes that are due first; the reads may then be fed later, all in one go.

        Where most publications are known by other means that is one read, shortly before `until_ns`. Nothing where
        every read has to be looked at before the next one is planned: the lock is young, is searched for, or what is
        published often stays the same.
        """
        line = self.line
        if line is None or not self.calm(now_ns):
            return []
        end_ns, guard, k = until_ns + round(line.period_ns), guard_ns(line), self._index + 1
        if line.width(line.possible(end_ns)) > 2 * CALM_TARGET_NS + 4 * line.jitter_ns:
            return []
        if self._moved < 0.9 * self._chances:
            return []
        windows = [Window(at, at) for at in self._probes if at > now_ns]
        if self.sparse:
            k = max(k, line.sure(now_ns))
            last = self._seldom(line, guard, k, until_ns)
            if last:
                return [*windows, *last]
        while (late := line.latest(k)) < end_ns:
            windows.append(Window(late + guard, line.band(k + 1)[0] - guard))
            k += 1
        return windows

    def _seldom(self, line: Line, guard: int, k: int, until_ns: int) -> list[Window]:
        """From publication k on, the last window that ends before `until_ns` and one after that; nothing where there
        is none, where a probe comes after it, or where stretches before this one ended early and it is high time."""
        last = line.possible(until_ns + guard) - 1
        if last < k or until_ns - self._told_ns > LONGEST_NS:
            return []
        window = _after(line, last, guard)
        if self._probes and self._probes[-1] > window.earliest_ns:
            return []
        # The one that `until_ns` falls into is left out: it would be read a moment after the last one.
        return [window, _after(line, last + 2, guard)]

    def commit(self, last: Window) -> None:
        """The windows up to this one will be kept, and what was read in them is fed afterwards: only the read in the
        last one is followed by new probes."""
        if self.line is not None:
            self._guard_ns = guard_ns(self.line)
        self._quiet_ns = self._planned_ns = last.earliest_ns

    def release(self, now_ns: int) -> None:
        """What was committed will not be kept after all."""
        if self._planned_ns <= now_ns:
            return
        self._quiet_ns = self._planned_ns = now_ns
        if self.state is State.LOCKED:
            self._plan(now_ns)


def _after(line: Line, k: int, guard: int) -> Window:
    """When publication k stands, and can be read safely."""
    return Window(line.latest(k) + guard, line.band(k + 1)[0] - guard)
