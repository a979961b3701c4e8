"""Intervals that stay valid even if one looks after every trial and stops at will.

A fixed-sample interval that is looked at after each trial, until it excludes zero, is wrong far more often than it
says. Here the evidence against a mean is a Bayes factor of the t statistic (normal prior on mean / deviation, right
Haar prior on the deviation). Under that mean it exceeds 1/α at any time with a probability of at most α, whatever the
deviation is and however often it is looked at, so the set of means with less evidence than that is an interval that
holds the truth at all times together. A mixture of a narrow, a middle and a wide prior serves small differences in many
trials and large differences in three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from everywatt.core.stats import deviation, mean, student_factor

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


def critical_t(n: int, alpha: float = 0.05) -> float:
    """The t statistic whose evidence is 1/alpha; infinite where `n` values can never have so much."""
    if n < 2:
        return math.inf
    wanted = -math.log(alpha)
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


def interval(sample: Sample, alpha: float = 0.05) -> tuple[float, float]:
    """Where the mean lies, with probability 1 - alpha for all numbers of trials together; infinite with too few."""
    t = critical_t(sample.n, alpha)
    if math.isinf(t):
        return -math.inf, math.inf
    half = t * sample.sd / math.sqrt(sample.n)
    return sample.mean - half, sample.mean + half


def fixed_interval(sample: Sample) -> tuple[float, float]:
    """Where the mean lies, for a number of trials that was fixed beforehand: Student's 95 %; infinite for one trial."""
    if sample.n < 2:
        return -math.inf, math.inf
    half = student_factor(sample.n - 1) * sample.sd / math.sqrt(sample.n)
    return sample.mean - half, sample.mean + half


def trials_for(half_width: float, sd: float, *, at_least: int = 2, alpha: float = 0.05, limit: int = 100_000) -> int:
    """How many values it takes until the interval's half-width is at most `half_width`, if the deviation stays."""

    def wide(n: int) -> bool:
        return critical_t(n, alpha) * sd / math.sqrt(n) > half_width

    n = max(2, at_least)
    if not wide(n):
        return n
    step = 1
    while wide(n + step) and step < limit:
        step *= 2
    low, high = n + step // 2, n + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high
