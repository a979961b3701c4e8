"""Who is on a GPU, and how its active energy is shared among them. Without numpy: agents use it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everywatt.core.lazy_dataclass import dataclass

BUSY_SM = 1.0  # per cent of a GPU's SM time below which a process only holds it


@dataclass(frozen=True, slots=True)
class Tenant:
    """One process on one GPU as it stood in a stretch of time. `sm` is per cent, None where the driver does not say."""

    pid: int
    sm: float | None
    memory_bytes: float | None
    instance: tuple[int, int | None] | None = None
    slices: float | None = None
    of_slices: float | None = None


class TenantTable:
    """Who is on one GPU, by rows of `nvml.processes`, which report changes only."""

    def __init__(self) -> None:
        self._now: dict[tuple[Any, ...], Tenant] = {}

    @property
    def now(self) -> tuple[Tenant, ...]:
        """Those of the last rows."""
        return tuple(self._now.values())

    def update(self, rows: Sequence[dict[str, Any]]) -> tuple[Tenant, ...]:
        """Take rows; gives who was there in the time that ended with them.

        Whoever came or left meanwhile was there for half of it, as far as is known.
        """
        come = {tenant_key(row) for row in rows if row.get("since_ns") is not None} - self._now.keys()
        for row in rows:
            self._now[tenant_key(row)] = tenant_of(row)
        there = tuple(_half(tenant) if key in come else tenant for key, tenant in self._now.items())
        for row in rows:
            if row.get("gone"):
                self._now.pop(tenant_key(row), None)
        return there


def _half(tenant: Tenant) -> Tenant:
    return tenant if tenant.sm is None else replace(tenant, sm=tenant.sm / 2)


def tenant_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What names a tenant in rows of `nvml.processes`."""
    return (row.get("pid"), row.get("gpu_instance"), row.get("compute_instance"))


def tenant_of(row: dict[str, Any]) -> Tenant:
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
    )


def weights(tenants: Sequence[Tenant]) -> tuple[list[float], str]:
    """How the active energy of a stretch is shared by its tenants, and by which method."""
    if not tenants:
        return [], ""
    if any(tenant.instance is not None for tenant in tenants):
        return _by_slices(tenants), "slices"
    if any(tenant.sm is not None for tenant in tenants):
        return [tenant.sm or 0.0 for tenant in tenants], "sm time"
    return _by_memory(tenants), "memory"


def _by_memory(tenants: Sequence[Tenant]) -> list[float]:
    known = [float(tenant.memory_bytes or 0.0) for tenant in tenants]
    return known if sum(known) > 0 else [1.0] * len(tenants)


def _by_slices(tenants: Sequence[Tenant]) -> list[float]:
    """The board by slices of the instances that have tenants, an instance by memory; no slices known: equal ones."""
    instances: dict[Any, list[int]] = {}
    for index, tenant in enumerate(tenants):
        instances.setdefault(tenant.instance, []).append(index)
    shares = [0.0] * len(tenants)
    for inside in instances.values():
        size = max((float(tenants[index].slices or 0.0) for index in inside), default=0.0) or 1.0
        parts = _by_memory([tenants[index] for index in inside])
        for index, part in zip(inside, parts, strict=True):
            shares[index] = size * part / sum(parts)
    return shares
