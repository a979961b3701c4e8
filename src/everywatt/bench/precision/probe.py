"""A linear probe: logistic regression on sentence vectors, so that an encoder without a head has a real accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Probe:
    """Weights (features × classes) and biases on standardised features."""

    mean: Matrix
    scale: Matrix
    weights: Matrix
    bias: Matrix

    def logits(self, vectors: npt.ArrayLike) -> Matrix:
        """Scores of each class for each vector."""
        standard = (np.asarray(vectors, dtype=np.float64) - self.mean) / self.scale
        return np.asarray(standard @ self.weights + self.bias)


PENALTY = 1.0
"""Strong, because a few hundred sentences with hundreds of features each would else be learnt by heart."""


def train_probe(vectors: npt.ArrayLike, labels: npt.NDArray[np.int64], *, penalty: float = PENALTY) -> Probe:
    """Fit by Newton steps on the penalised log loss, one class against the rest: no random start, no learning rate."""
    raw = np.asarray(vectors, dtype=np.float64)
    mean, scale = raw.mean(axis=0), np.maximum(raw.std(axis=0), 1e-6)
    features = np.hstack([(raw - mean) / scale, np.ones((len(raw), 1))])
    classes = int(labels.max()) + 1
    wanted = range(1, 2) if classes == 2 else range(classes)
    found = [_one(features, (labels == which).astype(np.float64), penalty) for which in wanted]
    joined = np.stack([np.zeros_like(found[0]), *found] if classes == 2 else found, axis=1)
    return Probe(mean, scale, joined[:-1], joined[-1])


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
