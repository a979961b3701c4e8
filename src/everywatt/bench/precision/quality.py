"""How good a model's answers are: accuracy or perplexity with an interval, and paired with the baseline's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.stats import Z95, mcnemar, newcombe, wilson

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """A figure of merit with its 95 % interval over `n` items. `metric` is `accuracy` (up is good) or `perplexity`."""

    metric: str
    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"metric": self.metric, "value": self.value, "low": self.low, "high": self.high, "n": self.n}


@dataclass(frozen=True, slots=True)
class Beside:
    """The same items beside the baseline.

    change     accuracy minus the baseline's, or perplexity over the baseline's, with its 95 % interval
    agreement  share of items with the same answer; kl: mean Kullback-Leibler divergence from the baseline, in nats
    p          of McNemar's exact test (accuracy only)
    """

    change: float
    low: float
    high: float
    agreement: float | None = None
    kl: float | None = None
    p: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "agreement": self.agreement,
            "kl": self.kl,
            "p": self.p,
        }


def accuracy(correct: npt.NDArray[np.bool_]) -> Score:
    """The share of right answers."""
    right, n = int(correct.sum()), len(correct)
    return Score("accuracy", right / n, *wilson(right, n), n)


def paired_accuracy(baseline: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> tuple[float, float, float, float]:
    """Difference of two accuracies on the same items, Newcombe's 95 % interval, and McNemar's exact p."""
    both, neither = int((baseline & other).sum()), int((~baseline & ~other).sum())
    only_base, only_other = int((baseline & ~other).sum()), int((~baseline & other).sum())
    return *newcombe(both, only_base, only_other, neither), mcnemar(only_base, only_other)


def perplexity(loss: Floats, tokens: npt.NDArray[np.int64]) -> Score:
    """exp of the mean loss per token; the interval is over items (a ratio of sums, linearised)."""
    mean, half = _ratio_of_sums(loss, tokens)
    return Score("perplexity", math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(loss))


def paired_perplexity(baseline: Floats, other: Floats, tokens: npt.NDArray[np.int64]) -> Beside:
    """Perplexity over the baseline's on the same tokens."""
    mean, half = _ratio_of_sums(other - baseline, tokens)
    return Beside(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _ratio_of_sums(values: Floats, weights: npt.NDArray[np.int64]) -> tuple[float, float]:
    total, n = float(weights.sum()), len(values)
    mean = float(values.sum()) / total
    if n < 2:
        return mean, math.inf
    errors = values - mean * weights
    return mean, Z95 * math.sqrt(n / (n - 1) * float((errors**2).sum())) / total


def log_softmax(logits: npt.ArrayLike) -> Floats:
    """Logarithms of the shares, rows apart."""
    values = np.asarray(logits, dtype=np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


def divergence(baseline: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Mean KL(baseline ‖ other) of rows of logits, in nats."""
    first, second = log_softmax(baseline), log_softmax(other)
    return float((np.exp(first) * (first - second)).sum(axis=-1).mean())


def paired_logits(baseline: npt.ArrayLike, other: npt.ArrayLike, labels: npt.NDArray[np.int64]) -> Beside:
    """Two sets of logits on the same items."""
    first, second = np.argmax(baseline, axis=1), np.argmax(other, axis=1)
    change, low, high, p = paired_accuracy(first == labels, second == labels)
    return Beside(change, low, high, float((first == second).mean()), divergence(baseline, other), p)
