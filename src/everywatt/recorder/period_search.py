"""The search for a schedule: from the changes that reads saw to a line through them (`publication_schedule`).

A burst of reads a few milliseconds apart brackets some changes. Where the period is declared two of them are enough,
where it has to be learnt it takes more, and a period that does not fit what is seen is given up after three times.
"""

from __future__ import annotations

import math
from itertools import pairwise

from everywatt.recorder.publication_schedule import Line

MS = 1_000_000
BURST_READS = 60
UNKNOWN_SPACING_NS = 4 * MS
# So many reads in a row, each with a change, say that the publisher is not slower than they are, but for this factor.
HASTY_READS, HASTY_SLACK = 8, 1.15


class Search:
    """What was seen of a publisher whose schedule is not known, and the line that it allows."""

    def __init__(self, declared_ns: int | None, counter: bool, now_ns: int) -> None:
        self.declared_ns = self.original_ns = declared_ns
        self.changes: list[tuple[int, int]] = []
        self.quick_ns: int | None = None  # it publishes at least this often, which is too often to be placed
        self.again = False  # `lay` gave no line because what was declared does not fit: another burst may
        self._counter = counter
        self._breaks: set[int] = set()  # positions in `changes` before which a change could not be placed
        self._blurred = self._reads = self._doubts = self._widest_ns = 0
        self._unknown_ns = UNKNOWN_SPACING_NS
        self._start_ns = now_ns
        self._faded: Line | None = None

    def start(self, now_ns: int) -> None:
        """A burst begins."""
        self.changes.clear()
        self._breaks.clear()
        self._reads = self._blurred = self._widest_ns = 0
        self._start_ns = now_ns

    def fade(self, line: Line) -> None:
        """Nothing has changed for so long that the phase is unknown; the next change may still fit this line."""
        self._faded = line

    def read(self) -> None:
        """One more read of the burst."""
        self._reads += 1

    def change(self, since_ns: int, after_ns: int, certain: bool) -> None:
        """The value changed between two reads; one of a burst that were too far apart says nothing of the phase."""
        if certain or after_ns - since_ns <= self._narrow_ns():
            self.changes.append((since_ns, after_ns))
            self._widest_ns = max(self._widest_ns, after_ns - since_ns)
        else:
            self._blurred += 1
            self._breaks.add(len(self.changes))

    def place(self, since_ns: int, after_ns: int) -> bool:
        """Make a change that a poll saw the only one, if it says something of the phase."""
        if self.declared_ns is None or after_ns - since_ns > self._narrow_ns():
            return False
        self._breaks.clear()
        self.changes = [(since_ns, after_ns)]
        return True

    def _narrow_ns(self) -> int:
        """A change between two reads further apart than this says nothing of the phase (we were woken too late)."""
        return self._unknown_ns * 7 // 4 if self.declared_ns is None else max(5 * MS, self.declared_ns // 3)

    @property
    def spacing_ns(self) -> int:
        """Time between the reads of a burst."""
        return self._unknown_ns if self.declared_ns is None else max(2 * MS, self.declared_ns // 10)

    def over(self, now_ns: int) -> bool:
        """True where a burst has seen enough, or has taken long enough."""
        enough = 8 if self.declared_ns is None else 2
        if self.declared_ns is None and self._reads < 16:
            return False
        if len(self.changes) >= enough or self._reads >= BURST_READS:
            return True
        return self.declared_ns is not None and now_ns - self._start_ns > 2.3 * self.declared_ns

    @property
    def everywhere(self) -> bool:
        """True where nearly every read of the burst saw a change: reads are too slow to place any."""
        return len(self.changes) >= 0.7 * self._reads and self._reads > 4

    def hurry(self) -> None:
        """Keep what a burst says where each of its reads saw a change: how long ago a publication is at most."""
        if len(self.changes) >= HASTY_READS and len(self.changes) + self._blurred >= self._reads - 1:
            most_ns = round(HASTY_SLACK * self._widest_ns)
            self.quick_ns = most_ns if self.quick_ns is None else min(most_ns, self.quick_ns)

    def closer(self) -> bool:
        """True where a closer look is worth while, once: it publishes often, and nobody knows its period."""
        near = self._unknown_ns == UNKNOWN_SPACING_NS and len(self.changes) + self._blurred >= 4
        if self.declared_ns is None and near:
            self._unknown_ns = UNKNOWN_SPACING_NS // 2
            return True
        self._unknown_ns = UNKNOWN_SPACING_NS
        return False

    def lay(self) -> Line | None:
        """A line through the changes seen; None where they do not fit one."""
        self.again = False
        middles = [(early + late) / 2 for early, late in self.changes]
        # A step across a change that was seen too late to be placed may be several periods.
        steps = [b - a for i, (a, b) in enumerate(pairwise(middles), 1) if i not in self._breaks]
        if self.declared_ns is not None:
            period, spread = float(self.declared_ns), 0.02
        elif steps:
            period = min(steps)
            spread = max(late - early for early, late in self.changes) / period
            if spread > 0.4:
                return None  # too vague: another period would fit as well
        else:
            return None
        revived = self._revived()
        if revived is not None:
            return revived
        line = Line(period * (1 - spread), period * (1 + spread))
        for (early, late), middle in zip(self.changes, middles, strict=True):
            k = round((middle - middles[0]) / period)
            if (line.brackets and k == line.brackets[-1][0]) or not line.add(k, early, late):
                self._disbelieve()
                return None
            period = line.period_ns
        if self.declared_ns is None and self._vague(line.brackets[-1][0] + 1, spread):
            return None
        return line

    def _revived(self) -> Line | None:
        """The line that faded for want of changes, if only one count of periods leads to the changes seen now.

        Its period is then known far better, and it lasts longer the next time.
        """
        line, self._faded = self._faded, None
        if line is None:
            return None
        fastest, slowest = line.steps
        for early, late in self.changes:
            k, first, last = line.brackets[-1]
            least = math.ceil((early - last - line.jitter_ns) / slowest)
            if least < 1 or least != math.floor((late - first + line.jitter_ns) / fastest):
                return None
            if not line.add(k + least, early, late):
                return None
        return line

    def _vague(self, publications: int, spread: float) -> bool:
        """True where a learnt period may be a wrong one: half the true one leaves every second instant unchanged."""
        if publications < 3 and spread > 0.15:
            return True
        return len(self.changes) + self._blurred < (0.75 if self._counter else 0.4) * publications

    def _disbelieve(self) -> None:
        """The period that was declared does not fit what is seen: look again, and after three times learn it."""
        if self.declared_ns is None:
            return
        self._doubts += 1
        if self._doubts >= 3:
            self._doubts, self.declared_ns = 0, None
        self.again = True
