"""Many stretches of time at once: the sums of `ledger.engine`, filled with numpy.

Joules are added in the same order as by `DeviceAccount.add`, so that they are the same to the last bit.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
import numpy.typing as npt

from everywatt.core.energy import Energy
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.engine import ACTIVE_J, HELD_J, NO_USE, OWNED_S, SHORTEST_S, SUMS, DeviceAccount, Level
from everywatt.ledger.idle import Idle
from everywatt.ledger.owners import IDLE, METER, OTHER, UNATTRIBUTED, Owner

Floats = npt.NDArray[np.float64]

# Every list of owners begins with these four.
SPECIAL: tuple[Owner, ...] = (IDLE, METER, OTHER, UNATTRIBUTED)
IDLE_AT, METER_AT, OTHER_AT, NOBODY_AT = range(4)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceShares:
    """Joules of a device by owner (in the order of the owners of its tape) and by reason; idle's own are in `idle_j`.

    `paths_j` is the sum over stretches, `energy` the window's own integral. `owned_s` is each owner's part of the time
    that was shared, so that a watt more of idle is so many joules less for it. `unsure` is by
    how much the cost of a unit of use may differ between owners (95 %, relative), `doubt_j` what else is not sure of
    each owner's share, and `method` how the active joules were split. `occupancy` is which part of the CPUs each owner
    kept busy on average, None where the power of the device rises in proportion to that.
    `reasons` say why joules are unattributed.
    """

    label: str
    energy: Energy
    idle: Idle
    active_j: Floats
    held_j: Floats
    idle_j: Floats
    paths_j: float
    owned_s: Floats
    method: str
    unsure: float
    doubt_j: Floats
    occupancy: Floats | None = None
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TapeShares:
    """All devices of one tape, with the owners that their numbers stand for.

    `use` is what was measured of each owner by name (cpu_s, gpu_s, rss_bytes, …), NaN where it was not.
    """

    host: str
    owners: tuple[Owner, ...]
    devices: tuple[DeviceShares, ...]
    total: Energy
    use: dict[str, Floats] = field(default_factory=dict)
    details: dict[int, dict[str, object]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def sums(index: Ints, amount: Floats, count: int) -> Floats:
    """Amounts added by index, of `count` indexes."""
    return np.bincount(index, amount, count).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Uses:
    """Sparse: in `stretch`, `owner` used so much (CPU seconds, SM seconds, or a weight ≥ 0).

    `cpu` is where, -1 for somewhere; None where nothing is known of that.
    """

    stretch: Ints
    owner: Ints
    amount: Floats
    cpu: Ints | None = None

    @classmethod
    def none(cls) -> Uses:
        """Nobody used anything."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))

    def and_also(self, stretch: npt.ArrayLike, owner: npt.ArrayLike, amount: npt.ArrayLike) -> Uses:
        """With these uses added."""
        stretches = np.asarray(stretch, dtype=np.int64)
        owners = np.broadcast_to(np.asarray(owner, dtype=np.int64), stretches.shape)
        amounts = np.broadcast_to(np.asarray(amount, dtype=np.float64), stretches.shape)
        return Uses(
            np.concatenate((self.stretch, stretches)),
            np.concatenate((self.owner, owners)),
            np.concatenate((self.amount, amounts)),
            None if self.cpu is None else np.concatenate((self.cpu, np.full(len(stretches), -1))),
        )

    def merged(self, owners: int) -> Uses:
        """One use of each owner in each stretch, stretch by stretch, in the order in which they were given."""
        found, first, place = np.unique(self.stretch * owners + self.owner, return_index=True, return_inverse=True)
        amount = sums(place, self.amount, len(found))
        order = np.lexsort((first, self.stretch[first]))
        return Uses(self.stretch[first][order], self.owner[first][order], amount[order])

    def on(self, package: int, package_of: Ints) -> Uses:
        """What of it was on one package: by the CPU where that is known, else by how many CPUs the package has."""
        inside = package_of == package
        if self.cpu is None or not len(self.cpu):
            return Uses(self.stretch, self.owner, self.amount * inside.mean(), self.cpu)
        known = (self.cpu >= 0) & (self.cpu < len(package_of))
        share = np.where(known, inside[np.where(known, self.cpu, 0)], inside.mean())
        return Uses(self.stretch, self.owner, self.amount * share, self.cpu)

    def of_owners(self, count: int) -> Floats:
        """Use of each owner, added over all stretches."""
        return sums(self.owner, self.amount, count)


@dataclass(frozen=True, slots=True)
class Split:
    """Joules ≥ 0 of each owner by reason, of idle, and of nobody; they add up to what was split.

    `owned_s` is each owner's part of the time that was shared: one watt more of idle is so many joules less for it.
    `nobody_s` is the same for what is of nobody; `reasons` are why it is.
    """

    active_j: Floats
    held_j: Floats
    idle_j: float
    nobody_j: float
    owned_s: Floats
    nobody_s: float = 0.0
    reasons: tuple[str, ...] = ()

    @property
    def joules(self) -> float:
        """All of it."""
        return float(self.active_j.sum() + self.held_j.sum()) + self.idle_j + self.nobody_j


def accumulate(
    joules: Floats, observed_s: Floats, level: Level, uses: Uses, holders: Uses, owners: int
) -> DeviceAccount[int]:
    """The account of a device over stretches, of which `observed_s` seconds each were seen, among `owners` owners."""
    uses, holders = uses.merged(owners), holders.merged(owners)
    above_j = joules - level.idle_w * observed_s
    used = sums(uses.stretch, uses.amount, len(joules))
    holding = sums(holders.stretch, holders.amount, len(joules))
    busy, kept = used > NO_USE, holding > NO_USE
    most_held_j = np.minimum(level.held_w * observed_s, np.maximum(above_j, 0.0))
    held_e = np.where(kept, np.where(busy, most_held_j, above_j), 0.0)
    active_e = np.where(busy, above_j - held_e, 0.0)
    noise_e = level.noise_w**2 * observed_s
    idly = kept & ~busy
    columns = np.zeros((owners, SUMS))
    for first, part, total, given_e, noisy_e, shared_s in (
        (HELD_J, holders, holding, held_e, np.where(idly, noise_e, 0.0), np.where(idly, observed_s, 0.0)),
        (ACTIVE_J, uses, used, active_e, np.where(busy, noise_e, 0.0), np.where(busy, observed_s, 0.0)),
    ):
        share = part.amount / np.maximum(total[part.stretch], NO_USE)
        columns[:, first] = sums(part.owner, share * given_e[part.stretch], owners)
        columns[:, first + 1] = sums(part.owner, share * share * noisy_e[part.stretch], owners)
        columns[:, first + 2] = part.of_owners(owners)
        columns[:, OWNED_S] += sums(part.owner, share * shared_s[part.stretch], owners)
    alone = ~busy & ~kept
    made: DeviceAccount[int] = DeviceAccount(
        _total(joules),
        _total(np.where(alone, above_j, 0.0)),
        _total(np.where(alone, observed_s, 0.0)),
        _total(np.where(alone, noise_e, 0.0)),
        _total(np.where(alone, level.spread_w * observed_s, 0.0)),
        _total(np.where(busy, used**2 / np.maximum(observed_s, SHORTEST_S), 0.0)),
    )
    there = np.flatnonzero(columns.any(axis=1))
    made.owners = dict(zip(there.tolist(), columns[there].tolist(), strict=True))
    return made


def _total(amounts: Floats) -> float:
    """The sum from first to last: np.sum would add in another order."""
    return float(np.cumsum(amounts)[-1]) if len(amounts) else 0.0


def split(joules: Floats, observed_s: Floats, level: Level, uses: Uses, holders: Uses, owners: int) -> Split:
    """Share the joules of stretches among `owners` owners, by the rules of `DeviceAccount`."""
    account = accumulate(joules, observed_s, level, uses, holders, owners)
    charges = account.close()
    active_j, held_j, owned_s = np.zeros(owners), np.zeros(owners), np.zeros(owners)
    for into, found in ((active_j, charges.active_j), (held_j, charges.held_j)):
        into[list(found.keys())] = list(found.values())
    owned_s[list(account.owners)] = [row[OWNED_S] for row in account.owners.values()]
    reasons = tuple(charges.reasons(NOBODY_AT))
    nobody_s = account.unattributed_s(charges)
    return Split(active_j, held_j, charges.idle_j, charges.unattributed_j, owned_s, nobody_s, reasons)
