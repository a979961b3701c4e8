"""Trees as plain lists, walked without any library: the sum of what each says of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in one order: at node n, go `left[n]` where row[feature[n]] ≤ threshold[n], else `right[n]`.

    A leaf has feature −1 and its `value`.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]

    def at(self, row: Sequence[float]) -> float:
        """What the tree says of one row."""
        node = 0
        while self.feature[node] >= 0:
            node = self.left[node] if row[self.feature[node]] <= self.threshold[node] else self.right[node]
        return self.value[node]

    def times(self, factor: float) -> Tree:
        """The tree with every value multiplied."""
        return replace(self, value=tuple(float(f"{value * factor:.6g}") for value in self.value))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the model file."""
        return {
            "feature": list(self.feature),
            "threshold": list(self.threshold),
            "left": list(self.left),
            "right": list(self.right),
            "value": list(self.value),
        }
