"""The counter rule, once: what two raw readings of a hardware counter mean, and which case it was."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from everywatt.core.channels import NAN

WRAP_MARGIN = 1.5  # hardware may count so many times what its power limit allows, for a moment


class Case(StrEnum):
    """How a difference came about."""

    FIRST = "first"  # nothing to compare with
    PLAIN = "plain"
    WRAPPED = "wrapped"  # the counter passed its range once
    MANY_WRAPS = "many-wraps"  # it may have passed its range more than once: `count` is the least, `most` the bound
    RESET = "reset"  # driver or device restarted: what was counted in between is lost
    MISSING = "missing"  # one of the readings is not there


class Difference(NamedTuple):
    """Raw counts from one reading to the next. NaN where they are not known."""

    count: float  # type: ignore[assignment] # shadows tuple.count, which is useless for a difference
    case: Case
    most: float = NAN


def difference(
    before: float,
    after: float,
    *,
    wrap: float | None,
    seconds: float,
    most_per_s: float | None = None,
    period_s: float = 0.0,
) -> Difference:
    """Counts between two readings `seconds` apart.

    `wrap` is the counter's range in counts, None where it is unknown. `most_per_s` is the most the hardware can count
    in a second, `period_s` how often it publishes: two reads 0.1 ms apart may see the count of a whole period. A step
    back is a wrap only where a wrap explains it: with a known range, and no faster than the hardware.
    """
    if before != before or after != after:
        return Difference(NAN, Case.MISSING)
    step = after - before
    most = None if most_per_s is None else most_per_s * (max(seconds, 0.0) + period_s) * WRAP_MARGIN
    if step >= 0:
        if wrap and most is not None and most >= step + wrap:
            return Difference(step, Case.MANY_WRAPS, most)
        return Difference(step, Case.PLAIN)
    if not wrap or before > wrap:
        return Difference(NAN, Case.RESET)
    step += wrap
    if most is None:
        # Without a power limit the last value decides between a restart and a wrap: a wrap comes from near the top.
        return Difference(step, Case.WRAPPED) if step <= wrap / 2 else Difference(NAN, Case.RESET)
    if step > most:
        return Difference(NAN, Case.RESET)
    if most >= step + wrap:
        return Difference(step, Case.MANY_WRAPS, most)
    return Difference(step, Case.WRAPPED)
