"""From rows of `use.cgroups`: CPU time of the cgroup made for the command, and how many CPUs a group may use."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class CgroupUse:
    """Reads frames of `use.cgroups` in order."""

    def __init__(self) -> None:
        self.cpus: dict[str, float] = {}
        self._at_ns = array("q")
        self._made_s = array("d")
        self._last: dict[str, float] = {}
        self._whole_s = 0.0

    def feed(self, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        """Take the rows that were told at one instant."""
        for row in rows:
            name = str(row.get("cgroup"))
            if row.get("cpus") is not None:
                self.cpus[name] = float(row["cpus"])
            if row.get("made") and row.get("cpu_s") is not None:
                used_s = float(row["cpu_s"])
                if name not in self._last and (not self._at_ns or self._at_ns[-1] < at_ns - NS):
                    # It was made for the command, less than a period ago, and had used nothing then.
                    self._at_ns.append(at_ns - NS)
                    self._made_s.append(self._whole_s)
                self._whole_s += max(used_s - self._last.get(name, 0.0), 0.0)
                self._last[name] = used_s
                self._at_ns.append(at_ns)
                self._made_s.append(self._whole_s)

    @property
    def made(self) -> bool:
        """Whether there is a cgroup that was made for the command, with its CPU time."""
        return len(self._at_ns) > 1

    def used(self, starts_ns: Ints, ends_ns: Ints) -> Floats:
        """CPU seconds of the made cgroups in each stretch."""
        at, counted = np.array(self._at_ns), np.array(self._made_s)
        return np.asarray(np.interp(ends_ns, at, counted) - np.interp(starts_ns, at, counted), dtype=np.float64)
