"""The parts of a device's error budget that owners carry. Added over all owners they are the device's own again.

What the sensor gets wrong in proportion goes to all owners in proportion. Its offset is in the idle level too where
that was measured by the same sensor, so idle carries it. The spread of the idle level has opposite signs for idle and
for all other owners, and what a share may be off by is missing from other shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.channels import Channel, Domain, Pedigree
from everywatt.core.domains import WHOLE
from everywatt.ledger.engine import OWNED_S, UJ, USED, DeviceAccount, Level, stand_alone

O = TypeVar("O")  # noqa: E741 - an owner: anything hashable

# How much a unit of use may differ in cost between owners (95 %, relative). Nothing on a tape measures it. CPU time:
# twelve programs alone and in 863 pairs on a machine without hyper-threading, where 0.22 holds 97 % of the true shares
# (`make bench NAME=attribution`). 0.2 holds 94 %, but what holds 94 % of the pairs of eleven programs holds 93.5 % of
# those of the twelfth: a program that was not tried needs more. The others are assumed.
UNSURE = {"cpu time": 0.22, "sm time": 0.3, "slices": 0.5, "slices by activity": 0.5, "memory": 1.0}
# The same with hyper-threading, or where that is unknown: six programs in 200 pairs on 64 CPUs with it.
UNSURE_SMT = 0.35
UNSURE_WIDE = 0.5  # CPU time for what is more than CPUs, or for one package of several
JIFFY_S = 0.01  # the step in which kernels count CPU time
# Idle is a power times a time that is known exactly, so an error of the edges (when readings were published) is one of
# what lies above idle. It goes there whole where it is more than this part of that, and in proportion to all where it
# is less: then shares are unsure by about as much anyway.
LOOSE_EDGES = 0.25
EXACT_OWNERS = 24
# How far beyond the saturated curve a share may lie (95 %): with UNSURE_SMT it holds 94 to 97 % of the pairs with
# hyper-threading, whichever wake-up power within its uncertainty (100 to 110 W) the truth is computed with.
SATURATED = 1.3
# Idle levels that this very sensor measured on this tape.
SEEN = ("measured", "quiet", "quiet, held", "regression", "lowest")


def cpu_time_doubt(channel: Channel, one_of_several: bool, threads_per_core: int | None) -> tuple[float, bool]:
    """By how much the cost of a CPU second may differ between owners, and whether power saturates (`occupancy`).

    `one_of_several`: the channel is one of several packages, and which CPUs it has is not known.
    """
    modelled = channel.pedigree is Pedigree.MODELLED
    wide = channel.domain in (*WHOLE, Domain.DRAM, Domain.RAIL) and not modelled
    if wide or (channel.domain is Domain.PACKAGE and one_of_several):
        return UNSURE_WIDE, False  # what is more than CPUs is unsure enough already
    if modelled or threads_per_core == 1:
        return UNSURE["cpu time"], False  # a model's watts follow from CPU time
    return UNSURE_SMT, True


def occupancy(used_s: Sequence[float], used_squares: float, cpus: float | None) -> list[float] | None:
    """Which part of the CPUs each owner kept busy, on average over CPU time: rest between loads does not count.

    `used_squares` is that of `DeviceAccount`. None where nothing was used, or power does not saturate (`cpus` is None).
    """
    whole_s = math.fsum(used_s)
    if not cpus or whole_s <= 0 or used_squares <= 0:
        return None
    return [amount * used_squares / (cpus * whole_s**2) for amount in used_s]


def account_budgets(
    account: DeviceAccount[O],
    key: str,
    whole: Budget,
    level: Level,
    unsure: float,
    idle: O,
    unattributed: O,
    cpus: float | None = None,
) -> dict[O, tuple[float, Budget]]:
    """Joules and budget of each owner of an account, `idle` and `unattributed` included.

    `whole` is the device's own budget, `cpus` how many CPUs it has where its power saturates.
    """
    charges, rows = account.close(), account.owners
    charged = {owner: charges.active_j.get(owner, 0.0) + charges.held_j.get(owner, 0.0) for owner in rows}
    charged[unattributed] = charged.get(unattributed, 0.0) + charges.unattributed_j
    charged.setdefault(idle, 0.0)
    used = [rows[owner][USED] if owner in rows else 0.0 for owner in charged]
    lone_s = {unattributed: account.alone_s}
    owned_s = [(rows[owner][OWNED_S] if owner in rows else 0.0) + lone_s.get(owner, 0.0) for owner in charged]
    used_s = math.fsum(used)
    step_j = JIFFY_S * math.fsum(charges.active_j.values()) / used_s if used_s > 0 else 0.0
    idle_j = [max(charges.idle_j, 0.0) if owner == idle else 0.0 for owner in charged]
    doubt_j = [step_j if amount > 0 else 0.0 for amount in used]
    names, amounts_j = list(map(str, range(len(charged)))), list(charged.values())
    occupied = occupancy(used, account.used_squares, cpus)
    made = budgets(whole, key, level, names, amounts_j, idle_j, owned_s, doubt_j, unsure, occupied)
    found = zip(charged, amounts_j, idle_j, made, strict=True)
    return {owner: (charge + rest, budget) for owner, charge, rest, budget in found}


def budgets(
    whole: Budget,
    key: str,
    idle: Level,
    names: Sequence[str],
    charged_j: Sequence[float],
    idle_j: Sequence[float],
    owned_s: Sequence[float],
    doubt_j: Sequence[float],
    unsure: float,
    occupancy: Sequence[float] | None = None,
) -> list[Budget]:
    """One budget for each owner: it owes `charged_j` for use or holding and `idle_j` for idling of the device `key`.

    `owned_s` is its part of the time that was shared, which is what an error of the idle level costs it by the watt.
    `occupancy` is the part of the CPUs that each kept busy, where power need not rise in proportion to it.
    """
    charges, idles = math.fsum(charged_j), math.fsum(idle_j)
    by_all = _shares([c + i for c, i in zip(charged_j, idle_j, strict=True)])
    by_charge = _shares(charged_j) if charges > 0 else by_all
    by_idle = _shares(idle_j) if idles > 0 else by_all
    loose = "edges" if whole.by_source().get("edges", 0.0) > LOOSE_EDGES * charges else None
    terms: list[list[Term]] = [[] for _ in names]
    bounds: list[list[Bound]] = [[] for _ in names]
    for term in whole.terms:
        offset = "offset" in (term.source, term.key[:6]) and idle.method in SEEN
        shares = by_idle if offset else by_charge if idle.method == "given" or term.source == loose else by_all
        for own, share in zip(terms, shares, strict=True):
            if share:
                own.append(term._replace(joules=term.joules * share))
    for bound in whole.bounds:
        for limits, share in zip(bounds, by_all, strict=True):
            if share:
                limits.append(Bound(bound.source, bound.key, bound.below * share, bound.above * share))
    shared_s = math.fsum(owned_s)
    if idle.spread_w * shared_s > 1 / UJ:
        # No owner can be off by more than there was.
        spread_w = min(idle.spread_w, (charges + idles) / shared_s)
        for own, share, seconds in zip(terms, by_idle, owned_s, strict=True):
            width_j = spread_w * (shared_s * share - seconds)
            if width_j:
                own.append(Term("baseline", f"baseline:{key}", width_j))
    _split(terms, key, names, charged_j, doubt_j, unsure)
    if occupancy is not None:
        _saturation(terms, key, charged_j, occupancy)
    return [Budget(tuple(own), tuple(limits)) for own, limits in zip(terms, bounds, strict=True)]


def _split(
    terms: list[list[Term]],
    key: str,
    names: Sequence[str],
    charged_j: Sequence[float],
    doubt_j: Sequence[float],
    unsure: float,
) -> None:
    """What each share may be off by is missing from the others', in proportion to what they owe.

    Beyond a number of owners the small ones are taken in pairs of neighbours, each the other side of its neighbour.
    """
    order = sorted((i for i, amount in enumerate(charged_j) if amount > 0), key=lambda i: -charged_j[i])
    errors = {i: math.hypot(unsure * charged_j[i], doubt_j[i]) for i in order}
    count = EXACT_OWNERS + max(len(order) - EXACT_OWNERS, 0) % 2
    large, small = order[:count], order[count:]
    for one in large:
        rest = math.fsum(charged_j[other] for other in large if other != one)
        whole = rest + charged_j[one]
        for other in large:
            share = rest / whole if other == one else -charged_j[other] / whole
            if errors[one] * share:
                terms[other].append(Term("split", f"split:{key}:{names[one]}", errors[one] * share))
    for one, other in zip(small[::2], small[1::2], strict=True):
        width_j = math.hypot(errors[one], errors[other]) / math.sqrt(2)
        terms[one].append(Term("split", f"split:{key}:{names[one]}", width_j))
        terms[other].append(Term("split", f"split:{key}:{names[one]}", -width_j))


def _saturation(terms: list[list[Term]], key: str, charged_j: Sequence[float], occupancy: Sequence[float]) -> None:
    """What owners would owe by what each would draw alone, where a core's second thread adds nothing.

    With two threads for each core, power rises less and less until every core has one: owners that keep few CPUs
    busy would draw more for each of them alone. The sum over owners is zero.
    """
    whole_j = math.fsum(charged_j)
    alone = [stand_alone(part, cores_s=0.5) if j > 0 else 0.0 for part, j in zip(occupancy, charged_j, strict=True)]
    if whole_j <= 0 or math.fsum(alone) <= 0:
        return
    for own, amount, share in zip(terms, charged_j, _shares(alone), strict=True):
        width_j = SATURATED * (whole_j * share - amount)
        if width_j:
            own.append(Term("split", f"split:{key}:saturation", width_j))


def _shares(amounts: Sequence[float]) -> list[float]:
    whole = math.fsum(amounts)
    return [amount / whole for amount in amounts] if whole > 0 else [1.0 / len(amounts)] * len(amounts)
