"""A publisher's schedule as a band: publication k happens at `start + k·period`, each known only by brackets.

Every bracket (publication k was seen to happen between two reads) limits the straight line; the period's bounds come
from pairs of brackets far apart. Brackets are widened by the publisher's jitter, which grows when they contradict one
another, and by clock drift with their age.

`Search` finds the first such line: a burst of reads a few milliseconds apart brackets some changes. Where the period is
declared two of them are enough, where it has to be learnt it takes more, and a period that does not fit what is seen is
given up after three times.
"""

from __future__ import annotations

import math
from dataclasses import field
from itertools import pairwise
from typing import NamedTuple

from everywatt.core.lazy_dataclass import dataclass

MS = 1_000_000
BURST_READS = 60
UNKNOWN_SPACING_NS = 4 * MS
# So many reads in a row, each with a change, say that the publisher is not slower than they are, but for this factor.
HASTY_READS, HASTY_SLACK = 8, 1.15
KEPT = 32
CALM = 6
OLDEST_NS = 90e9
DRIFT = 5e-6
LEAST_JITTER_NS = 60_000.0
FIRST_JITTER_NS = 180_000.0
MARGIN = 2.0
CONFIRMS = 1.5  # a bracket up to so many times as wide as the band shows a publication inside it
MOST_JITTER = 20  # a 1/20 of the period; what strays further has another phase
FIRST_MOST = 30  # while there are few brackets
FEW = 6
SAFE_NS = 1_000_000  # from a predicted publication, at most
DECAY = 0.993  # so that one publication in a hundred outside of its band keeps the jitter where it is


@dataclass
class Line:
    """What is known of a schedule. Times are nanoseconds; `slowest` and `fastest` bound the period beforehand."""

    fastest_ns: float
    slowest_ns: float
    jitter_ns: float = FIRST_JITTER_NS
    _calm: int = 0
    brackets: list[tuple[int, float, float]] = field(default_factory=list)
    _low: float = 0.0
    _high: float = 0.0
    _step_low: float = 0.0
    _step_high: float = 0.0

    def add(self, k: int, early_ns: float, late_ns: float) -> bool:
        """Take in that publication k happened in [early, late]. False where no line passes through all brackets."""
        oldest = k - OLDEST_NS / self.slowest_ns
        self.brackets = [b for b in self.brackets[1 - KEPT :] if b[0] >= oldest]
        self.brackets.append((k, early_ns, late_ns))
        # Reads at a predicted instant only tell before from after, and some line always passes between. How far
        # publications stray is known from those that were seen to happen inside their band, or outside of it.
        inside = self._step_high > 0 and late_ns - early_ns < CONFIRMS * self.width(k)
        jitter = max(LEAST_JITTER_NS, self.jitter_ns * (DECAY if inside else 1.0))
        most = max(self._most_ns(), 2 * LEAST_JITTER_NS)
        while not self._solve(jitter):
            if jitter >= most:
                self.brackets.pop()
                return False
            jitter = min(jitter * 1.3, most)
        self._calm = self._calm + inside if jitter <= self.jitter_ns else 0
        self.jitter_ns = jitter
        return True

    def surprise(self, k: int, early_ns: float, late_ns: float) -> bool:
        """Like `add`, for a publication outside its band: the jitter is clearly larger than thought."""
        low, high = self.band(k)
        outside = max(low - late_ns, early_ns - high, 0.0)
        most, before = self._most_ns(), self.jitter_ns
        if outside > most:
            return False
        self.jitter_ns = min(3 * before + outside, most)
        self._calm = -CALM
        if self.add(k, early_ns, late_ns):
            return True
        self.jitter_ns = before
        return False

    def _most_ns(self) -> float:
        return self.fastest_ns / (MOST_JITTER if len(self.brackets) > FEW else FIRST_MOST)

    def _solve(self, jitter: float) -> bool:
        last = self.brackets[-1][0]
        wide = []
        for k, early, late in self.brackets:
            slack = jitter + DRIFT * (last - k) * self.slowest_ns
            wide.append((k, early - slack, late + slack))
        step_low, step_high = self.fastest_ns, self.slowest_ns
        for j, (k, early, late) in enumerate(wide):
            for k0, early0, late0 in wide[:j]:
                steps = k - k0
                if steps > 0:  # each with each, so no calls of `min` and `max`, and divisions only where one counts
                    if late - early0 < step_high * steps:
                        step_high = (late - early0) / steps
                    if early - late0 > step_low * steps:
                        step_low = (early - late0) / steps
        if step_low > step_high:
            return False
        low = max(early - k * step_low for k, early, _ in wide)
        high = min(late - k * step_high for k, _, late in wide)
        if low + last * step_low > high + last * step_high:
            return False
        # A publication itself lies within the jitter of the line, and what was seen of the jitter is not all of it.
        self._low, self._high = low - MARGIN * jitter, high + MARGIN * jitter
        self._step_low, self._step_high = step_low, step_high
        return True

    @property
    def settled(self) -> bool:
        """True where the last publications that were looked at lay inside their bands."""
        return self._calm >= CALM

    @property
    def steps(self) -> tuple[float, float]:
        """The shortest and the longest period that fit."""
        return self._step_low, self._step_high

    @property
    def period_ns(self) -> float:
        return (self._step_low + self._step_high) / 2

    def band(self, k: int) -> tuple[int, int]:
        """Earliest and latest time of publication k (now or in the future)."""
        return round(self._low + k * self._step_low), round(self._high + k * self._step_high)

    def latest(self, k: int) -> int:
        return round(self._high + k * self._step_high)

    def width(self, k: int) -> float:
        """Nanoseconds from the earliest to the latest time of publication k."""
        return self._high - self._low + k * (self._step_high - self._step_low)

    def sure(self, t_ns: int) -> int:
        """The newest publication that has certainly happened by then."""
        return math.floor((t_ns - self._high) / self._step_high)

    def possible(self, t_ns: int) -> int:
        """The newest publication that may have happened by then."""
        return math.floor((t_ns - self._low) / self._step_low)


class Window(NamedTuple):
    """When the next read may happen; any moment within is as good."""

    earliest_ns: int
    latest_ns: int


def guard_ns(line: Line) -> int:
    """How far from a predicted publication a read is safe."""
    return min(SAFE_NS, round(line.period_ns / 10))


def safe_window(line: Line, k: int, now: int) -> Window:
    """When publication k can be read safely, before the next one comes."""
    guard = guard_ns(line)
    earliest, latest = line.band(k)[1] + guard, line.band(k + 1)[0] - guard
    if earliest > latest:
        earliest = latest = (earliest + latest) // 2
    if latest <= now:
        earliest = latest = now
    return Window(earliest, latest)


class Search:
    """What was seen of a publisher whose schedule is not known, and the line that it allows."""

    def __init__(self, declared_ns: int | None, counter: bool, now_ns: int) -> None:
        self.declared_ns = self.original_ns = declared_ns
        self.changes: list[tuple[int, int]] = []
        self.quick_ns: int | None = None  # it publishes at least this often, which is too often to be placed
        self.again = False  # `lay` gave no line because what was declared does not fit: another burst may
        self._counter = counter
        self._breaks: set[int] = set()  # positions in `changes` before which a change could not be placed
        self.reads = 0  # of the burst
        self._blurred = self._doubts = self._widest_ns = 0
        self._unknown_ns = UNKNOWN_SPACING_NS
        self._start_ns = now_ns
        # Nothing changed for so long that its phase is unknown; the next change may still fit this line.
        self.faded: Line | None = None

    def start(self, now_ns: int) -> None:
        self.changes.clear()
        self._breaks.clear()
        self.reads = self._blurred = self._widest_ns = 0
        self._start_ns = now_ns

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
        if self.declared_ns is None and self.reads < 16:
            return False
        if len(self.changes) >= enough or self.reads >= BURST_READS:
            return True
        return self.declared_ns is not None and now_ns - self._start_ns > 2.3 * self.declared_ns

    @property
    def everywhere(self) -> bool:
        """True where nearly every read of the burst saw a change: reads are too slow to place any."""
        return len(self.changes) >= 0.7 * self.reads and self.reads > 4

    def hurry(self) -> None:
        """Keep what a burst says where each of its reads saw a change: how long ago a publication is at most."""
        if len(self.changes) >= HASTY_READS and len(self.changes) + self._blurred >= self.reads - 1:
            most_ns = round(HASTY_SLACK * self._widest_ns)
            self.quick_ns = most_ns if self.quick_ns is None else min(most_ns, self.quick_ns)

    def closer(self) -> bool:
        """True where a closer look is worth while, once: it publishes often, and its period is not known."""
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
        line, self.faded = self.faded, None
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
