"""CPU time and memory by owner, from the tables that the recorder reads: processes, cgroups, processes on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everywatt.core.clocks import NS
from everywatt.ledger.counters import METER, OTHER, UNATTRIBUTED, OwnerKey
from everywatt.ledger.use.tenants import BUSY_SM, Tenant, TenantTable, weights

LONGEST_S = 60.0  # use of a GPU whose energy is not shared is forgotten after this
MOST_OWED_S = 0.3  # the host's clock ticks every 10 ms on each CPU


@dataclass(slots=True)
class Process:
    """A living process as it was told last."""

    pid: int
    start: int | None
    ppid: int
    name: str
    cpu_s: float = 0.0
    children_s: float = 0.0
    rss_bytes: float = 0.0
    uid: int | None = None
    user: str | None = None
    cgroup: str | None = None
    meter: bool = False
    hidden: bool = False
    cpu: int = -1  # that it ran on last; -1 where it has several threads, or that is not known


Placer = Callable[[Process], OwnerKey]


class CpuBook:
    """What each owner used of the CPUs since it was asked last; and what it holds of the memory.

    `place` tells whose a process is. It is asked when use is taken: names may come later in the same reading.
    """

    def __init__(self, place: Placer) -> None:
        self._place = place
        self.packages: list[int] = []  # of each CPU, where there are several
        self._taken: dict[OwnerKey, float] = {}
        self._pinned: dict[int, dict[OwnerKey, float]] = {}
        self.processes: dict[int, Process] = {}
        self._used: dict[int, float] = {}
        self._gone: list[tuple[Process, float]] = []
        self._extra: dict[int, float] = {}
        self._cgroups: dict[str, float] = {}
        self._cgroup_used: dict[str, float] = {}
        self._host_s: float | None = None
        self._host_used = 0.0
        self._owed_s = 0.0
        self._started = self._exits = False
        self.readings = 0
        self.at_ns = 0
        self.memory: dict[OwnerKey, float] = {}
        self._living: dict[OwnerKey, int] = {}  # processes of each owner when they were counted last
        self._left: dict[OwnerKey, int] = {}  # and how many ended since
        self.may_have_ended = False  # the last process of some owner
        self._before: dict[tuple[int, int | None], float] = {}  # CPU seconds of processes as an agent before left them
        self._host_before_s: float | None = None
        self._unwatched: dict[int, float] = {}  # what processes used since then, until they were read first

    # Over a restart.

    def to_dict(self) -> dict[str, Any]:
        """Plain data: CPU seconds of the host and of every process."""
        rows = [[process.pid, process.start, process.cpu_s] for process in self.processes.values()]
        return {"host_s": self._host_s, "processes": rows}

    def go_on_from(self, data: Mapping[str, Any]) -> None:
        """Know what `to_dict` gave in this boot, so that `take_unwatched` can tell what was used since."""
        self._host_before_s = data.get("host_s")
        self._before = {(int(pid), start): float(cpu_s) for pid, start, cpu_s in data.get("processes") or ()}

    def take_unwatched(self) -> dict[OwnerKey, float]:
        """CPU seconds of each owner while no agent ran; those of processes that ended meanwhile are unattributed."""
        uses: dict[OwnerKey, float] = {}
        for pid, used in self._unwatched.items():
            if pid in self.processes:
                owner = self.owner(self.processes[pid])
                uses[owner] = uses.get(owner, 0.0) + used
        if self._host_before_s is not None and self._host_s is not None:
            rest = self._host_s - self._host_before_s - sum(uses.values())
            if rest > MOST_OWED_S:
                uses[UNATTRIBUTED] = uses.get(UNATTRIBUTED, 0.0) + rest
        return uses

    # What the tables say.

    def feed_processes(self, at_ns: int, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of `use.processes`: new, changed and gone ones."""
        first = not self._started
        self._started = True
        self.readings += 1
        self.at_ns = at_ns
        ended: dict[int, float] = {}
        parents: dict[int, float] = {}
        for row in rows:
            if row.get("pid") == 0:
                self._exits = bool(row.get("exits", self._exits))
                continue
            self._row(row, first, ended, parents)
        if not self._exits:
            for pid, grown_s in parents.items():
                more = grown_s - ended.get(pid, 0.0)
                if more > 0:
                    self._extra[pid] = self._extra.get(pid, 0.0) + more

    def _row(self, row: dict[str, Any], first: bool, ended: dict[int, float], parents: dict[int, float]) -> None:
        pid, start = int(row["pid"]), row.get("start")
        process = self.processes.get(pid)
        if process is not None and start is not None and process.start is not None and start != process.start:
            self._leave(process, ended)
            process = None
        if process is None:
            if row.get("gone") and not row.get("exit"):
                return
            process = Process(pid, start, int(row.get("ppid") or 0), str(row.get("name") or f"pid {pid}"))
            process.hidden = bool(row.get("hidden"))
            self.processes[pid] = process
            # At the beginning everybody has a past that is not ours; later a new one began since the last reading.
            if first and not row.get("exit"):
                process.cpu_s = float(row.get("cpu_s") or 0.0)
                process.children_s = float(row.get("children_cpu_s") or 0.0)
                if self._before:
                    self._unwatched[pid] = max(process.cpu_s - self._before.get((pid, start), 0.0), 0.0)
        self._update(process, row, parents)
        if row.get("gone"):
            self._leave(process, ended)

    def _update(self, process: Process, row: dict[str, Any], parents: dict[int, float]) -> None:
        for key in ("uid", "user", "cgroup"):
            if key in row:
                setattr(process, key, row[key])
        process.meter = bool(row.get("meter", process.meter))
        process.name = str(row.get("name") or process.name)
        process.cpu = int(row.get("cpu", -1)) if (row.get("threads") or 1) == 1 else -1
        process.ppid = int(row.get("ppid") or process.ppid)
        if row.get("rss_bytes") is not None:
            process.rss_bytes = float(row["rss_bytes"])
        cpu_s = row.get("cpu_s")
        if cpu_s is not None and cpu_s > process.cpu_s:
            self._used[process.pid] = self._used.get(process.pid, 0.0) + cpu_s - process.cpu_s
            process.cpu_s = float(cpu_s)
        children_s = row.get("children_cpu_s")
        if children_s is not None and children_s > process.children_s:
            parents[process.pid] = parents.get(process.pid, 0.0) + children_s - process.children_s
            process.children_s = float(children_s)

    def _leave(self, process: Process, ended: dict[int, float]) -> None:
        ended[process.ppid] = ended.get(process.ppid, 0.0) + process.cpu_s + process.children_s
        self._gone.append((process, self._used.pop(process.pid, 0.0) + self._extra.pop(process.pid, 0.0)))
        del self.processes[process.pid]

    def feed_cgroups(self, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of `use.cgroups`: what whole groups used, those included that came and went in them."""
        for row in rows:
            path = str(row.get("cgroup"))
            if row.get("gone"):
                self._cgroups.pop(path, None)
                continue
            cpu_s = row.get("cpu_s")
            if cpu_s is None or row.get("made") or path == "/":
                continue
            before = self._cgroups.get(path)
            self._cgroups[path] = cpu_s
            if before is not None and cpu_s > before:
                self._cgroup_used[path] = self._cgroup_used.get(path, 0.0) + cpu_s - before

    def feed_host(self, busy_s: float) -> None:
        """`host.cpu_time`."""
        if self._host_s is not None and busy_s > self._host_s:
            self._host_used += busy_s - self._host_s
        self._host_s = busy_s

    # What is taken.

    def take(self) -> dict[OwnerKey, float]:
        """CPU seconds of each owner since the last time; what the host used beyond all of them is unattributed."""
        uses: dict[OwnerKey, float] = {}
        by_cgroup: dict[str, float] = {}
        whose: dict[str, OwnerKey] = {}
        self._pinned = {}
        spent = [(self.processes[pid], used) for pid, used in self._used.items()]
        spent += [(self.processes[pid], used) for pid, used in self._extra.items() if pid in self.processes]
        for process, used in (*spent, *self._gone):
            if used <= 0:
                continue
            owner = self.owner(process)
            uses[owner] = uses.get(owner, 0.0) + used
            if 0 <= process.cpu < len(self.packages):
                there = self._pinned.setdefault(self.packages[process.cpu], {})
                there[owner] = there.get(owner, 0.0) + used
            if process.cgroup:
                by_cgroup[process.cgroup] = by_cgroup.get(process.cgroup, 0.0) + used
                whose[process.cgroup] = owner
        self._add_unseen(uses, by_cgroup, whose)
        known = sum(uses.values())
        self._owed_s = max(self._owed_s + self._host_used - known, -MOST_OWED_S)
        if self._owed_s > 0:
            uses[UNATTRIBUTED] = uses.get(UNATTRIBUTED, 0.0) + self._owed_s
            self._owed_s = 0.0
        for process, _ in self._gone:
            owner = self.owner(process)
            left = self._left[owner] = self._left.get(owner, 0) + 1
            self.may_have_ended |= left >= self._living.get(owner, 0)
        self._used, self._extra, self._gone = {}, {}, []
        self._cgroup_used, self._host_used = {}, 0.0
        self._taken = uses
        return uses

    def on(self, package: int) -> dict[OwnerKey, float] | None:
        """What of the use that was taken last was on one package; None where that is not told.

        By the CPU that a process of one thread ran on, else by how many CPUs the package has: the rule of the ledger.
        """
        if package not in self.packages:
            return None
        share = self.packages.count(package) / len(self.packages)
        here = self._pinned.get(package, {})
        known = {owner: sum(there.get(owner, 0.0) for there in self._pinned.values()) for owner in self._taken}
        return {
            owner: here.get(owner, 0.0) + max(used - known[owner], 0.0) * share for owner, used in self._taken.items()
        }

    def owner(self, process: Process) -> OwnerKey:
        """Whose a process is."""
        if process.meter:
            return METER
        return OTHER if process.hidden else self._place(process)

    def _add_unseen(self, uses: dict[OwnerKey, float], seen: dict[str, float], whose: dict[str, OwnerKey]) -> None:
        """What groups used beyond their processes that were seen: those that came and went. Inner groups first."""
        for path in sorted(self._cgroup_used, key=lambda path: -path.count("/")):
            inside = sum(used for other, used in seen.items() if other == path or other.startswith(path + "/"))
            more = self._cgroup_used[path] - inside
            if more <= 1e-3:
                continue
            owner = whose.get(path) or self._place(Process(0, None, 0, "", cgroup=path))
            if owner.kind in ("user", "process"):  # a group of nobody in particular
                continue
            uses[owner] = uses.get(owner, 0.0) + more
            seen[path] = seen.get(path, 0.0) + more

    def count_memory(self) -> None:
        """Add up what living owners hold, into `memory`."""
        memory: dict[OwnerKey, float] = {}
        living: dict[OwnerKey, int] = {}
        for process in self.processes.values():
            owner = self.owner(process)
            memory[owner] = memory.get(owner, 0.0) + process.rss_bytes
            living[owner] = living.get(owner, 0) + 1
        self.memory, self._living, self._left, self.may_have_ended = memory, living, {}, False


@dataclass(slots=True)
class _GpuTime:
    """Weights of processes on a GPU times seconds, how long each held it, and how long that is in all."""

    seconds: float = 0.0
    used: dict[int, float] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)

    def add(self, seconds: float, tenants: Sequence[Tenant]) -> str:
        """Some time with these tenants; gives how their energy is shared."""
        self.seconds += seconds
        parts, method = weights(tenants)
        busy = method != "sm time" or sum(parts) >= BUSY_SM
        for tenant, part in zip(tenants, parts, strict=True):
            self.held[tenant.pid] = self.held.get(tenant.pid, 0.0) + seconds
            if busy:
                self.used[tenant.pid] = self.used.get(tenant.pid, 0.0) + part * seconds
        return method


class GpuBook:
    """Who used which GPU since it was asked last, by rows of `nvml.processes`."""

    def __init__(self) -> None:
        self._tables: dict[int, TenantTable] = {}
        self._times: dict[int, _GpuTime] = {}
        self.method = "sm time"  # by which energy was shared last
        self._owners: dict[int, OwnerKey] = {}  # of processes that were known once: some end before they are charged
        self._read: dict[str, tuple[int, set[int]]] = {}  # when each driver's table was read last, and its GPUs

    def feed(self, at_ns: int, rows: Sequence[dict[str, Any]], table_name: str = "") -> None:
        """What one reading of a table said: new, changed and gone tenants of the time since the reading before."""
        before_ns, gpus = self._read.get(table_name, (at_ns - NS, set[int]()))
        seconds = (at_ns - before_ns) / NS
        changed: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            if row.get("gpu") is not None:
                changed.setdefault(int(row["gpu"]), []).append(row)
        self._read[table_name] = at_ns, gpus | changed.keys()
        for gpu in gpus | changed.keys():
            table = self._tables.setdefault(gpu, TenantTable())
            tenants = table.update(changed[gpu]) if gpu in changed else table.now
            time = self._times.get(gpu)
            if time is None or time.seconds > LONGEST_S:
                time = self._times[gpu] = _GpuTime()
            self.method = time.add(seconds, tenants) or self.method

    def take(
        self, gpu: int, owner_of: Callable[[int], OwnerKey]
    ) -> tuple[dict[OwnerKey, float], dict[OwnerKey, float]]:
        """How the active energy of a GPU since the last time is shared, and who held it: means over that time."""
        time = self._times.pop(gpu, None)
        if time is None:
            time = _GpuTime()
            time.add(1.0, self._tables[gpu].now if gpu in self._tables else ())
        return self._by_owner(time.used, time.seconds, owner_of), self._by_owner(time.held, time.seconds, owner_of)

    def _by_owner(
        self, amounts: Mapping[int, float], seconds: float, owner_of: Callable[[int], OwnerKey]
    ) -> dict[OwnerKey, float]:
        found: dict[OwnerKey, float] = {}
        for pid, amount in amounts.items():
            owner = owner_of(pid)
            if owner == UNATTRIBUTED:
                owner = self._owners.get(pid, owner)
            else:
                self._owners[pid] = owner
            found[owner] = found.get(owner, 0.0) + amount / seconds
        return found

    def tidy(self) -> None:
        """Forget the owners of processes that are on no GPU any more."""
        there = {tenant.pid for table in self._tables.values() for tenant in table.now}
        self._owners = {pid: owner for pid, owner in self._owners.items() if pid in there}
