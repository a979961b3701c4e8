"""Counters of owners for series that are told while they grow: whole microjoules that never go back, and add up.

What an owner owes by the engine may sink for a while: power was below idle, or an idle level was too low. A counter
must not, so what a device counted is given to owners in proportion to what the engine says they are still owed. As
long as no owner's amount sank, the counters are the engine's amounts. Plain Python: a small node needs no numpy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everywatt.ledger.engine import NO_HOLDERS, DeviceAccount, Level
from everywatt.ledger.split.amounts import UJ, apportion

MOST_OWNERS = 500
# An account is closed for good after so long: what an idle level that was wrong has put down to an owner is not owed
# for ever. Shorter ones would turn more of the noise of an idle machine into joules of whoever is there.
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


@dataclass(slots=True)
class _Open:
    """The account of a device since it was opened, for how long, and the microjoules that were counted from it."""

    account: DeviceAccount[OwnerKey] = field(default_factory=DeviceAccount)
    seconds: float = 0.0
    counted_uj: dict[OwnerKey, int] = field(default_factory=dict)

    def count(self, whole_uj: int) -> dict[OwnerKey, int]:
        """What of `whole_uj` goes to whom, by what each is owed."""
        counted = self.counted_uj
        due_j = self.account.close().by_owner(IDLE, UNATTRIBUTED)
        owed = {o: missing for o, joules in due_j.items() if (missing := joules * UJ - counted.get(o, 0)) >= 1}
        amounts = dict(zip(owed, apportion(whole_uj, owed.values()), strict=True)) if owed else {IDLE: whole_uj}
        for owner, amount in amounts.items():
            counted[owner] = counted.get(owner, 0) + amount
        return amounts

    def fold(self, owner: OwnerKey) -> None:
        """Let an owner be a part of the rest."""
        self.account.fold(owner, REST)
        if owner in self.counted_uj:
            self.counted_uj[REST] = self.counted_uj.get(REST, 0) + self.counted_uj.pop(owner)


class Counters:
    """Counters of owners. For every device they add up to what was added in all."""

    def __init__(self, most: int = MOST_OWNERS) -> None:
        self.most = most
        self.uj: dict[OwnerKey, dict[str, int]] = {}
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
            self.charge(device, {UNATTRIBUTED: whole_uj}, now_ns)
            return
        there = self._open.get(device)
        if there is None or there.seconds >= ACCOUNT_S:
            there = self._open[device] = _Open()
        there.seconds += seconds
        there.account.add(whole_uj / UJ, seconds, level, uses, holders)
        self.charge(device, there.count(whole_uj), now_ns)

    def charge(self, device: str, amounts: Mapping[OwnerKey, int], now_ns: int) -> None:
        """Add microjoules of one device."""
        for owner, amount in amounts.items():
            if amount:
                mine = self.uj.setdefault(owner, {})
                mine[device] = mine.get(device, 0) + amount
                self._seen_ns[owner] = now_ns

    def used(self, uses: Mapping[OwnerKey, float], now_ns: int) -> None:
        """Add CPU seconds."""
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
            mine = self.uj.setdefault(UNATTRIBUTED, {})
            mine[device] = mine.get(device, 0) + missing

    def tidy(self, living: Iterable[OwnerKey], now_ns: int, before_ns: int) -> list[OwnerKey]:
        """Owners that become part of the rest: those that ended and were charged last before an instant.

        Beyond the cap also those that owe least.
        """
        alive = set(living)
        for owner in alive:
            self._seen_ns[owner] = now_ns
        known = {*self.uj, *self.cpu_s}
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
        for device, amount in self.uj.pop(owner, {}).items():
            rest[device] = rest.get(device, 0) + amount
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

    def accounts(self) -> dict[str, list[Any]]:
        """Plain data: the open account of each device, its seconds and what was counted from it."""
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
