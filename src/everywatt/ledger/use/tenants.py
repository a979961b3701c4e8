"""Who is on a GPU, and how its active energy is shared among them. Without numpy: agents use it too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.processes import LATE
from everywatt.sensors.base import TableRow

ACTIVITY = "slices by activity"
BUSY_SM = 1.0  # per cent of a GPU's SM time below which a process only holds it


@dataclass(frozen=True, slots=True)
class Tenant:
    """One process on one GPU as it stood in a stretch of time. `sm` is per cent, None where the driver does not say.

    `instance_sm` is per cent of its MIG instance, whatever process was in it.
    """

    pid: int
    sm: float | None
    memory_bytes: float | None
    instance: tuple[int, int | None] | None = None
    slices: float | None = None
    of_slices: float | None = None
    instance_sm: float | None = None


class TenantTable:
    """Who is on one GPU, by rows of `nvml.processes`, which report changes only."""

    def __init__(self) -> None:
        self._now: dict[tuple[Any, ...], Tenant] = {}

    @property
    def now(self) -> tuple[Tenant, ...]:
        """Those of the last rows."""
        return tuple(self._now.values())

    def update(self, rows: Sequence[TableRow]) -> tuple[Tenant, ...]:
        """Take rows; gives who was there in the time that ended with them.

        Tenants that came or left meanwhile count for half of it.
        """
        come = {tenant_key(row) for row in rows if row.get("since_ns") is not None} - self._now.keys()
        for row in rows:
            self._now[tenant_key(row)] = tenant_of(row)
        there = tuple(_half(tenant) if key in come else tenant for key, tenant in self._now.items())
        for row in rows:
            if row.get("gone"):
                self._now.pop(tenant_key(row), None)
        return there


class GpuTable:
    """Who was on which GPU from when to when, by rows of `nvml.processes` and the like."""

    def __init__(self, period_s: float) -> None:
        self._period_ns = int(period_s * NS)
        self._tables: dict[int, TenantTable] = {}
        self._ends_ns: dict[int, int] = {}  # of the last stretch of each GPU
        self._first_ns: int | None = None

    def now(self, gpu: int) -> tuple[Tenant, ...]:
        """Who is on a GPU since the last rows."""
        return self._tables[gpu].now if gpu in self._tables else ()

    def gpus(self) -> list[int]:
        """All GPUs that rows were about."""
        return list(self._tables)

    def pids(self) -> set[int]:
        return {tenant.pid for table in self._tables.values() for tenant in table.now}

    def feed(
        self, at_ns: int, rows: Sequence[TableRow], since_ns: int | None = None
    ) -> Iterator[tuple[int, int, int, tuple[Tenant, ...]]]:
        """Take the rows of one instant; gives stretches (GPU, start, end, tenants) of the GPUs that they are about.

        A row's use is of the time since the read before: where that is not known (`since_ns`), of a period.
        """
        if self._first_ns is None:
            self._first_ns = at_ns
        changed: dict[int, list[TableRow]] = {}
        for row in rows:
            if row.get("gpu") is not None:
                changed.setdefault(int(row["gpu"]), []).append(row)
        for gpu, mine in changed.items():
            yield from self._stretches(gpu, at_ns, mine, since_ns)

    def _stretches(
        self, gpu: int, at_ns: int, rows: Sequence[TableRow], before_ns: int | None
    ) -> Iterator[tuple[int, int, int, tuple[Tenant, ...]]]:
        table = self._tables.setdefault(gpu, TenantTable())
        since_ns = max((int(row["since_ns"]) for row in rows if row.get("since_ns") is not None), default=None)
        end_ns = self._ends_ns.get(gpu)
        if end_ns is None:
            usual_ns = min(self._first_ns or at_ns, at_ns - self._period_ns) if before_ns is None else before_ns
            end_ns = usual_ns if since_ns is None else min(since_ns, at_ns - 1)
        if at_ns <= end_ns:
            return
        if since_ns is None and end_ns < at_ns - int(LATE * self._period_ns) and before_ns is None:
            since_ns = at_ns - self._period_ns
        if since_ns is not None and end_ns < since_ns < at_ns:
            yield gpu, end_ns, since_ns, table.now
            end_ns = since_ns
        self._ends_ns[gpu] = at_ns
        yield gpu, end_ns, at_ns, table.update(rows)

    def go_on(self, gpu: int, at_ns: int) -> Iterator[tuple[int, int, int, tuple[Tenant, ...]]]:
        """A read that said nothing of a GPU: its tenants are still there."""
        start_ns = self._ends_ns.get(gpu, at_ns)
        if at_ns > start_ns:
            self._ends_ns[gpu] = at_ns
            yield gpu, start_ns, at_ns, self.now(gpu)


def _half(tenant: Tenant) -> Tenant:
    return tenant if tenant.sm is None else replace(tenant, sm=tenant.sm / 2)


def tenant_key(row: TableRow) -> tuple[Any, ...]:
    """What names a tenant in rows of `nvml.processes`."""
    return (row.get("pid"), row.get("gpu_instance"), row.get("compute_instance"))


def tenant_of(row: TableRow) -> Tenant:
    """The tenant of one row; one that is gone was there half of the time."""
    instance = row.get("gpu_instance")
    sm = row.get("sm")
    return Tenant(
        int(row["pid"]),
        None if sm is None else max(float(sm), 0.0) * (0.5 if row.get("gone") else 1.0),
        row.get("memory_bytes"),
        None if instance is None else (instance, row.get("compute_instance")),
        row.get("slices"),
        row.get("of_slices"),
        row.get("instance_sm"),
    )


def weights(tenants: Sequence[Tenant]) -> tuple[list[float], str]:
    """How the active energy of a stretch is shared by its tenants, and by which method."""
    if not tenants:
        return [], ""
    if any(tenant.instance is not None for tenant in tenants):
        did = all(tenant.instance_sm is not None and tenant.slices and tenant.of_slices for tenant in tenants)
        return _by_slices(tenants, did), ACTIVITY if did else "slices"
    if any(tenant.sm is not None for tenant in tenants):
        return [tenant.sm or 0.0 for tenant in tenants], "sm time"
    return _by_memory(tenants), "memory"


def active_weights(tenants: Sequence[Tenant]) -> tuple[list[float], str]:
    """Like `weights`, and no weights where all of them only hold the GPU."""
    parts, method = weights(tenants)
    return ([], method) if method in ("sm time", ACTIVITY) and sum(parts) < BUSY_SM else (parts, method)


def busy_share(tenants: Sequence[Tenant]) -> float:
    """How busy they keep a GPU, from 0 to 1; NaN where the driver reports no use of one of them."""
    parts, method = weights(tenants)
    unknown = method in ("slices", "memory") or (method != ACTIVITY and any(tenant.sm is None for tenant in tenants))
    return math.nan if unknown else sum(parts) / 100


def _by_memory(tenants: Sequence[Tenant]) -> list[float]:
    known = [float(tenant.memory_bytes or 0.0) for tenant in tenants]
    return known if sum(known) > 0 else [1.0] * len(tenants)


def _by_slices(tenants: Sequence[Tenant], did: bool) -> list[float]:
    """The board by slices of the instances that have tenants (no slices known: equal ones), or by the per cent of it
    that each kept busy, if that is known; an instance by memory."""
    instances: dict[Any, list[int]] = {}
    for index, tenant in enumerate(tenants):
        instances.setdefault(tenant.instance, []).append(index)
    shares = [0.0] * len(tenants)
    for inside in instances.values():
        size = max((float(tenants[index].slices or 0.0) for index in inside), default=0.0) or 1.0
        if did:
            size *= (tenants[inside[0]].instance_sm or 0.0) / (tenants[inside[0]].of_slices or 1.0)
        parts = _by_memory([tenants[index] for index in inside])
        for index, part in zip(inside, parts, strict=True):
            shares[index] = size * part / sum(parts)
    return shares
