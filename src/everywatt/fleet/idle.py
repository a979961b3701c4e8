"""Idle watts of a device as the agent goes along: the rule of `ledger.idle`, over a bounded past, without numpy.

The time in which a device was used least, put down to no use; else a line through power over use; else, from the cells
that were used least, what machines of that kind draw at idle. Never the time of the lowest power, which is biased.
"""

from __future__ import annotations

from array import array

from everywatt.ledger.engine import Level

QUIET_USE = 0.10
STILL_USE = 0.02
QUIET_S = 2.0
FEW_CELLS = 8
VARIED = 0.25
# Share of the power at full load that is drawn at idle: the middle of `ledger.idle.PRIORS`.
PRIORS = {"cpu": 0.26, "gpu": 0.12, "dram": 0.5}
CELL_S = 5.0
MOST_CELLS = 1440  # two hours


class IdleFinder:
    """Fed with stretches; `level` is what is known so far."""

    def __init__(self, kind: str) -> None:
        self._share = PRIORS[kind]
        self._gpu = kind == "gpu"
        self._known: Level | None = None
        self._watts, self._uses, self._held = array("f"), array("f"), array("b")
        self._sum_j = self._sum_use = self._seconds = 0.0
        self._holding = False
        self._first = True

    def know(self, level: Level | None) -> None:
        """What was found before this start: used until there is something newer."""
        self._known = level

    def add(self, joules: float, seconds: float, use: float | None, held: bool = False) -> None:
        """One stretch: how busy the device was, from 0 to 1 (None: not known), and whether somebody held it."""
        if seconds <= 0 or use is None:
            return
        self._sum_j += joules
        self._sum_use += min(max(use, 0.0), 1.0) * seconds
        self._seconds += seconds
        self._holding |= held
        if self._seconds >= (QUIET_S if self._first else CELL_S):
            self._first = len(self._watts) < FEW_CELLS
            self._watts.append(self._sum_j / self._seconds)
            self._uses.append(self._sum_use / self._seconds)
            self._held.append(self._holding)
            self._sum_j = self._sum_use = self._seconds = 0.0
            self._holding = False
            if len(self._watts) > MOST_CELLS:
                for column in (self._watts, self._uses, self._held):
                    del column[: MOST_CELLS // 8]

    def level(self) -> Level | None:
        """Idle and held watts by the first way that works; what was known before the start where nothing is yet."""
        if not self._watts:
            if self._known is not None or self._seconds <= 0:
                return self._known
            mean_w, use = self._sum_j / self._seconds, self._sum_use / self._seconds
            return Level(self._without(mean_w, use, None), 0.0, method="prior")
        if self._gpu:
            found = self._of_gpu()
            if found is not None:
                return found
        return self._by_use() if not self._gpu else (self._known or self._by_use())

    def _of_gpu(self) -> Level | None:
        nobody = [w for w, u, h in zip(self._watts, self._uses, self._held, strict=True) if u <= STILL_USE and not h]
        holding = [w for w, u, h in zip(self._watts, self._uses, self._held, strict=True) if u <= STILL_USE and h]
        if nobody:
            idle_w = sum(nobody) / len(nobody)
            held_w = max(sorted(holding)[len(holding) // 2] - idle_w, 0.0) if holding else 0.0
            return Level(idle_w, held_w, method="quiet")
        if self._known is not None or not holding:
            return None
        return Level(sum(holding) / len(holding), 0.0, method="quiet, held")

    def _by_use(self) -> Level:
        slope, intercept = self._line()
        quiet = [(w, u) for w, u in zip(self._watts, self._uses, strict=True) if u <= QUIET_USE]
        if quiet:
            return Level(self._without(*_means(quiet), slope), 0.0, method="quiet")
        if intercept is not None and 0 < intercept <= max(self._watts):
            return Level(intercept, 0.0, method="regression")
        if self._known is not None:
            return self._known
        least = sorted(zip(self._uses, self._watts, strict=True))[: max(1, len(self._watts) // 10)]
        return Level(self._without(*_means([(w, u) for u, w in least]), None), 0.0, method="prior")

    def _without(self, level_w: float, use: float, slope: float | None) -> float:
        """A level of power at some use, put down to none."""
        if slope is not None:
            return max(level_w - slope * use, 0.0)
        return level_w * self._share / (self._share + (1 - self._share) * use)

    def _line(self) -> tuple[float | None, float | None]:
        """Watts from no use to full use and watts at none, where use varied enough to tell."""
        n = len(self._uses)
        if n < FEW_CELLS or max(self._uses) - min(self._uses) < VARIED:
            return None, None
        mean_u, mean_w = sum(self._uses) / n, sum(self._watts) / n
        spread = sum((u - mean_u) ** 2 for u in self._uses)
        together = sum((u - mean_u) * (w - mean_w) for u, w in zip(self._uses, self._watts, strict=True))
        slope = max(together / spread, 0.0)
        return slope, mean_w - slope * mean_u if slope > 0 else None


def _means(cells: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(w for w, _ in cells) / len(cells), sum(u for _, u in cells) / len(cells)
