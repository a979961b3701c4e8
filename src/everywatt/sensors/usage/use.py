"""What is used: the host's CPU time and memory, the followed process trees, their cgroups. No power of its own.

`use.processes` has rows {"pid", "start", "ppid", "name", "cpu_s", "children_cpu_s", "rss_bytes", "threads", "cpu"} of
processes that are new or changed, with "cmdline", "uid", "user" (of a local account) and "cgroup" when those are,
"zombie", "meter" (everywatt itself) and "reaper" (the process of `everywatt run`) where true. "pss_bytes" and
"uss_bytes" are there where they were asked for, None with "memory_why" where the kernel has none. {"pid", "start",
"gone": true} is the last row of a process. pid and start together name a process. One that /proc hides has {"pid",
"start": null, "hidden", "why"} and, where its clock can be read, "cpu_s".

The row of pid 0, {"pid": 0, "start": 0, "name": "host", "everything", "exits"}, says what holds from there on: whether
all processes of the machine are in the table, and whether the end of every process is reported with its total use:
{"pid", "start", "ppid", "name", "uid", "cpu_s", "exit": true, "gone": true}, start None for one that came and went
between two reads. Without that row both are false. Exits that are false for one read were lost in that interval.

`use.cgroups` has rows {"cgroup", "version", "cpu_s", "memory_bytes"}, None with a "why" where nothing is counted,
"cpus" where the group was given so many. The group that everywatt made for a command says "made": true; its members
are reported with the group that they were started in. {"cgroup", "name": {…}} says once what files on the host call it
(see `container_names`), since a container takes its name along.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from everywatt.core.channels import NAN, Cadence, Channel, Facts, GroupInfo, Kind, Row, fresh
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors import procfs
from everywatt.sensors.base import Group, Report, Request, State, TableGroup
from everywatt.sensors.usage import cgroups
from everywatt.sensors.usage.container_names import ContainerNames
from everywatt.sensors.usage.processes import Trees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everywatt.core.machine import Machine
    from everywatt.sensors.usage.activity import StateGroup
    from everywatt.sensors.usage.member import ProcessRow

KEPT_GROUPS = 128  # groups whose files stay open
_TICK_S = 1.0 / procfs.TICKS_PER_S
_TICK_FACTS = Facts(period_s=_TICK_S, quantum=_TICK_S)
_CHANNELS = (
    Channel("host.cpu_time", "s", Kind.COUNTER, "host", facts=_TICK_FACTS),
    Channel("host.idle_time", "s", Kind.COUNTER, "host", facts=_TICK_FACTS),
    Channel("host.steal_time", "s", Kind.COUNTER, "host", facts=_TICK_FACTS),
    Channel("host.memory", "B", Kind.GAUGE, "host", facts=Facts(window_s=0.0, quantum=1024.0)),
)


class HostUse:
    """CPU time and memory of the whole host: one `pread` of /proc/stat, one of /proc/meminfo.

    Once a second, as processes are: on a machine with many CPUs the kernel takes long to add up /proc/stat.

    `host.cpu_time` is busy seconds added over all CPUs, see `procfs.parse_host_times` for what counts.
    """

    def __init__(self, machine: Machine) -> None:
        label = "CPU time and memory of the host"
        self.info = GroupInfo("use.host", "use", "host", _CHANNELS, Cadence.SLOW, label=label)
        self._clock = machine.clock
        self._stat = procfs.KeptFile(machine.proc / "stat")
        try:
            self._meminfo: procfs.KeptFile | None = procfs.KeptFile(machine.proc / "meminfo")
        except OSError:
            self._meminfo = None

    def read(self) -> Sequence[Row]:
        """One row: busy, idle and stolen seconds, bytes in use."""
        age_ns = round(_TICK_S * NS)  # the kernel adds to these counters once a tick, so they may be that much behind
        try:
            times = procfs.parse_host_times(self._stat.read(512))
        except (OSError, ValueError) as error:
            raise SensorError(f"/proc/stat cannot be read: {error}") from error
        used = procfs.memory_used_bytes(procfs.parse_meminfo(self._memory_bytes()))
        return [fresh(self._clock.monotonic_ns(), (*times, NAN if used is None else used), age_ns)]

    def _memory_bytes(self) -> bytes:
        if self._meminfo is None:
            return b""
        try:
            # The wanted fields are in the first three lines, except on kernels before 3.14.
            data = self._meminfo.read(112)
            return data if b"MemAvailable:" in data else self._meminfo.read(512)
        except OSError:
            return b""

    def close(self) -> None:
        self._stat.close()
        if self._meminfo is not None:
            self._meminfo.close()


class ProcessUse(Trees):
    """The trees under the followed processes, as a table. The process that makes it is the meter."""

    def __init__(self, request: Request) -> None:
        label = "the followed processes and everywatt itself"
        self.info = GroupInfo("use.processes", "use", "host", (), Cadence.SLOW, table=True, label=label)
        self._clock = request.machine.clock
        below, beside = _below(request.machine)
        super().__init__(
            request.machine.proc,
            request.pids,
            meter=os.getpid(),
            reaper=request.reaper,
            everything=request.everything,
            below=below,
            beside=beside,
            memory=request.memory,
            exits=True,
        )

    def read_table(self) -> tuple[int, list[ProcessRow]]:
        rows = self.read()
        return self._clock.monotonic_ns(), rows


class CgroupUse:
    """CPU seconds and memory of the cgroups in which followed processes are, as of the last read of the processes."""

    def __init__(self, machine: Machine, trees: Trees) -> None:
        label = "cgroups of the followed processes"
        self.info = GroupInfo("use.cgroups", "use", "host", (), Cadence.SLOW, table=True, label=label)
        self._clock = machine.clock
        self._root = machine.sys / "fs" / "cgroup"
        self._trees = trees
        self._reported: dict[cgroups.Place, cgroups.CgroupUsage] = {}
        self._counted: dict[cgroups.Place, cgroups.Counted] = {}
        self._made: dict[str, float | None] = {}
        self._present: frozenset[cgroups.Place] = frozenset()
        self._order: list[cgroups.Place] = []
        self._names = ContainerNames(machine.proc.parent, machine.proc, self._root)

    def read_table(self) -> tuple[int, list[cgroups.CgroupRow]]:
        rows: list[cgroups.CgroupRow] = []
        for place in self._in_order():
            try:
                used = self._used(place)
            except FileNotFoundError:
                if self._reported.pop(place, None) is not None:
                    rows.append({"cgroup": place.path, "version": place.version, "gone": True})
                continue
            if self._reported.get(place) != used:
                self._reported[place] = used
                row = {"cgroup": place.path, "version": place.version, **used}
                rows.append(cast("cgroups.CgroupRow", row))
        for folder in list(self._made):
            rows += self._made_row(folder)
        rows += self._names.rows(place.path for place in self._reported)
        return self._clock.monotonic_ns(), rows

    def _in_order(self) -> list[cgroups.Place]:
        """Groups to read, by path. Most of the time they are those of the last read: comparing them costs little."""
        now = self._trees.places
        if now != self._present or self._reported.keys() - now:
            self._present = now
            places = now | self._reported.keys()
            self._order = sorted(places, key=lambda place: (place.path, str(place.cpu), str(place.memory)))
        return self._order

    def watch(self, folder: str) -> None:
        """Tell of the group that was made for a command, by its folder, from now on."""
        self._made.setdefault(folder, None)

    def _used(self, place: cgroups.Place) -> cgroups.CgroupUsage:
        counted = self._counted.get(place)
        kept = counted is not None
        if counted is None:
            counted = cgroups.Counted(self._root, place)
            kept = len(self._counted) < KEPT_GROUPS
            if kept:
                self._counted[place] = counted
        try:
            return counted.read()
        except FileNotFoundError:
            self._counted.pop(place, counted).close()
            raise
        finally:
            if not kept:
                counted.close()

    def _made_row(self, folder: str) -> list[cgroups.CgroupRow]:
        name: cgroups.CgroupRow = {"cgroup": folder, "version": 1 if "/cpuacct" in folder else 2, "made": True}
        try:
            cpu_s = cgroups.made_seconds(folder)
        except (OSError, ValueError):
            del self._made[folder]
            return [{**name, "gone": True}]
        if cpu_s == self._made[folder]:
            return []
        self._made[folder] = cpu_s
        return [{**name, "cpu_s": cpu_s, "memory_bytes": None}]

    def follow(self, pids: Sequence[int]) -> None:
        """Say everything again at the next read; which processes are followed is up to `use.processes`."""
        self._reported.clear()
        self._names.forget()
        self._made = dict.fromkeys(self._made)

    def close(self) -> None:
        for counted in self._counted.values():
            counted.close()
        self._counted.clear()


class Use:
    """Host, processes and cgroups. Needs no rights and gives no power."""

    name = "use"
    after: Sequence[str] = ()

    def __init__(self, request: Request) -> None:
        self._request = request

    def probe(self) -> Report:
        """Usable where /proc/stat gives the CPU time of the host."""
        machine = self._request.machine
        try:
            host = HostUse(machine)
        except OSError as error:
            return Report(self.name, State.ABSENT, why=f"{machine.proc}/stat: {error.strerror}", power=False)
        try:
            values = host.read()[0].values
        except SensorError as error:
            return Report(self.name, State.UNUSABLE, why=error.message, power=False)
        finally:
            host.close()
        samples = {
            channel.name: None if value != value else value for channel, value in zip(_CHANNELS, values, strict=True)
        }
        missing = {name: "/proc/meminfo does not report it" for name, value in samples.items() if value is None}
        for group in self._optional():
            samples |= group.sample()
            missing |= group.missing
        hidden = _hidepid(machine)
        if hidden:
            missing["processes of other users"] = f"/proc is mounted with hidepid={hidden}"
        return Report(self.name, State.USABLE, samples=samples, missing=missing, power=False)

    def groups(self) -> Sequence[Group | TableGroup]:
        """`use.host`, `use.processes` and `use.cgroups`; `use.activity` and `use.cpus` where settings ask for them."""
        machine, processes = self._request.machine, ProcessUse(self._request)
        groups: list[Group | TableGroup] = [HostUse(machine), processes, CgroupUse(machine, processes)]
        return groups + [group for group in self._optional() if group.info.channels]

    def _optional(self) -> list[StateGroup]:
        asked = self._request.options.get(self.name, {})
        if not (asked.get("features") or asked.get("cpus")):
            return []
        from everywatt.sensors.usage import activity  # here, since most recorders never need it

        machine, found = self._request.machine, []
        if asked.get("features"):
            found.append(activity.StateGroup(machine, activity.PARTS, "use.activity"))
        if asked.get("cpus"):
            found.append(activity.StateGroup(machine, activity.CPUS, "use.cpus", label="each CPU"))
        return found


def _below(machine: Machine) -> tuple[int | None, int | None]:
    """The process under which this simulated machine is, and the one of those that makes its power; None for none."""
    root, _, maker = machine.environ.get("EVERYWATT_BELOW", "").partition(",")
    return int(root) if root.isdecimal() else None, int(maker) if maker.isdecimal() else None


def _hidepid(machine: Machine) -> str | None:
    try:
        return procfs.hidepid(procfs.slurp(machine.proc / "mounts"))
    except OSError:
        return None
