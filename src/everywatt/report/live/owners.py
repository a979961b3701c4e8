"""Owners now: what a live view shows of who uses the devices.

`LedgerOwners` makes a whole ledger, with every check; that takes a tenth of a second on a machine with eight cards.
`RunningOwners` is for a screen: it feeds the joules that the view has counted already to the ledger's engine, over the
same idle levels. Those, and how far each owner may be off, are found again now and then. The refresh of DRAM is idle
there. Whether the listed processes still live is cheaper to find, and is looked up at each refresh.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from everywatt.core.budget import Budget
from everywatt.core.channels import Domain
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError
from everywatt.energy.sources import sources
from everywatt.energy.window import source_energies
from everywatt.ledger.counters import ANYTHING, Factors
from everywatt.ledger.engine import UJ, DeviceAccount
from everywatt.ledger.groups import Grouping
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import device_number, find_levels
from everywatt.ledger.owners import IDLE, UNATTRIBUTED, Owner, OwnerKind
from everywatt.ledger.split.intervals import UNSURE, account_budgets, cpu_time_doubt
from everywatt.ledger.split.split import CPU_TIME, SPECIAL, Roll, Uses, accumulate, cpu_use, gpu_share, packages_known
from everywatt.ledger.use.account import TapeUse, tape_use
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.usage import ProcessUse
from everywatt.report.live.snapshot import OwnerNow, Owners
from everywatt.sensors.procfs import cpu_clock, has_ended, sees_own_namespace, slurp, start_of
from everywatt.sensors.usage.cgroups import parse_place
from everywatt.tape.reader import Tape

if TYPE_CHECKING:
    from everywatt.api.run import Run
    from everywatt.ledger.owners import Entry
    from everywatt.report.live.gather import Line

Floats = npt.NDArray[np.float64]

SHORTEST_S = 1.9
LONGEST_S = 15.0
COST_SHARE = 0.001  # of one core: a view must not be what warms the machine
LEVELS_SHARE = 0.0005  # of one core, for finding idle levels again
LEVELS_MOST_S = 120.0
INTERVALS_S = 15.0
SILENT_NS = 5 * NS
MOST = 500  # owners of a device that are kept apart
ENDED = Owner(OwnerKind.OTHER, "ended", "ended or inactive")
NOT_YET = "too little time has passed"


class OwnersAsker(Protocol):
    """Gives the owners of the time up to now; the same again where that is too short."""

    def ask(self, run: Run, lines: Mapping[str, Line], start_ns: int, end_ns: int) -> Owners: ...

    def finish(self, tape: Tape, lines: Mapping[str, Line], end_ns: int) -> None:
        """Share out what a tape that is left, sealed by now, has of time that was not shared out yet."""
        ...


class LedgerOwners:
    """One ledger of all the time there is."""

    def __init__(self, by: str) -> None:
        self.by = "process" if by == "owner" else by

    def ask(self, run: Run, lines: Mapping[str, Line], start_ns: int, end_ns: int) -> Owners:
        """The ledger between two instants of the run's only tape."""
        run.tapes[0].refresh()
        origin_ns = run.tapes[0].extent_ns()[0]
        return self.of_run(run, ((start_ns - origin_ns) / NS, (end_ns - origin_ns) / NS))

    def of_run(self, run: Run, between: tuple[float, float] | None) -> Owners:
        """The ledger of the run itself, or between two times in seconds after the start of its recording."""
        duration_s = run.duration_s if between is None else between[1] - between[0]
        if duration_s <= 0:
            return Owners(self.by, refused=NOT_YET)
        try:
            ledger = run.ledger(self.by, between=between)
        except EverywattError as error:
            return Owners(self.by, refused=error.message)
        if ledger.total.joules is None:
            return Owners(self.by, refused=ledger.total.refused)
        duration_s *= ledger.total.coverage or 1.0  # a sensor that began late has joules of the rest only
        entries = sorted((_entry(entry, duration_s) for entry in ledger.entries), key=lambda entry: -entry.power_w)
        return Owners(self.by, tuple(entries), duration_s, ledger.unattributed_share)

    def finish(self, tape: Tape, lines: Mapping[str, Line], end_ns: int) -> None:
        """Nothing: every answer is about the whole tape."""


def _entry(entry: Entry, duration_s: float) -> OwnerNow:
    use, joules = entry.use, entry.microjoules / 1e6
    return OwnerNow(
        kind=entry.owner.kind.value,
        id=entry.owner.id,
        label=entry.owner.label,
        power_w=joules / duration_s,
        joules=joules,
        cpu_pct=None if "cpu_s" not in use else 100 * use["cpu_s"] / duration_s,
        gpu_pct=None if "gpu_s" not in use else 100 * use["gpu_s"] / duration_s,
        memory_bytes=use.get("rss_bytes"),
        method=entry.method,
        low=entry.energy.low,
        high=entry.energy.high,
    )


Started = tuple[int, int | None]  # pid and start of a process


class RunningOwners:
    """Owners of the stretch since the last answer, which ends where processes were read last.

    Those of which no process is left are put together with those that did nothing in that stretch. `proc` is where the
    processes of the tape can be looked up now; without it they live until the tape says that they ended.
    """

    def __init__(
        self,
        by: str,
        *,
        proc: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.by = "process" if by == "owner" else by
        self.proc = proc
        self._has_clocks = False
        self._clocks_ns: dict[int, tuple[int, bool]] = {}  # CPU time of processes, and whether they slept meanwhile
        self._clock, self._cpu_clock = clock, cpu_clock
        self._living: dict[tuple[str, str], list[Started]] = {}  # processes of the owners that are listed
        self._known: set[int] = set()  # processes that were there when those were found
        self._newer: dict[tuple[str, str], list[Started]] | None = None  # that came since, where they were looked for
        self._group_of: Callable[[ProcessFacts], Owner] | None = None
        self._accounts: dict[str, DeviceAccount[Owner]] = {}  # since the view began, by device
        self._newest = Owners(self.by, refused=NOT_YET)
        self._tape: Tape | None = None
        self._until_ns = 0
        self._next_s = 0.0
        self._levels: dict[str, Idle] = {}
        self._levels_s = 0.0
        self._factors: dict[Owner, Factors] = {}
        self._newcomer = ANYTHING  # the interval of an owner that came since they were found
        self._lost = 0.0  # how far what is unattributed may be above its amount, as a part of all joules
        self._from_ns = 0  # since when the tape of now was shared out
        self._factors_s = 0.0
        self._memory: dict[int, float] = {}
        self._memory_at = 0
        self._intervals_cost_s = 0.0

    def ask(self, run: Run, lines: Mapping[str, Line], start_ns: int, end_ns: int) -> Owners:
        """The newest owners; nothing is worked out before two seconds have passed."""
        self._work_out(run.tapes[0], lines, end_ns)
        self._newest = replace(self._newest, entries=self._without_ended(self._newest.entries))
        return replace(self._newest, age_s=max(0, end_ns - self._until_ns) / NS if self._until_ns else 0.0)

    def _without_ended(self, entries: tuple[OwnerNow, ...]) -> tuple[OwnerNow, ...]:
        """Those of which a process lives, or of which none is known; the others together."""
        self._has_clocks, self._newer = self.proc is not None and sees_own_namespace(self.proc), None
        ended = [entry for entry in entries if self._has_ended(entry)]
        if not ended:
            return entries
        rest = [entry for entry in entries if (entry.kind, entry.id) == _key(ENDED)]
        return _sorted([*(entry for entry in entries if entry not in (*ended, *rest)), _as_ended([*rest, *ended])])

    def _has_ended(self, entry: OwnerNow) -> bool:
        processes = self._living.get((entry.kind, entry.id))
        if processes is None or self.proc is None:
            return processes == []
        if self._has_living(self.proc, processes):
            return False
        if self._newer is None:
            self._newer = self._find_newer(self.proc)
        processes += self._newer.get((entry.kind, entry.id), ())
        return not self._has_living(self.proc, processes)

    def _has_living(self, proc: Path, processes: list[Started]) -> bool:
        """Whether one of them lives; those before it are removed."""
        while processes and self._is_gone(proc, *processes[0]):
            del processes[0]
        return bool(processes)

    def _find_newer(self, proc: Path) -> dict[tuple[str, str], list[Started]]:
        """Processes of groups that the tape did not have when owners were worked out last.

        They are looked for only where all that are known of a group have ended.
        """
        found: dict[tuple[str, str], list[Started]] = {}
        if self._group_of is None:
            return found
        for pid in {int(name) for name in os.listdir(proc) if name.isdecimal()} - self._known:  # noqa: PTH208 - brief
            with suppress(OSError):
                folder = proc / str(pid)
                place = parse_place(slurp(folder / "cgroup", 4096))
                facts = ProcessFacts(pid, start_of(proc, pid), uid=folder.stat().st_uid, cgroup=place.path)
                found.setdefault(_key(self._group_of(facts)), []).append((pid, facts.start))
        return found

    def _is_gone(self, proc: Path, pid: int, start: int | None) -> bool:
        """Whether a process has ended. While its CPU clock goes on it has not: that costs a tenth of a look at /proc.

        Ending takes CPU time: what sleeps on need not be looked at again.
        """
        before_ns, slept = self._clocks_ns.get(pid, (0, False))
        try:
            now_ns = time.clock_gettime_ns(cpu_clock(pid)) if self._has_clocks else before_ns
        except OSError:
            return True
        self._clocks_ns[pid] = now_ns, now_ns == before_ns and self._has_clocks
        return not (now_ns > before_ns or (slept and now_ns == before_ns)) and has_ended(proc, pid, start)

    def _work_out(self, tape: Tape, lines: Mapping[str, Line], end_ns: int) -> None:
        now_s, began_s = self._clock(), self._cpu_clock()
        if now_s < self._next_s:
            return
        try:
            if not tape.sealed:
                tape.refresh()
            use = tape_use(tape)
            self._turn_to(tape)
            fresh = self._find_levels(tape, now_s)
            began_s = self._cpu_clock() if fresh else began_s  # that is budgeted by itself, as intervals are
            self._intervals_cost_s = 0.0
            made = self._share(tape, use, lines, end_ns)
        except EverywattError as error:
            made = Owners(self.by, refused=error.message)
        if made is not None:
            self._newest = made
            cost_s = self._cpu_clock() - began_s - self._intervals_cost_s
            self._next_s = now_s + min(max(SHORTEST_S, cost_s / COST_SHARE), LONGEST_S)

    def finish(self, tape: Tape, lines: Mapping[str, Line], end_ns: int) -> None:
        """Processes reach the disk later than power does: the rest of a tape is known once it is sealed."""
        try:
            self._turn_to(tape)
            self._find_levels(tape, self._clock())
            self._newest = self._share(tape, tape_use(tape), lines, end_ns) or self._newest
        except EverywattError:
            pass  # the next tape describes itself

    def _turn_to(self, tape: Tape) -> None:
        """Go on with another tape of the same machine: time that was shared out before is not shared out again."""
        if self._tape is not tape:
            self._tape, self._memory, self._memory_at = tape, {}, 0
            self._from_ns = 0

    def _find_levels(self, tape: Tape, now_s: float) -> bool:
        """Find idle levels again where it is time; whether it did."""
        if self._levels and now_s < self._levels_s:
            return False
        began_s = self._cpu_clock()
        self._levels = find_levels(tape, {}) or self._levels
        cost_s = self._cpu_clock() - began_s
        self._levels_s = now_s + min(max(5.0, cost_s / LEVELS_SHARE), LEVELS_MOST_S)
        return True

    def _share(self, tape: Tape, use: TapeUse, lines: Mapping[str, Line], end_ns: int) -> Owners | None:
        edges = use.processes.edges if use.processes is not None else []
        counted = [line for line in lines.values() if line.in_total and line.label in self._levels]
        window = self._window(edges, counted, end_ns)
        if window is None:
            return None
        roll, own = Roll(use), Grouping.of(self.by, [tape]).owner
        cpu = cpu_use(roll, [window])
        owners: dict[int, Owner] = dict(enumerate(SPECIAL))

        def owner_of(index: int) -> Owner:
            if index not in owners:
                owners[index] = own(tape, roll.facts[index - len(SPECIAL)])
            return owners[index]

        packages = {n.label: device_number(n.channel) for n in counted if n.channel.domain is Domain.PACKAGE}
        known = packages_known(roll, packages.values())
        doubts: dict[str, tuple[float, float | None]] = {}  # of CPU time, and of how many CPUs where power saturates
        latest: dict[str, tuple[DeviceAccount[Owner], str]] = {}
        gpu_s: list[Uses] = []
        for line in counted:
            if len(line.trace) < 2:
                continue
            if is_gpu(line.channel.device):
                share = gpu_share(roll, device_number(line.channel), [window])
                stretches, uses, holders, method = share.stretches, share.uses, share.holders, share.method
                gpu_s.append(share.gpu_s)
            else:
                package = packages.get(line.label) if known else None
                several = len(packages) > 1 and not known
                unsure, saturates = cpu_time_doubt(line.channel, several, use.threads_per_core)
                doubts[line.label] = unsure, roll.cpus(package) if saturates else None
                uses, method = cpu.on_package(roll, package), CPU_TIME
                stretches, holders = cpu.stretches, Uses.none()
            joules, seconds = line.between(stretches.starts_ns, stretches.ends_ns)
            if method == CPU_TIME and saturates:
                uses, method = cpu.weighted(roll, uses, package, seconds)
            level = self._levels[line.label].level
            latest[line.label] = accumulate(joules, seconds, level, uses, holders, len(roll)).by(owner_of), method
        if not latest:
            return None
        self._from_ns, self._until_ns = self._from_ns or window[0], window[1]
        for label, (account, _) in latest.items():
            self._accounts.setdefault(label, DeviceAccount()).merge(account)
        self._find_intervals(tape, counted, {label: method for label, (_, method) in latest.items()}, doubts)
        used = _by_owner(owner_of, cpu.uses.of_owners(len(roll)), *(uses.of_owners(len(roll)) for uses in gpu_s))
        memory = self._memories(roll, owner_of, owners)
        self._living = self._find_living(use.processes, owner_of, tuple(owners))
        self._known = set(use.processes.alive) if use.processes is not None else set()
        self._group_of = None if self.by == "process" else partial(own, tape)
        self._clocks_ns = {
            pid: found for of in self._living.values() for pid, _ in of if (found := self._clocks_ns.get(pid))
        }
        return self._owners(latest.values(), used, memory, (window[1] - window[0]) / NS)

    def _find_intervals(
        self,
        tape: Tape,
        counted: Sequence[Line],
        methods: Mapping[str, str],
        doubts: Mapping[str, tuple[float, float | None]],
    ) -> None:
        """How far the joules of owners since the view began may be off, as parts of them.

        Devices have the budgets of their energy on the tape of now.
        """
        now_s, began_s = self._clock(), self._cpu_clock()
        if now_s < self._factors_s:
            return
        found: dict[Owner, list[tuple[float, Budget, float]]] = {}
        newcomers: list[Factors] = []
        whole_j = 0.0
        devices = {source.label: source for source in sources(tape)}
        for line in counted:
            account = self._accounts.get(line.label)
            if account is None or line.label not in devices:
                continue
            words = [word for word in methods.get(line.label, "").split("+") if word]
            of_gpu = max((UNSURE[word] for word in words if word in UNSURE), default=UNSURE["sm time"]), None
            unsure, cpus = doubts.get(line.label, of_gpu)
            energy = source_energies(devices[line.label], [(self._from_ns, self._until_ns)])
            whole = energy.budget.scaled(max(account.whole_j, 0.0) / energy.joules) if energy.joules else Budget()
            whole_j += max(account.whole_j, 0.0)
            level = self._levels[line.label].level
            made = account_budgets(account, line.label, whole, level, unsure, IDLE, UNATTRIBUTED, cpus)
            most_j = account.whole_j + whole.sides(account.whole_j)[1]
            for owner, (joules, budget) in made.items():
                found.setdefault(owner, []).append((joules, budget, most_j))
            newcomers.append(Factors.of_newcomer(account, whole, level, unsure, made.get(IDLE, (0.0,))[0]) or ANYTHING)
        together = {owner: _together(parts) for owner, parts in found.items()}
        known = {owner: Factors.of(*one) for owner, one in together.items() if one[1] > 1 / UJ}
        self._factors = {UNATTRIBUTED: ANYTHING} | known
        if whole_j > 0:
            lost, lost_j, most_j = together[UNATTRIBUTED]
            self._lost = min(lost.sides()[1], max(most_j - lost_j, 0.0)) / whole_j
        if newcomers:  # on which devices it will be is not known
            self._newcomer = Factors(min(one.low for one in newcomers), max(one.high for one in newcomers))
        self._intervals_cost_s = self._cpu_clock() - began_s
        self._factors_s = now_s + min(max(INTERVALS_S, self._intervals_cost_s / LEVELS_SHARE), LEVELS_MOST_S)

    def _window(self, edges: Sequence[int], counted: Sequence[Line], end_ns: int) -> tuple[int, int] | None:
        """From the last answer to the newest reading of processes; None where that is too short.

        What ends where some device was not read yet would lack its joules; one that is silent is not waited for. What
        begins before the readings that are remembered would lack them too.
        """
        if len(edges) < 2:
            return None
        newest_ns = max((line.at_ns for line in counted), default=0)
        read_ns = min((line.at_ns for line in counted if newest_ns - line.at_ns < SILENT_NS), default=0)
        first_ns = min((line.trace[0][0] for line in counted if line.trace), default=0)
        start_ns = max(self._until_ns, edges[0], first_ns)
        window = (start_ns, edges[max(0, bisect_right(edges, min(read_ns, end_ns)) - 1)])
        return None if (window[1] - window[0]) / NS < SHORTEST_S / 2 else window

    def _owners(
        self,
        latest: Iterable[tuple[DeviceAccount[Owner], str]],
        used: Mapping[Owner, tuple[float, float]],
        memory: Mapping[Owner, float],
        duration_s: float,
    ) -> Owners:
        """`latest` are accounts of the last stretch with their method, `used` CPU and GPU seconds of owners in it."""
        now_j, how = dict.fromkeys(SPECIAL, 0.0), dict[Owner, dict[str, None]]()
        how[IDLE] = dict.fromkeys(level.method for level in self._levels.values())
        for account, method in latest:
            charges = account.close()
            how.setdefault(UNATTRIBUTED, {}).update(dict.fromkeys(charges.reasons(UNATTRIBUTED)))
            for owner, joules in charges.by_owner(IDLE, UNATTRIBUTED).items():
                now_j[owner] = now_j.get(owner, 0.0) + joules
                if joules > 0 and owner not in (IDLE, UNATTRIBUTED):
                    how.setdefault(owner, {})[method] = None
        sums_j = self._sums(now_j)
        lost_j = self._lost * sum(account.whole_j for account in self._accounts.values())
        entries = []
        for owner in dict.fromkeys((*now_j, *used)):
            cpu_s, gpu_s = used.get(owner, (0.0, 0.0))
            sum_j, factors = sums_j.pop(owner, 0.0), self._factors.get(owner, self._newcomer)
            entries.append(
                OwnerNow(
                    owner.kind.value,
                    owner.id,
                    owner.label,
                    now_j.get(owner, 0.0) / duration_s,
                    sum_j,
                    None if owner in (IDLE, UNATTRIBUTED) else 100 * cpu_s / duration_s,
                    100 * gpu_s / duration_s if gpu_s > 0 else None,
                    memory.get(owner) or None,
                    ("; " if owner == UNATTRIBUTED else "+").join(filter(None, how.get(owner, ()))),
                    sum_j * factors.low,
                    sum_j + lost_j if owner == UNATTRIBUTED else sum_j * factors.high,
                )
            )
        if inactive := [self._inactive(owner, joules) for owner, joules in sums_j.items() if joules > 0]:
            entries.append(_as_ended(inactive))
        whole_j = sum(now_j.values())
        return Owners(self.by, _sorted(entries), duration_s, now_j[UNATTRIBUTED] / whole_j if whole_j > 0 else None)

    def _inactive(self, owner: Owner, joules: float) -> OwnerNow:
        low, high = self._factors.get(owner, self._newcomer)
        return OwnerNow(owner.kind.value, owner.id, owner.label, 0.0, joules, low=joules * low, high=joules * high)

    def _sums(self, now_j: Mapping[Owner, float]) -> dict[Owner, float]:
        """Joules of each owner since the view began. Of very many, those that do nothing now are put together."""
        sums_j: dict[Owner, float] = {}
        for account in self._accounts.values():
            if len(account.owners) > MOST:
                for owner in [owner for owner in account.owners if owner not in now_j]:
                    account.fold(owner, ENDED)
            for owner, joules in account.close().by_owner(IDLE, UNATTRIBUTED).items():
                sums_j[owner] = sums_j.get(owner, 0.0) + joules
        return sums_j

    def _find_living(
        self, processes: ProcessUse | None, owner_of: Callable[[int], Owner], listed: Iterable[int]
    ) -> dict[tuple[str, str], list[Started]]:
        """The living processes of each listed owner, the oldest first; of stand-ins without a parent none is known."""
        found: dict[tuple[str, str], list[Started]] = {}
        if processes is None:
            return found
        living = {(pid, seen.start): seen.facts.number for pid, seen in processes.alive.items()}
        for number in [index - len(SPECIAL) for index in listed if index >= len(SPECIAL)]:
            if number < len(processes.processes) and (facts := processes.processes[number]).pid:
                mine = self.by == "process" and (facts.pid, facts.start) in living
                found[_key(owner_of(number + len(SPECIAL)))] = [(facts.pid, facts.start)] if mine else []
        for started, number in living.items() if self.by != "process" else ():
            key = _key(owner_of(number + len(SPECIAL)))
            if key in found:
                found[key].append(started)
        return found

    def _memories(self, roll: Roll, owner_of: Callable[[int], Owner], listed: Container[int]) -> dict[Owner, float]:
        """Resident memory of each owner, as last recorded; of processes, of those that are listed."""
        found: dict[Owner, float] = {}
        table = roll.use.processes.memory.get("rss_bytes") if roll.use.processes is not None else None
        if table is None:
            return found
        numbers, _, values = table
        for at in range(self._memory_at, len(numbers)):
            self._memory[numbers[at]] = values[at]
        self._memory_at = len(numbers)
        for number, size in self._memory.items():
            index = len(SPECIAL) + number
            if size and number < len(roll.facts) and (self.by != "process" or index in listed):
                owner = owner_of(index)
                found[owner] = found.get(owner, 0.0) + size
        return found


def _key(owner: Owner) -> tuple[str, str]:
    return owner.kind.value, owner.id


def _sorted(entries: Iterable[OwnerNow]) -> tuple[OwnerNow, ...]:
    return tuple(sorted(entries, key=lambda entry: -entry.power_w))


def _as_ended(entries: Sequence[OwnerNow]) -> OwnerNow:
    """Owners put together; how their errors depend on each other is not known, so their intervals are added."""
    of_each = ((one.power_w, one.joules, one.low or 0.0, one.high or one.joules) for one in entries)
    power_w, joules, low, high = map(sum, zip(*of_each, strict=True))
    cpu_pct = sum(one.cpu_pct or 0.0 for one in entries) or None
    return OwnerNow(ENDED.kind.value, ENDED.id, ENDED.label, power_w, joules, cpu_pct, low=low, high=high)


def _together(parts: Iterable[tuple[float, Budget, float]]) -> tuple[Budget, float, float]:
    """Budget, joules and the most that it may be of an owner of several devices."""
    joules, budgets, most_j = zip(*parts, strict=True)
    return Budget.sum(budgets), sum(joules), sum(most_j)


def _by_owner(owner_of: Callable[[int], Owner], cpu_s: Floats, *gpu_s: Floats) -> dict[Owner, tuple[float, float]]:
    """CPU and GPU seconds of each owner that used either."""
    sm_s = sum(gpu_s, np.zeros(len(cpu_s)))
    found: dict[Owner, tuple[float, float]] = {}
    for index in np.flatnonzero((cpu_s > 0) | (sm_s > 0)).tolist():
        cpu, sm = found.get(owner := owner_of(index), (0.0, 0.0))
        found[owner] = (cpu + float(cpu_s[index]), sm + float(sm_s[index]))
    return found
