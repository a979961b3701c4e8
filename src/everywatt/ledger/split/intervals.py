"""The parts of a device's error budget that owners carry. Added over all owners they are the device's own again.

What the sensor gets wrong in proportion goes to everybody in proportion. Its offset is in the idle level too where
that was measured by the same sensor, so idle carries it. The spread of the idle level has opposite signs for idle and
for everybody else, and what a share may be off by is missing from somebody else's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from everywatt.core.budget import Bound, Budget, Term
from everywatt.ledger.idle import Idle

EXACT_OWNERS = 24
# Idle levels that this very sensor measured on this tape.
SEEN = ("measured", "quiet", "quiet, held", "regression", "lowest")


def budgets(
    whole: Budget,
    key: str,
    idle: Idle,
    names: Sequence[str],
    charged_j: Sequence[float],
    idle_j: Sequence[float],
    owned_s: Sequence[float],
    doubt_j: Sequence[float],
    unsure: float,
) -> list[Budget]:
    """One budget for each owner: it owes `charged_j` for use or holding and `idle_j` for idling of the device `key`.

    `owned_s` is its part of the time that was shared, which is what an error of the idle level costs it by the watt.
    """
    charges, idles = math.fsum(charged_j), math.fsum(idle_j)
    by_all = _shares([c + i for c, i in zip(charged_j, idle_j, strict=True)])
    by_charge = _shares(charged_j) if charges > 0 else by_all
    by_idle = _shares(idle_j) if idles > 0 else by_all
    terms: list[list[Term]] = [[] for _ in names]
    bounds: list[list[Bound]] = [[] for _ in names]
    for term in whole.terms:
        offset = "offset" in (term.source, term.key[:6]) and idle.method in SEEN
        shares = by_idle if offset else by_charge if idle.method == "given" else by_all
        for own, share in zip(terms, shares, strict=True):
            if share:
                own.append(term._replace(joules=term.joules * share))
    for bound in whole.bounds:
        for limits, share in zip(bounds, by_all, strict=True):
            if share:
                limits.append(Bound(bound.source, bound.key, bound.below * share, bound.above * share))
    shared_s = math.fsum(owned_s)
    if idle.spread_w > 0 and shared_s > 0:
        # Nobody can be off by more than there was.
        spread_w = min(idle.spread_w, (charges + idles) / shared_s)
        for own, share, seconds in zip(terms, by_idle, owned_s, strict=True):
            width_j = spread_w * (shared_s * share - seconds)
            if width_j:
                own.append(Term("baseline", f"baseline:{key}", width_j))
    _split(terms, key, names, charged_j, doubt_j, unsure)
    return [Budget(tuple(own), tuple(limits)) for own, limits in zip(terms, bounds, strict=True)]


def _split(
    terms: list[list[Term]],
    key: str,
    names: Sequence[str],
    charged_j: Sequence[float],
    doubt_j: Sequence[float],
    unsure: float,
) -> None:
    """What each share may be off by is missing from the others', in proportion to what they owe.

    Beyond a number of owners the small ones are taken in pairs of neighbours, each the other side of its neighbour.
    """
    order = sorted((i for i, amount in enumerate(charged_j) if amount > 0), key=lambda i: -charged_j[i])
    errors = {i: math.hypot(unsure * charged_j[i], doubt_j[i]) for i in order}
    count = EXACT_OWNERS + max(len(order) - EXACT_OWNERS, 0) % 2
    large, small = order[:count], order[count:]
    for one in large:
        rest = math.fsum(charged_j[other] for other in large if other != one)
        whole = rest + charged_j[one]
        for other in large:
            share = rest / whole if other == one else -charged_j[other] / whole
            if errors[one] * share:
                terms[other].append(Term("split", f"split:{key}:{names[one]}", errors[one] * share))
    for one, other in zip(small[::2], small[1::2], strict=True):
        width_j = math.hypot(errors[one], errors[other]) / math.sqrt(2)
        terms[one].append(Term("split", f"split:{key}:{names[one]}", width_j))
        terms[other].append(Term("split", f"split:{key}:{names[one]}", -width_j))


def _shares(amounts: Sequence[float]) -> list[float]:
    whole = math.fsum(amounts)
    return [amount / whole for amount in amounts] if whole > 0 else [1.0 / len(amounts)] * len(amounts)
