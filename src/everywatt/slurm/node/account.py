"""What one job owes on a node so far, as plain data that survives a kill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import join_labels


@dataclass(slots=True)
class Account:
    """What one job owes so far on this node."""

    own_uj: dict[str, int] = field(default_factory=dict)
    idle_uj: dict[str, int] = field(default_factory=dict)
    steps_uj: dict[str, int] = field(default_factory=dict)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    observed_s: float = 0.0
    covered_s: float = 0.0
    unseen_s: dict[str, float] = field(default_factory=dict)  # by device, of the time that the job was there
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    gpu_busy_s: dict[str, float] = field(default_factory=dict)
    gpu_known_s: dict[str, float] = field(default_factory=dict)
    gpu_memory_bytes: dict[str, int] = field(default_factory=dict)  # the most
    memory_byte_s: float | None = None  # bytes times seconds, for the mean
    gpu_memory_byte_s: dict[str, list[float]] = field(default_factory=dict)  # the same by GPU, and the seconds
    pedigree: str = ""
    hours_uj: dict[str, int] = field(default_factory=dict)  # by hour and device; of a job that nothing is known of yet
    charged_s: float = 0.0  # up to when (UTC) that was charged

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the state on disk."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "budgets"}
        data["budgets"] = {
            device: {
                "terms": [[*t[:3], *([t.freedom] if t.freedom < math.inf else [])] for t in budget.terms],
                "bounds": [[b.source, b.key, b.below, b.above] for b in budget.bounds],
            }
            for device, budget in self.budgets.items()
        }
        return data

    @classmethod
    def of_dict(cls, data: Mapping[str, Any]) -> Account:
        """Back from plain data."""
        known = {name: data[name] for name in cls.__slots__ if name in data and name != "budgets"}
        account = cls(**known)
        for device, budget in data.get("budgets", {}).items():
            terms = tuple(Term(*term) for term in budget["terms"])
            account.budgets[device] = Budget(terms, tuple(Bound(*bound) for bound in budget["bounds"]))
        return account

    def adopt(self, late: Account) -> None:
        """Take over what was charged before it was known whose it is."""
        for mine, other in ((self.own_uj, late.own_uj), (self.steps_uj, late.steps_uj)):
            for name, uj in other.items():
                mine[name] = mine.get(name, 0) + uj
        for step, (start_s, end_s) in late.steps_s.items():
            there = self.steps_s.get(step, [start_s, end_s])
            self.steps_s[step] = [min(there[0], start_s), max(there[1], end_s)]
        for device, budget in late.budgets.items():
            self.budgets[device] = self.budgets.get(device, Budget()) + budget
        if late.cpu_s is not None:
            self.cpu_s = (self.cpu_s or 0.0) + late.cpu_s
        self.memory_peak_bytes = max(self.memory_peak_bytes or 0, late.memory_peak_bytes or 0) or None
        self.pedigree = join_labels(label for label in (self.pedigree, late.pedigree) if label)
