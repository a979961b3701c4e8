"""Features: what a model multiplies or splits on. Plain data, so that the recorder can make them without numpy.

value   a column as it is
ratio   one column over another (instructions for each cycle)
log-ratio   the logarithm of one column over another: which ratio is unusual, on either side
past    a column as it stood some seconds ago (files of earlier versions)
change  how much a column rose over so many seconds: counters and power of a row do not begin at the same instant
mean    a rolling average: x̄(t) = x̄(t−d)·e^(−d/τ) + x(t)·(1 − e^(−d/τ)), whose answer to a step is 1 − e^(−t/τ)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("value", "ratio", "log-ratio", "past", "change", "mean")
RATIOS = ("ratio", "log-ratio")
AVERAGES_S = (1.0, 5.0, 15.0)
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature. `other` is the column below the line of a ratio, `seconds` the age of `past`, the span of
    `change`, or τ of `mean`."""

    kind: str
    column: str
    other: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """As people read it: `cycles`, `cycles / time`, `change of cycles in 3 s`, `cycles over 5 s`."""
        if self.kind in RATIOS:
            return f"{self.column} / {self.other}"
        if self.kind == "past":
            return f"{self.column} {self.seconds:g} s ago"
        if self.kind == "change":
            return f"change of {self.column} in {self.seconds:g} s"
        if self.kind == "mean":
            return f"{self.column} over {self.seconds:g} s"
        return self.column

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs."""
        return (self.column, self.other) if self.kind in RATIOS else (self.column,)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"kind": self.kind, "column": self.column}
        if self.kind in RATIOS:
            data["other"] = self.other
        elif self.kind in ("past", "change", "mean"):
            data["seconds"] = self.seconds
        return data


def ratio_of(above: float, below: float) -> float:
    """A ratio that is 0 where nothing happened at all."""
    return above / below if abs(below) > TINY else 0.0


def log_ratio_of(above: float, below: float) -> float:
    """The logarithm of a ratio; finite where one of them is 0."""
    return math.log(max(above, TINY) / max(below, TINY))


def smooth(before: float | None, value: float, elapsed_s: float, tau_s: float) -> float:
    """The rolling average after one more value; `before` None: the value itself."""
    if before is None or before != before:
        return value
    keep = math.exp(-elapsed_s / tau_s)
    return before * keep + value * (1.0 - keep)


class History:
    """Makes features row by row, as a sensor meets them: what was before is kept as long as a feature needs it.

    `still` counts for each column the rows with the present value (1 where that is 0: nothing happens for as long as it
    likes). After a pause longer than `pause_s` nothing of before is used: the past is taken to have been as now.
    """

    def __init__(self, features: Sequence[Feature], period_s: float) -> None:
        self._features = tuple(features)
        self._period_s = period_s
        self._keep_s = max((f.seconds for f in features if f.kind in ("past", "change")), default=0.0) + 2 * period_s
        self._rows: deque[tuple[float, Mapping[str, float]]] = deque()
        self._means: dict[int, float] = {}
        self._last_s: float | None = None
        self.still: dict[str, int] = {}

    def row(self, at_s: float, values: Mapping[str, float]) -> list[float]:
        """The features at an instant from the columns then."""
        last_s = self._last_s
        if last_s is not None and not 0 < at_s - last_s <= 3 * max(self._period_s, 1.0):
            self._rows.clear()
            self._means.clear()
            last_s = None
        before = self._rows[-1][1] if self._rows else {}
        for name, value in values.items():
            self.still[name] = self.still.get(name, 0) + 1 if value and value == before.get(name) else 1
        made = [self._one(place, f, at_s, values, last_s) for place, f in enumerate(self._features)]
        self._rows.append((at_s, dict(values)))
        while self._rows and self._rows[0][0] < at_s - self._keep_s:
            self._rows.popleft()
        self._last_s = at_s
        return made

    def _one(self, place: int, f: Feature, at_s: float, values: Mapping[str, float], last_s: float | None) -> float:
        value = values[f.column]
        if f.kind == "ratio":
            return ratio_of(value, values[f.other])
        if f.kind == "log-ratio":
            return log_ratio_of(value, values[f.other])
        if f.kind in ("past", "change"):
            ago = self._ago(at_s - f.seconds, f.column, value)
            return ago if f.kind == "past" else value - ago
        if f.kind == "mean":
            elapsed = 0.0 if last_s is None else at_s - last_s
            made = smooth(self._means.get(place), value, elapsed, f.seconds)
            self._means[place] = made
            return made
        return value

    def _ago(self, then_s: float, column: str, now: float) -> float:
        """The newest value that is at least that old, within half a period; else the present one."""
        for at_s, values in reversed(self._rows):
            if at_s <= then_s + self._period_s / 2:
                return values[column] if at_s >= then_s - 1.5 * self._period_s else now
        return now
