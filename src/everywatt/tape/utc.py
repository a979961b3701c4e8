"""Between the tape's clock and UTC, by anchors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from everywatt.core.clocks import Anchor

_SLEW_PPM: Final = 1000
_READ_NS: Final = 2_000_000


def _steady(a: Anchor, b: Anchor) -> bool:
    """True where UTC went on evenly from one anchor to the next: no step of the wall clock, no suspend."""
    monotonic, utc = b.monotonic_ns - a.monotonic_ns, b.utc_ns - a.utc_ns
    return monotonic > 0 and utc > 0 and abs(utc - monotonic) <= monotonic * _SLEW_PPM // 1_000_000 + _READ_NS


class UtcMap:
    """A mapping in both directions, by at least one anchor."""

    def __init__(self, anchors: Sequence[Anchor]) -> None:
        self.anchors = tuple(anchors)
        self._times = [anchor.monotonic_ns for anchor in anchors]
        self._steady = [_steady(a, b) for a, b in pairwise(anchors)]

    def to_utc_ns(self, monotonic_ns: int) -> int:
        """UTC of an instant: interpolated between steady anchors, else counted on from the anchor before it."""
        at = bisect_right(self._times, monotonic_ns) - 1
        anchor = self.anchors[max(0, at)]
        since = monotonic_ns - anchor.monotonic_ns
        if 0 <= at < len(self._steady) and self._steady[at]:
            after = self.anchors[at + 1]
            return anchor.utc_ns + since * (after.utc_ns - anchor.utc_ns) // (after.monotonic_ns - anchor.monotonic_ns)
        return anchor.utc_ns + since

    def from_utc_ns(self, utc_ns: int) -> int:
        """An instant at which the wall clock showed this time, the first there was."""
        for at, (anchor, after) in enumerate(pairwise(self.anchors)):
            if utc_ns < anchor.utc_ns:
                break
            since = utc_ns - anchor.utc_ns
            if utc_ns <= self.to_utc_ns(after.monotonic_ns - 1):
                if self._steady[at]:
                    span, utc_span = after.monotonic_ns - anchor.monotonic_ns, after.utc_ns - anchor.utc_ns
                    return anchor.monotonic_ns - (-since * span // utc_span)
                return anchor.monotonic_ns + since
            if utc_ns < after.utc_ns:
                return after.monotonic_ns  # a time that was stepped over
        anchor = self.anchors[0] if utc_ns < self.anchors[0].utc_ns else self.anchors[-1]
        return anchor.monotonic_ns + utc_ns - anchor.utc_ns
