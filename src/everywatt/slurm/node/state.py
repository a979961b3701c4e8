"""What a node knows of its jobs and has not recorded yet, what each owes included: one file, replaced whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import join_labels
from everywatt.core.errors import EverywattError
from everywatt.core.files import replace_text
from everywatt.ledger.idle import Idle
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.schema import NodeHour

STATE: Final = "node.json"


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


@dataclass(slots=True)
class State:
    """What a node knows of its jobs; `booked_s` is the UTC time up to which the tape was charged."""

    jobs: list[NodeJob] = field(default_factory=list)
    accounts: dict[str, Account] = field(default_factory=dict)
    booked_s: float | None = None
    hours: list[NodeHour] = field(default_factory=list)
    boot: str = ""
    seen_s: float = 0.0
    idle: dict[str, Idle] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    folder: str = ""  # the tapes that were booked last: of a recorder that was killed their end is still to come
    recorded: list[str] = field(default_factory=list)  # runs of jobs that are in the store, the last ones
    late: dict[str, Account] = field(default_factory=dict)  # of jobs (by id) of which no hook has told yet

    @classmethod
    def read(cls, path: Path) -> State:
        """From disk; a state that is broken is put aside and begun anew. EverywattError where the file cannot be read:
        to begin anew would forget what jobs have used so far.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                [NodeJob(**job) for job in data["jobs"]],
                {key: Account.of_dict(account) for key, account in data["accounts"].items()},
                data["booked_s"],
                [NodeHour(**hour) for hour in data["hours"]],
                data["boot"],
                data["seen_s"],
                {label: Idle(**idle) for label, idle in data["idle"].items()},
                data.get("uuids", {}),
                data.get("folder", ""),
                data.get("recorded", []),
                {job_id: Account.of_dict(account) for job_id, account in data.get("late", {}).items()},
            )
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise EverywattError(f"{path} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            path.replace(path.with_suffix(".bad"))
            return cls()

    def write(self, path: Path) -> None:
        """To disk, whole or not at all."""
        data: dict[str, Any] = {
            "jobs": [job.to_dict() for job in self.jobs],
            "accounts": {key: account.to_dict() for key, account in self.accounts.items()},
            "booked_s": self.booked_s,
            "hours": [asdict(hour) for hour in self.hours],
            "boot": self.boot,
            "seen_s": self.seen_s,
            "idle": {label: asdict(idle) for label, idle in self.idle.items()},
            "uuids": self.uuids,
            "folder": self.folder,
            "recorded": self.recorded,
            "late": {job_id: account.to_dict() for job_id, account in self.late.items()},
        }
        replace_text(path, json.dumps(data), durable=True)
