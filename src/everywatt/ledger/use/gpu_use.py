"""From rows of `nvml.processes` to who was on which GPU, how busy, and with how much memory, from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.ledger.use.tenants import GpuTable, Tenant

Ints = npt.NDArray[np.int64]


class GpuUse:
    """Reads frames of `nvml.processes` in order. For each GPU: stretches with the tenants of each."""

    def __init__(self, period_s: float) -> None:
        self._table = GpuTable(period_s)
        self.edges: dict[int, list[int]] = {}
        self.tenants: dict[int, list[tuple[Tenant, ...]]] = {}

    def feed(self, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        """Take the rows that were told at one instant. A row's use is of the period that ends there."""
        for gpu, start_ns, end_ns, tenants in self._table.feed(at_ns, rows):
            self.edges.setdefault(gpu, [start_ns]).append(end_ns)
            self.tenants.setdefault(gpu, []).append(tenants)

    def at(self, gpu: int, instants_ns: Ints) -> list[tuple[Tenant, ...]]:
        """Who was there at each instant; the last who were told of are there still."""
        edges, kept = self.edges.get(gpu), self.tenants.get(gpu)
        if not edges or not kept:
            return [()] * len(instants_ns)
        places = np.searchsorted(edges, instants_ns, side="right") - 1
        now = self._table.now(gpu)
        return [() if place < 0 else kept[place] if place < len(kept) else now for place in places.tolist()]
