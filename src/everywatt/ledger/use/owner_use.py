"""Use by owner since it was asked for last, from tables as they are read: CPU time, memory, GPUs. Without numpy.

The same tables and rules as of finished runs (`ledger.use.processes`, `ledger.use.tenants`); here use is added up by
owner as it comes, and what has ended is forgotten, so an agent may run for months.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everywatt.core.clocks import NS
from everywatt.ledger.counters import METER, OTHER, UNATTRIBUTED, OwnerKey
from everywatt.ledger.engine import saturating
from everywatt.ledger.split.intervals import JIFFY_S
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.processes import CpuRecord, ProcessTable, Seen
from everywatt.ledger.use.tenants import GpuTable, Tenant, active_weights, busy_share
from everywatt.sensors.base import TableRow

LONGEST_S = 60.0  # use of a GPU whose energy is not shared is forgotten after this

Placer = Callable[[ProcessFacts], OwnerKey]
Part = tuple[OwnerKey, OwnerKey | str | int]  # an owner, and the workload for which it used something
Used = tuple[ProcessFacts, float, int]  # a process, its CPU seconds, and the CPU that it ran on (-1: not known)


def most_owed_s(cpus: float) -> float:
    """How far the CPU time of all processes may run ahead of the host's, both counted in steps on so many CPUs."""
    return 2 * JIFFY_S * cpus + 0.1


class Remainder:
    """What a whole has above what is known of it, interval by interval, never below zero.

    Counters that move in steps run behind in one interval and ahead in the next: what is too little is owed by the
    intervals after, up to `most_owed`, instead of being cut off, which would make something out of rounding.
    """

    def __init__(self, most_owed: float) -> None:
        self.most_owed = most_owed
        self._owed = 0.0

    def take(self, above: float) -> float:
        """The rest of an interval in which the whole was so much above (or below) what is known."""
        left = above + self._owed
        self._owed = max(min(left, 0.0), -self.most_owed)
        return max(left, 0.0)


class OwnedUse:
    """CPU seconds by owner, and where: by the CPU that a process of one thread ran on, else by CPUs of a package."""

    def __init__(self, packages: Sequence[int] = ()) -> None:
        self.uses: dict[OwnerKey, float] = {}
        self._packages = packages  # of each CPU, where there are several
        self._parts: dict[Part, float] = {}
        self._pinned: dict[int, dict[Part, float]] = {}

    def add(self, owner: OwnerKey, cpu_s: float, cpu: int = -1, workload: str | int | None = None) -> None:
        """What an owner used, for a workload; None for one of its own."""
        self.uses[owner] = self.uses.get(owner, 0.0) + cpu_s
        part = owner, owner if workload is None else workload
        self._parts[part] = self._parts.get(part, 0.0) + cpu_s
        if 0 <= cpu < len(self._packages):
            there = self._pinned.setdefault(self._packages[cpu], {})
            there[part] = there.get(part, 0.0) + cpu_s

    def on(self, package: int | None, cores_s: float | None = None) -> Mapping[OwnerKey, float]:
        """What of it was on one package, None for all of them; weighted where its power saturates (`saturating`).

        `cores_s` are the core seconds that the package had where it does, else None.
        """
        parts = self._parts if package is None else self._on(package)
        if cores_s is not None:
            return saturating(parts, cores_s)
        if package is None and len(parts) == len(self.uses):
            return self.uses  # one workload each
        found: dict[OwnerKey, float] = {}
        for (owner, _), used in parts.items():
            found[owner] = found.get(owner, 0.0) + used
        return found

    def _on(self, package: int) -> dict[Part, float]:
        share = self._packages.count(package) / len(self._packages)
        here = self._pinned.get(package, {})
        known = {part: sum(there.get(part, 0.0) for there in self._pinned.values()) for part in self._parts}
        return {part: here.get(part, 0.0) + max(used - known[part], 0.0) * share for part, used in self._parts.items()}


class OwnerUse(ProcessTable):
    """What each owner used of the CPUs since it was asked last; and what it holds of the memory.

    `place` tells whose a process is. It is asked when use is taken: names may come later in the same reading.
    """

    def __init__(self, place: Placer, period_s: float, boot_offset_ns: int | None, cpus: int = 1) -> None:
        super().__init__(period_s, boot_offset_ns)
        self._place = place
        self.whole_machine = True
        self.packages: list[int] = []  # of each CPU, where there are several
        self.readings = 0
        self.taken: list[Used] = []  # of processes, by `take`
        self.memory: dict[OwnerKey, float] = {}
        self.may_have_ended = False  # the last process of some owner
        self._used_now: list[Used] = []
        self._unwatched: list[Used] = []
        self._host_s: float | None = None
        self._host_before_s: float | None = None
        self._host_used = 0.0
        self._beyond = Remainder(most_owed_s(cpus))
        self._living: dict[OwnerKey, int] = {}  # processes of each owner when they were counted last
        self._left: dict[OwnerKey, int] = {}  # and how many ended since
        self._gone: list[ProcessFacts] = []
        self._ended_lately: dict[int, ProcessFacts] = {}
        self._forgettable: set[tuple[int, int | None]] = set()
        self._before: dict[int, int | None] = {}  # starts of processes that an agent before knew

    # Over a restart.

    def to_dict(self) -> dict[str, Any]:
        """Plain data: CPU seconds of the host and of every process, and when that was."""
        rows = [[pid, seen.start, seen.cpu_s] for pid, seen in self.alive.items()]
        return {"host_s": self._host_s, "processes": rows, "at_ns": self.last_ns}

    def go_on_from(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_dict` gave in this boot: the first reading then tells what was used since."""
        self._host_before_s = data.get("host_s")
        for pid, start, cpu_s in data.get("processes") or ():
            facts = self._add(ProcessFacts(int(pid), start), 0)
            self._before[int(pid)] = start
            # What its children had used was not written down.
            self.alive[int(pid)] = Seen(facts, start, float(cpu_s), float("nan"))
        if self.alive:
            self.first_ns = self.last_ns = int(data.get("at_ns") or 0)
            self._goes_on = True

    def stayed(self, pid: int) -> bool:
        """Whether a process was there before this agent, and is still."""
        return pid in self._before and pid in self.alive and self.alive[pid].start == self._before[pid]

    def unwatched(self) -> dict[OwnerKey, float]:
        """CPU seconds of each owner while no agent ran; those of processes that ended meanwhile are unattributed."""
        found = OwnedUse()
        for facts, used, _ in self._unwatched:
            found.add(self.owner(facts), used)
        if self._host_before_s is not None and self._host_s is not None:
            rest = self._host_s - self._host_before_s - sum(found.uses.values())
            if rest > self._beyond.most_owed:
                found.add(UNATTRIBUTED, rest)
        return found.uses

    # What the tables say.

    def feed(self, at_ns: int, rows: Sequence[TableRow]) -> None:
        """Rows of `use.processes`: new, changed and gone ones."""
        super().feed(at_ns, rows)
        if self.hidden:
            self.hidden.difference_update(row["pid"] for row in rows if row.get("gone") and row.get("start") is None)
        self.readings += 1
        if self.readings == 1:  # at the beginning every process has a past that is not ours
            self._unwatched = self._used_now if self.bridged_ns is not None else []
            self._used_now = []

    def _used(
        self, whose: Sequence[ProcessFacts], low_ns: int, at_ns: int, cpu_s: Sequence[float], cpus: Sequence[int]
    ) -> None:
        self._used_now += zip(whose, cpu_s, cpus, strict=True)

    def _used_by(self, use: CpuRecord) -> None:
        self._used_now.append((use.facts, use.cpu_s, use.cpu))

    def _ended(self, facts: ProcessFacts, at_ns: int) -> None:
        self._gone.append(facts)
        self._ended_lately[facts.pid] = facts

    def _is_owner(self, path: str) -> bool:
        return self._place(ProcessFacts(0, None, cgroup=path)).kind not in ("user", "process")

    def feed_host(self, busy_s: float) -> None:
        """`host.cpu_time`."""
        if self._host_s is not None and busy_s > self._host_s:
            self._host_used += busy_s - self._host_s
        self._host_s = busy_s

    # What is taken.

    def take(self) -> OwnedUse:
        """CPU seconds of each owner since the last time; what the host used beyond all of them is unattributed."""
        found = OwnedUse(self.packages)
        self.taken = _by_process(self._used_now)
        for facts, cpu_s, cpu in self.taken:
            owner = self.owner(facts)
            found.add(owner, cpu_s, cpu, None if owner is METER or owner is OTHER else facts.workload)
        beyond_s = self._beyond.take(self._host_used - sum(found.uses.values()))
        if beyond_s > 0:
            found.add(UNATTRIBUTED, beyond_s)
        for facts in self._gone:
            owner = self.owner(facts)
            left = self._left[owner] = self._left.get(owner, 0) + 1
            self.may_have_ended |= left >= self._living.get(owner, 0)
        self._used_now, self._gone, self._host_used = [], [], 0.0
        return found

    def owner(self, facts: ProcessFacts) -> OwnerKey:
        """Whose a process is."""
        if facts.meter:
            return METER
        return OTHER if facts.start is None and facts.pid in self.hidden else self._place(facts)

    def facts_of(self, pid: int) -> ProcessFacts | None:
        """A process that lives, or ended not long ago; None where nothing is known of it."""
        seen = self.alive.get(pid)
        return self._ended_lately.get(pid) if seen is None else seen.facts

    def owner_of_pid(self, pid: int) -> OwnerKey:
        """Whose a process is of which only the number is known."""
        facts = self.facts_of(pid)
        if facts is None:
            return OTHER if pid in self.hidden else UNATTRIBUTED
        return self.owner(facts)

    def count_memory(self) -> None:
        """Add up what living owners hold, into `memory`."""
        sizes: dict[OwnerKey, list[float]] = {}  # one look-up for each process: there are many
        for seen in self.alive.values():
            owner = self.owner(seen.facts)
            mine = sizes.get(owner)
            if mine is None:
                mine = sizes[owner] = []
            mine.append(seen.rss_bytes or 0.0)
        self.memory = {owner: sum(mine, 0.0) for owner, mine in sizes.items()}
        self._living = {owner: len(mine) for owner, mine in sizes.items()}
        self._left, self.may_have_ended = {}, False

    def tidy(self, pids: Collection[int] = ()) -> None:
        """Forget processes that ended, but those of `pids`; their exit records may come until the next time."""
        self._ended_lately = {pid: facts for pid, facts in self._ended_lately.items() if pid in pids}
        living = {(pid, seen.start) for pid, seen in self.alive.items()}
        for key in self._forgettable - living:
            self._known.pop(key, None)
        self._forgettable = self._known.keys() - living
        parents = {seen.facts.number for seen in self.alive.values()}
        self._exited = {key: facts for key, facts in self._exited.items() if key in parents}
        for path in self.cgroups.tidy():
            self._beyond_s.pop(path, None)


def _by_process(used: Sequence[Used]) -> list[Used]:
    """What each process used on each CPU in all: where several readings are taken at a time, few of them are new."""
    found: dict[tuple[int, int], Used] = {}
    for one in used:
        facts, cpu_s, cpu = one
        if cpu_s > 0:
            key = (facts.number, cpu)
            there = found.get(key)
            found[key] = one if there is None else (facts, there[1] + cpu_s, cpu)
    return list(found.values())


@dataclass(slots=True)
class GpuTime:
    """Weights of processes on a GPU times seconds, how long each held it, and how long that is in all.

    `busy_s` is how long they kept it busy, NaN where that is not known.
    """

    seconds: float = 0.0
    used: dict[int, float] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)
    busy_s: float = 0.0

    @classmethod
    def of(cls, tenants: Sequence[Tenant]) -> GpuTime:
        """One second with these tenants."""
        time = cls()
        time.add(1.0, tenants)
        return time

    def add(self, seconds: float, tenants: Sequence[Tenant]) -> str:
        """Some time with these tenants; gives how their energy is shared."""
        self.seconds += seconds
        self.busy_s += busy_share(tenants) * seconds
        parts, method = active_weights(tenants)
        for tenant in tenants:
            self.held[tenant.pid] = self.held.get(tenant.pid, 0.0) + seconds
        for tenant, part in zip(tenants, parts, strict=False):  # no parts where all of them only hold it
            self.used[tenant.pid] = self.used.get(tenant.pid, 0.0) + part * seconds
        return method

    def by_owner(self, owner_of: Callable[[int], OwnerKey]) -> tuple[dict[OwnerKey, float], dict[OwnerKey, float]]:
        """How the active energy of that time is shared, and who held the GPU: means over the time."""
        return self._means(self.used.items(), owner_of), self._means(self.held.items(), owner_of)

    def _means(
        self, amounts: Iterable[tuple[int, float]], owner_of: Callable[[int], OwnerKey]
    ) -> dict[OwnerKey, float]:
        found: dict[OwnerKey, float] = {}
        for pid, amount in amounts:
            owner = owner_of(pid)
            found[owner] = found.get(owner, 0.0) + amount / self.seconds
        return found


class GpuOwnerUse:
    """Who used which GPU since it was asked last, by rows of `nvml.processes` and the like."""

    def __init__(self, period_s: float = 1.0) -> None:
        self.method = "sm time"  # by which energy was shared last
        self._period_ns = int(period_s * NS)
        self._table = GpuTable(period_s)
        self._times: dict[int, GpuTime] = {}
        self._read: dict[str, tuple[int, set[int]]] = {}  # when each driver's table was read last, and its GPUs
        self._before: dict[int, dict[int, float]] = {}  # what an agent before this one wrote down

    def to_dict(self) -> dict[str, Any]:
        """Plain data: who is on each GPU now, and how they share it."""
        times = ((gpu, GpuTime.of(self._table.now(gpu))) for gpu in self._table.gpus())
        return {str(gpu): [*(time.used or time.held).items()] for gpu, time in times}

    def go_on_from(self, data: Mapping[str, Any]) -> None:
        """What `to_dict` gave in this boot."""
        self._before = {int(gpu): {int(pid): float(part) for pid, part in rows} for gpu, rows in data.items()}

    def unwatched(self, gpu: int, stayed: Callable[[int], bool]) -> dict[int, float]:
        """Shares in a GPU of processes that were on it before this agent and stayed.

        If no process is known to have been on it, of those that are on it now: they may have come before the kill.
        """
        now = GpuTime.of(self._table.now(gpu))
        before = self._before.get(gpu)
        if not before:
            return now.used or now.held
        return {pid: part for pid, part in before.items() if pid in now.held and stayed(pid)}

    def feed(self, at_ns: int, rows: Sequence[TableRow], table_name: str = "") -> None:
        """What one reading of a table said: new, changed and gone tenants of the time since the reading before."""
        before_ns, gpus = self._read.get(table_name, (at_ns - self._period_ns, set[int]()))
        stretches = list(self._table.feed(at_ns, rows, before_ns))
        reported = {stretch[0] for stretch in stretches}
        for gpu in gpus - reported:
            stretches += self._table.go_on(gpu, at_ns)
        self._read[table_name] = at_ns, gpus | reported
        for gpu, start_ns, end_ns, tenants in stretches:
            time = self._times.get(gpu)
            if time is None or time.seconds > LONGEST_S:
                time = self._times[gpu] = GpuTime()
            self.method = time.add((end_ns - start_ns) / NS, tenants) or self.method

    def take(self, gpu: int) -> GpuTime:
        """The use of a GPU since the last time; as of now where it has not been read since."""
        return self._times.pop(gpu, None) or GpuTime.of(self._table.now(gpu))

    def pids(self) -> set[int]:
        return self._table.pids()
