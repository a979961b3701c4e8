"""The agent's ledger: microjoules by owner and device, that add up to each device's counter, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from everywatt.core.cgroup_names import Place, PlaceKind, places
from everywatt.core.clocks import NS
from everywatt.fleet.jobs import Job, JobProvider, user_name
from everywatt.fleet.share import NOBODY, REST, SPECIAL, Owner
from everywatt.fleet.use import Process

FORGET_NS = 3600 * NS  # an owner that is gone is told for so long, then it is part of the rest
MOST_OWNERS = 500


class Places:
    """Whose a process is: its job, else its container or unit, else its user (or its program)."""

    def __init__(self, providers: Sequence[JobProvider], *, by_program: bool = False) -> None:
        self._providers = providers
        self.by_program = by_program
        self._names: dict[str, Mapping[str, Any]] = {}
        self._by_process = any(getattr(provider, "by_process", False) for provider in providers)
        self._jobs: dict[tuple[str | None, int | None, int, int | None], Job | None] = {}
        self._groups: dict[str, Owner | None] = {}
        self._places: dict[str, Mapping[PlaceKind, Place]] = {}
        self._users: dict[int, str] = {}
        self.jobs: dict[str, Job] = {}

    def feed_cgroups(self, rows: Iterable[dict[str, Any]]) -> None:
        """Names that files on the host give to cgroups; what is gone is forgotten."""
        for row in rows:
            path = str(row.get("cgroup"))
            if isinstance(row.get("name"), Mapping):
                self._names[path] = {**self._names.get(path, {}), **row["name"]}
                self._forget(path)
            elif row.get("gone"):
                self._names.pop(path, None)
                self._forget(path)

    def _forget(self, path: str) -> None:
        self._groups.pop(path, None)
        for key in [key for key in self._jobs if key[0] == path]:
            del self._jobs[key]

    def refresh(self, now_ns: int) -> None:
        """Let providers look around."""
        if any([provider.refresh(now_ns) for provider in self._providers]):  # noqa: C419 - each of them is to be asked
            self._jobs.clear()
        if len(self._jobs) > 8 * MOST_OWNERS:
            self._jobs.clear()
            self._groups.clear()
            self._users.clear()
            self._places.clear()

    def owner(self, process: Process) -> Owner:
        """The one owner of a process that is not the meter."""
        job = self._job(process)
        if job is not None:
            self.jobs[job.id] = job
            return Owner("job", job.id)
        group = self._group(process.cgroup) if process.cgroup else None
        if group is not None:
            return group
        if self.by_program:
            return Owner("process", process.name)
        return Owner("user", self._user(process))

    def _user(self, process: Process) -> str:
        """The user's name; processes that came and went are told with a number only."""
        if process.uid is None:
            return str(process.user or "unknown")
        if process.user:
            self._users[process.uid] = process.user
        if process.uid not in self._users:
            self._users[process.uid] = user_name(process.uid)
        return self._users[process.uid]

    def _job(self, process: Process) -> Job | None:
        apart = self._by_process and PlaceKind.JOB not in self._within(process.cgroup)
        key = (process.cgroup, process.uid, process.pid if apart else 0, process.start if apart else None)
        if key not in self._jobs:
            told = self._names.get(process.cgroup or "", {}).get("job_id")
            # A process that came and went between two reads is found no more: its parent is.
            pids = (process.pid, process.ppid) if apart else (process.pid,)
            found = (
                one for pid in pids for p in self._providers if (one := p.job_of(process.cgroup, pid, process.uid))
            )
            job = next(found, None)
            if job is not None and told is not None:
                job = Job(str(told), job.user, job.account, job.partition)
            self._jobs[key] = job
        return self._jobs[key]

    def _within(self, cgroup: str | None) -> Mapping[PlaceKind, Place]:
        if cgroup is None:
            return {}
        if cgroup not in self._places:
            self._places[cgroup] = places(cgroup)
        return self._places[cgroup]

    def _group(self, cgroup: str) -> Owner | None:
        if cgroup not in self._groups:
            within = self._within(cgroup)
            found = within.get(PlaceKind.CONTAINER)
            if found is not None:
                self._groups[cgroup] = Owner("container", self._label(found.label, self._names.get(cgroup, {})))
            else:
                unit = within.get(PlaceKind.UNIT)
                self._groups[cgroup] = None if unit is None else Owner("container", unit.id.removeprefix("unit:"))
        return self._groups[cgroup]

    @staticmethod
    def _label(label: str, told: Mapping[str, Any]) -> str:
        if told.get("pod"):
            return "/".join(str(told[key]) for key in ("namespace", "pod", "container") if told.get(key))
        return str(told.get("name") or label)


class Accounts:
    """Counters of owners. For every device they add up to what was charged in all."""

    def __init__(self, most: int = MOST_OWNERS) -> None:
        self.most = most
        self.uj: dict[Owner, dict[str, int]] = {}
        self.cpu_s: dict[Owner, float] = {}
        self._seen_ns: dict[Owner, int] = {}

    def charge(self, device: str, amounts: Mapping[Owner, int], now_ns: int) -> None:
        """Add microjoules of one device."""
        for owner, amount in amounts.items():
            if amount:
                mine = self.uj.setdefault(owner, {})
                mine[device] = mine.get(device, 0) + amount
                self._seen_ns[owner] = now_ns

    def used(self, uses: Mapping[Owner, float], now_ns: int) -> None:
        """Add CPU seconds."""
        for owner, seconds in uses.items():
            self.cpu_s[owner] = self.cpu_s.get(owner, 0.0) + seconds
            self._seen_ns[owner] = now_ns

    def device_uj(self, device: str) -> int:
        """All owners of a device together."""
        return sum(amounts.get(device, 0) for amounts in self.uj.values())

    def close_gap(self, device: str, counter_uj: int) -> None:
        """What a device has counted beyond its owners (a kill came between) is nobody's."""
        missing = counter_uj - self.device_uj(device)
        if missing > 0:
            mine = self.uj.setdefault(NOBODY, {})
            mine[device] = mine.get(device, 0) + missing

    def tidy(self, living: Iterable[Owner], now_ns: int) -> list[Owner]:
        """Owners that become part of the rest: long gone ones, and beyond the cap those that were last seen first."""
        alive = set(living)
        for owner in alive:
            self._seen_ns[owner] = now_ns
        known = {*self.uj, *self.cpu_s}
        ordinary = [owner for owner in known if owner not in SPECIAL]
        leaving = [owner for owner in ordinary if now_ns - self._seen_ns.setdefault(owner, now_ns) > FORGET_NS]
        over = len(ordinary) - len(leaving) - self.most
        if over > 0:
            gone = set(leaving)
            staying = [owner for owner in ordinary if owner not in gone]
            staying.sort(key=lambda owner: (owner in alive, sum(self.uj.get(owner, {}).values())))
            leaving += staying[:over]
        for owner in leaving:
            self._fold(owner)
        return leaving

    def _fold(self, owner: Owner) -> None:
        rest = self.uj.setdefault(REST, {})
        for device, amount in self.uj.pop(owner, {}).items():
            rest[device] = rest.get(device, 0) + amount
        self.cpu_s[REST] = self.cpu_s.get(REST, 0.0) + self.cpu_s.pop(owner, 0.0)
        self._seen_ns.pop(owner, None)

    def to_list(self) -> list[list[Any]]:
        """Plain data: kind, owner, CPU seconds, microjoules by device."""
        return [[*owner, self.cpu_s.get(owner, 0.0), self.uj.get(owner, {})] for owner in {*self.uj, *self.cpu_s}]

    def restore(self, rows: Iterable[Sequence[Any]], now_ns: int) -> None:
        """What `to_list` gave; of a counter that is known already the larger one holds."""
        for kind, name, cpu_s, amounts in rows:
            owner = Owner(str(kind), str(name))
            mine = self.uj.setdefault(owner, {})
            for device, amount in amounts.items():
                mine[device] = max(mine.get(device, 0), int(amount))
            self.cpu_s[owner] = max(self.cpu_s.get(owner, 0.0), float(cpu_s))
            self._seen_ns.setdefault(owner, now_ns)


OwnerOf = Callable[[int], Owner]
