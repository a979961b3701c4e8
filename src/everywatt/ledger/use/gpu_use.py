"""From rows of `nvml.processes` to who was on which GPU, how busy, and with how much memory, from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.ledger.use.tenants import Tenant, TenantTable
from everywatt.ledger.use.usage import LATE

Ints = npt.NDArray[np.int64]


class GpuUse:
    """Reads frames of `nvml.processes` in order. For each GPU: stretches with the tenants of each."""

    def __init__(self, period_s: float) -> None:
        self._period_ns = int(period_s * NS)
        self._tables: dict[int, TenantTable] = {}
        self.edges: dict[int, list[int]] = {}
        self.tenants: dict[int, list[tuple[Tenant, ...]]] = {}
        self.first_ns: int | None = None
        self.last_ns = 0

    def feed(self, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        """Take the rows that were told at one instant. A row's use is of the period that ends there."""
        if self.first_ns is None:
            self.first_ns = at_ns
        for gpu in {int(row["gpu"]) for row in rows if row.get("gpu") is not None}:
            mine = [row for row in rows if row.get("gpu") == gpu]
            self._stretch(gpu, at_ns, mine)
        self.last_ns = at_ns

    def _stretch(self, gpu: int, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        table = self._tables.setdefault(gpu, TenantTable())
        edges = self.edges.setdefault(gpu, [])
        kept = self.tenants.setdefault(gpu, [])
        since_ns = max((int(row["since_ns"]) for row in rows if row.get("since_ns") is not None), default=None)
        if not edges:
            usual_ns = at_ns - self._period_ns
            edges.append(min(self.first_ns or at_ns, usual_ns) if since_ns is None else min(since_ns, at_ns - 1))
        if at_ns <= edges[-1]:
            return
        if since_ns is None and edges[-1] < at_ns - int(LATE * self._period_ns):
            since_ns = at_ns - self._period_ns
        if since_ns is not None and edges[-1] < since_ns < at_ns:
            edges.append(since_ns)
            kept.append(table.now)
        edges.append(at_ns)
        kept.append(table.update(rows))

    def at(self, gpu: int, instants_ns: Ints) -> list[tuple[Tenant, ...]]:
        """Who was there at each instant; the last who were told of are there still."""
        edges, kept = self.edges.get(gpu), self.tenants.get(gpu)
        if not edges or not kept:
            return [()] * len(instants_ns)
        places = np.searchsorted(edges, instants_ns, side="right") - 1
        now = self._tables[gpu].now
        return [() if place < 0 else kept[place] if place < len(kept) else now for place in places.tolist()]
