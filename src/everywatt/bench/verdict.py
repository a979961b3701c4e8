"""Is B cheaper than A? A verdict from paired trials that keeps its error rate, or how many more it would take.

Intervals stay valid even if one looks after every trial and stops at will. A fixed-sample interval that is looked at
after each trial, until it excludes zero, is wrong far more often than it says. Here the evidence against a mean is a
Bayes factor of the t statistic (normal prior on mean / deviation, right Haar prior on the deviation). Under that mean
it exceeds 1/α at any time with a probability of at most α, whatever the deviation is and however often it is looked
at, so the set of means with less evidence than that is an interval that holds the truth at all times together. A
mixture of a narrow, a middle and a wide prior serves small differences in many trials and large differences in three.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from everywatt.core.energy import Ratio
from everywatt.core.format import format_count, format_percent
from everywatt.core.jsonio import ToDict
from everywatt.core.stats import deviation, mean, median, student_factor

ALPHA = 0.05  # probability that an interval ever misses the truth
PRIORS = (0.05, 1.0, 100.0)
"""Variances of the prior on mean / deviation; each has the same weight."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a series of values: how many, their mean, their standard deviation (n - 1)."""

    n: int
    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """The sample of some values; the deviation of fewer than two is not known (nan)."""
        return cls(len(values), mean(values), deviation(values))


def log_evidence(n: int, t: float) -> float:
    """Natural logarithm of the evidence of a t statistic of `n` values against the mean that it is about."""
    dof = n - 1
    logs = []
    for prior in PRIORS:
        shrink = 1 + n * prior
        gain = math.log1p(t * t / dof) - math.log1p(t * t / (shrink * dof))
        logs.append(-0.5 * math.log(shrink) + 0.5 * n * gain)
    top = max(logs)
    return top + math.log(math.fsum(math.exp(value - top) for value in logs) / len(logs))


def critical_t(n: int) -> float:
    """The t statistic whose evidence is 1/ALPHA; infinite where `n` values can never have so much."""
    if n < 2:
        return math.inf
    wanted = -math.log(ALPHA)
    high = 1.0
    while log_evidence(n, high) < wanted:
        high *= 2
        if high > 1e9:
            return math.inf
    low = high / 2 if high > 1.0 else 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_evidence(n, middle) < wanted else (low, middle)
    return high


def interval(sample: Sample, *, anytime: bool = True) -> tuple[float, float]:
    """Where the mean lies, with probability 1 - ALPHA for all numbers of trials together; infinite with too few.

    `anytime` is False for a number of trials that was fixed beforehand: Student's interval, infinite for one trial.
    """
    t = critical_t(sample.n) if anytime else student_factor(sample.n - 1) if sample.n > 1 else math.inf
    if math.isinf(t):
        return -math.inf, math.inf
    half = t * sample.sd / math.sqrt(sample.n)
    return sample.mean - half, sample.mean + half


MANY = 100_000  # trials that no user would run


def trials_for(half_width: float, sd: float, *, at_least: int = 2) -> int:
    """How many values it takes until the interval's half-width is at most `half_width`, if the deviation stays; at most
    `MANY`."""
    return bisect_left(
        range(MANY), True, lo=max(2, at_least), key=lambda n: critical_t(n) * sd <= half_width * math.sqrt(n)
    )


FAR = 3.5  # standard deviations, by the median absolute deviation (Iglewicz and Hoaglin)
FACTOR = 3.0  # ratios above this are printed as factors: 200 % more is the last that is read at a glance
ENDLESS = 100.0  # an interval whose end is so many times the ratio says nothing: it is made infinite


class Verdict(StrEnum):
    """What the trials say of a candidate beside the first one."""

    LESS = "less"
    MORE = "more"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Comparison(ToDict):
    """The ratio of a candidate to the baseline with its 95 % interval, and what follows from it.

    The interval holds for all numbers of trials together, so that stopping when it is narrow enough is allowed; if the
    number was fixed beforehand it is Student's. It is infinite if that many trials cannot decide.
    `floor` is the smallest difference that these trials could have detected. `more_trials` is None if the question is
    decided or the number cannot be estimated.
    """

    JSON = "ratio=ends answer trials target detection_floor=floor more_trials"

    ratio: float
    low: float
    high: float
    trials: int
    answer: Verdict
    target: float
    floor: float
    more_trials: int | None = None

    @property
    def decided(self) -> bool:
        """Whether further trials are needless."""
        return self.answer is not Verdict.UNDECIDED

    def text(self, name: str, other: str = "", what: str = "energy") -> str:
        """The verdict as a sentence without its full stop, e.g. `B uses 18 % ± 3 % less energy than A`."""
        if self.answer is Verdict.SAME:
            beside = f" compared with {other}" if other else ""
            return f"no difference in {what} larger than {format_percent(self.target)}{beside}"
        if self.answer is Verdict.UNDECIDED:
            why = "undecided" if math.isfinite(self.high) else f"not decidable with n = {self.trials}"
            if self.more_trials is None:
                return why
            return f"{why}: about {format_count(_rounded(self.more_trials), 'more trial')} needed"
        return f"{name} uses {change(self.cell, what, other)}"

    @property
    def cell(self) -> Ratio:
        return Ratio(self.ratio, self.low, self.high)

    @property
    def ends(self) -> dict[str, float | None]:
        """The ratio for JSON; without bounds if these trials cannot give any."""
        known = math.isfinite(self.high)
        return {"value": self.ratio, "low": self.low if known else None, "high": self.high if known else None}


def change(ratio: Ratio, what: str, other: str = "") -> str:
    """How far a ratio is from 1, for an interval that does not hold 1.

    `18.0 % ± 3.1 less energy than A`, and beyond a factor of 3 `114 times (89 … 145) as much energy as A`.
    """
    if ratio.value > FACTOR:
        value, _, ends = str(ratio).partition(" ")
        return f"{value} times {ends} as much {what}{other and f' as {other}'}"
    size, (near, far) = abs(ratio.value - 1), sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
    words = f"{format_percent(size, size - near, far - size)} {'more' if ratio.value > 1 else 'less'}"
    return f"{words} {what}{other and f' than {other}'}"


def of_candidate(name: str, said: str) -> str:
    """A sentence with the name of whom it is about, which it may begin with."""
    return said if said.startswith(f"{name} ") else f"{name}: {said}"


def finite(value: float) -> float | None:
    """The value, or None where it is infinite or unknown: JSON knows no infinity."""
    return value if math.isfinite(value) else None


def compare(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    target: float = 0.02,
    systematic: float = 0.0,
    anytime: bool = True,
) -> Comparison:
    """Compare paired trials (at least one pair, same block at the same place) of positive values.

    `anytime` is False where the number of trials was fixed beforehand, so that no result decided when to stop.

    `systematic` is the 95 % half-width of what all trials share and pairing does not cancel (a sensor's offset), as a
    share of the ratio; it widens the interval and does not shrink with more trials.
    """
    sample = Sample.of([math.log(b / a) for a, b in zip(baseline, candidate, strict=True)])
    low, high = interval(sample, anytime=anytime)
    if systematic:
        low = sample.mean - math.hypot(sample.mean - low, systematic)
        high = sample.mean + math.hypot(high - sample.mean, systematic)
    if high - sample.mean > math.log(ENDLESS):
        low, high = -math.inf, math.inf
    answer = _answer(low, high, target)
    more = None if answer is not Verdict.UNDECIDED else _more(sample, target, systematic)
    return Comparison(
        math.exp(sample.mean),
        math.exp(low),
        math.exp(high),
        sample.n,
        answer,
        target,
        math.expm1(high - sample.mean),
        more,
    )


def _rounded(count: int) -> int:
    """Two digits, rounded up: more is not known of how many trials it takes."""
    step = int(10 ** max(len(str(count)) - 2, 0))
    return -(-count // step) * step


def _answer(low: float, high: float, target: float) -> Verdict:
    if -math.log1p(target) <= low and high <= math.log1p(target):
        return Verdict.SAME
    if high < 0:
        return Verdict.LESS
    return Verdict.MORE if low > 0 else Verdict.UNDECIDED


def _more(sample: Sample, target: float, systematic: float) -> int | None:
    """Trials that are still needed if mean and deviation stay as they are; None where it cannot be said."""
    if sample.n < 2 or not math.isfinite(sample.sd):
        return None
    needed = []
    for room in (abs(sample.mean), math.log1p(target) - abs(sample.mean)):
        if room > systematic:
            half = math.sqrt(room**2 - systematic**2)
            needed.append(trials_for(half, sample.sd, at_least=sample.n + 1))
    if not needed or min(needed) >= MANY:
        return None
    return max(1, min(needed) - sample.n)


def outliers(values: Sequence[float]) -> list[int]:
    """Places of values that lie far off by the median absolute deviation. They are reported, never dropped."""
    if len(values) < 4:
        return []
    middle = median(values)
    spread = 1.4826 * median([abs(value - middle) for value in values])
    return [place for place, value in enumerate(values) if spread and abs(value - middle) > FAR * spread]
