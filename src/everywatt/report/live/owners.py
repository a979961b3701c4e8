"""Owners now: the last stretch of time shared among processes, by the ledger's own splitter.

`LedgerOwners` makes a whole ledger, with every check; that takes a tenth of a second on a machine with eight cards.
`QuickOwners` is for a screen: it shares the joules that the view has counted already, over the same idle levels (found
anew now and then), and leaves out what only an interval needs. The refresh of DRAM is idle there.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from everywatt.core.clocks import NS
from everywatt.core.device import Device, is_gpu
from everywatt.core.errors import EverywattError
from everywatt.ledger.groups import grouper
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import find_levels
from everywatt.ledger.owners import Owner
from everywatt.ledger.split.owner_index import Roll, cpu_use, gpu_share
from everywatt.ledger.split.shares import IDLE_AT, NOBODY_AT, SPECIAL
from everywatt.ledger.split.split import Level, Split, Uses, split
from everywatt.ledger.use.account import TapeUse, tape_use
from everywatt.report.live.snapshot import OwnerNow, Owners
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
SILENT_NS = 5 * NS
MOST = 500
NOT_YET = "too little time has passed"


class OwnersAsker(Protocol):
    """Gives the owners of the time up to now; the same again where that is too short."""

    def ask(self, run: Run, lines: Mapping[str, Line], start_ns: int, end_ns: int) -> Owners: ...

    def finish(self, tape: Tape, lines: Mapping[str, Line], end_ns: int) -> None:
        """Share out what a tape that is left, sealed by now, has of time that was not shared out yet."""
        ...


class Sums:
    """The energy of every owner since the view began; of very many, only the largest are kept."""

    def __init__(self) -> None:
        self._joules: dict[tuple[str, str], float] = {}

    def add(self, owner: Owner, joules: float) -> float:
        """The owner's joules with these."""
        key = (owner.kind.value, owner.id)
        self._joules[key] = self._joules.get(key, 0.0) + joules
        return self._joules[key]

    def tidy(self) -> None:
        """Forget the smallest."""
        if len(self._joules) > 2 * MOST:
            kept = sorted(self._joules, key=lambda key: -self._joules[key])[:MOST]
            self._joules = {key: self._joules[key] for key in kept}


class LedgerOwners:
    """One ledger of all the time there is."""

    def __init__(self, by: str) -> None:
        self.by = "process" if by == "owner" else by

    def ask(self, run: Run, lines: Mapping[str, Line], start_ns: int, end_ns: int) -> Owners:
        """The ledger between two instants of the run's only tape."""
        origin_ns = run.tapes[0].extent_ns()[0]
        duration_s = (end_ns - start_ns) / NS
        if duration_s <= 0:
            return Owners(self.by, refused=NOT_YET)
        try:
            ledger = run.ledger(self.by, between=((start_ns - origin_ns) / NS, (end_ns - origin_ns) / NS))
        except EverywattError as error:
            return Owners(self.by, refused=error.message)
        if ledger.total.joules is None:
            return Owners(self.by, refused=ledger.total.refused)
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
    )


class QuickOwners:
    """Owners of the stretch since the last answer, which ends where processes were read last."""

    def __init__(
        self,
        by: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.by = "process" if by == "owner" else by
        self._clock, self._cpu_clock = clock, cpu_clock
        self._sums = Sums()
        self._told = Owners(self.by, refused=NOT_YET)
        self._tape: Tape | None = None
        self._until_ns = 0
        self._next_s = 0.0
        self._levels: dict[str, Idle] = {}
        self._levels_s = 0.0
        self._memory: dict[int, float] = {}
        self._memory_at = 0

    def ask(self, run: Run, lines: Mapping[str, Line], start_ns: int, end_ns: int) -> Owners:
        """The newest owners; nothing is worked out before two seconds have passed."""
        now_s, began_s = self._clock(), self._cpu_clock()
        if now_s < self._next_s:
            return self._told
        tape = run.tapes[0]
        try:
            if not tape.sealed:
                tape.refresh()
            use = tape_use(tape)
            self._turn_to(tape)
            fresh = self._find_levels(tape, now_s)
            began_s = self._cpu_clock() if fresh else began_s  # that is budgeted by itself
            made = self._share(tape, use, lines, end_ns)
        except EverywattError as error:
            made = Owners(self.by, refused=error.message)
        if made is not None:
            self._told = made
            self._next_s = now_s + min(max(SHORTEST_S, (self._cpu_clock() - began_s) / COST_SHARE), LONGEST_S)
        return self._told

    def finish(self, tape: Tape, lines: Mapping[str, Line], end_ns: int) -> None:
        """Processes reach the disk later than power does: the rest of a tape is known once it is sealed."""
        try:
            self._turn_to(tape)
            self._find_levels(tape, self._clock())
            self._told = self._share(tape, tape_use(tape), lines, end_ns) or self._told
        except EverywattError:
            pass  # the next tape describes itself

    def _turn_to(self, tape: Tape) -> None:
        """Go on with another tape of the same machine: time that was shared out before is not shared out again."""
        if self._tape is not tape:
            self._tape, self._memory, self._memory_at = tape, {}, 0

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
        if len(edges) < 2:
            return None
        # What ends where some device was not read yet would lack its joules; one that is silent is not waited for.
        counted = [line for line in lines.values() if line.in_total and line.label in self._levels]
        newest_ns = max((line.at_ns for line in counted), default=0)
        read_ns = min((line.at_ns for line in counted if newest_ns - line.at_ns < SILENT_NS), default=0)
        window = (max(self._until_ns, edges[0]), edges[max(0, bisect_right(edges, min(read_ns, end_ns)) - 1)])
        if (window[1] - window[0]) / NS < SHORTEST_S / 2:
            return None
        roll = Roll(use)
        cpu = cpu_use(roll, [window])
        parts: list[tuple[Split, str]] = []
        gpu_s: list[Uses] = []
        for line in counted:
            if len(line.trace) < 2:
                continue
            level = self._levels[line.label]
            plain = Level(level.watts, level.held_w, level.noise_w, level.spread_w)
            if is_gpu(line.channel.device):
                share = gpu_share(roll, int(Device.parse(line.channel.device).name), [window])
                joules, seconds = line.between(share.stretches.starts_ns, share.stretches.ends_ns)
                parts.append((split(joules, seconds, plain, share.uses, share.holders, len(roll)), share.method))
                gpu_s.append(share.gpu_s)
            else:
                joules, seconds = line.between(cpu.stretches.starts_ns, cpu.stretches.ends_ns)
                parts.append((split(joules, seconds, plain, cpu.uses, Uses.none(), len(roll)), "cpu time"))
        if not parts:
            return None
        self._until_ns = window[1]
        return self._owners(tape, roll, parts, cpu.uses, gpu_s, (window[1] - window[0]) / NS)

    def _owners(
        self,
        tape: Tape,
        roll: Roll,
        parts: list[tuple[Split, str]],
        cpu: Uses,
        gpu_s: list[Uses],
        duration_s: float,
    ) -> Owners:
        own = grouper(self.by, [tape])
        count = len(roll)
        joules = np.zeros(count)
        methods: dict[int, dict[str, None]] = {}
        for part, method in parts:
            charged = _padded(part.active_j + part.held_j, count)
            joules += charged
            joules[IDLE_AT] += part.idle_j
            joules[NOBODY_AT] += part.nobody_j
            for index in np.flatnonzero(charged > 0).tolist():
                methods.setdefault(index, {})[method] = None
        cpu_s = cpu.of_owners(count)
        sm_s = sum((uses.of_owners(count) for uses in gpu_s), np.zeros(count))
        memory = self._memories(roll, count)
        methods[IDLE_AT] = dict.fromkeys(level.method for level in self._levels.values())
        methods[NOBODY_AT] = {}
        rows: dict[Owner, list[float]] = {}
        how: dict[Owner, str] = {}
        for index in np.flatnonzero((joules != 0) | (cpu_s > 0) | (np.arange(count) < len(SPECIAL))).tolist():
            owner = SPECIAL[index] if index < len(SPECIAL) else own(tape, roll.facts[index - len(SPECIAL)])
            row = rows.setdefault(owner, [0.0, 0.0, 0.0, 0.0])
            for place, value in enumerate((joules[index], cpu_s[index], sm_s[index], memory[index])):
                row[place] += float(value)
            how[owner] = "+".join(filter(None, methods.get(index, ())))
        entries = [self._now(owner, row, how[owner], duration_s) for owner, row in rows.items()]
        self._sums.tidy()
        entries.sort(key=lambda entry: -entry.power_w)
        whole = float(joules.sum())
        lost = float(joules[NOBODY_AT]) / whole if whole > 0 else None
        return Owners(self.by, tuple(entries), duration_s, lost)

    def _now(self, owner: Owner, row: list[float], method: str, duration_s: float) -> OwnerNow:
        joules, cpu_s, gpu_s, memory = row
        return OwnerNow(
            owner.kind.value,
            owner.id,
            owner.label,
            joules / duration_s,
            self._sums.add(owner, joules),
            None if owner.kind.value in ("idle", "unattributed") else 100 * cpu_s / duration_s,
            100 * gpu_s / duration_s if gpu_s > 0 else None,
            memory or None,
            method,
        )

    def _memories(self, roll: Roll, count: int) -> Floats:
        """Resident memory of each process, as last recorded."""
        found = np.zeros(count)
        table = roll.use.processes.memory.get("rss_bytes") if roll.use.processes is not None else None
        if table is None:
            return found
        numbers, _, values = table
        for at in range(self._memory_at, len(numbers)):
            self._memory[numbers[at]] = values[at]
        self._memory_at = len(numbers)
        for number, size in self._memory.items():
            if len(SPECIAL) + number < count:
                found[len(SPECIAL) + number] = size
        return found


def _padded(values: Floats, count: int) -> Floats:
    return values if len(values) == count else np.pad(values, (0, count - len(values)))
