"""Gradient boosting of what a linear model leaves over, as plain trees.

The trees learn the logarithm of truth over linear prediction, so the whole is linear × e^(trees): where a load is
higher than any that was seen, the linear part goes on and the trees stay as they are. Trees are grown with
scikit-learn (extra `models`) by its public interface and kept as lists of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everywatt.core.errors import MissingExtra
from everywatt.models.table import Floats
from everywatt.models.trees import Tree


@dataclass(frozen=True, slots=True)
class Growth:
    """How trees are grown: each by a random share of rows and features, its leaves shrunk by `rate`."""

    trees: int = 160
    leaves: int = 12
    least: int = 8
    rate: float = 0.06
    rows: float = 0.7
    features: float = 0.6


def grower() -> Any:
    """scikit-learn's regression tree, or MissingExtra."""
    try:
        from sklearn.tree import DecisionTreeRegressor
    except ImportError:
        raise MissingExtra("scikit-learn", "models") from None
    return DecisionTreeRegressor


def grow(x: Floats, residual: Floats, monotone: Sequence[int], growth: Growth, seed: int = 0) -> list[Tree]:
    """Trees whose sum follows the residual; `monotone` has 1 for a feature that may only raise it, else 0."""
    regressor = grower()
    random = np.random.default_rng(seed)
    x32 = x.astype(np.float32)
    left = residual - residual.mean()
    trees = [Tree((-1,), (0.0,), (0,), (0,), (float(residual.mean()),))]
    count = max(int(growth.rows * len(x)), 2)
    for number in range(growth.trees):
        rows = random.choice(len(x), count, replace=False)
        tree = regressor(
            max_leaf_nodes=growth.leaves,
            min_samples_leaf=min(growth.least, max(1, count // 10)),
            max_features=growth.features,
            monotonic_cst=list(monotone) if any(monotone) else None,
            random_state=seed * 100_003 + number,
        ).fit(x32[rows], left[rows])
        grown = tree.tree_
        if grown.node_count == 1:
            continue
        left = left - growth.rate * tree.predict(x32)
        trees.append(_plain(grown, growth.rate))
    return trees


def _plain(grown: Any, rate: float) -> Tree:
    leaf = grown.children_left < 0
    return Tree(
        tuple(int(f) for f in np.where(leaf, -1, grown.feature)),
        tuple(float(t) for t in np.where(leaf, 0.0, grown.threshold)),
        tuple(int(n) for n in np.where(leaf, 0, grown.children_left)),
        tuple(int(n) for n in np.where(leaf, 0, grown.children_right)),
        tuple(float(f"{v:.6g}") for v in np.where(leaf, grown.value[:, 0, 0] * rate, 0.0)),
    )


def sum_of(trees: Sequence[Tree], x: Floats) -> Floats:
    """What the trees say together of each row."""
    total = np.zeros(len(x))
    for tree in trees:
        feature, threshold = np.array(tree.feature), np.array(tree.threshold)
        left, right = np.array(tree.left), np.array(tree.right)
        node = np.zeros(len(x), dtype=np.int64)
        rows = np.arange(len(x))
        while True:
            inner = feature[node] >= 0
            if not inner.any():
                break
            down = x[rows, np.maximum(feature[node], 0)] <= threshold[node]
            node = np.where(inner, np.where(down, left[node], right[node]), node)
        total += np.array(tree.value)[node]
    return total
