"""A publisher's schedule as a band: publication k happens at `start + k·period`, each known only by brackets.

Every bracket (publication k was seen to happen between two reads) limits the straight line; the period's bounds come
from pairs of brackets far apart. Brackets are widened by the publisher's jitter, which grows when they contradict one
another, and by clock drift with their age.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import NamedTuple

from everywatt.core.lazy_dataclass import dataclass

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
        # publications stray is told by those that were seen to happen inside their band, or outside of it.
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
        """The best estimate of the period."""
        return (self._step_low + self._step_high) / 2

    def band(self, k: int) -> tuple[int, int]:
        """Earliest and latest time of publication k (now or in the future)."""
        return round(self._low + k * self._step_low), round(self._high + k * self._step_high)

    def bands(self, first: int, last: int) -> list[tuple[int, int]]:
        """`band` of every publication from `first` to `last`."""
        low, high, step_low, step_high = self._low, self._high, self._step_low, self._step_high
        return [(round(low + k * step_low), round(high + k * step_high)) for k in range(first, last + 1)]

    def latest(self, k: int) -> int:
        """Latest time of publication k."""
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
