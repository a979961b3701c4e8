"""The search behind the probe: the largest size that fits, then the cheapest one. Trying a size is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

NARROW = 1.08  # neighbours this close together need no size in between
MOST_REFINED = 12
MOST_UNASKED = 2**30
"""Upper limit of doubling if no largest size is given: a command that never fails probably ignores its size."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest size that fits, and the smallest that was seen not to; either may be None."""

    fits: int | None
    fails: int | None


def largest(fits: Callable[[int], bool], first: int, most: int | None, tolerance: int = 1) -> Largest:
    """Double from `first` until a size does not fit or `most` is reached, then halve what lies between."""
    good: int | None = None
    most = max(MOST_UNASKED, first) if most is None else most
    size = min(first, most)
    while fits(size):
        good = size
        if size == most:
            return Largest(good, None)
        size = min(size * 2, most)
    bad = size
    if good is None:
        good, bad = _downwards(fits, bad)
        if good is None:
            return Largest(None, bad)
    while bad - good > tolerance:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return Largest(good, bad)


def _downwards(fits: Callable[[int], bool], bad: int) -> tuple[int | None, int]:
    """The first size does not fit: halve it until one does."""
    while bad > 1:
        size = bad // 2
        if fits(size):
            return size, bad
        bad = size
    return None, bad


def cheapest(cost: Callable[[int], float | None], known: dict[int, float], least: int, most: int) -> int | None:
    """The size with the lowest cost a unit, refined between the neighbours of the best one so far.

    `known` has the costs of sizes that were tried, and gets those that are tried here. None where nothing has a cost.
    Costs a unit are taken to fall and then rise over size, once; noise may hide a difference of a few percent.
    """
    if not known:
        return None
    for _ in range(MOST_REFINED):
        best = min(known, key=lambda size: (known[size], size))
        sizes = sorted(known)
        place = sizes.index(best)
        below = sizes[place - 1] if place else max(least, 1)
        above = sizes[place + 1] if place + 1 < len(sizes) else most
        tries = [size for size in (_between(below, best), _between(best, above)) if size is not None]
        tries = [size for size in tries if size not in known]
        if not tries:
            return best
        for size in tries:
            found = cost(size)
            if found is not None:
                known[size] = found
        if all(size not in known for size in tries):
            return best
    return min(known, key=lambda size: (known[size], size))


def _between(low: int, high: int) -> int | None:
    """The size in the middle by ratio; None where the two are close enough."""
    if high <= low * NARROW or high - low < 2:
        return None
    middle = round(math.sqrt(low * high))
    return min(max(middle, low + 1), high - 1)
