"""Boosted trees of log watts that only rise with their columns, kept as plain lists of numbers.

Trees are grown by scikit-learn (extra `models`) and checked to give what scikit-learn gives. Outside the training range
they stay constant; the form that they belong to continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everywatt.core.errors import EverywattError, MissingExtra
from everywatt.models.form import Tree
from everywatt.models.table import Floats

MANY_ROWS = 50_000
CHECKED_ROWS = 64
TREES, FEW_TREES = 100, 40
FEW_ROWS = 400
LEAVES = 8
RATE, FAST_RATE = 0.1, 0.15
LEAST_IN_LEAF = 20  # rows; a twentieth of a small table


def grow(x: Floats, logs: Floats, seed: int = 0) -> list[Tree]:
    """Trees whose sum follows `logs` and rises with every column of `x`."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("scikit-learn", "models") from None
    few = len(x) < FEW_ROWS
    growing = HistGradientBoostingRegressor(
        learning_rate=FAST_RATE if few else RATE,
        max_iter=FEW_TREES if few else TREES,
        max_leaf_nodes=LEAVES,
        min_samples_leaf=max(1, min(LEAST_IN_LEAF, len(x) // 20)),
        l2_regularization=1.0,
        monotonic_cst=[1] * x.shape[1],
        early_stopping=False,
        random_state=seed,
    )
    # On a few thousand rows threads wait for each other longer than they work.
    with threadpool_limits(limits=1 if len(x) < MANY_ROWS else None):
        fitted = growing.fit(x, logs)
        some = x[:: max(1, len(x) // CHECKED_ROWS)]
        expected = fitted.predict(some)
    base = float(np.ravel(fitted._baseline_prediction)[0])
    trees = [Tree((-1,), (0.0,), (0,), (0,), (base,))]
    trees += [_plain(stage[0].nodes) for stage in fitted._predictors]
    # The lists come from inside scikit-learn: a version that keeps them otherwise must not pass unnoticed.
    if not np.allclose(sum_of(trees, some), expected, rtol=1e-4, atol=1e-4):
        raise EverywattError(
            "The trees of this scikit-learn version cannot be exported.", cure="pip install -U everywatt"
        )
    return trees


def _plain(nodes: Any) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        tuple(np.where(leaf, -1, nodes["feature_idx"].astype(np.int64)).tolist()),
        tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
        tuple(np.where(leaf, 0, nodes["left"].astype(np.int64)).tolist()),
        tuple(np.where(leaf, 0, nodes["right"].astype(np.int64)).tolist()),
        tuple(figures(np.where(leaf, nodes["value"], 0.0), 9)),
    )


def figures(values: Floats, digits: int) -> list[float]:
    """Values with so many significant figures, so that the file stays small."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def sum_of(trees: Sequence[Tree], x: Floats) -> Floats:
    """The sum of the trees for each row."""
    total = np.zeros(len(x))
    # One column after another in memory, since each step of a walk reads one value of each row.
    columns, rows = np.asfortranarray(x), np.arange(len(x))
    for tree in trees:
        feature, threshold = np.array(tree.feature), np.array(tree.threshold)
        left, right = np.array(tree.left), np.array(tree.right)
        node, walking = np.zeros(len(x), dtype=np.int64), rows
        while True:
            walking = walking[feature[node[walking]] >= 0]
            if not len(walking):
                break
            at = node[walking]
            node[walking] = np.where(columns[walking, feature[at]] <= threshold[at], left[at], right[at])
        total += np.array(tree.value)[node]
    return total
