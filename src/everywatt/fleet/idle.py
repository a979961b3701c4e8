"""Idle watts of a device as the agent goes along: `ledger.idle` over a bounded past."""

from __future__ import annotations

from array import array

from everywatt.ledger.engine import Level
from everywatt.ledger.idle import FEW_CELLS, QUIET_S, Watched, find_idle

CELL_S = 5.0
MOST_CELLS = 1440  # two hours


class IdleFinder:
    """Fed with stretches; `level` is what is known so far."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: Level | None = None
        self._watts, self._uses, self._held = array("d"), array("d"), array("b")
        self._sum_j = self._sum_use = self._seconds = 0.0
        self._holding = False

    def know(self, level: Level | None) -> None:
        """What was found before this start: used until idle is observed again."""
        self._known = level

    def add(self, joules: float, seconds: float, use: float | None, held: bool = False) -> None:
        """One stretch: how busy the device was, from 0 to 1 (None: not known), and whether a process held it."""
        if seconds <= 0 or use is None:
            return
        self._sum_j += joules
        self._sum_use += min(max(use, 0.0), 1.0) * seconds
        self._seconds += seconds
        self._holding |= held
        if self._seconds >= (QUIET_S if len(self._watts) < FEW_CELLS else CELL_S):
            self._watts.append(self._sum_j / self._seconds)
            self._uses.append(self._sum_use / self._seconds)
            self._held.append(self._holding)
            self._sum_j = self._sum_use = self._seconds = 0.0
            self._holding = False
            if len(self._watts) > MOST_CELLS:
                for column in (self._watts, self._uses, self._held):
                    del column[: MOST_CELLS // 8]

    def level(self) -> Level | None:
        """Idle and held watts; what was known before the start while idle has not been observed since."""
        if self._watts:
            held = [bool(cell) for cell in self._held] if self._kind == "gpu" else None
            seen = Watched(self._watts, self._uses, CELL_S, self._kind, held)
        elif self._seconds > 0:
            seen = Watched([self._sum_j / self._seconds], [self._sum_use / self._seconds], 0.0, self._kind)
        else:
            return self._known
        found = find_idle(seen)
        if found is None or (self._known is not None and (not found.observed or found.method == "quiet, held")):
            return self._known
        return found.level
