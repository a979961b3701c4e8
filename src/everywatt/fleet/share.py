"""The joules of one device in one stretch, shared in whole microjoules by the rule of `ledger.split.split`.

Plain Python, so that a small node needs no numpy. What is below idle is remembered and taken off the stretches that
follow, so that the noise of an idle machine adds up to nothing instead of being charged to whoever was there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

UJ = 1_000_000
NO_USE = 1e-12
MOST_DEBT_S = 30.0  # a level that is too high is found out sooner than this


class Owner(NamedTuple):
    """Who a joule is charged to, as labels say it."""

    kind: str
    id: str


IDLE = Owner("idle", "idle")
METER = Owner("meter", "meter")
OTHER = Owner("other", "other")
NOBODY = Owner("unattributed", "unattributed")
REST = Owner("rest", "rest")
SPECIAL = (IDLE, METER, OTHER, NOBODY, REST)


@dataclass(frozen=True, slots=True)
class Level:
    """What is taken off before sharing: idle watts, and watts of a mere holder."""

    idle_w: float
    held_w: float = 0.0
    method: str = ""


def apportion(whole: int, weights: Mapping[Owner, float]) -> dict[Owner, int]:
    """Whole numbers in proportion to weights (≥ 0, not all 0) that add up to `whole`; largest remainders get the rest.

    >>> apportion(10, {IDLE: 1, METER: 1, OTHER: 1})[IDLE]
    4
    """
    total = sum(weights.values())
    exact = {owner: whole * weight / total for owner, weight in weights.items()}
    amounts = {owner: int(value) for owner, value in exact.items()}
    rest = whole - sum(amounts.values())
    if rest:
        order = sorted(exact, key=lambda owner: amounts[owner] - exact[owner])
        for index in range(abs(rest)):
            amounts[order[index % len(order)]] += 1 if rest > 0 else -1
    return amounts


def share(
    whole_uj: int,
    seconds: float,
    level: Level,
    uses: Mapping[Owner, float],
    holders: Mapping[Owner, float],
    debt_j: float = 0.0,
) -> tuple[dict[Owner, int], float]:
    """Microjoules of each owner, which add up to `whole_uj` (≥ 0), and what idle is owed from here on (≤ 0).

    `uses` are CPU seconds or SM shares, `holders` who merely kept the device awake. Without either, what is above idle
    is nobody's.
    """
    idle_j = level.idle_w * seconds
    above_j = whole_uj / UJ - idle_j + debt_j
    if above_j <= 0:
        return {IDLE: whole_uj}, max(above_j, -level.idle_w * MOST_DEBT_S)
    used, kept = sum(uses.values()), sum(holders.values())
    weights: dict[Owner, float] = {IDLE: max(whole_uj / UJ - above_j, 0.0)}
    held_j = 0.0
    if kept > NO_USE:
        held_j = min(level.held_w * seconds, above_j) if used > NO_USE else above_j
        for owner, weight in holders.items():
            weights[owner] = weights.get(owner, 0.0) + held_j * weight / kept
    active_j = above_j - held_j
    if active_j > 0:
        if used > NO_USE:
            for owner, use in uses.items():
                weights[owner] = weights.get(owner, 0.0) + active_j * use / used
        else:
            weights[NOBODY] = weights.get(NOBODY, 0.0) + active_j
    return apportion(whole_uj, weights), 0.0
