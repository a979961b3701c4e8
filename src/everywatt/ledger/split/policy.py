"""What becomes of idle: an owner of its own, or spread over owners by what they used or by what was kept for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.core.errors import UsageError
from everywatt.ledger.split.split import IDLE_AT, NOBODY_AT

Floats = npt.NDArray[np.float64]

SEPARATE, BY_ALLOCATION, BY_USE = "separate", "by-allocation", "by-use"
POLICIES = (SEPARATE, BY_ALLOCATION, BY_USE)


def check_policy(policy: str) -> str:
    """The policy, or UsageError where there is none of that name."""
    if policy not in POLICIES:
        raise UsageError(f"'{policy}' is not an idle policy.", cure=f"one of: {', '.join(POLICIES)}")
    return policy


def charge_idle(policy: str, idle_j: float, use: Floats, allocated: Floats) -> Floats:
    """Idle joules of each owner; what nobody is charged for stays with the owner `idle`.

    `use` is what each used of the device, `allocated` the share of the device (at most 1 in all) kept for each.
    """
    charged = np.zeros(len(use))
    if policy == BY_USE and idle_j > 0:
        weight = use.copy()
        weight[[IDLE_AT, NOBODY_AT]] = 0.0
        if weight.sum() > 0:
            charged = idle_j * weight / weight.sum()
    elif policy == BY_ALLOCATION and idle_j > 0:
        share = allocated.copy()
        share[[IDLE_AT, NOBODY_AT]] = 0.0
        charged = idle_j * share / max(1.0, float(share.sum()))
    charged[IDLE_AT] = idle_j - float(charged.sum())
    return charged


def allocated_cpus(group: npt.NDArray[np.int64], limits: Floats, use: Floats, cpus: float) -> Floats:
    """The share of the machine's CPUs kept for each owner.

    Owner i is in the group `group[i]` (-1: in none) that may use `limits[group]` CPUs: that is shared by use inside
    of the group. Who has no limit may use the rest of the machine, shared by use as well.
    """
    share = np.zeros(len(use))
    taken = 0.0
    for number, limit in enumerate(limits.tolist()):
        inside = group == number
        if not inside.any():
            continue
        size = min(limit / max(cpus, 1e-9), 1.0 - taken)
        weight = np.where(inside, use, 0.0)
        weight = weight if weight.sum() > 0 else inside.astype(np.float64)
        share += size * weight / weight.sum()
        taken += size
    free = np.where(group < 0, use, 0.0)
    free[[IDLE_AT, NOBODY_AT]] = 0.0
    if free.sum() > 0 and taken < 1.0:
        share += (1.0 - taken) * free / free.sum()
    return share
