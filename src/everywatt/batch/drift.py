"""Has a batch drifted from a known steady state? Each figure against the baseline's, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from everywatt.batch.figures import BatchFigures
from everywatt.batch.journal import DONE
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_ratio

TOLERANCE = 0.10
TIMES_ERROR = 2.0  # standard errors that count as certain
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Drift:
    """One figure of a batch over the baseline's: 1 is no change. `drifted`: surely beyond the tolerance."""

    name: str
    ratio: float
    low: float
    high: float
    drifted: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.name, "ratio": self.ratio, "low": self.low, "high": self.high, "drifted": self.drifted}

    def __str__(self) -> str:
        word = "DRIFT" if self.drifted else "steady"
        return f"{self.name}: {format_ratio(self.ratio, self.low, self.high)} of the baseline: {word}"


def drifts(found: BatchFigures, baseline: BatchFigures, tolerance: float = TOLERANCE) -> tuple[list[Drift], list[str]]:
    """Energy an item, time an item, and the share of failed attempts; and sentences on what cannot be compared."""
    told: list[Drift] = []
    notes: list[str] = []
    counts = found.count(DONE), baseline.count(DONE)
    if not all(counts):
        return [], ["no item is finished in one of the two batches"]
    try:
        ratio = (found.total / counts[0]).ratio(baseline.total / counts[1])
        told.append(_drift("energy per item", ratio.value, ratio.low, ratio.high, tolerance))
    except EverywattError as error:
        notes.append(f"energy cannot be compared: {error}")
    ours, theirs = _runtimes(found), _runtimes(baseline)
    if min(len(ours), len(theirs)) >= FEWEST:
        told.append(_times(ours, theirs, tolerance))
    else:
        notes.append(f"fewer than {FEWEST} items: times are not compared")
    return told, notes


def _runtimes(found: BatchFigures) -> list[float]:
    last = [item.last for item in found.items if item.state.status == DONE]
    return [one.attempt.runtime_s for one in last if one is not None and one.attempt.runtime_s]


def _times(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> Drift:
    ratio = fmean(ours) / fmean(theirs)
    errors = [stdev(values) / math.sqrt(len(values)) / fmean(values) for values in (ours, theirs)]
    spread = TIMES_ERROR * ratio * math.hypot(*errors)
    return _drift("time per item", ratio, ratio - spread, ratio + spread, tolerance)


def _drift(name: str, ratio: float, low: float, high: float, tolerance: float) -> Drift:
    return Drift(name, ratio, low, high, low > 1 + tolerance or high < 1 - tolerance)
