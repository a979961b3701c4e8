"""Input of the agent: rows and tables of all sources become device counters, owners and states.

One `Watcher` listens to every source beside the tape. `settle` shares the energy that has arrived since the last
call. Published values change only then, so that owners and devices always agree on the time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everywatt.core.channels import Domain, Pedigree, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.format import format_duration, format_joules
from everywatt.core.stats import TO_95
from everywatt.fleet.device_counters import Line, Lines, States
from everywatt.fleet.jobs import Places
from everywatt.ledger.counters import UNATTRIBUTED, Counters, OwnerKey
from everywatt.ledger.engine import MODULE_REST, NO_HOLDERS, REST_DEVICE, UJ, Level
from everywatt.ledger.split.intervals import UNSURE, cpu_time_doubt
from everywatt.ledger.use.owner_use import GpuOwnerUse, GpuTime, OwnedUse, OwnerUse
from everywatt.recorder.source import Source
from everywatt.sensors.base import TableRow

if TYPE_CHECKING:
    from everywatt.fleet.llm_energy import LlmBook

WAIT_FOR_USE_NS = 3 * NS
LEVELS_NS = 60 * NS
YOUNG_NS = 2 * NS  # shortest time between two searches for levels or intervals
LEVELS_GROW = 4  # a young agent searches for levels again after a quarter of its age
INTERVALS_NS = 60 * NS  # they change slowly, and hold for windows of a minute or more
TIDY_NS = 10 * NS
MEMORY_NS = 5 * NS
SCRAPED_NS = 300 * NS  # a scrape that is longer ago is not waited for; Prometheus looks back as far
SETTLING_NS = NS // 10  # a scrape that came while values were being settled may have got those of before
PROCESSES, CGROUPS = "use.processes", "use.cgroups"


class _Package(NamedTuple):
    """A package of several, None for all CPUs; its CPUs, and its cores where its power saturates with them."""

    number: int | None
    cpus: int
    cores: float | None

    def cores_s(self, seconds: float) -> float | None:
        return None if self.cores is None else self.cores * seconds


NO_PACKAGE = _Package(None, 0, None)


class Watcher:
    """Listens to sources (`recorder.source.Listener`) and keeps the books."""

    def __init__(self, clock: Clock, period_ns: int, places: Places, counters: Counters) -> None:
        self.clock = clock
        self.period_ns = period_ns
        self.places, self.counters = places, counters
        self.lines = Lines()
        self.states = States()
        boot_offset_ns = clock.boottime_ns() - clock.monotonic_ns()
        self.cpu = OwnerUse(places.owner, period_ns / NS, boot_offset_ns, os.cpu_count() or 1)
        places.names = self.cpu.cgroups.names
        self.gpus = GpuOwnerUse(period_ns / NS)
        self.sources: list[Source] = []
        self.remarks: list[str] = []
        self.remark_count = 0
        self.started_ns = clock.monotonic_ns()
        self.settled_ns = self.started_ns
        self._read_ns: int | None = None  # when the processes were read that were settled last
        self._levels_ns = self._tidy_ns = self._memory_ns = self._intervals_ns = 0
        self.threads_per_core: int | None = None
        self._cpus = os.cpu_count() or 1
        self._shared_by: dict[str, _Package] = {}  # of each line, by its key
        self._scraped_ns: int | None = None
        self._host_mark: tuple[float, float] | None = None
        self.busy_share: float | None = None
        self.memory_totals: dict[str, float] = {}
        self.llm: LlmBook | None = None
        self.used_before: dict[OwnerKey, float] | None = None  # CPU seconds that an agent before had counted
        self._bridging = True  # whether counters may still report what they counted while no agent ran

    def listen(self, sources: Sequence[Source], known: dict[str, Level] | None = None) -> None:
        """Hear these from now on. `known` are idle levels from before the start, by device|domain."""
        self.sources = list(sources)
        groups = [(source.info, source.expected_s(self.period_ns)) for source in sources]
        self.lines = Lines.of([(info, expected) for info, expected in groups if not info.table])
        for info, expected in groups:
            self.states.add_group(info, expected)
        for line in self.lines.total():
            if line.idle is not None:
                line.idle.know((known or {}).get(line.key))
        for source in sources:
            source.listeners.append(self)

    # Listener.

    def rows(self, source: Source, rows: Sequence[Row]) -> None:
        name = source.info.name
        self.lines.feed(name, rows)
        self.states.feed(name, rows)

    def table(self, source: Source, at_ns: int, rows: Sequence[TableRow]) -> None:
        name = source.info.name
        if name == PROCESSES:
            self.cpu.feed(at_ns, rows)
        elif name == CGROUPS:
            self.cpu.feed_cgroups(rows)
            self.places.feed_cgroups(rows)
        elif source.info.lists_gpu_processes:
            self.gpus.feed(at_ns, rows, name)

    def gap(self, source: Source, start_ns: int, end_ns: int, kind: str) -> None:
        """The tape has it."""

    def remark(self, at_ns: int, kind: str, text: str, **data: Any) -> None:
        self.remark_count += 1
        self.remarks = [*self.remarks[-19:], text]

    def ticks(self, source: Source, late: int, missed: int) -> None:
        """The tape has them."""

    # Settling.

    def settle(self, now_ns: int, *, anyway: bool = False) -> bool:
        """Share what has come. False, and nothing changed, while the processes have not been read again."""
        reads_use = any(source.info.name == PROCESSES and source.outage is None for source in self.sources)
        # What processes used is known from their second reading on.
        fresh = self.cpu.last_ns != self._read_ns and self.cpu.readings > 1
        if reads_use and not fresh and not anyway and now_ns - self.settled_ns < WAIT_FOR_USE_NS:
            return False
        self._read_ns, self.settled_ns = self.cpu.last_ns, now_ns
        self.places.refresh(now_ns)
        self._host()
        if now_ns >= self._memory_ns or self.cpu.may_have_ended:
            self._memory_ns = now_ns + MEMORY_NS
            self._tidy_ns = now_ns if self.cpu.may_have_ended else self._tidy_ns
            self.cpu.count_memory()
        use = self.cpu.take() if reads_use else OwnedUse()
        self.counters.used(use.uses, now_ns)
        if self.llm is not None:
            self.llm.take_uses(self.cpu, use)
        for line in self.lines.all:
            self._settle_line(line, use, now_ns)
        self._settle_modules(now_ns)
        if self.llm is not None:
            self.llm.join(now_ns, self.doubt)
        if now_ns >= self._levels_ns:
            age_ns = now_ns - self.started_ns
            self._levels_ns = now_ns + min(max(age_ns // LEVELS_GROW, YOUNG_NS), LEVELS_NS)
            for line in self.lines.total():
                line.level = line.idle.level() if line.idle is not None else None
        if now_ns >= self._intervals_ns:
            self._intervals_ns = now_ns + min(max(now_ns - self.started_ns, YOUNG_NS), INTERVALS_NS)
            for line in self.lines.all:
                self._find_intervals(line, now_ns)
        if now_ns >= self._tidy_ns:
            self._tidy_ns = now_ns + TIDY_NS
            self.cpu.tidy(self.gpus.pids())
            self.places.tidy([seen.facts for seen in self.cpu.alive.values()])
            self.counters.tidy(self.cpu.memory, now_ns, self._final_ns(now_ns))
            living = {owner.id for owner in (*self.counters.uj, *self.cpu.memory) if owner.kind == "job"}
            self.places.jobs = {id_: job for id_, job in self.places.jobs.items() if id_ in living}
        return True

    def _final_ns(self, now_ns: int) -> int:
        """Owners that ended and were charged last before this instant are not exported any longer.

        That is one interval after their end; where the series are scraped, after the next scrape, which gets their
        final values.
        """
        if self._scraped_ns is None or now_ns - self._scraped_ns > SCRAPED_NS:
            return now_ns
        return min(now_ns, self._scraped_ns - SETTLING_NS)

    def scraped(self) -> None:
        """All series were read."""
        self._scraped_ns = self.clock.monotonic_ns()
        self._tidy_ns = 0

    def _settle_line(self, line: Line, use: OwnedUse, now_ns: int) -> None:
        whole_uj, seconds = line.settle()
        if not line.in_total or not whole_uj:
            return
        uses: Mapping[OwnerKey, float]
        holders: Mapping[OwnerKey, float] = NO_HOLDERS
        busy = self.busy_share
        gpu_time, on = None, NO_PACKAGE
        if line.kind == "gpu":
            gpu_time = GpuTime() if line.number is None else self.gpus.take(line.number)
            uses, holders = gpu_time.by_owner(self.cpu.owner_of_pid)
            state = self.states.value(f"{line.channel.device}.utilisation", now_ns)
            busy = None if state is None else state[0] / 100
            if busy is None:
                busy = gpu_time.busy_s / gpu_time.seconds if gpu_time.seconds else 0.0
        else:
            on = self._package(line)
            uses = use.on(on.number, on.cores_s(seconds))
            if on.number is not None or busy is None:
                busy = min(sum(uses.values()) / (seconds * on.cpus), 1.0) if seconds > 0 and uses else None
        if line.idle is not None:
            line.idle.add(whole_uj / UJ, seconds, busy, bool(holders), line.half_ns / NS)
            if line.level is None:
                line.level = line.idle.level()
        self.counters.add(line.device, whole_uj, seconds, line.level, uses, holders, now_ns=now_ns)
        if self.llm is not None:
            self.llm.add(line, whole_uj / UJ, seconds, gpu_time, on.number, on.cores_s(seconds))

    def _settle_modules(self, now_ns: int) -> None:
        """Count what modules drew beside their chips; it has no owner. Ticks differ, so only certain energy counts."""
        if not self.lines.modules:
            return
        chips_uj = sum(line.settled_uj for line in self.lines.total() if not line.channel.in_slot)
        rest_uj = sum(line.settled_uj for line in self.lines.modules) - chips_uj - self.counters.device_uj(REST_DEVICE)
        if rest_uj > 0:
            self.counters.charge(REST_DEVICE, {UNATTRIBUTED: rest_uj}, now_ns, reason=MODULE_REST)

    def charge_unwatched(self, now_ns: int) -> list[str]:
        """Charge what counters counted while no agent ran: to idle, and above that by CPU time. Returns what to report.

        A GPU's by who was on it before and after. When in that time power was drawn and CPU time used is not known: the
        intervals are as wide as they can be.
        """
        said: list[str] = []
        if not self._bridging:
            return said
        if self.used_before is not None and self.cpu.readings:
            unwatched, before, self.used_before = self.cpu.unwatched(), self.used_before, None
            total_s = {owner: before.get(owner, 0.0) + used_s for owner, used_s in unwatched.items()}
            self.counters.used({o: max(s - self.counters.cpu_s.get(o, 0.0), 0.0) for o, s in total_s.items()}, now_ns)
        for line in self.lines.all:
            fresh_uj, seconds = line.settle_gap()
            if not fresh_uj or not line.in_total:  # part of another counter, which reports and charges it
                continue
            joules, length = format_joules(fresh_uj / UJ), format_duration(seconds)
            said.append(f"{line.device}: {joules} were counted in {length} while the agent was not running")
            level = line.idle.level() if line.idle is not None else None
            uses = self._unwatched_gpu(line) if line.kind == "gpu" else self.cpu.unwatched()
            self.counters.bridge(line.device, fresh_uj, seconds, level, uses, now_ns)
        self._bridging = self.used_before is not None or any(line.resumed_ns for line in self.lines.all)
        return said

    def _unwatched_gpu(self, line: Line) -> dict[OwnerKey, float]:
        """Shares of those that were on a GPU before and after."""
        parts = {} if line.number is None else self.gpus.unwatched(line.number, self.cpu.stayed)
        return GpuTime(1.0, parts).by_owner(self.cpu.owner_of_pid)[0]

    def _find_intervals(self, line: Line, now_ns: int) -> None:
        """How far the owners of a device may be off, and the interval that a model reports for its own watts."""
        if line.channel.pedigree is Pedigree.MODELLED:
            sensor = line.channel.name.partition(".")[0]
            low, high = (self.states.value(f"{sensor}.{side}", now_ns) for side in ("low", "high"))
            if line.power_w and low is not None and high is not None:
                below, above = 1 - low[0] / line.power_w, high[0] / line.power_w - 1
                line.widths = min(max(TO_95 * below, 0.0), 1.0), max(TO_95 * above, 0.0)
        if not line.in_total:
            return
        self.counters.find_intervals(line.device, line.budget, line.level, *self.doubt(line))

    def doubt(self, line: Line) -> tuple[float, int | None]:
        """By how much a unit of use may differ in cost between owners, and of how many CPUs where power saturates."""
        if line.kind == "gpu":
            return UNSURE[self.gpus.method], None
        unsure, saturates = self._cpu_doubt(line)
        return unsure, self._package(line).cpus if saturates else None

    def _cpu_doubt(self, line: Line) -> tuple[float, bool]:
        packages = sum(one.channel.domain is Domain.PACKAGE for one in self.lines.total())
        known = line.channel.domain is Domain.PACKAGE and line.number in self.cpu.packages
        return cpu_time_doubt(line.channel, packages > 1 and not known, self.threads_per_core)

    def _package(self, line: Line) -> _Package:
        """The CPUs that a device is, or whose use its joules are shared by; the same as long as the agent runs."""
        found = self._shared_by.get(line.key)
        if found is None:
            found = self._shared_by[line.key] = self._find_package(line)
        return found

    def _find_package(self, line: Line) -> _Package:
        number = line.number if line.channel.domain is Domain.PACKAGE else None
        number = number if number in self.cpu.packages else None
        cpus = self.cpu.packages.count(number) if number is not None else self._cpus
        threads = self.threads_per_core if self._cpu_doubt(line)[1] else None
        return _Package(number, cpus, cpus / threads if threads else None)

    def _host(self) -> None:
        """How busy all CPUs were since the last time, and the host's CPU time for the book."""
        busy, idle = self.states.values.get("host.cpu_time"), self.states.values.get("host.idle_time")
        if busy is None or idle is None:
            return
        self.cpu.feed_host(busy[0])
        if self._host_mark is not None:
            worked, rested = busy[0] - self._host_mark[0], idle[0] - self._host_mark[1]
            if worked >= 0 and worked + rested > 0:
                self.busy_share = worked / (worked + rested)
        self._host_mark = (busy[0], idle[0])

    def levels(self) -> dict[str, list[Any]]:
        """Idle levels by device|domain, for the state file."""
        return {
            line.key: [level.idle_w, level.held_w, level.method, level.noise_w, level.spread_w]
            for line in self.lines.total()
            if (level := line.level) is not None
        }
