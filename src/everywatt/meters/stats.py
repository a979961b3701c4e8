"""Count, median, most, least, mean, energy and coverage of plugs, and of the sum of some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.jsonio import ToDict
from everywatt.core.units import J_PER_KWH
from everywatt.meters.block import Block, Floats, held


@dataclass(frozen=True, slots=True)
class PlugStats(ToDict):
    """What one plug, or the sum of several, drew. Watts are of the good rows; joules of the time they cover."""

    JSON = "name count median_w max_w min_w mean_w joules kwh"

    name: str
    count: int
    median_w: float
    max_w: float
    min_w: float
    mean_w: float
    joules: float

    @property
    def kwh(self) -> float:
        return self.joules / J_PER_KWH


@dataclass(frozen=True, slots=True)
class MeterStats(ToDict):
    """Of a recording: rows, those that repeat, its time, the share of it that was observed, and its plugs."""

    JSON = (
        "rows bad_rows=bad repeated_rows=repeats start_utc_ns=start_ns end_utc_ns=end_ns "
        "observed_s coverage plugs total"
    )

    rows: int
    bad: int
    repeats: int
    start_ns: int
    end_ns: int
    observed_s: float
    plugs: tuple[PlugStats, ...]
    total: PlugStats | None

    @property
    def coverage(self) -> float:
        """Share of the time from the first to the last row that was observed; 0 for a single row."""
        span_s = (self.end_ns - self.start_ns) / NS
        return min(self.observed_s / span_s, 1.0) if span_s > 0 else 0.0


def stats(blocks: Iterable[Block], names: Sequence[str] | None = None, total: str | None = None) -> MeterStats | None:
    """Statistics of a recording, for each plug that its blocks have; None where it has no rows.

    `names` are of the plugs (else 1, 2, …); `total` names their sum, which is then included too.
    """
    rows = bad = repeats = 0
    start_ns, end_ns, observed_s = 0, 0, 0.0
    joules: Floats | None = None
    columns: list[np.ndarray[Any, Any]] = []
    for block, covered in held(blocks):
        if not rows:
            start_ns = int(block.utc_ns[0])
            joules = np.zeros(block.plugs)
        rows += len(block)
        bad += int((~block.ok).sum())
        repeats += int(block.repeats().sum())
        end_ns = int(block.utc_ns[-1])
        observed_s += covered.observed_s()
        assert joules is not None
        joules += covered.joules()
        columns.append(block.watts[block.ok].astype(np.float32))  # half the memory of a long recording
    if not rows or joules is None:
        return None
    watts = np.concatenate(columns)
    called = names or [f"{place + 1}" for place in range(watts.shape[1])]
    plugs = [_plug(name, watts[:, place], float(joules[place])) for place, name in enumerate(called)]
    summed = None
    if total is not None:
        summed = _plug(total, watts.sum(axis=1, dtype=np.float64), float(joules.sum()))
    return MeterStats(rows, bad, repeats, start_ns, end_ns, observed_s, tuple(plugs), summed)


def _plug(name: str, watts: np.ndarray[Any, Any], joules: float) -> PlugStats:
    if not len(watts):
        nan = float("nan")
        return PlugStats(name, 0, nan, nan, nan, nan, joules)
    median, high, low = (round(float(figure), 4) for figure in (np.median(watts), watts.max(), watts.min()))
    return PlugStats(name, len(watts), median, high, low, round(float(watts.mean(dtype=np.float64)), 4), joules)
