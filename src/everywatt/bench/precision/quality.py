"""How good a model's answers are: accuracy or perplexity with an interval, and paired with the baseline's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054
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


def wilson(right: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share.

    >>> tuple(round(end, 4) for end in wilson(81, 100))
    (0.7222, 0.8749)
    """
    if n <= 0:
        return 0.0, 1.0
    share = right / n
    denominator = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / denominator
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / denominator
    return max(0.0, middle - half), min(1.0, middle + half)


def accuracy(correct: npt.NDArray[np.bool_]) -> Score:
    """The share of right answers."""
    right, n = int(correct.sum()), len(correct)
    return Score("accuracy", right / n, *wilson(right, n), n)


def paired_accuracy(
    baseline: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_], z: float = Z95
) -> tuple[float, float, float, float]:
    """Difference of two accuracies on the same items, its 95 % interval, and McNemar's exact p.

    The interval is Newcombe's for paired shares: it stays inside ±1 and does not vanish where nothing differs.
    """
    n = len(baseline)
    both = int((baseline & other).sum())
    only_base, only_other = int((baseline & ~other).sum()), int((~baseline & other).sum())
    neither = n - both - only_base - only_other
    first, second = (both + only_base) / n, (both + only_other) / n
    (low1, high1), (low2, high2) = wilson(both + only_base, n, z), wilson(both + only_other, n, z)
    product = (both + only_base) * (only_other + neither) * (both + only_other) * (only_base + neither)
    phi = 0.0 if product == 0 else (both * neither - only_base * only_other) / math.sqrt(product)
    below, above = _newcombe(second, low2, high2, first, low1, high1, phi)
    change = second - first
    return change, change - below, change + above, mcnemar(only_base, only_other)


def _newcombe(
    a: float, low_a: float, high_a: float, b: float, low_b: float, high_b: float, phi: float
) -> tuple[float, float]:
    """How far a - b reaches down and up."""
    down, up = (a - low_a, high_b - b), (high_a - a, b - low_b)

    def reach(pair: tuple[float, float]) -> float:
        return math.sqrt(max(0.0, pair[0] ** 2 - 2 * phi * pair[0] * pair[1] + pair[1] ** 2))

    return reach(down), reach(up)


def mcnemar(one: int, other: int) -> float:
    """Exact two-sided p that two classifiers differ, from the items where only one of them is right."""
    n, fewer = one + other, min(one, other)
    if n == 0:
        return 1.0
    tail: float = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n
    return min(1.0, 2 * tail)


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
