"""The ledger's values: an owner, what it owes, and the whole account with the proof that it adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.engine import UJ, microjoules

SEPARATE, BY_ALLOCATION, BY_USE = "separate", "by-allocation", "by-use"
POLICIES = (SEPARATE, BY_ALLOCATION, BY_USE)  # what becomes of idle


class OwnerKind(StrEnum):
    """Who a joule can be charged to."""

    PROCESS = "process"
    CONTAINER = "container"
    USER = "user"
    JOB = "job"
    SPAN = "span"
    DEVICE = "device"
    IDLE = "idle"
    METER = "meter"
    OTHER = "other"
    UNATTRIBUTED = "unattributed"


class Part(StrEnum):
    """Why an owner owes a joule: it worked, it kept the device awake, or it is charged for idling."""

    ACTIVE = "active"
    HELD = "held"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, order=True)
class Owner(ToDict):
    """`id` is the same for the same owner in every ledger of a run; `label` is for people."""

    kind: OwnerKind
    id: str
    label: str = field(compare=False)


IDLE = Owner(OwnerKind.IDLE, "idle", "idle")
METER = Owner(OwnerKind.METER, "meter", "everywatt itself")
OTHER = Owner(OwnerKind.OTHER, "other", "other processes")
UNATTRIBUTED = Owner(OwnerKind.UNATTRIBUTED, "unattributed", "unattributed")


@dataclass(frozen=True, slots=True)
class Entry(ToDict):
    """What one owner owes.

    `energy.parts` are devices. `by_part_uj` are whole microjoules by reason. `use` is what was measured of it:
    cpu_s, gpu_s (SM seconds), rss_bytes (peak), and pss_bytes and uss_bytes where they were asked for; absent is not
    zero. `method` says how the split was made, e.g. `cpu time`, `sm time`, `memory`, `overlap`; of unattributed
    joules, why they are.
    """

    JSON = "owner energy microjoules by_part use method details"

    owner: Owner
    energy: Energy
    by_part_uj: Mapping[Part, int] = field(default_factory=dict)
    use: Mapping[str, float] = field(default_factory=dict)
    method: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def microjoules(self) -> int:
        return sum(self.by_part_uj.values())

    @property
    def by_part(self) -> dict[str, float]:
        """Joules by reason."""
        return {part.value: amount / UJ for part, amount in self.by_part_uj.items()}


@dataclass(frozen=True, slots=True)
class Checks(ToDict):
    """The conservation law, checked whenever a ledger is made.

    `missing_uj` is total minus owners, which must be 0. `paths_j` is the sum over intervals minus the window's own
    integral, two independent paths; it must stay within `tolerance_j`.
    """

    JSON = "hold missing_uj paths_j tolerance_j"

    missing_uj: int
    paths_j: float
    tolerance_j: float

    @property
    def hold(self) -> bool:
        """Whether everything adds up."""
        return self.missing_uj == 0 and abs(self.paths_j) <= self.tolerance_j


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every joule of a window with its owner; entries are in order of what they owe, special owners last."""

    by: str
    total: Energy
    entries: tuple[Entry, ...]
    checks: Checks
    idle_policy: str = "separate"
    idle: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        from everywatt.ledger.text import LedgerReport

        return "\n".join(table.text() for table in LedgerReport("", self).tables())

    # At a prompt, where the fields of all entries would fill the screen.
    __repr__ = __str__

    def entry(self, owner: str) -> Entry:
        """The entry of an owner by id or label; KeyError if it does not exist."""
        for entry in self.entries:
            if owner in (entry.owner.id, entry.owner.label):
                return entry
        raise KeyError(owner)

    @property
    def unattributed_share(self) -> float:
        """The share of the total that could not be charged to any owner."""
        whole = sum(entry.microjoules for entry in self.entries)
        lost = sum(entry.microjoules for entry in self.entries if entry.owner == UNATTRIBUTED)
        return lost / whole if whole else 0.0

    @property
    def microjoules(self) -> int:
        """All owners together: the total, whole."""
        return sum(entry.microjoules for entry in self.entries)

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """The JSON form; `cli` and `Run.to_dict` put schema and kind around it.

        `top` keeps the so many most expensive owners and the special ones; `rest` is the sum of the others.
        """
        ordinary = [entry for entry in self.entries if entry.owner.kind not in _SPECIAL]
        rest = [] if top is None else ordinary[top:]
        left_out = {entry.owner for entry in rest}
        return {
            "by": self.by,
            "total": self.total.to_dict(),
            "total_microjoules": self.microjoules,
            "owners": [entry.to_dict() for entry in self.entries if entry.owner not in left_out],
            "rest": _together(rest) if rest else None,
            "unattributed_share": self.unattributed_share,
            "idle_policy": self.idle_policy,
            "idle": dict(self.idle),
            "checks": self.checks.to_dict(),
            "notes": list(self.notes),
        }


_SPECIAL = {OwnerKind.OTHER: 1, OwnerKind.IDLE: 2, OwnerKind.METER: 3, OwnerKind.UNATTRIBUTED: 4}


def in_microjoules(total: Energy) -> Energy:
    """The same figure in whole microjoules, as its owners are: what is printed of them adds up to what is of it."""
    return total if total.joules is None else replace(total, joules=microjoules(total.joules) / UJ)


def in_order(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Owners that worked first, the most expensive on top; then other, idle, meter, unattributed."""
    return tuple(sorted(entries, key=lambda e: (_SPECIAL.get(e.owner.kind, 0), -e.microjoules, e.owner.id)))


def _together(entries: Sequence[Entry]) -> dict[str, Any]:
    """Several entries as one: how many, their microjoules by reason, and their joules with the interval."""
    amounts = {part: sum(entry.by_part_uj.get(part, 0) for entry in entries) for part in Part}
    whole_uj = sum(amounts.values())
    below, above = Budget.sum(entry.energy.budget for entry in entries).sides()
    return {
        "owners": len(entries),
        "microjoules": whole_uj,
        "energy": {"joules": whole_uj / 1e6, "low": max(whole_uj / 1e6 - below, 0.0), "high": whole_uj / 1e6 + above},
        "by_part": {part.value: amount / 1e6 for part, amount in amounts.items() if amount},
        "use": {
            name: sum(entry.use.get(name, 0.0) for entry in entries)
            for name in ("cpu_s", "gpu_s")
            if any(name in entry.use for entry in entries)
        },
    }


def check_policy(policy: str) -> str:
    """The policy, or UsageError if it does not exist."""
    if policy not in POLICIES:
        raise UsageError(f"'{policy}' is not an idle policy.", cure=f"one of: {', '.join(POLICIES)}")
    return policy
