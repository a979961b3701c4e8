"""Energy by layer: times from a pass with hooks, joules from the loop without, and what is left is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REMAINDER = "(outside layers)"
PARTS = (
    ("attention", re.compile(r"attn|attention")),
    ("embedding", re.compile(r"embed|wte|wpe")),
    ("norm", re.compile(r"norm|(^|\.)ln_")),
    ("mlp", re.compile(r"mlp|intermediate|output\.dense|ffn|fc\d|feed_forward|lin[12]")),
    ("head", re.compile(r"head|classifier|pooler|score")),
)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One module: its seconds and joules a batch, and their share of the whole."""

    layer: str
    kind: str
    part: str
    seconds: float
    calls: float
    share: float
    joules: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def part_of(layer: str) -> str:
    """What a layer belongs to by its name: attention, mlp, norm, embedding, head or other."""
    lowered = layer.lower()
    return next((part for part, pattern in PARTS if pattern.search(lowered)), "other")


def apportion(
    times: Sequence[Mapping[str, Any]], whole_s: float, batch_j: float | None
) -> tuple[list[LayerRow], str | None]:
    """Rows of all layers and of the remainder, which add up to the batch; and a note where they had to be scaled.

    `whole_s` is how long a batch takes: the shorter of the loop without hooks and the pass with them, so that neither
    hooks nor other programs on the machine make layers look small. `batch_j` is the joules of a batch in the loop.
    Where the hooked layers took longer than that, they are scaled down to it.
    """
    hooked = math.fsum(float(one["seconds"]) for one in times)
    scale = min(1.0, whole_s / hooked) if hooked > 0 else 1.0
    rows = []
    for one in times:
        seconds = float(one["seconds"]) * scale
        share = seconds / whole_s
        joules = None if batch_j is None else batch_j * share
        name = str(one["layer"])
        rows.append(LayerRow(name, str(one["type"]), part_of(name), seconds, float(one["calls"]), share, joules))
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
