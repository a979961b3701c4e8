"""Who is on a GPU, and how its active energy is shared among them. Without numpy: agents use it too."""

from __future__ import annotations

from collections.abc import Sequence
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
