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
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

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
        sums: dict[str, Bound] = {}
        for bound in self.bounds:
            same = sums.get(bound.key)
            if same is not None:
                bound = Bound(bound.source, bound.key, same.below + bound.below, same.above + bound.above)
            sums[bound.key] = bound
        reaches = [bound.reach for bound in sums.values()]
        return sum(below for below, _ in reaches), sum(above for _, above in reaches)

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

    def to_list(self) -> list[dict[str, Any]]:
        """Plain data for JSON."""
        rows: list[dict[str, Any]] = [
            {"source": t.source, "key": t.key, "joules": t.joules}
            | ({"freedom": t.freedom} if t.freedom < math.inf else {})
            for t in self.terms
        ]
        rows += [b._asdict() for b in self.bounds]
        return rows

    @classmethod
    def from_list(cls, rows: Iterable[Mapping[str, Any]]) -> Budget:
        """The inverse of `to_list`."""
        terms, bounds = [], []
        for row in rows:
            if "joules" in row:
                terms.append(Term(row["source"], row["key"], row["joules"], row.get("freedom", math.inf)))
            else:
                bounds.append(Bound(row["source"], row["key"], row["below"], row["above"]))
        return cls(tuple(terms), tuple(bounds))


def _independent(terms: Iterable[Term]) -> dict[str, float]:
    """Signed joules of each independent error: those of one key added up, then members of a family of one sign."""
    sums: dict[str, float] = {}
    for _, key, joules, _ in terms:
        sums[key] = sums.get(key, 0.0) + joules
    for key in [key for key in sums if "|" in key]:
        joules = sums.pop(key)
        sign = f"{key.partition('|')[0]}|{'-' if joules < 0 else '+'}"
        sums[sign] = sums.get(sign, 0.0) + joules
    return sums


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
