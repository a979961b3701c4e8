"""A linear probe: logistic regression on sentence vectors, so that an encoder without a head has a real accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.bench.precision.quality import log_softmax

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Probe:
    """Weights (features × classes) and biases on standardised features, and the penalty they were fitted with."""

    mean: Matrix
    scale: Matrix
    weights: Matrix
    bias: Matrix
    penalty: float

    def logits(self, vectors: npt.ArrayLike) -> Matrix:
        """Scores of each class for each vector."""
        standard = (np.asarray(vectors, dtype=np.float64) - self.mean) / self.scale
        return np.asarray(standard @ self.weights + self.bias)


PENALTIES = (0.01, 0.1, 0.3, 1.0, 3.0)
"""Tried in turn: with too small a penalty, a few hundred sentences with hundreds of features each are memorised."""
FOLDS = 4


def train_probe(vectors: npt.ArrayLike, labels: npt.NDArray[np.int64], *, penalty: float | None = None) -> Probe:
    """Fit by Newton steps on the penalised log loss, one class against the rest: no random start, no learning rate.

    Without a penalty the one is taken that does best in cross-validation among these very items, so that nothing is
    tuned on the items that are scored.
    """
    raw = np.asarray(vectors, dtype=np.float64)
    if penalty is None:
        penalty = best_penalty(raw, labels)
    mean, scale = raw.mean(axis=0), np.maximum(raw.std(axis=0), 1e-6)
    features = np.hstack([(raw - mean) / scale, np.ones((len(raw), 1))])
    classes = int(labels.max()) + 1
    wanted = range(1, 2) if classes == 2 else range(classes)
    found = [_one(features, (labels == which).astype(np.float64), penalty) for which in wanted]
    joined = np.stack([np.zeros_like(found[0]), *found] if classes == 2 else found, axis=1)
    return Probe(mean, scale, joined[:-1], joined[-1], penalty)


def best_penalty(vectors: Matrix, labels: npt.NDArray[np.int64], folds: int = FOLDS) -> float:
    """The penalty with the smallest log loss on items that were left out, each item once; the largest of equals."""
    place = np.arange(len(labels)) % folds
    order = np.argsort(labels, kind="stable")  # every fold gets its share of each class
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = place
    losses = {penalty: _left_out(vectors, labels, fold, penalty) for penalty in sorted(PENALTIES, reverse=True)}
    return min(losses, key=lambda penalty: losses[penalty])


def _left_out(vectors: Matrix, labels: npt.NDArray[np.int64], fold: npt.NDArray[np.int64], penalty: float) -> float:
    total, classes = 0.0, int(labels.max()) + 1
    for which in np.unique(fold):
        out = fold == which
        seen = labels[~out]
        if int(seen.max()) + 1 < classes:
            continue  # a class that only one item has cannot be learnt without it
        shares = log_softmax(train_probe(vectors[~out], seen, penalty=penalty).logits(vectors[out]))
        total -= float(shares[np.arange(int(out.sum())), labels[out]].sum())
    return total


def _one(features: Matrix, target: Matrix, penalty: float) -> Matrix:
    count, width = features.shape
    ridge = np.full(width, penalty * count)
    ridge[-1] = 1e-9  # the bias is free
    weights = np.zeros(width)
    for _ in range(50):
        share = _sigmoid(features @ weights)
        slope = features.T @ (share - target) + ridge * weights
        bend = (features.T * (share * (1 - share))) @ features + np.diag(ridge)
        step = np.linalg.solve(bend, slope)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def _sigmoid(values: Any) -> Matrix:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -500, 500))))
