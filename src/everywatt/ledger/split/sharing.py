"""One tape's devices, shared among its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from everywatt.core.channels import Domain
from everywatt.core.energy import Energy
from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.sources import Source, addable, sources, splittable
from everywatt.energy.window import windows_energy
from everywatt.ledger.engine import NOT_RECORDED
from everywatt.ledger.groups import GROUPINGS, Grouping
from everywatt.ledger.idle import Idle, kind_of
from everywatt.ledger.levels import device_number
from everywatt.ledger.owners import BY_ALLOCATION, BY_USE, Owner
from everywatt.ledger.split.intervals import JIFFY_S, UNSURE, cpu_time_doubt, occupancy
from everywatt.ledger.split.split import (
    CPU_TIME,
    FIRST,
    IDLE_AT,
    OTHER_AT,
    SPECIAL,
    UNATTRIBUTED_AT,
    CpuUse,
    Roll,
    Split,
    Uses,
    cpu_use,
    gpu_share,
    packages_known,
    split,
    sums,
)
from everywatt.ledger.use.account import stretch_joules, tape_use
from everywatt.ledger.use.usage import memory_held
from everywatt.tape.columns import Floats
from everywatt.tape.reader import Tape

EDGE = 0.5  # of what was used in a stretch that the window cuts, this much may have been outside


@dataclass(frozen=True, slots=True)
class DeviceShares:
    """Joules of a device by owner (in the order of the owners of its tape) and by reason; idle's own are in `idle_j`.

    `paths_j` is the sum over stretches, `energy` the window's own integral. `owned_s` is each owner's part of the time
    that was shared, so that a watt more of idle is so many joules less for it. `unsure` is by
    how much the cost of a unit of use may differ between owners (95 %, relative), `doubt_j` what else is not sure of
    each owner's share, and `method` how the active joules were split. `occupancy` is which part of the CPUs each owner
    kept busy on average (`intervals.occupancy`), None where the power of the device rises in proportion to that.
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
    occupancy: Sequence[float] | None = None
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


def share_tape(
    tape: Tape,
    windows: Sequence[tuple[int, int]],
    *,
    host: str,
    grouping: Grouping,
    levels: Mapping[str, Idle],
    policy: str,
    notes: Sequence[str] = (),
) -> TapeShares:
    """Every device of the total of some windows of a tape, by process."""
    use, found = tape_use(tape), splittable(sources(tape))
    total = windows_energy(found, windows, notes=notes)
    roll = Roll(use)
    cpu = cpu_use(roll, windows)
    work = _Work(
        roll, cpu, windows, policy, [device_number(s.channel) for s in addable(found) if s.domain is Domain.PACKAGE]
    )
    devices = []
    for source in addable(found):
        part = dict(total.parts).get(source.label)
        if part is None or part.joules is None or source.label not in levels:
            continue
        maker = work.gpu if kind_of(source.domain) == "gpu" else work.cpu
        devices.append(maker(source, part, levels[source.label]))
    owners = (*SPECIAL, *(grouping.owner(tape, facts) for facts in roll.facts))
    # Of a process that moved to another cgroup there are two sets of facts, and a single process.
    described = [(i, f) for i, f in enumerate(roll.facts) if not f.moved or grouping.by in GROUPINGS]
    details: dict[int, dict[str, object]] = {FIRST + i: grouping.details(tape, f) for i, f in described}
    notes = tuple(f"{host}: {note}" if host else note for note in cpu.notes) if devices else ()
    return TapeShares(host, owners, tuple(_padded(d, len(owners)) for d in devices), total, work.use(), details, notes)


class _Work:
    """What all devices of a tape share: the owners, their CPU time, their memory."""

    def __init__(
        self, roll: Roll, cpu: CpuUse, windows: Sequence[tuple[int, int]], policy: str, packages: Sequence[int]
    ) -> None:
        self._roll, self._cpu, self._windows = roll, cpu, windows
        self._policy, self._packages = policy, packages
        self._gpu_s: list[Uses] = []
        self._named: set[int] = set()

    def cpu(self, source: Source, energy: Energy, idle: Idle) -> DeviceShares:
        """A device that is split by CPU time: packages, DRAM, whole machines, rails."""
        roll, cpu, count = self._roll, self._cpu, len(self._roll)
        joules, seconds = stretch_joules(source, cpu.stretches.starts_ns, cpu.stretches.ends_ns)
        package = self._package(source)
        one_of_several = len(self._packages) > 1 and package is None
        unsure, saturates = cpu_time_doubt(source.channel, one_of_several, roll.use.threads_per_core)
        uses = cpu.on_package(roll, package)
        weighted, method = cpu.weighted(roll, uses, package, seconds) if saturates else (uses, CPU_TIME)
        done = split(joules, seconds, idle.level, weighted, Uses.none(), count)
        used = uses.of_owners(count)
        allocated = self._allocated(used)
        held_j, idle_j, notes = done.held_j, done.idle_j, list[str]()
        if source.domain is Domain.DRAM:
            bytes_ = self._bytes(count)
            held_j = _refresh(idle_j, bytes_, roll.use.memory_bytes)
            idle_j -= float(held_j.sum())
            allocated = np.zeros(count)
            if not roll.use.memory_bytes:
                notes.append(
                    f"{source.label}: the memory size of the machine was not recorded; its refresh energy "
                    "counts as idle"
                )
        charged = charge_idle(self._policy, idle_j, used, allocated)
        return DeviceShares(
            source.label,
            energy,
            idle,
            _plus(done.active_j, done.unattributed_j),
            held_j,
            charged,
            float(joules.sum()),
            _plus(done.owned_s, done.unattributed_s),
            method if len(cpu.uses.owner) else "",
            unsure,
            _doubt(replace(cpu, uses=uses), done, used),
            occupancy(used.tolist(), done.used_squares, roll.cpus(package) if saturates else None),
            tuple(notes),
            done.reasons if len(cpu.uses.owner) or not done.reasons else (NOT_RECORDED,),
        )

    def _package(self, source: Source) -> int | None:
        """The package that a source is, where there are several and the tape says which CPUs each has."""
        known = source.domain is Domain.PACKAGE and packages_known(self._roll, self._packages)
        return device_number(source.channel) if known else None

    def gpu(self, source: Source, energy: Energy, idle: Idle) -> DeviceShares:
        """A GPU: active by SM time, slices or memory, held by holders."""
        share = gpu_share(self._roll, device_number(source.channel), self._windows)
        self._gpu_s.append(share.gpu_s)
        count = len(self._roll)
        joules, seconds = stretch_joules(source, share.stretches.starts_ns, share.stretches.ends_ns)
        done = split(joules, seconds, idle.level, share.uses, share.holders, count)
        whole_s = max(float(share.stretches.seconds.sum()), 1e-9)
        used = share.gpu_s.of_owners(count) if len(share.gpu_s.owner) else share.allocated.of_owners(count)
        allocated = share.allocated.of_owners(count) / whole_s
        notes = list(share.notes)
        if share.method == "memory":
            notes.append(f"{source.label}: utilisation by process is unknown; active energy is shared by memory held")
        if done.unattributed_j > 0 and not share.notes:
            notes.append(
                f"{source.label}: it was active while no process was listed on it; that energy is unattributed"
            )
        return DeviceShares(
            source.label,
            energy,
            idle,
            _plus(done.active_j, done.unattributed_j),
            done.held_j,
            charge_idle(self._policy, done.idle_j, used, allocated),
            float(joules.sum()),
            _plus(done.owned_s, done.unattributed_s),
            share.method,
            max((UNSURE[method] for method in share.method.split("+") if method), default=0.0),
            np.zeros(count),
            notes=tuple(notes),
            reasons=(NOT_RECORDED,) if share.notes and done.reasons else done.reasons,
        )

    def _allocated(self, used: Floats) -> Floats:
        processes = self._roll.use.processes
        limits = processes.cgroups.cpus if processes is not None else {}
        names = list(limits)
        group = np.full(len(used), -1, dtype=np.int64)
        for number, facts in enumerate(self._roll.facts):
            if facts.cgroup in limits and self._mine(number):
                group[FIRST + number] = names.index(facts.cgroup)
        return allocated_cpus(group, np.array([limits[name] for name in names]), used, self._roll.use.capacity())

    def _mine(self, number: int) -> bool:
        return number >= len(self._roll.index) or int(self._roll.index[number]) == FIRST + number

    def _bytes(self, count: int) -> Floats:
        """Mean memory of each owner: PSS where it was read, else RSS."""
        processes = self._roll.use.processes
        held = None
        if processes is not None:
            held = memory_held(processes, "pss_bytes", self._windows)
            held = held or memory_held(processes, "rss_bytes", self._windows)
        if held is None:
            return np.zeros(count)
        known = len(self._roll.index)
        return sums(self._roll.index, held.mean_bytes[:known], count)

    def use(self) -> dict[str, Floats]:
        """What was measured of each owner."""
        count, processes = len(self._roll), self._roll.use.processes
        measured = {"cpu_s": self._cpu.uses.of_owners(count)}
        measured["cpu_s"][IDLE_AT] = np.nan
        if processes is None:
            measured["cpu_s"][:] = np.nan
        if self._gpu_s:
            found = [uses.of_owners(count) for uses in self._gpu_s if len(uses.owner)]
            if found:
                measured["gpu_s"] = np.where(np.sum(found, axis=0) > 0, np.sum(found, axis=0), np.nan)
        for name in ("rss_bytes", "pss_bytes", "uss_bytes"):
            held = memory_held(processes, name, self._windows) if processes is not None else None
            if held is not None:
                known = len(self._roll.index)
                mine = (self._roll.index == np.arange(known) + FIRST) & (held.peak_bytes[:known] > 0)
                measured[name] = np.full(count, np.nan)
                measured[name][FIRST : FIRST + known][mine] = held.peak_bytes[:known][mine]
        return measured


def _plus(amounts: Floats, unattributed: float) -> Floats:
    """Amounts of owners with the unattributed amount added."""
    found = amounts.copy()
    found[UNATTRIBUTED_AT] += unattributed
    return found


def _doubt(cpu: CpuUse, done: Split, used: Floats) -> Floats:
    """What is not sure of each share beyond its price: use in stretches that a window cuts, and steps of clocks."""
    whole = float(used.sum())
    if whole <= 0:
        return np.zeros(len(used))
    per_s = float(done.active_j.sum()) / whole
    cut_s = sums(cpu.uses.owner, cpu.uses.amount * cpu.partial[cpu.uses.stretch], len(used))
    ticks_s = np.where(used > 0, JIFFY_S, 0.0)
    ticks_s[OTHER_AT] *= np.sqrt(2)
    return np.asarray(per_s * np.hypot(EDGE * cut_s, ticks_s), dtype=np.float64)


def _padded(device: DeviceShares, count: int) -> DeviceShares:
    """GPU processes that turned up later are owners of all devices, with nothing."""
    more = (0, count - len(device.active_j))
    if not more[1]:
        return device
    return replace(
        device,
        active_j=np.pad(device.active_j, more),
        held_j=np.pad(device.held_j, more),
        idle_j=np.pad(device.idle_j, more),
        doubt_j=np.pad(device.doubt_j, more),
        occupancy=None if device.occupancy is None else [*device.occupancy, *[0.0] * more[1]],
        owned_s=np.pad(device.owned_s, more),
    )


def _refresh(idle_j: float, held_bytes: Floats, machine_bytes: float | None) -> Floats:
    """Joules of keeping each owner's memory, of a device's idle joules; what is not held stays idle.

    Shared pages are counted for each holder by RSS, so where the owners hold more than there is, by their shares.
    """
    whole = max(float(machine_bytes or 0.0), float(held_bytes.sum()))
    if not machine_bytes or whole <= 0 or idle_j <= 0:
        return np.zeros(len(held_bytes))
    return np.asarray(idle_j * held_bytes / whole, dtype=np.float64)


def charge_idle(policy: str, idle_j: float, use: Floats, allocated: Floats) -> Floats:
    """Idle joules of each owner; what is not charged stays with the owner `idle`.

    `use` is what each used of the device, `allocated` the share of the device (at most 1 in all) kept for each.
    """
    charged = np.zeros(len(use))
    if policy == BY_USE and idle_j > 0:
        weight = use.copy()
        weight[[IDLE_AT, UNATTRIBUTED_AT]] = 0.0
        if weight.sum() > 0:
            charged = idle_j * weight / weight.sum()
    elif policy == BY_ALLOCATION and idle_j > 0:
        share = allocated.copy()
        share[[IDLE_AT, UNATTRIBUTED_AT]] = 0.0
        charged = idle_j * share / max(1.0, float(share.sum()))
    charged[IDLE_AT] = idle_j - float(charged.sum())
    return charged


def allocated_cpus(group: npt.NDArray[np.int64], limits: Floats, use: Floats, cpus: float) -> Floats:
    """The share of the machine's CPUs kept for each owner.

    Owner i is in the group `group[i]` (-1: in none) that may use `limits[group]` CPUs: that is shared by use inside
    of the group. Who has no limit may use the rest of the machine, shared by use as well.
    """
    share = np.zeros(len(use))
    taken = 0.0
    for number, limit in enumerate(limits.tolist()):
        inside = group == number
        if not inside.any():
            continue
        size = min(limit / max(cpus, 1e-9), 1.0 - taken)
        weight = np.where(inside, use, 0.0)
        weight = weight if weight.sum() > 0 else inside.astype(np.float64)
        share += size * weight / weight.sum()
        taken += size
    free = np.where(group < 0, use, 0.0)
    free[[IDLE_AT, UNATTRIBUTED_AT]] = 0.0
    if free.sum() > 0 and taken < 1.0:
        share += (1.0 - taken) * free / free.sum()
    return share
