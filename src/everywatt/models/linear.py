"""Idle plus a non-negative weight for each feature, by least squares of the relative error."""

from __future__ import annotations

import numpy as np

from everywatt.models.table import Floats

PASSES = 3000
RIDGE = 1e-6


def fit_linear(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Idle watts and weights, none of them negative. Errors count relative to the watts, as they are judged."""
    scale = np.maximum(np.abs(x).max(axis=0), 1e-300) if x.shape[1] else np.ones(0)
    rows = np.column_stack([np.ones(len(y)), x / scale]) / y[:, None]
    weights = non_negative(rows, np.ones(len(y)))
    return float(weights[0]), weights[1:] / scale


def non_negative(rows: Floats, wanted: Floats) -> Floats:
    """The non-negative least-squares solution, by descent along one coordinate at a time."""
    square = rows.T @ rows + RIDGE * len(rows) * np.diag(np.diag(rows.T @ rows) / len(rows) + 1e-300)
    right = rows.T @ wanted
    weights = np.zeros(len(right))
    diagonal = np.maximum(np.diag(square), 1e-300)
    for _ in range(PASSES):
        before = weights.copy()
        for place in range(len(weights)):
            step = (right[place] - square[place] @ weights) / diagonal[place]
            weights[place] = max(0.0, weights[place] + step)
        if np.abs(weights - before).max(initial=0.0) <= 1e-10 * max(np.abs(weights).max(initial=0.0), 1e-300):
            break
    return weights
