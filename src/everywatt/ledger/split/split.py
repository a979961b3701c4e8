"""The one splitter: joules of a device over stretches of time become idle, held and active joules of owners.

Pure: numbers in, numbers out. Power is split as it was measured, above and below its idle level alike, so that the
noise of an idle machine adds up to nothing instead of being charged to whoever was there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everywatt.core.lazy_dataclass import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOISE_SIGMAS = 3.0
NO_USE = 1e-12


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
class Level:
    """What is taken off before sharing: idle watts, watts of a mere holder, and how restless and unsure they are."""

    idle_w: float
    held_w: float = 0.0
    noise_w: float = 0.0
    spread_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """Joules ≥ 0 of each owner by reason, of idle, and of nobody; they add up to what was split.

    `owned_s` is each owner's part of the time that was shared: one watt more of idle is so many joules less for it.
    """

    active_j: Floats
    held_j: Floats
    idle_j: float
    nobody_j: float
    owned_s: Floats

    @property
    def joules(self) -> float:
        """All of it."""
        return float(self.active_j.sum() + self.held_j.sum()) + self.idle_j + self.nobody_j


def split(joules: Floats, observed_s: Floats, level: Level, uses: Uses, holders: Uses, owners: int) -> Split:
    """Share the joules of stretches, of which `observed_s` seconds each were seen, among `owners` owners.

    Active joules go by use in each stretch. A stretch with holders but without use is held by them. Without either,
    what is above idle by more than noise is nobody's.
    """
    whole_j = float(joules.sum())
    above_j = joules - level.idle_w * observed_s
    used = sums(uses.stretch, uses.amount, len(joules))
    holding = sums(holders.stretch, holders.amount, len(joules))
    busy, kept = used > NO_USE, holding > NO_USE
    most_held_j = np.minimum(level.held_w * observed_s, np.maximum(above_j, 0.0))
    held_e = np.where(kept, np.where(busy, most_held_j, above_j), 0.0)
    active_e = np.where(busy, above_j - held_e, 0.0)
    noise_e = level.noise_w**2 * observed_s
    active_j = _closed(uses, used, active_e, np.where(busy, noise_e, 0.0), owners)
    held_j = _closed(holders, holding, held_e, np.where(kept & ~busy, noise_e, 0.0), owners)
    alone = ~busy & ~kept
    alone_j, alone_s = float(above_j[alone].sum()), float(observed_s[alone].sum())
    limit_j = NOISE_SIGMAS * level.noise_w * alone_s**0.5 + level.spread_w * alone_s
    nobody_j = alone_j if alone_j > max(limit_j, 1e-9) else 0.0
    charged_j = float(active_j.sum() + held_j.sum()) + nobody_j
    if charged_j > max(whole_j, 0.0):
        # A level that is far too high or joules below zero: nobody is charged more than there was.
        factor = max(whole_j, 0.0) / charged_j
        active_j, held_j, nobody_j, charged_j = active_j * factor, held_j * factor, nobody_j * factor, max(whole_j, 0.0)
    owned_s = _owned_s(uses, used, np.where(busy, observed_s, 0.0), owners)
    owned_s = owned_s + _owned_s(holders, holding, np.where(kept & ~busy, observed_s, 0.0), owners)
    return Split(active_j, held_j, whole_j - charged_j, nobody_j, owned_s)


def _owned_s(uses: Uses, used: Floats, observed_s: Floats, owners: int) -> Floats:
    share = uses.amount / np.maximum(used[uses.stretch], NO_USE)
    return sums(uses.owner, share * observed_s[uses.stretch], owners)


def _closed(uses: Uses, used: Floats, joules_e: Floats, noise_e: Floats, owners: int) -> Floats:
    """Joules of each owner, none below zero.

    An owner whose joules are within their own noise goes to a pool with the others like it, so that what is too much
    for one and too little for another cancels; only what the pool has above zero is shared by use. What is clearly
    below zero is left to idle.
    """
    if not len(uses.stretch):
        return np.zeros(owners)
    share = uses.amount / np.maximum(used[uses.stretch], NO_USE)
    own_j = sums(uses.owner, share * joules_e[uses.stretch], owners)
    noise = NOISE_SIGMAS * np.sqrt(sums(uses.owner, share**2 * noise_e[uses.stretch], owners))
    sure = np.abs(own_j) > noise
    pool_j = float(own_j[~sure].sum())
    weight = np.where(sure, 0.0, uses.of_owners(owners))
    pooled = weight / weight.sum() * pool_j if pool_j > 0 and weight.sum() > 0 else np.zeros(owners)
    return np.where(sure, np.maximum(own_j, 0.0), pooled)
