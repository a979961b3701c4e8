"""Counters of owners for series that are reported while they grow: whole microjoules that never go back, and add up.

What an owner owes by the engine may sink for a while: power was below idle, or an idle level was too low. A counter
must not, so what a device counted is given to owners in proportion to what the engine says they are still owed. As
long as no owner's amount sank, the counters are the engine's amounts. Plain Python: a small node needs no numpy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everywatt.core.budget import Budget
from everywatt.ledger.engine import NO_HOLDERS, NO_LEVEL, NOT_RUNNING, OWNED_S, UJ, DeviceAccount, Level, apportion
from everywatt.ledger.split.intervals import account_budgets

MOST_OWNERS = 500
# An account is closed for good after so many seconds, so that what a wrong idle level charged to an owner is not owed
# without end. A shorter time would turn more of the noise of an idle machine into joules of the owners present.
ACCOUNT_S = 3600.0


class OwnerKey(NamedTuple):
    """Who a joule is charged to, as labels of series say it."""

    kind: str
    id: str


IDLE = OwnerKey("idle", "idle")
METER = OwnerKey("meter", "meter")
OTHER = OwnerKey("other", "other")
UNATTRIBUTED = OwnerKey("unattributed", "unattributed")
REST = OwnerKey("rest", "rest")
SPECIAL = (IDLE, METER, OTHER, UNATTRIBUTED, REST)


class Factors(NamedTuple):
    """The ends of a 95 % interval, as parts of the amount that it is around."""

    low: float = 1.0
    high: float = 1.0

    @classmethod
    def of(cls, budget: Budget, joules: float, most_j: float = math.inf) -> Factors:
        """Those of an amount with its budget, which is at most `most_j`; of next to nothing they say nothing."""
        if joules <= 1 / UJ:
            return cls()
        below, above = budget.sides(joules)
        return cls(max(1.0 - below / joules, 0.0), max(min(joules + above, most_j) / joules, 1.0))

    @classmethod
    def of_newcomer(
        cls, account: DeviceAccount[Any], whole: Budget, level: Level, unsure: float, idle_j: float
    ) -> Factors | None:
        """Those of an owner that comes to a device before intervals are found again; None where idle has everything."""
        charged_j, whole_j = account.whole_j - idle_j, max(account.whole_j, 1 / UJ)
        if charged_j <= 0:
            return None
        shared_s = math.fsum(row[OWNED_S] for row in account.owners.values())
        low, high = (
            math.hypot(side / whole_j, unsure, level.spread_w * shared_s / charged_j) for side in whole.sides(whole_j)
        )
        return cls(max(1.0 - low, 0.0), 1.0 + high)


ANYTHING = Factors(0.0, 2.0)  # of a share of which nothing is known yet
NO_FACTORS: Mapping[OwnerKey, Factors] = {}


@dataclass(slots=True)
class _Open:
    """The account of a device since it was opened, for how long, and the microjoules that were counted from it.

    `factors` are the intervals of owners as they were found last, `others` that of an owner that came since. `most` is
    what the device may have drawn, `lost` how far what is unattributed may be above its amount, which may be nothing:
    both as parts of what the device counted.
    """

    account: DeviceAccount[OwnerKey] = field(default_factory=DeviceAccount)
    seconds: float = 0.0
    counted_uj: dict[OwnerKey, int] = field(default_factory=dict)
    factors: dict[OwnerKey, Factors] = field(default_factory=dict)
    others: Factors = ANYTHING
    most: float = ANYTHING.high
    lost: float = 0.0
    reasons: Sequence[str] = ()

    def count(self, whole_uj: int, present: Collection[OwnerKey]) -> dict[OwnerKey, int]:
        """What of `whole_uj` goes to whom, by what each is owed; first to owners that may have ended."""
        counted = self.counted_uj
        charges = self.account.close()
        self.reasons = charges.reasons(UNATTRIBUTED)
        due_j = charges.by_owner(IDLE, UNATTRIBUTED)
        owed = {o: missing for o, joules in due_j.items() if (missing := joules * UJ - counted.get(o, 0)) >= 1}
        weights = {owner: owed.pop(owner) for owner in [*owed] if owner not in present and owner not in SPECIAL}
        left_uj = whole_uj - math.fsum(weights.values())
        if left_uj > 0:
            scale = left_uj / math.fsum(owed.values()) if owed else left_uj
            weights |= {owner: missing * scale for owner, missing in (owed or {IDLE: 1.0}).items()}
        amounts = dict(zip(weights, apportion(whole_uj, weights.values()), strict=True)) if weights else {}
        for owner, amount in amounts.items():
            counted[owner] = counted.get(owner, 0) + amount
        return amounts

    def find_factors(self, device: str, whole: Budget, level: Level, unsure: float, cpus: float | None) -> None:
        """Find the intervals of owners from everything that was added."""
        account = self.account
        found = account_budgets(account, device, whole, level, unsure, IDLE, UNATTRIBUTED, cpus)
        known = {owner: Factors.of(budget, joules) for owner, (joules, budget) in found.items() if joules > 1 / UJ}
        self.factors = {UNATTRIBUTED: ANYTHING} | known
        whole_j = max(account.whole_j, 1 / UJ)
        self.lost = found[UNATTRIBUTED][1].sides()[1] / whole_j
        self.most = 1.0 + whole.sides(whole_j)[1] / whole_j
        self.others = Factors.of_newcomer(account, whole, level, unsure, found.get(IDLE, (0.0,))[0]) or self.others

    def fold(self, owner: OwnerKey) -> None:
        """Let an owner be a part of the rest."""
        self.account.fold(owner, REST)
        if owner in self.counted_uj:
            self.counted_uj[REST] = self.counted_uj.get(REST, 0) + self.counted_uj.pop(owner)


class Counters:
    """Counters of owners. For every device they add up to what was added in all.

    `bounds_uj` are the ends of their 95 % intervals: counters too, each increment with the interval that was known of
    its owner then. Errors of one sensor and of one idle level do not cancel in time, so the ends are added as they are.
    `reasons` are those of what is unattributed, by device.
    """

    def __init__(self, most: int = MOST_OWNERS) -> None:
        self.most = most
        self.uj: dict[OwnerKey, dict[str, int]] = {}
        self.bounds_uj: dict[OwnerKey, dict[str, list[int]]] = {}
        self.reasons: dict[str, dict[str, None]] = {}
        self.cpu_s: dict[OwnerKey, float] = {}
        self._seen_ns: dict[OwnerKey, int] = {}
        self._open: dict[str, _Open] = {}

    def add(
        self,
        device: str,
        whole_uj: int,
        seconds: float,
        level: Level | None,
        uses: Mapping[OwnerKey, float],
        holders: Mapping[OwnerKey, float] = NO_HOLDERS,
        *,
        now_ns: int,
    ) -> None:
        """One interval of a device, as in `DeviceAccount.add`; unattributed where its idle level is not known."""
        if level is None or seconds <= 0:
            self.charge(device, {UNATTRIBUTED: whole_uj}, now_ns, reason=NO_LEVEL)
            return
        there = self._open.get(device)
        if there is None or there.seconds >= ACCOUNT_S:
            before = there or _Open()
            there = self._open[device] = _Open(
                factors=before.factors, others=before.others, most=before.most, lost=before.lost
            )
        there.seconds += seconds
        there.account.add(whole_uj / UJ, seconds, level, uses, holders)
        present = {*uses, *holders}
        amounts = there.count(whole_uj, present)
        self.charge(device, amounts, now_ns, there.factors, there.others, most=there.most, lost=there.lost)
        self._seen_ns.update(dict.fromkeys(present & self.uj.keys(), now_ns))
        if there.reasons:
            self.reasons.setdefault(device, {}).update(dict.fromkeys(there.reasons))

    def bridge(
        self,
        device: str,
        whole_uj: int,
        seconds: float,
        level: Level | None,
        uses: Mapping[OwnerKey, float],
        now_ns: int,
    ) -> None:
        """What a device counted while nothing was recording, as one interval.

        When in it power was drawn and used is not known: the intervals are as wide as they can be.
        """
        account: DeviceAccount[OwnerKey] = DeviceAccount()
        account.add(whole_uj / UJ, seconds, level or Level(0.0), uses)
        due_j = {owner: joules for owner, joules in account.close().by_owner(IDLE, UNATTRIBUTED).items() if joules > 0}
        amounts = dict(zip(due_j, apportion(whole_uj, due_j.values()), strict=True))
        self.charge(device, amounts, now_ns, reason=NOT_RUNNING)

    def find_intervals(
        self,
        device: str,
        budget_of: Callable[[float, float], Budget],
        level: Level | None,
        unsure: float,
        cpus: float | None = None,
    ) -> None:
        """Find the intervals of owners of a device, for what is charged from now on.

        `budget_of` gives the budget of joules and seconds of the device, `unsure` is by how much the cost of a unit of
        use may differ between owners, `cpus` how many CPUs it has where its power saturates.
        """
        there = self._open.get(device)
        if there is not None and level is not None and there.account.whole_j > 0:
            there.find_factors(device, budget_of(there.account.whole_j, there.seconds), level, unsure, cpus)

    def charge(
        self,
        device: str,
        amounts: Mapping[OwnerKey, int],
        now_ns: int,
        factors: Mapping[OwnerKey, Factors] = NO_FACTORS,
        others: Factors = ANYTHING,
        reason: str = "",
        most: float = ANYTHING.high,
        lost: float = 0.0,
    ) -> None:
        """Add microjoules of one device, each with its interval; `reason` is that of the unattributed ones.

        No owner can have had more than the device drew, which is at most `most` times what it counted. What is
        unattributed may be more by `lost` times that, even where it is nothing.
        """
        whole_uj = sum(amounts.values())
        limit_uj, lost_uj = math.ceil(most * whole_uj), math.ceil(lost * whole_uj)
        if lost_uj:
            amounts = {UNATTRIBUTED: 0, **amounts}
        for owner, amount in amounts.items():
            if amount or owner == UNATTRIBUTED:
                ends = self._ends(owner, device)
                mine = self.uj.setdefault(owner, {})
                mine[device] = mine.get(device, 0) + amount
                low, high = factors.get(owner, others)
                upper_uj = amount + lost_uj if owner == UNATTRIBUTED and lost_uj else math.ceil(high * amount)
                ends[0] += int(low * amount)
                ends[1] += max(min(upper_uj, limit_uj), amount)
                self._seen_ns.setdefault(owner, now_ns)
        if reason and amounts.get(UNATTRIBUTED):
            self.reasons.setdefault(device, {})[reason] = None

    def _ends(self, owner: OwnerKey, device: str) -> list[int]:
        """The ends of an owner's interval; anything is possible of what was counted before there were any."""
        ends = self.bounds_uj.setdefault(owner, {})
        if device not in ends:
            ends[device] = [0, math.ceil(ANYTHING.high * self.uj.get(owner, {}).get(device, 0))]
        return ends[device]

    def used(self, uses: Mapping[OwnerKey, float], now_ns: int) -> None:
        for owner, seconds in uses.items():
            self.cpu_s[owner] = self.cpu_s.get(owner, 0.0) + seconds
            self._seen_ns[owner] = now_ns

    def device_uj(self, device: str) -> int:
        """All owners of a device together."""
        return sum(amounts.get(device, 0) for amounts in self.uj.values())

    def close_gap(self, device: str, counter_uj: int) -> None:
        """What a device has counted beyond its owners (a kill came between) is unattributed."""
        missing = counter_uj - self.device_uj(device)
        if missing > 0:
            self.charge(device, {UNATTRIBUTED: missing}, self._seen_ns.get(UNATTRIBUTED, 0), reason=NOT_RUNNING)

    def tidy(self, living: Iterable[OwnerKey], now_ns: int, before_ns: int) -> list[OwnerKey]:
        """Owners that become part of the rest: those that ended and were charged last before an instant.

        Beyond the cap also those that owe least.
        """
        alive, known = set(living), {*self.uj, *self.cpu_s}
        for owner in alive & known:
            self._seen_ns[owner] = now_ns
        ordinary = [owner for owner in known if owner not in SPECIAL]
        leaving = [owner for owner in ordinary if self._seen_ns.setdefault(owner, now_ns) < before_ns]
        over = len(ordinary) - len(leaving) - self.most
        if over > 0:
            gone = set(leaving)
            staying = [owner for owner in ordinary if owner not in gone]
            staying.sort(key=lambda owner: (owner in alive, sum(self.uj.get(owner, {}).values())))
            leaving += staying[:over]
        for owner in leaving:
            self._fold(owner)
        return leaving

    def _fold(self, owner: OwnerKey) -> None:
        rest = self.uj.setdefault(REST, {})
        for device, amount in self.uj.get(owner, {}).items():
            ends, more = self._ends(REST, device), self._ends(owner, device)
            ends[0], ends[1] = ends[0] + more[0], ends[1] + more[1]
            rest[device] = rest.get(device, 0) + amount
        self.uj.pop(owner, None)
        self.bounds_uj.pop(owner, None)
        self.cpu_s[REST] = self.cpu_s.get(REST, 0.0) + self.cpu_s.pop(owner, 0.0)
        self._seen_ns.pop(owner, None)
        for there in self._open.values():
            there.fold(owner)

    # What is kept over a restart.

    def to_list(self) -> list[list[Any]]:
        """Plain data: kind, owner, CPU seconds, microjoules by device."""
        return [[*owner, self.cpu_s.get(owner, 0.0), self.uj.get(owner, {})] for owner in {*self.uj, *self.cpu_s}]

    def restore(self, rows: Iterable[Sequence[Any]], now_ns: int) -> None:
        """What `to_list` gave; of a counter that is known already the larger one holds."""
        for kind, name, cpu_s, amounts in rows:
            owner = OwnerKey(str(kind), str(name))
            mine = self.uj.setdefault(owner, {})
            for device, amount in amounts.items():
                mine[device] = max(mine.get(device, 0), int(amount))
            self.cpu_s[owner] = max(self.cpu_s.get(owner, 0.0), float(cpu_s))
            self._seen_ns.setdefault(owner, now_ns)

    def bounds(self) -> list[list[Any]]:
        """Plain data: kind, owner, device, and the ends of its interval in microjoules."""
        return [[*owner, device, *ends] for owner, mine in self.bounds_uj.items() for device, ends in mine.items()]

    def restore_bounds(self, rows: Iterable[Sequence[Any]]) -> None:
        """What `bounds` gave, after `restore`. An end on the wrong side of its counter, after a kill, is put there."""
        for kind, name, device, low, high in rows:
            owner = OwnerKey(str(kind), str(name))
            amount = self.uj.get(owner, {}).get(device)
            if amount is not None:
                self.bounds_uj.setdefault(owner, {})[device] = [min(int(low), amount), max(int(high), amount)]

    def accounts(self) -> dict[str, list[Any]]:
        """Plain data: the open account of each device, its seconds, what was counted from it."""
        return {
            device: [there.account.to_list(), there.seconds, [[*o, uj] for o, uj in there.counted_uj.items()]]
            for device, there in self._open.items()
        }

    def restore_accounts(self, accounts: Mapping[str, Sequence[Any]]) -> None:
        """What `accounts` gave. One that makes no sense is left out: counters are right without it."""
        for device, row in accounts.items():
            with contextlib.suppress(ValueError, TypeError, IndexError):
                account, seconds, counted = row
                self._open[device] = _Open(
                    DeviceAccount.from_list(account, lambda words: OwnerKey(*words)),
                    float(seconds),
                    {OwnerKey(str(kind), str(name)): int(uj) for kind, name, uj in counted},
                )
