"""A tracker that can be planned ahead: when a calm lock will be read in the coming second, and its reads fed later."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.core.channels import Row
from everywatt.recorder.phase_lock import CALM_NS, CALM_TARGET_NS, State, Tracker
from everywatt.recorder.publication_schedule import Window, guard_ns


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

    def calm(self, now_ns: int) -> bool:
        """True where a lock is old enough to be relied on, every publication is wanted, and nothing is searched for."""
        if self.line is None or self._last is None or self.state is not State.LOCKED or not self._dense:
            return False
        return (
            not (self._search or self._unreported or self._edge_ns is not None) and now_ns > self._locked_ns + CALM_NS
        )

    def outlook(self, now_ns: int, until_ns: int) -> list[Window]:
        """When to read until `until_ns`, probes that are due first; the reads may then be fed later, all in one go.

        Nothing where every read has to be looked at before the next one is planned: the lock is young, is searched
        for, or what is published often stays the same.
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
        while (late := line.latest(k)) < end_ns:
            windows.append(Window(late + guard, line.band(k + 1)[0] - guard))
            k += 1
        return windows

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
