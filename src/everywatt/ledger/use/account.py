"""What one tape knows of use and of its devices' joules, decoded once and continued while the tape grows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.errors import TapeDamaged
from everywatt.energy import window
from everywatt.energy.sources import Source
from everywatt.ledger.use.facts import members
from everywatt.ledger.use.usage import HOST_BUSY, HOST_IDLE, GpuUse, ProcessUse, Series, find_series
from everywatt.sensors.base import TableRow
from everywatt.tape.columns import Floats, Ints
from everywatt.tape.reader import StoredGroup, Tape

PROCESSES, CGROUPS = "use.processes", "use.cgroups"

_kept: WeakKeyDictionary[Tape, TapeUse] = WeakKeyDictionary()


class TapeUse:
    """The decoded tables and use channels of a tape. `update` takes what was written since."""

    def __init__(self, tape: Tape) -> None:
        self.version: tuple[int, int] | None = None  # of the tape that was read last
        self.period_s = 1.0
        self.processes: ProcessUse | None = None
        self.before: ProcessUse | None = None  # of the segment that this one goes on from
        self.gpus: GpuUse | None = None
        self.busy: Series | None = None
        self.still: Series | None = None
        self._series: dict[str, Series | None] = {}
        self._cells: dict[tuple[int, str], Cells] = {}
        self._read_ns: dict[str, int] = {}
        self._members: tuple[tuple[int, int], list[bool]] = ((-1, -1), [])
        self.roots: list[tuple[int, int | None]] = []
        self.followed = False
        self.runs: list[tuple[int, int]] = []
        self.steps: dict[int, tuple[int, str]] = {}  # job and step of processes that were reported, by number
        self.idle_spans: list[tuple[int, int]] = []
        self.cpus = float(tape.meta.get("host", {}).get("cpus") or 0)
        self.packages = _whole_numbers(tape.meta.get("host", {}).get("packages"))
        threads = tape.meta.get("host", {}).get("threads_per_core")
        self.threads_per_core = threads if isinstance(threads, int) and threads > 0 else None
        self.memory_bytes = tape.meta.get("host", {}).get("memory_bytes")

    def update(self, tape: Tape) -> None:
        groups = {group.info.name: group for group in tape.groups}
        anchors = tape.anchors()
        offset_ns = anchors[0].boottime_ns - anchors[0].monotonic_ns if anchors else None
        if PROCESSES in groups and self.processes is None:
            self.period_s = groups[PROCESSES].expected_period_s
            self.processes = ProcessUse(self.period_s, offset_ns)
            if self.before is not None:
                self.processes.go_on_from(self.before)
        gpus = [name for name, group in groups.items() if group.info.lists_gpu_processes]
        if gpus and self.gpus is None:
            self.gpus = GpuUse(groups[gpus[0]].expected_period_s)
        if self.processes is not None:
            self._feed(tape, {PROCESSES: self.processes.feed, CGROUPS: self.processes.feed_groups_at})
        if self.gpus is not None:
            for name in gpus:
                self._feed(tape, {name: self.gpus.feed})
        self.busy, self.still = self.channel(tape, HOST_BUSY), self.channel(tape, HOST_IDLE)
        self._notes(tape)

    def _feed(self, tape: Tape, takers: Mapping[str, Callable[[int, Sequence[TableRow]], None]]) -> None:
        """Give frames of table groups that came since to who takes them, all in order of time."""
        fresh = [self._fresh(tape, group) for group in tape.groups if group.info.name in takers]
        for at_ns, name, rows in heapq.merge(*fresh, key=lambda frame: frame[0]):
            try:
                takers[name](at_ns, rows)
            except (KeyError, TypeError, ValueError) as error:
                raise TapeDamaged(f"{tape.path}: a row of {name} cannot be read: {error}.") from None
            self._read_ns[name] = at_ns

    def _fresh(self, tape: Tape, group: StoredGroup) -> Iterator[tuple[int, str, Sequence[TableRow]]]:
        last_ns = self._read_ns.get(group.info.name)
        for frame in tape.tables(group.id, None if last_ns is None else last_ns + 1, None):
            if last_ns is None or frame.at_ns > last_ns:
                yield frame.at_ns, group.info.name, frame.rows

    def _notes(self, tape: Tape) -> None:
        follow = [note for note in tape.notes() if note.kind == "follow"]
        self.followed = bool(follow)
        self.roots = []
        for note in follow:
            pids = list(note.data.get("pids") or [])
            starts = list(note.data.get("starts") or []) or [None] * len(pids)
            self.roots += list(zip(pids, starts, strict=False))
        low_ns, high_ns = tape.extent_ns()
        self.runs, self.idle_spans = [], []
        for span in tape.spans():
            end_ns = high_ns if span.end_ns is None else span.end_ns
            if span.attributes.get("role") == "idle" and span.end_ns is not None:
                self.idle_spans.append((span.start_ns, end_ns))
            elif span.parent is None:
                self.runs.append((max(span.start_ns, low_ns), end_ns))

    def channel(self, tape: Tape, name: str) -> Series | None:
        """A channel over the whole tape; None where the tape does not have it."""
        if self._series.get(name) is None:
            self._series[name] = find_series(tape, name)
        found = self._series[name]
        if found is not None:
            found.update(tape)
        return found

    def cells(self, source: Source) -> Cells:
        """Power of a device over the whole tape."""
        key = (source.group.id, source.channel.name)
        cells = self._cells.setdefault(key, Cells())
        cells.update(source)
        return cells

    def members(self) -> list[bool]:
        """For each process whether it belongs to the subject; without followed roots all do."""
        if self.processes is None:
            return []
        known = self.processes.processes
        if not self.followed:
            return [True] * len(known)
        key = (len(known), len(self.roots))
        if self._members[0] != key:
            self._members = (key, members(known, self.roots))
        return self._members[1]

    def capacity(self) -> float:
        """How many CPUs the machine has: as recorded, else by what busy and idle time add up to."""
        if self.cpus or self.busy is None or self.still is None or len(self.busy.at_ns) < 2:
            return self.cpus or 1.0
        seconds = (self.busy.at_ns[-1] - self.busy.at_ns[0]) / NS
        return float(max(round(float(self.busy.rising()[-1] + self.still.rising()[-1]) / float(seconds)), 1))

    def cpu_share(self, starts_ns: Ints, ends_ns: Ints) -> Floats:
        """Busy share of all CPUs in each stretch, NaN where the tape does not say."""
        if self.busy is None:
            return np.full(len(starts_ns), np.nan)
        return self.busy.used(starts_ns, ends_ns) / ((ends_ns - starts_ns) / NS) / self.capacity()

    def cpu_share_inside(self, start_ns: int, end_ns: int) -> float:
        """Busy share of all CPUs between the first and the last reading inside a stretch, NaN if there are none.

        Between two readings it is unknown when it was used: what begins right after a quiet stretch is not in it.
        """
        if self.busy is None:
            return float("nan")
        first, last = np.searchsorted(self.busy.at_ns, (start_ns, end_ns + 1))
        if last - first < 2:
            return float("nan")
        edges = self.busy.at_ns[first : first + 1], self.busy.at_ns[last - 1 : last]
        return float(self.cpu_share(*edges)[0])


def _whole_numbers(recorded: Any) -> Ints:
    """An array of a list of whole numbers; empty if a tape from elsewhere holds something else."""
    good = isinstance(recorded, list) and all(isinstance(number, int) for number in recorded)
    return np.array(recorded if good else [], dtype=np.int64)


def continue_use(tapes: Sequence[Tape]) -> None:
    """Let the use of segments that go on from another of these tapes begin where that one ended.

    Its recorder was killed, maybe before it had written its last tables: it ends with the first one of the next.
    """
    by_path = {tape.path: tape for tape in tapes}
    for tape in tapes:
        name = tape.meta.get("continues")
        before = by_path.get(tape.path.with_name(name)) if isinstance(name, str) and name else None
        if before is not None and before is not tape and tape not in _kept:
            _kept[tape] = TapeUse(tape)
            processes = _kept[tape].before = tape_use(before).processes
            group = next((group for group in tape.groups if group.info.name == PROCESSES), None)
            first = next(iter(tape.tables(group.id, None, None)), None) if group is not None else None
            mine, later = tape_use(before), tape_use(tape)
            if processes is not None and first is not None:
                processes.end_with(first.at_ns, first.rows)
            for series, beyond in ((mine.busy, later.busy), (mine.still, later.still)):
                if series is not None and beyond is not None:
                    series.end_with(beyond)


def tape_use(tape: Tape) -> TapeUse:
    found = _kept.get(tape)
    version = tape.version
    if found is None or found.version != version:
        found = found or TapeUse(tape)
        found.update(tape)
        found.version = version
        _kept[tape] = found
    return found


MOST_ANSWERS = 64

_answers: WeakKeyDictionary[Tape, dict[tuple[int, str, bytes, bytes], tuple[Floats, Floats]]] = WeakKeyDictionary()


def stretch_joules(source: Source, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
    """Joules and observed seconds of ascending stretches; zero of both where there was no reading.

    A counter counts across a gap, so its joules there are real and the time counts; a gauge's gap is left out. The
    answers for a sealed tape are kept: a report asks for the same stretches several times.
    """
    if not len(starts_ns):
        return np.zeros(0), np.zeros(0)
    if not source.tape.sealed:
        return _stretch_joules(source, starts_ns, ends_ns)
    known = _answers.setdefault(source.tape, {})
    key = (source.group.id, source.channel.name, starts_ns.tobytes(), ends_ns.tobytes())
    if key not in known:
        if len(known) >= MOST_ANSWERS:
            known.pop(next(iter(known)))
        known[key] = _stretch_joules(source, starts_ns, ends_ns)
    return known[key]


def _stretch_joules(source: Source, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
    joules, observed_s = window.stretch_joules(source, starts_ns, ends_ns)
    return np.nan_to_num(joules), observed_s


class Cells:
    """Joules of one device in equal cells of a whole tape, continued while it grows: what idle is found from."""

    def __init__(self) -> None:
        self.step_ns = 0
        self.origin_ns = 0
        self.joules: Floats = np.zeros(0)
        self.observed_s: Floats = np.zeros(0)

    @property
    def edges_ns(self) -> Ints:
        """The edges of the cells, one more than there are cells."""
        return self.origin_ns + np.arange(len(self.joules) + 1, dtype=np.int64) * self.step_ns

    def update(self, source: Source) -> None:
        """Add the cells that are complete by now."""
        tape = source.tape
        first_ns, last_ns = tape.extent_ns()
        step_ns = _step_ns(last_ns - first_ns)
        if step_ns != self.step_ns or first_ns != self.origin_ns:
            self.step_ns, self.origin_ns = step_ns, first_ns
            self.joules, self.observed_s = np.zeros(0), np.zeros(0)
        # On a live tape the newest publications may still be missing.
        late_ns = 0 if tape.ended else int(2.5 * max(source.group.expected_period_s, 1.0) * NS)
        have, count = len(self.joules), int((last_ns - late_ns - first_ns) // step_ns)
        if count <= have:
            return
        edges = first_ns + np.arange(have, count + 1, dtype=np.int64) * step_ns
        joules, observed_s = window.cell_joules(source, edges)
        self.joules = np.concatenate((self.joules, joules))
        self.observed_s = np.concatenate((self.observed_s, observed_s))


def _step_ns(length_ns: int) -> int:
    """Quarters of a second on a tape of a minute, a second up to six hours, then coarser: never more than 30,000."""
    for step_s, most_s in ((0.25, 60.0), (1.0, 21_600.0), (10.0, 216_000.0)):
        if length_ns <= most_s * NS:
            return int(step_s * NS)
    return max(60, int(length_ns / NS / 20_000)) * NS
