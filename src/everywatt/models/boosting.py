"""Gradient boosting of what a linear model leaves over, as plain trees.

The trees learn the logarithm of truth over linear prediction, so the whole is linear × e^(trees): where a load is
higher than any that was seen, the linear part goes on and the trees stay as they are. Trees are grown by scikit-learn
(extra `models`) and kept as lists of numbers, which are checked to say what scikit-learn says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everywatt.core.errors import EverywattError, MissingExtra
from everywatt.models.table import Floats
from everywatt.models.trees import Tree

MANY_ROWS = 50_000
FEW_ROWS = 400
FOREST = 60
FOREST_LEAVES = 200
CHECKED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Growth:
    """How trees are grown: how many, leaves of each, rows of a leaf, what each adds, how leaves are held back."""

    trees: int = 130
    leaves: int = 15
    least: int = 10
    rate: float = 0.07
    ridge: float = 1.0

    def sized(self, rows: int) -> Growth:
        """Fewer trees that each add more, for a table so small that they have little to tell apart."""
        return replace(self, trees=40, rate=0.15) if rows < FEW_ROWS else self


def grow(x: Floats, residual: Floats, monotone: Sequence[int], growth: Growth, seed: int = 0) -> list[Tree]:
    """Trees whose sum follows the residual; `monotone` has 1 for a feature that may only raise it, else 0."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("scikit-learn", "models") from None
    growth = growth.sized(len(x))
    growing = HistGradientBoostingRegressor(
        learning_rate=growth.rate,
        max_iter=growth.trees,
        max_leaf_nodes=growth.leaves,
        min_samples_leaf=max(1, min(growth.least, len(x) // 20)),
        l2_regularization=growth.ridge,
        monotonic_cst=list(monotone) if any(monotone) else None,
        early_stopping=False,
        random_state=seed,
    )
    # On a few thousand rows threads wait for each other longer than they work.
    with threadpool_limits(limits=1 if len(x) < MANY_ROWS else None):
        fitted = growing.fit(x, residual)
        some = x[:: max(1, len(x) // CHECKED_ROWS)]
        said = fitted.predict(some)
    base = float(np.ravel(fitted._baseline_prediction)[0])
    trees = [Tree((-1,), (0.0,), (0,), (0,), (base,))]
    trees += [_plain(stage[0].nodes) for stage in fitted._predictors]
    # The lists come from inside scikit-learn: a version that keeps them otherwise must not pass unnoticed.
    if not np.allclose(sum_of(trees, some), said, rtol=1e-4, atol=1e-4):
        raise EverywattError(
            "The trees of this scikit-learn version cannot be exported.", cure="pip install -U everywatt"
        )
    return trees


def grow_forest(x: Floats, residual: Floats, seed: int = 0) -> list[Tree]:
    """Trees that were each split at random, whose mean follows the residual: calmer than boosting between loads."""
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError:
        raise MissingExtra("scikit-learn", "models") from None
    forest = ExtraTreesRegressor(FOREST, min_samples_leaf=2, max_leaf_nodes=FOREST_LEAVES, random_state=seed)
    fitted = forest.fit(x, residual)
    return [_of_forest(member.tree_) for member in fitted.estimators_]


def _of_forest(grown: Any) -> Tree:
    leaf = grown.children_left < 0
    # Nodes are numbered as they were split, so children come after their parent.
    return Tree(
        tuple(np.where(leaf, -1, grown.feature).tolist()),
        tuple(figures(np.where(leaf, 0.0, grown.threshold), 7)),
        tuple(np.where(leaf, 0, grown.children_left).tolist()),
        tuple(np.where(leaf, 0, grown.children_right).tolist()),
        tuple(figures(np.where(leaf, grown.value[:, 0, 0] / FOREST, 0.0), 6)),
    )


def _plain(nodes: Any) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        tuple(np.where(leaf, -1, nodes["feature_idx"].astype(np.int64)).tolist()),
        tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
        tuple(np.where(leaf, 0, nodes["left"].astype(np.int64)).tolist()),
        tuple(np.where(leaf, 0, nodes["right"].astype(np.int64)).tolist()),
        tuple(figures(np.where(leaf, nodes["value"], 0.0), 6)),
    )


def figures(values: Floats, digits: int) -> list[float]:
    """Values with so many significant figures, so that the file stays small."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
    places = digits - 1 - size
    up, down = 10.0 ** np.clip(places, 0, 300), 10.0 ** np.clip(-places, 0, 300)
    rounded = np.rint(values / down * up) * down / up
    return [float(value) for value in np.where(np.isfinite(rounded), rounded, values)]


def sum_of(trees: Sequence[Tree], x: Floats) -> Floats:
    """What the trees say together of each row."""
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
