"""Whether a model still fits its machine: its rows beside those of a real sensor, while there is one.

A machine changes (a kernel, a fan, a card), and a model does not notice. Where a sensor of the model's own target can
be read, for as long as it can, each row is compared: an interval of 90 % that holds clearly fewer rows than that has
drifted. Plain Python, since the recorder loads it.
"""

from __future__ import annotations

import math
from collections import deque

from everywatt.core.stats import wilson

ROWS = 300  # the newest that count
LEAST_ROWS = 30


class Drift:
    """The newest comparisons of a model with a sensor."""

    def __init__(self, level: float) -> None:
        self._level = level
        self._rows: deque[tuple[float, bool]] = deque(maxlen=ROWS)

    def add(self, truth_w: float, watts: float, low: float, high: float) -> None:
        """One row of both; rows without power on either side say nothing."""
        if truth_w > 0 and watts > 0 and math.isfinite(truth_w):
            self._rows.append((truth_w / watts, low <= truth_w <= high))

    @property
    def ratio(self) -> float:
        """The median of measured over modelled watts; NaN without rows."""
        if not self._rows:
            return math.nan
        ordered = sorted(ratio for ratio, _ in self._rows)
        return ordered[len(ordered) // 2]

    @property
    def alarm(self) -> bool:
        """Whether fewer rows than the level are inside, beyond what chance explains (Wilson, 99 %)."""
        if len(self._rows) < LEAST_ROWS:
            return False
        return wilson(sum(inside for _, inside in self._rows), len(self._rows), 0.99)[1] < self._level

    @property
    def sentence(self) -> str:
        """For people; empty where nothing is wrong."""
        if not self.alarm:
            return ""
        held = sum(inside for _, inside in self._rows) / len(self._rows)
        return (
            f"the model has drifted: the sensor reads {self.ratio:.3g} times its watts, and {held:.0%} of "
            f"{len(self._rows)} rows were inside the {self._level:.0%} interval"
        )
