"""Energy by layer: times from a pass with hooks, joules from the loop without, and what is left is shown.

And which layers to quantise first: what each saves against the harm that it does alone, and a plan from that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from everywatt.bench.precision.plan import LayerTime
from everywatt.core.jsonio import ToDict
from everywatt.models.design import correlation

HARM_SHARE = 0.5
"""Share of the total harm of quantising each layer alone that a plan may do."""
LEAST_KL = 1e-9


@dataclass(frozen=True, slots=True)
class Sensitivity(ToDict):
    """One layer, when it alone is int8.

    kl      divergence of the answers from the baseline's, in nats (for language models the change of loss a token)
    change  of the accuracy, or the ratio of perplexities
    logit_l2  mean length of the change of an item's logits; None for a language model
    share   of the baseline's time and energy that the layer has; saved: the part of a batch that int8 saves there
    """

    JSON = "layer kl change share saved logit_l2 worth"

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


def savings(baseline: Sequence[LayerTime], int8: Sequence[LayerTime], batch_s: float) -> dict[str, tuple[float, float]]:
    """For each layer its share of a batch, and the share that int8 saves.

    Layers that took longer with hooks than the whole batch without are scaled down to it, so that shares are never more
    than the whole. Where int8 was not measured, a layer is taken to need a quarter of its time, as its weights do of
    their bytes.
    """
    quick = {one["layer"]: one["seconds"] for one in int8}
    whole_s = max(batch_s, math.fsum(one["seconds"] for one in baseline))  # as in the table of layers
    found = {}
    for one in baseline:
        name, seconds = one["layer"], one["seconds"]
        after = quick.get(name, seconds / 4)
        found[name] = (seconds / whole_s, (seconds - after) / whole_s)
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


@dataclass(frozen=True, slots=True)
class Correlation(ToDict):
    """Whether the most expensive layers are the harmful ones: Spearman's correlation of energy and divergence over
    layers."""

    JSON = "spearman=value layers"

    value: float
    layers: int

    def __str__(self) -> str:
        return (
            f"energy and harm of {self.layers} layers: rank correlation {self.value:+.2f} (Spearman; +1: the most "
            "expensive layers do the most harm, -1: the least)"
        )


def correlated(energy: Mapping[str, float], harm: Mapping[str, float]) -> Correlation | None:
    """Of the layers that have both, by name; None where there are fewer than three, or where one never changes."""
    names = [name for name in energy if name in harm]
    a, b = [energy[name] for name in names], [harm[name] for name in names]
    if len(set(a)) < 2 or len(set(b)) < 2 or len(names) < 3:
        return None
    return Correlation(correlation(np.array(a), np.array(b)), len(names))


@dataclass(frozen=True, slots=True)
class Ranking(ToDict):
    """All layers, what to quantise first comes first, and the plan made from them."""

    JSON = "layers plan correlation"

    layers: tuple[Sensitivity, ...]
    plan: tuple[str, ...]

    @property
    def correlation(self) -> Correlation | None:
        """Of energy and harm over the layers."""
        return correlated({one.layer: one.share for one in self.layers}, {one.layer: one.kl for one in self.layers})


REMAINDER = "(outside layers)"
PARTS = (
    ("attention", re.compile(r"attn|attention")),
    ("embedding", re.compile(r"embed|wte|wpe")),
    ("norm", re.compile(r"norm|(^|\.)ln_")),
    ("mlp", re.compile(r"mlp|intermediate|output\.dense|ffn|fc\d|feed_forward|lin[12]")),
    ("head", re.compile(r"head|classifier|pooler|score")),
)


@dataclass(frozen=True, slots=True)
class LayerRow(ToDict):
    """One module: its seconds and joules a batch, and their share of the whole."""

    layer: str
    kind: str
    part: str
    seconds: float
    calls: float
    share: float
    joules: float | None


def part_of(layer: str) -> str:
    """What a layer belongs to by its name: attention, mlp, norm, embedding, head or other."""
    lowered = layer.lower()
    return next((part for part, pattern in PARTS if pattern.search(lowered)), "other")


def apportion(times: Sequence[LayerTime], whole_s: float, batch_j: float | None) -> tuple[list[LayerRow], str | None]:
    """Rows of all layers and of the remainder, which add up to the batch; and a note where they had to be scaled.

    `whole_s` is how long a batch takes: the shorter of the loop without hooks and the pass with them, so that neither
    hooks nor other programs on the machine make layers look small. `batch_j` is the joules of a batch in the loop.
    Where the hooked layers took longer than that, they are scaled down to it.
    """
    hooked = math.fsum(one["seconds"] for one in times)
    scale = min(1.0, whole_s / hooked) if hooked > 0 else 1.0
    rows = []
    for one in times:
        seconds = one["seconds"] * scale
        share = seconds / whole_s
        joules = None if batch_j is None else batch_j * share
        part = part_of(one["layer"])
        rows.append(LayerRow(one["layer"], one["type"], part, seconds, one["calls"], share, joules))
    left_s = max(0.0, whole_s - math.fsum(row.seconds for row in rows))
    left_j = None if batch_j is None else batch_j - math.fsum(row.joules or 0.0 for row in rows)
    rows.append(LayerRow(REMAINDER, "", "other", left_s, 0.0, left_s / whole_s, left_j))
    note = None
    if scale < 1.0:
        note = (
            f"layers took {1 / scale:.2f} times as long with hooks as the whole batch without; their figures are scaled"
        )
    return rows, note


def by_part(rows: Sequence[LayerRow]) -> list[tuple[str, float, float | None]]:
    """Share and joules of each part, the largest first; the remainder is one of them."""
    found: dict[str, list[LayerRow]] = {}
    for row in rows:
        found.setdefault(REMAINDER if row.layer == REMAINDER else row.part, []).append(row)
    sums = []
    for part, members in found.items():
        joules = None if members[0].joules is None else math.fsum(row.joules or 0.0 for row in members)
        sums.append((part, math.fsum(row.share for row in members), joules))
    return sorted(sums, key=lambda one: -one[1])
