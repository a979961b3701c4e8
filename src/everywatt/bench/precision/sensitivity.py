"""Which layers to quantise first: what each saves against the harm that it does alone, and a plan from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HARM_SHARE = 0.5
"""A plan may do this share of the harm that all layers do, one by one, added up."""
LEAST_KL = 1e-9


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One layer, when it alone is int8.

    kl      divergence of the answers from the baseline's, in nats (for language models the change of loss a token)
    change  of the accuracy, or the ratio of perplexities
    logit_l2  mean length of the change of an item's logits; None for a language model
    share   of the baseline's time and energy that the layer has; saved: the part of a batch that int8 saves there
    """

    layer: str
    kl: float
    change: float | None
    share: float
    saved: float
    logit_l2: float | None = None

    @property
    def worth(self) -> float:
        """What is saved for each unit of harm."""
        return self.saved / max(self.kl, LEAST_KL)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"worth": self.worth}


def savings(
    baseline: Sequence[Mapping[str, Any]], int8: Sequence[Mapping[str, Any]], batch_s: float
) -> dict[str, tuple[float, float]]:
    """For each layer its share of a batch, and the share that int8 saves.

    Where int8 was not measured, a layer is taken to need a quarter of its time, as its weights do of their bytes.
    """
    quick = {str(one["layer"]): float(one["seconds"]) for one in int8}
    found = {}
    for one in baseline:
        name, seconds = str(one["layer"]), float(one["seconds"])
        after = quick.get(name, seconds / 4) if quick else seconds / 4
        found[name] = (seconds / batch_s, (seconds - after) / batch_s)
    return found


def ranked(rows: Sequence[Sensitivity]) -> list[Sensitivity]:
    """What to quantise first comes first; layers that save nothing come last."""
    return sorted(rows, key=lambda row: (row.saved <= 0, -row.worth if row.saved > 0 else -row.saved))


def plan(rows: Sequence[Sensitivity], harm_share: float = HARM_SHARE) -> list[str]:
    """Greedy: layers in the order of their worth, while they save something and the harm stays within the share."""
    allowed = harm_share * sum(row.kl for row in rows)
    chosen, harm = [], 0.0
    for row in ranked(rows):
        if row.saved > 0 and harm + row.kl <= allowed + 1e-15:
            chosen.append(row.layer)
            harm += row.kl
    return chosen
