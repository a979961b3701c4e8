"""Many stretches of time at once: who used what in each, and the sums of `ledger.engine`, filled with numpy.

Joules are added in the same order as by `DeviceAccount.add`, so that they are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.engine import (
    ACTIVE_J,
    HELD_J,
    NO_USE,
    OWNED_S,
    SHORTEST_S,
    STAND_ALONE,
    SUMS,
    DeviceAccount,
    Level,
)
from everywatt.ledger.owners import IDLE, METER, OTHER, UNATTRIBUTED, Owner
from everywatt.ledger.use.account import TapeUse
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.owner_use import Remainder, most_owed_s
from everywatt.ledger.use.tenants import active_weights
from everywatt.ledger.use.usage import ProcessUse, Records
from everywatt.tape.columns import Flags, Floats, Ints

# Every list of owners begins with these four.
SPECIAL: tuple[Owner, ...] = (IDLE, METER, OTHER, UNATTRIBUTED)
IDLE_AT, METER_AT, OTHER_AT, UNATTRIBUTED_AT = range(4)


def sums(index: Ints, amount: Floats, count: int) -> Floats:
    """Amounts added by index, of `count` indexes."""
    return np.bincount(index, amount, count).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Uses:
    """Sparse: in `stretch`, `owner` used so much (CPU seconds, SM seconds, or a weight ≥ 0).

    `cpu` is where, -1 for somewhere, and `workload` the number of what it was for; None where that is not known.
    """

    stretch: Ints
    owner: Ints
    amount: Floats
    cpu: Ints | None = None
    workload: Ints | None = None

    @classmethod
    def none(cls) -> Uses:
        """No owner used anything."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))

    def and_also(
        self, stretch: npt.ArrayLike, owner: npt.ArrayLike, amount: npt.ArrayLike, workload: int | None = None
    ) -> Uses:
        """With these uses added; without a workload they are of one for each owner."""
        stretches = np.asarray(stretch, dtype=np.int64)
        owners = np.broadcast_to(np.asarray(owner, dtype=np.int64), stretches.shape)
        amounts = np.broadcast_to(np.asarray(amount, dtype=np.float64), stretches.shape)
        return Uses(
            np.concatenate((self.stretch, stretches)),
            np.concatenate((self.owner, owners)),
            np.concatenate((self.amount, amounts)),
            None if self.cpu is None else np.concatenate((self.cpu, np.full(len(stretches), -1))),
            None
            if self.workload is None
            else np.concatenate((self.workload, owners if workload is None else np.full(len(stretches), workload))),
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
            return replace(self, amount=self.amount * inside.mean())
        known = (self.cpu >= 0) & (self.cpu < len(package_of))
        share = np.where(known, inside[np.where(known, self.cpu, 0)], inside.mean())
        return replace(self, amount=self.amount * share)

    def saturating(self, cores_s: Floats) -> Uses:
        """Weighted for a package whose power saturates, as by `ledger.engine.saturating`.

        `cores_s` are the core seconds of each stretch.
        """
        workload = self.owner if self.workload is None else self.workload
        whole = sums(self.stretch, self.amount, len(cores_s))
        cores_s = np.maximum(np.maximum(cores_s, whole / 2), NO_USE)
        many = int(workload.max(initial=0)) + 1
        keys, place = np.unique(self.stretch * many + workload, return_inverse=True)
        used = sums(place, self.amount, len(keys))
        stretch = keys // many
        part = np.minimum(used / cores_s[stretch], 1.0)
        alone = part * (2.0 - part)
        rate = whole / np.maximum(sums(stretch, alone, len(cores_s)), NO_USE)
        factor = 1.0 - STAND_ALONE + STAND_ALONE * rate[stretch] * alone / np.maximum(used, NO_USE)
        return replace(self, amount=self.amount * factor[place])

    def of_owners(self, count: int) -> Floats:
        """Use of each owner, added over all stretches."""
        return sums(self.owner, self.amount, count)


@dataclass(frozen=True, slots=True)
class Split:
    """Joules ≥ 0 of each owner by reason, of idle, and unattributed; they add up to what was split.

    `owned_s` is each owner's part of the time that was shared: one watt more of idle is so many joules less for it.
    `unattributed_s` is the same for the unattributed part, `reasons` say why. `used_squares`: see `DeviceAccount`.
    """

    active_j: Floats
    held_j: Floats
    idle_j: float
    unattributed_j: float
    owned_s: Floats
    unattributed_s: float
    reasons: tuple[str, ...]
    used_squares: float


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
        _total(np.where(busy & (observed_s > SHORTEST_S), used**2 / np.maximum(observed_s, SHORTEST_S), 0.0)),
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
    reasons = tuple(charges.reasons(UNATTRIBUTED_AT))
    rest = charges.unattributed_j, owned_s, account.alone_s
    return Split(active_j, held_j, charges.idle_j, *rest, reasons, account.used_squares)


# How joules are shared, as ledgers say it.
CPU_TIME, SATURATING = "cpu time", "cpu time, saturating"
TAIL_PERIODS = 2.0
FIRST = len(SPECIAL)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Ascending, disjoint pieces of the windows. `place` is the piece of the timeline each lies in, -1 before it."""

    starts_ns: Ints
    ends_ns: Ints
    place: Ints

    @property
    def seconds(self) -> Floats:
        return (self.ends_ns - self.starts_ns) / NS

    def __len__(self) -> int:
        return len(self.starts_ns)


def cut(windows: Sequence[tuple[int, int]], edges_ns: Sequence[int]) -> Stretches:
    """The windows (disjoint, in order), cut at the edges of a timeline."""
    edges = np.asarray(edges_ns, dtype=np.int64)
    pieces = []
    for start_ns, end_ns in windows:
        low, high = np.searchsorted(edges, (start_ns, end_ns), side="right")
        inside = edges[low:high]
        inside = inside[inside < end_ns]
        pieces.append(np.concatenate(([start_ns], inside, [end_ns])))
    starts = np.concatenate([piece[:-1] for piece in pieces]) if pieces else np.empty(0, dtype=np.int64)
    ends = np.concatenate([piece[1:] for piece in pieces]) if pieces else np.empty(0, dtype=np.int64)
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    return Stretches(starts, ends, np.searchsorted(edges, starts, side="right") - 1)


def process_use(
    stretches: Stretches,
    use: ProcessUse,
    period_s: float,
    runs: Sequence[tuple[int, int]],
    subject: Flags,
) -> Uses:
    """CPU seconds of each process (by its number) in each stretch, evenly over the time in which it used them.

    Members of the subject that came or went in the stretch in which the run began or ended did so inside of the run.
    Just after the last read, processes are taken to go on as they were.
    """
    records = use.records
    if not len(records.place) or not len(stretches):
        return Uses.none()
    from_ns, to_ns = _inside(records, runs, subject)
    last = len(use.edges) - 2
    place = np.where(stretches.place > last, last, stretches.place)
    low = np.searchsorted(records.place, place, side="left")
    count = np.searchsorted(records.place, place, side="right") - low
    stretch = np.repeat(np.arange(len(stretches)), count)
    index = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    begin = np.maximum(from_ns[index], stretches.starts_ns[stretch])
    end = np.minimum(to_ns[index], stretches.ends_ns[stretch])
    share = np.clip(end - begin, 0, None) / np.maximum(to_ns[index] - from_ns[index], 1)
    tail = stretches.place[stretch] > last
    if tail.any():
        lasted_s = (use.edges[-1] - use.edges[-2]) / NS
        after_s = (stretches.ends_ns[stretch] - use.edges[-1]) / NS
        goes_on = tail & ~records.last[index] & (after_s <= TAIL_PERIODS * period_s)
        share = np.where(tail, np.where(goes_on, stretches.seconds[stretch] / lasted_s, 0.0), share)
    used = share * records.cpu_s[index]
    known = used > 0
    return Uses(stretch[known], records.number[index][known], used[known], records.cpu[index][known])


def _inside(records: Records, runs: Sequence[tuple[int, int]], subject: Flags) -> tuple[Ints, Ints]:
    from_ns, to_ns = records.from_ns, records.to_ns
    if not runs:
        return from_ns, to_ns
    asked = subject[records.number]
    starts, ends = (np.sort(np.array(side, dtype=np.int64)) for side in zip(*runs, strict=True))
    first = starts[np.minimum(np.searchsorted(starts, from_ns, side="right"), len(starts) - 1)]
    began = asked & records.young & (first > from_ns) & (first < to_ns)
    from_ns = np.where(began, first, from_ns)
    final = ends[np.maximum(np.searchsorted(ends, to_ns, side="left") - 1, 0)]
    ended = asked & records.last & (final < to_ns) & (final > from_ns)
    return from_ns, np.where(ended, final, to_ns)


def remainder(whole: Floats, known: Floats, most_owed: float) -> Floats:
    """What `whole` has above `known` in each stretch, by the rule of `Remainder`; 0 where nothing is known."""
    rest, of = np.zeros(len(whole)), Remainder(most_owed)
    for index, above in enumerate((whole - known).tolist()):
        if above == above:
            rest[index] = of.take(above)
    return rest


class Roll:
    """The owners of a tape: the special ones, then its processes, then GPU processes that nothing else is known of."""

    def __init__(self, use: TapeUse) -> None:
        self.use = use
        self.facts: list[ProcessFacts] = list(use.processes.processes) if use.processes else []
        member = use.members()
        self.subject = np.array(member, dtype=np.bool_)
        self.index = np.array(
            [
                METER_AT
                if facts.meter or (facts.reaper and not facts.exited)
                else FIRST + number
                if inside
                else OTHER_AT
                for number, (facts, inside) in enumerate(zip(self.facts, member, strict=True))
            ],
            dtype=np.int64,
        )
        self.rest_at: int | None = None
        self._strangers: dict[int, int] = {}

    def __len__(self) -> int:
        return FIRST + len(self.facts)

    def cpus(self, package: int | None) -> float:
        """How many CPUs the machine has, or one of its packages."""
        part = 1.0 if package is None else float((self.use.packages == package).mean())
        return self.use.capacity() * part

    def workloads(self) -> Ints:
        """The number of each process's workload, above those of the special owners; the meter is one by itself."""
        numbers: dict[str | int, int] = {}
        found = [FIRST + numbers.setdefault(facts.workload, len(numbers)) for facts in self.facts]
        return np.where(self.index == METER_AT, METER_AT, np.array(found, dtype=np.int64))

    def add(self, facts: ProcessFacts) -> int:
        """An owner that is in no table."""
        self.facts.append(facts)
        return FIRST + len(self.facts) - 1

    def of_pid(self, pid: int, at_ns: int) -> int:
        """The owner of a process that is known by its pid alone, at some time."""
        known = self.use.processes.seen.get(pid, ()) if self.use.processes else ()
        slack_ns = int(2 * self.use.period_s * NS)
        for first_ns, number in reversed(known):
            if first_ns <= at_ns + slack_ns:
                return int(self.index[number])
        if self.use.processes is None or self.use.processes.everything[-1:] != [True] or self.use.followed:
            return OTHER_AT
        if pid not in self._strangers:
            self._strangers[pid] = self.add(ProcessFacts(pid, None, f"pid {pid}"))
        return self._strangers[pid]


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds by stretch and owner. `partial` marks stretches in which use was not read at both ends."""

    stretches: Stretches
    uses: Uses
    partial: Flags
    notes: tuple[str, ...] = ()

    def on_package(self, roll: Roll, package: int | None) -> Uses:
        """What was used of one of several packages, or of all of them."""
        return self.uses if package is None else self.uses.on(package, roll.use.packages)

    def weighted(self, roll: Roll, uses: Uses, package: int | None, seconds: Floats) -> tuple[Uses, str]:
        """Uses of a package whose power saturates in stretches of so many seconds, weighted; and what that is called.

        Unweighted where the tape does not say how many threads a core has.
        """
        threads = roll.use.threads_per_core
        if threads is None:
            return uses, CPU_TIME
        return uses.saturating(roll.cpus(package) / threads * seconds), SATURATING


def packages_known(roll: Roll, packages: Collection[int]) -> bool:
    """Whether there are several packages and the tape says which CPUs each of them has."""
    return len(packages) > 1 and set(roll.use.packages.tolist()) == set(packages)


def cpu_use(roll: Roll, windows: Sequence[tuple[int, int]]) -> CpuUse:
    """What each owner used of the CPUs in the windows; what the host used beyond that is other's, or unattributed."""
    use, processes = roll.use, roll.use.processes
    if processes is None or len(processes.edges) < 2:
        stretches = cut(windows, [])
        return CpuUse(stretches, Uses.none(), np.ones(len(stretches), dtype=np.bool_), ("no process was recorded",))
    stretches = cut(windows, processes.edges)
    known = process_use(stretches, processes, use.period_s, use.runs, roll.subject)
    workloads = roll.workloads()
    uses = Uses(known.stretch, roll.index[known.owner], known.amount, known.cpu, workloads[known.owner])
    most_owed = most_owed_s(use.capacity())
    if (made := processes.made_use(stretches.starts_ns, stretches.ends_ns)) is not None:
        mine = roll.subject[known.owner]
        seen = sums(known.stretch[mine], known.amount[mine], len(stretches))
        more = remainder(made, seen, most_owed)
        roll.rest_at = roll.add(ProcessFacts(0, None, "short-lived processes of the command", exited=True))
        of = int(workloads[np.argmax(roll.subject)]) if roll.subject.any() else None
        uses = uses.and_also(np.flatnonzero(more), roll.rest_at, more[more > 0], of)
    notes = []
    if use.busy is None:
        notes.append("the host's CPU time was not recorded, so other processes cannot be separated")
    else:
        used = sums(uses.stretch, uses.amount, len(stretches))
        more = remainder(use.busy.used(stretches.starts_ns, stretches.ends_ns), used, most_owed)
        whole = np.array([*processes.everything, processes.everything[-1]])
        unattributed = whole[np.clip(stretches.place + 1, 0, len(whole) - 1)]
        unattributed |= stretches.place > len(processes.edges) - 2
        owner = np.where(unattributed, UNATTRIBUTED_AT, OTHER_AT)
        uses = uses.and_also(np.flatnonzero(more), owner[more > 0], more[more > 0])
    unseen = len(processes.hidden - processes.seen.keys())
    if unseen:
        notes.append(f"{unseen} processes of other users are hidden (hidepid) and counted as other")
    edges = np.asarray(processes.edges)
    partial = ~(_are_edges(stretches.starts_ns, edges) & _are_edges(stretches.ends_ns, edges))
    if processes.bridged_ns is not None:  # what was used there, and what was drawn, need not have been at one time
        partial |= (stretches.starts_ns < processes.bridged_ns[1]) & (stretches.ends_ns > processes.bridged_ns[0])
    return CpuUse(stretches, uses, partial, tuple(notes))


def _are_edges(at_ns: Ints, edges: Ints) -> Flags:
    """Which instants are among the edges, of which there are some, in order."""
    return np.asarray(edges[np.minimum(np.searchsorted(edges, at_ns), len(edges) - 1)] == at_ns, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class GpuShare:
    """SM seconds (or weights) by stretch and owner of one GPU, who held it, and what was kept for whom."""

    stretches: Stretches
    uses: Uses
    holders: Uses
    allocated: Uses
    gpu_s: Uses
    method: str
    notes: tuple[str, ...] = ()


def gpu_share(roll: Roll, gpu: int, windows: Sequence[tuple[int, int]]) -> GpuShare:
    """Who was on a GPU in the windows, and how its active energy is shared among them."""
    table = roll.use.gpus
    if table is None:
        return GpuShare(cut(windows, []), *(Uses.none(),) * 4, "", (f"gpu.{gpu}: no process on it was recorded",))
    stretches = cut(windows, table.edges.get(gpu, []))
    middles = (stretches.starts_ns + stretches.ends_ns) // 2
    uses: list[tuple[int, int, float]] = []
    holders: list[tuple[int, int, float]] = []
    kept: list[tuple[int, int, float]] = []
    sm_s: list[tuple[int, int, float]] = []
    methods: dict[str, None] = {}
    seconds = stretches.seconds.tolist()
    for place, (at_ns, tenants) in enumerate(zip(middles.tolist(), table.at(gpu, middles), strict=True)):
        if not tenants:
            continue
        owners = [roll.of_pid(tenant.pid, at_ns) for tenant in tenants]
        shares, method = active_weights(tenants)
        if shares:
            methods[method] = None
            uses += [(place, owner, share) for owner, share in zip(owners, shares, strict=True)]
        holders += [(place, owner, 1.0) for owner in owners]
        for owner, tenant in zip(owners, tenants, strict=True):
            part = tenant.slices / tenant.of_slices if tenant.slices and tenant.of_slices else 1 / len(tenants)
            kept.append((place, owner, part * seconds[place]))
            if tenant.sm is not None:
                sm_s.append((place, owner, tenant.sm / 100 * seconds[place]))
    return GpuShare(stretches, _uses(uses), _uses(holders), _uses(kept), _uses(sm_s), "+".join(methods))


def _uses(rows: list[tuple[int, int, float]]) -> Uses:
    if not rows:
        return Uses.none()
    stretch, owner, amount = zip(*rows, strict=True)
    return Uses(np.array(stretch, dtype=np.int64), np.array(owner, dtype=np.int64), np.array(amount, dtype=np.float64))
