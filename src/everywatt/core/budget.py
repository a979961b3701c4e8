"""The error budget behind an interval: named sources, each with its coefficient.

Terms with one key are the same unknown error seen through several figures (the gain of one card in two windows, the
edge that two adjacent windows share with opposite sign), so they add linearly. Terms with different keys are
independent: their standard uncertainties add in quadrature, and the sum is expanded once, with the effective degrees of
freedom of Welch and Satterthwaite (JCGM 100, G.4). Errors that are partly correlated are written as sums of independent
ones, each under its key (the factors of their covariance matrix). Bounds are not sigmas: they are added whole, those of
one key with their signs.

Some errors may be the same in two figures but need not be: what a part-time sensor misses, the edges of equal cards
that may work in step. They add in a sum and do not cancel in a difference. A key `FAMILY|MEMBER` says so: members of a
family that have the same sign add, those of different signs are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.stats import Z95, student_factor

# Beyond so many degrees of freedom Student's factor is that of a normal distribution to three digits.
MANY = 1000


def _student(freedom: float) -> float:
    return Z95 if freedom > MANY else student_factor(max(freedom, 1.0))


class Term(NamedTuple):
    """One source of error: a signed 95 % half-width in joules under a correlation key.

    Its standard uncertainty is that half-width over Student's factor for `freedom` degrees of freedom.
    """

    source: str
    key: str
    joules: float
    freedom: float = math.inf


class Bound(NamedTuple):
    """What cannot be excluded: at most `below` joules less and `above` joules more.

    Both are negative in a figure that the error of this key was subtracted from, so that the same error in two figures
    cancels as far as it can. `reach` gives the two sides.
    """

    source: str
    key: str
    below: float
    above: float

    @property
    def reach(self) -> tuple[float, float]:
        """How far it reaches down and up in joules, both ≥ 0."""
        below, above = max(self.below, 0.0) + max(-self.above, 0.0), max(self.above, 0.0) + max(-self.below, 0.0)
        return below, above


SHARED = ("gain", "offset", "model", "aliasing", "baseline")
"""Sources of error that repeated measurements share: their scatter does not show them."""
FACTORS = ("gain", "model")
"""Sources of error that multiply a figure: what two figures share of them cancels in their ratio, however large."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Terms and bounds of one figure. Immutable; sums, differences and multiples are new budgets."""

    terms: tuple[Term, ...] = ()
    bounds: tuple[Bound, ...] = ()

    @classmethod
    def sum(cls, budgets: Iterable[Budget]) -> Budget:
        """The same as adding them one after another, in linear time."""
        found = list(budgets)
        terms = _merge_terms(chain.from_iterable([budget.terms for budget in found]))
        return cls(terms, tuple(chain.from_iterable([budget.bounds for budget in found])))

    def __add__(self, other: Budget) -> Budget:
        return Budget.sum((self, other))

    def __sub__(self, other: Budget) -> Budget:
        return self + other.scaled(-1.0)

    def scaled(self, factor: float) -> Budget:
        """The budget of `factor` times the figure."""
        terms = tuple([Term(source, key, joules * factor, free) for source, key, joules, free in self.terms])
        bounds = tuple(Bound(b.source, b.key, b.below * factor, b.above * factor) for b in self.bounds)
        return Budget(terms, bounds)

    def repeated(self, shared: bool) -> Budget:
        """What measurements that are repeated on one machine have in common; or, not `shared`, what differs from one to
        the next."""
        terms = tuple(term for term in self.terms if (term.source in SHARED) is shared)
        return Budget(terms, tuple(bound for bound in self.bounds if (bound.source in SHARED) is shared))

    def by_key(self) -> dict[str, float]:
        """Signed joules of each independent error."""
        return _independent(self.terms)

    def by_source(self) -> dict[str, float]:
        """95 % half-width in joules of each named source, largest first; bounds count with their larger side."""
        terms: dict[str, list[Term]] = {}
        for term in self.terms:
            terms.setdefault(term.source, []).append(term)
        widths = {source: math.hypot(*_independent(found).values()) for source, found in terms.items()}
        for bound in self.bounds:
            widths[bound.source] = widths.get(bound.source, 0.0) + max(bound.reach)
        return dict(sorted(widths.items(), key=lambda item: -item[1]))

    def sides(self, joules: float = 0.0) -> tuple[float, float]:
        """Joules below and above the figure that the 95 % interval reaches.

        Of an amount of `joules` that cannot be negative: a gain that was found over many sensors is a share of what is
        true and not of what was read, so it reaches further up than down (the interval holds all amounts whose error
        explains the reading).
        """
        spread = self._expanded() if self.terms else 0.0
        lean = 0.0
        if joules > 0 and spread > 0:
            widths = self.by_key()
            found = (term for term in self.terms if term.source == "gain" and term.freedom < math.inf)
            lean = min(sum(term.joules * widths[term.key] for term in found) / (joules * spread), 1.0)
        below, above = self._reach()
        return spread * (1 - lean) + below, spread * (1 + lean) + above

    def _reach(self) -> tuple[float, float]:
        """What bounds add below and above: those of one key are one unknown error, others may all be at their ends."""
        reaches = [bound.reach for bound in self._bounds_by_key().values()]
        return sum(below for below, _ in reaches), sum(above for _, above in reaches)

    def _bounds_by_key(self) -> dict[str, Bound]:
        sums: dict[str, Bound] = {}
        for bound in self.bounds:
            same = sums.get(bound.key)
            if same is not None:
                bound = Bound(bound.source, bound.key, same.below + bound.below, same.above + bound.above)
            sums[bound.key] = bound
        return sums

    def _expanded(self) -> float:
        """95 % half-width in joules of all terms together."""
        freedom = {term.key: term.freedom for term in self.terms if term.freedom < math.inf}
        widths = self.by_key()
        if not freedom:
            return math.hypot(*widths.values())
        standard = {key: width / _student(freedom.get(key, math.inf)) for key, width in widths.items()}
        combined = math.hypot(*standard.values())
        # Estimates of equal freedom are taken as one: those of all sensors of a kind come from the same measured ones.
        squares: dict[float, float] = {}
        for key, free in freedom.items():
            squares[free] = squares.get(free, 0.0) + standard[key] ** 2
        fourth = sum(square**2 / free for free, square in squares.items())
        # The effective number is rounded down (G.4.2), which also keeps the quantiles to be computed few.
        return combined * _student(math.floor(min(combined**4 / fourth + 1e-6, MANY)) if fourth > 0 else math.inf)


def quotient_interval(joules: float, budget: Budget, divisor: float, other: Budget) -> tuple[float, float]:
    """The 95 % interval of `joules / divisor` by Fieller's theorem, whose errors have these budgets.

    It holds every ratio r for which `joules - r · divisor` may be zero, so that a wide error of the divisor reaches
    further up than down. An unknown factor of both figures (a card's gain) cancels. Bounds add what the ratio moves by
    at those of their ends that move it furthest. Infinite where the divisor may be zero.
    """
    if divisor < 0:
        joules, budget, divisor, other = -joules, budget.scaled(-1.0), -divisor, other.scaled(-1.0)
    slope = joules / divisor
    straight = budget - other.scaled(slope)
    width = math.hypot(*straight.by_key().values())
    expansion = straight._expanded() / width if width else 0.0
    above, below = _sums(budget.terms), _sums(other.terms)
    factors = [_sums(term for term in terms if term.source in FACTORS) for terms in (budget.terms, other.terms)]
    pairs: dict[str, list[float]] = {}
    for key in dict.fromkeys((*above, *below)):
        alike = _alike(factors[0].get(key, 0.0) / joules if joules else 0.0, factors[1].get(key, 0.0) / divisor)
        p = (above.get(key, 0.0) - alike * joules) * expansion
        q = (below.get(key, 0.0) - alike * divisor) * expansion
        pair = pairs.setdefault(_family(key, p - slope * q), [0.0, 0.0])
        pair[0] += p
        pair[1] += q
    low, high = (_at_bounds(joules, budget, divisor, other, sign) - slope for sign in (-1.0, 1.0))
    return low + _fieller(joules, divisor, pairs.values(), -1.0), high + _fieller(joules, divisor, pairs.values(), 1.0)


def _alike(one: float, other: float) -> float:
    """What two shares have in common; 0 where one is negative and the other is not."""
    return math.copysign(min(abs(one), abs(other)), one) if one * other > 0 else 0.0


def _at_bounds(joules: float, budget: Budget, divisor: float, other: Budget, sign: float) -> float:
    """The ratio where both figures are at those ends of their bounds that move it furthest down (-1) or up (1)."""
    slope = joules / divisor
    above, below = budget._bounds_by_key(), other._bounds_by_key()
    none = Bound("", "", 0.0, 0.0)
    for key in dict.fromkeys((*above, *below)):
        one, two = above.get(key, none), below.get(key, none)
        ends = ((0.0, 0.0), (-one.below, -two.below), (one.above, two.above))
        end = max(ends, key=lambda end: sign * (end[0] - slope * end[1]))
        joules, divisor = joules + end[0], divisor + end[1]
    return joules / divisor if divisor > 0 else sign * math.inf


def _fieller(joules: float, divisor: float, pairs: Iterable[Sequence[float]], sign: float) -> float:
    """The lower (-1) or upper (1) ratio at which `joules - r · divisor` is as large as its 95 % half-width.

    `pairs` are the half-widths in joules of each independent error in both figures.
    """
    slope = joules / divisor
    off = [(p - slope * q, q) for p, q in pairs]  # what does not cancel, and what the divisor has of the error
    ee, eq, qq = (math.fsum(x) for x in ((e * e for e, _ in off), (e * q for e, q in off), (q * q for _, q in off)))
    a, inside = divisor**2 - qq, eq**2 + ee * (divisor**2 - qq)
    if a > 0:
        return slope + (sign * math.sqrt(inside) - eq) / a
    # The divisor may be zero: the ratio has no upper end, and a lower one only if the divisor's own error leads there.
    return slope + ee / (eq - math.sqrt(inside)) if sign < 0 and eq < 0 <= inside else sign * math.inf


def _independent(terms: Iterable[Term]) -> dict[str, float]:
    """Signed joules of each independent error: those of one key added up, then members of a family of one sign."""
    sums = _sums(terms)
    for key in [key for key in sums if "|" in key]:
        joules = sums.pop(key)
        sign = _family(key, joules)
        sums[sign] = sums.get(sign, 0.0) + joules
    return sums


def _sums(terms: Iterable[Term]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for _, key, joules, _ in terms:
        sums[key] = sums.get(key, 0.0) + joules
    return sums


def _family(key: str, joules: float) -> str:
    """The key under which errors add up: of a member of a family, the family and the sign."""
    return f"{key.partition('|')[0]}|{'-' if joules < 0 else '+'}" if "|" in key else key


def _merge_terms(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Terms of one source and key added up, in the order in which they first appear."""
    sums: dict[tuple[str, str], list[float]] = {}
    for source, key, joules, freedom in terms:
        same = sums.get((source, key))
        if same is None:
            sums[source, key] = [joules, freedom]
        else:
            same[0] += joules
    return tuple([Term(source, key, joules, freedom) for (source, key), (joules, freedom) in sums.items()])
