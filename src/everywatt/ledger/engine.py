"""The attribution engine: intervals of devices in, joules of owners out, at any time. Without numpy.

For each device it keeps sums over intervals, which only need additions: two accounts can be merged, and an account can
be written down as JSON and continued later. The last step, in which no owner is charged less than nothing, is
taken when owners are asked for (`close`), so that the noise of an idle machine adds up to nothing instead of being
charged to the owners present. Finished runs fill the same sums with numpy (`ledger.split.split.accumulate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

O = TypeVar("O")  # noqa: E741 - an owner: anything hashable
P = TypeVar("P")

UJ = 1_000_000  # microjoules of a joule
NOISE_SIGMAS = 3.0
NO_USE = 1e-12
ROUNDING = 1e-6  # of what a device drew: less above idle counts as 0
SHORTEST_S = 1e-3  # less is rounding, or was not observed
NO_HOLDERS: Mapping[Any, float] = {}

ASSUMED = ("prior", "lowest")  # methods of idle levels that were not observed

# Why joules are unattributed, as every face says it.
NO_USER = "above idle while no process used it"
UNLISTED = "processes that were not listed"
NO_LEVEL = "idle power not known"
NOT_RECORDED = "no process was recorded"
NOT_RUNNING = "counted while nothing was recording"
TWO_INTEGRALS = "intervals and window differ"
MODULE_REST = "rest of the module beside its chips"
REST_DEVICE = "module rest"  # under which name that is listed

# How far shares of a package whose power saturates go from CPU time to what each workload would draw alone: half the
# way. Which of the two is just is a matter of opinion, and how strongly a package saturates is not on a tape.
STAND_ALONE = 0.5

# Places in an owner's sums: joules above idle by use, their noise (J²), use; joules of holding, their noise, holding;
# and the owner's part of the time that was shared (s), so that a watt more of idle is so many joules less for it.
ACTIVE_J, ACTIVE_NOISE, USED, HELD_J, HELD_NOISE, KEPT, OWNED_S = range(7)
SUMS = 7


@dataclass(frozen=True, slots=True)
class Level:
    """What is taken off before sharing: idle watts, watts of a mere holder, and how restless and unsure they are.

    `noise_w` is the standard deviation of the power of one second, `spread_w` the 95 % half-width of idle.
    """

    idle_w: float
    held_w: float = 0.0
    noise_w: float = 0.0
    spread_w: float = 0.0
    method: str = ""


@dataclass(frozen=True, slots=True)
class Charges(Generic[O]):
    """Joules ≥ 0 of each owner for use and for holding, of idle, and of no owner; they add up to what was added."""

    active_j: Mapping[O, float]
    held_j: Mapping[O, float]
    idle_j: float
    unattributed_j: float

    def by_owner(self, idle: O, unattributed: O) -> dict[O, float]:
        """Joules of each owner, `idle` and `unattributed` among them: use and holding together."""
        found = dict(self.active_j)
        rest = ((idle, max(self.idle_j, 0.0)), (unattributed, self.unattributed_j))
        for owner, amount in (*self.held_j.items(), *rest):
            found[owner] = found.get(owner, 0.0) + amount
        return found

    def reasons(self, unattributed: O) -> list[str]:
        """Why joules are unattributed, the larger part first; none where none are."""
        unlisted_j = self.active_j.get(unattributed, 0.0) + self.held_j.get(unattributed, 0.0)
        found = [NO_USER] if self.unattributed_j > 0 else []
        if unlisted_j > 0:
            found.insert(0 if unlisted_j > self.unattributed_j else 1, UNLISTED)
        return found


@dataclass(slots=True)
class DeviceAccount(Generic[O]):
    """Sums over the intervals of one device. `alone_…` are of intervals without use and without holders.

    So one watt more of idle is `alone_s` joules less of what is unattributed. `used_squares` is the sum of (use of all
    owners)² per second: how long the device was busy, rest left out.
    """

    whole_j: float = 0.0
    alone_j: float = 0.0
    alone_s: float = 0.0
    alone_noise: float = 0.0
    used_squares: float = 0.0
    owners: dict[O, list[float]] = field(default_factory=dict)

    def add(
        self,
        joules: float,
        seconds: float,
        level: Level,
        uses: Mapping[O, float],
        holders: Mapping[O, float] = NO_HOLDERS,
    ) -> None:
        """One interval, of which `seconds` were observed.

        `uses` (≥ 0: CPU seconds, SM time, a weight) share the joules above idle; `holders` share what they keep awake:
        up to `level.held_w` beside use, and everything above idle where nothing is used.
        """
        used = kept = 0.0
        for amount in uses.values():  # not sum(): it rounds differently from one version of Python to another
            used += amount
        for amount in holders.values():
            kept += amount
        above_j = joules - level.idle_w * seconds
        noise = level.noise_w**2 * seconds
        self.whole_j += joules
        busy, holding = used > NO_USE, kept > NO_USE
        held_j = 0.0
        if holding:
            held_j = min(level.held_w * seconds, max(above_j, 0.0)) if busy else above_j
            self._share(HELD_J, holders, kept, held_j, *((0.0, 0.0) if busy else (noise, seconds)))
        if busy:
            self._share(ACTIVE_J, uses, used, above_j - held_j, noise, seconds)
            self.used_squares += used**2 / seconds if seconds > SHORTEST_S else 0.0
        elif not holding:
            self.alone_j += above_j
            self.alone_s += seconds
            self.alone_noise += noise

    def _share(
        self, first: int, parts: Mapping[O, float], whole: float, joules: float, noise: float, seconds: float
    ) -> None:
        """Add joules by parts of a whole to the three sums that begin at `first`, and the time that was shared."""
        for owner, amount in parts.items():
            share = amount / whole
            row = self._row(owner)
            row[first] += share * joules
            row[first + 1] += share * share * noise
            row[first + 2] += amount
            row[OWNED_S] += share * seconds

    def _row(self, owner: O) -> list[float]:
        row = self.owners.get(owner)
        if row is None:
            row = self.owners[owner] = [0.0] * SUMS
        return row

    def close(self) -> Charges[O]:
        """What each owner owes of everything so far; the account itself goes on."""
        active_j = self._closed(ACTIVE_J, ACTIVE_NOISE, USED)
        held_j = self._closed(HELD_J, HELD_NOISE, KEPT)
        limit_j = max(NOISE_SIGMAS * math.sqrt(self.alone_noise), ROUNDING * abs(self.whole_j))
        unattributed_j = self.alone_j if self.alone_j > limit_j else 0.0
        charged_j = math.fsum(active_j.values()) + math.fsum(held_j.values()) + unattributed_j
        most_j = max(self.whole_j, 0.0)
        if charged_j > most_j:
            # An idle level that is far too high, or joules below zero: no owner is charged more than there was.
            factor = most_j / charged_j
            active_j = {owner: joules * factor for owner, joules in active_j.items()}
            held_j = {owner: joules * factor for owner, joules in held_j.items()}
            unattributed_j, charged_j = unattributed_j * factor, most_j
        return Charges(active_j, held_j, self.whole_j - charged_j, unattributed_j)

    def _closed(self, joules_at: int, noise_at: int, use_at: int) -> dict[O, float]:
        """Joules of each owner, none below zero.

        An owner whose joules are within their own noise goes to a pool with the others like it, so that what is too
        much for one and too little for another cancels; only what the pool has above zero is shared by use. What is
        clearly below zero is left to idle.
        """
        found: dict[O, float] = {}
        pool_j, pool_use = 0.0, 0.0
        pooled: dict[O, float] = {}
        for owner, row in self.owners.items():
            use = row[use_at]
            if not use:
                continue
            joules, noise = row[joules_at], row[noise_at]
            if abs(joules) > (NOISE_SIGMAS * math.sqrt(noise) if noise else 0.0):
                if joules > 0:
                    found[owner] = joules
            else:
                pool_j += joules
                pool_use += use
                pooled[owner] = use
        if pool_j > 0 and pool_use > 0:
            for owner, use in pooled.items():
                found[owner] = use / pool_use * pool_j
        return found

    # Accounts of other intervals, and of the same in other places.

    def merge(self, other: DeviceAccount[O]) -> None:
        """Add the intervals of another account of this device: a segment, or another window."""
        self.whole_j += other.whole_j
        self.alone_j += other.alone_j
        self.alone_s += other.alone_s
        self.alone_noise += other.alone_noise
        self.used_squares += other.used_squares
        for owner, sums in other.owners.items():
            self._add_sums(owner, sums)

    def _add_sums(self, owner: O, sums: Iterable[float]) -> None:
        row = self._row(owner)
        for place, amount in enumerate(sums):
            row[place] += amount

    def fold(self, owner: O, into: O) -> None:
        """Let one owner be a part of another from the beginning."""
        if owner in self.owners:
            self._add_sums(into, self.owners.pop(owner))

    def by(self, owner_of: Callable[[O], P]) -> DeviceAccount[P]:
        """The same account with other owners, e.g. the users of processes."""
        made: DeviceAccount[P] = DeviceAccount(
            self.whole_j, self.alone_j, self.alone_s, self.alone_noise, self.used_squares
        )
        for owner, sums in self.owners.items():
            made._add_sums(owner_of(owner), sums)
        return made

    def to_list(self) -> list[Any]:
        """Plain data for JSON. Owners are written as they are: strings or tuples of strings."""
        # The fourth number was what idle may be off by. It is no longer used, but files of older versions have it.
        alone = [self.alone_j, self.alone_s, self.alone_noise, 0.0]
        return [self.whole_j, [*alone, self.used_squares], [[owner, *sums] for owner, sums in self.owners.items()]]

    @classmethod
    def from_list(cls, data: Iterable[Any], owner_of: Callable[[Any], O]) -> DeviceAccount[O]:
        """Back from `to_list`. `owner_of` turns what JSON made of an owner (a string, a list) into an owner."""
        whole_j, sums, rows = data
        owners = {owner_of(row[0]): [float(amount) for amount in row[1 : SUMS + 1]] for row in rows}
        alone_j, alone_s, noise, _, used_squares = (*map(float, sums), 0.0)[:5]
        return cls(float(whole_j), alone_j, alone_s, noise, used_squares, owners)


def stand_alone(use: float, cores_s: float) -> float:
    """What a workload would draw alone, between 0 and 1, if it used so many CPU seconds while cores had `cores_s`.

    Each busy core adds less than the one before it, because the package shares its power budget, and a core's second
    thread adds nothing.
    """
    part = min(use / cores_s, 1.0)
    return part * (2.0 - part)


def saturating(uses: Mapping[tuple[O, P], float], cores_s: float) -> dict[O, float]:
    """CPU seconds of owners, by owner and workload, weighted for a package whose power saturates; with the same sum.

    What workloads are does not depend on who is asked about, and inside of a workload CPU time counts: the processes
    of a job owe together what the job owes.
    """
    used: dict[P, float] = {}
    whole = 0.0
    for (_, workload), amount in uses.items():
        used[workload] = used.get(workload, 0.0) + amount
        whole += amount
    cores_s = max(cores_s, whole / 2, NO_USE)
    alone = {workload: stand_alone(amount, cores_s) for workload, amount in used.items()}
    rate = whole / max(math.fsum(alone.values()), NO_USE)
    found: dict[O, float] = {}
    for (owner, workload), amount in uses.items():
        if amount > 0:
            factor = 1.0 - STAND_ALONE + STAND_ALONE * rate * alone[workload] / used[workload]
            found[owner] = found.get(owner, 0.0) + amount * factor
    return found


# Whole microjoules, shared by largest remainder, so that parts add up to the whole exactly.


def microjoules(joules: float) -> int:
    """The nearest whole number of microjoules."""
    return round(joules * UJ)


def apportion(whole: int, weights: Iterable[float]) -> list[int]:
    """Whole numbers in proportion to `weights` (≥ 0) that add up to `whole`, each within 1 of its exact share.

    Largest remainders get what is left; among equal ones the first does. ValueError where all weights are 0.

    >>> apportion(10, [1, 1, 1])
    [4, 3, 3]
    """
    shares = [float(weight) for weight in weights]
    total = math.fsum(shares)
    if not 0 < total < math.inf or min(shares) < 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    size = abs(whole)
    exact = [share / total * size for share in shares]
    amounts = [int(amount) for amount in exact]
    rest = size - sum(amounts)
    if rest:
        order = sorted(range(len(exact)), key=lambda index: amounts[index] - exact[index])
        # Beyond 2**53 floating point is coarser than a microjoule, so the rest can be more than one each.
        for index in range(abs(rest)):
            amounts[order[index % len(order)]] += 1 if rest > 0 else -1
    return amounts if whole >= 0 else [-amount for amount in amounts]


def of_devices(whole_uj: int, joules: Sequence[float]) -> list[int]:
    """Microjoules of each device, which add up to the total where the joules do."""
    amounts = [microjoules(amount) for amount in joules]
    if not amounts or abs(whole_uj - sum(amounts)) > len(amounts):
        return amounts
    largest = max(range(len(amounts)), key=lambda index: amounts[index])
    amounts[largest] += whole_uj - sum(amounts)
    return amounts
