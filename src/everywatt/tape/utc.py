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
    return monotonic > 0 and abs(utc - monotonic) <= monotonic * _SLEW_PPM // 1_000_000 + _READ_NS


def to_utc_ns(anchors: Sequence[Anchor], monotonic_ns: int) -> int:
    """UTC of an instant: interpolated between steady anchors, else counted on from the anchor before it."""
    at = bisect_right([anchor.monotonic_ns for anchor in anchors], monotonic_ns) - 1
    anchor = anchors[max(0, at)]
    since = monotonic_ns - anchor.monotonic_ns
    if 0 <= at < len(anchors) - 1 and _steady(anchor, anchors[at + 1]):
        after = anchors[at + 1]
        span = after.monotonic_ns - anchor.monotonic_ns
        return anchor.utc_ns + since * (after.utc_ns - anchor.utc_ns) // span
    return anchor.utc_ns + since


def from_utc_ns(anchors: Sequence[Anchor], utc_ns: int) -> int:
    """An instant at which the wall clock showed this time, the first there was."""
    for anchor, after in pairwise(anchors):
        if utc_ns < anchor.utc_ns:
            break
        end_utc_ns = to_utc_ns(anchors, after.monotonic_ns - 1)
        if utc_ns <= end_utc_ns:
            span, utc_span = after.monotonic_ns - anchor.monotonic_ns, after.utc_ns - anchor.utc_ns
            since = utc_ns - anchor.utc_ns
            if _steady(anchor, after) and utc_span > 0:
                return anchor.monotonic_ns + -(-since * span // utc_span)
            return anchor.monotonic_ns + since
        if utc_ns < after.utc_ns:
            return after.monotonic_ns  # a time that was stepped over
    anchor = anchors[0] if utc_ns < anchors[0].utc_ns else anchors[-1]
    return anchor.monotonic_ns + utc_ns - anchor.utc_ns
