"""The probe: which size fits the device, and which is the cheapest in joules a unit. Every attempt is a real run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.batch.devices import MIB, GpuNow, Lane
from everywatt.batch.figures import BatchFigures, ItemFigures
from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, FAILED, Device, Journal, State, read_journal
from everywatt.batch.measuring import added, figures
from everywatt.batch.runner import NO_COMMAND, Runner, Settings
from everywatt.bench.experiment import Experiment
from everywatt.core.clocks import NS, Clock, SystemClock, Task
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.stats import deviation, mean
from everywatt.core.tables import Cell, Column, Table

NARROW = 1.08  # neighbours this close together need no size in between
MOST_REFINED = 12
MOST_UNASKED = 2**30
"""Upper limit of doubling if no largest size is given: a command that never fails probably ignores its size."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest size that fits, and the smallest that was seen not to; either may be None."""

    fits: int | None
    fails: int | None


def largest(fits: Callable[[int], bool], first: int, most: int | None, tolerance: int = 1) -> Largest:
    """Double from `first` until a size does not fit or `most` is reached, then halve what lies between; where `first`
    does not fit, halve it until a size does."""
    good: int | None = None
    most = max(MOST_UNASKED, first) if most is None else most
    size = min(first, most)
    while fits(size):
        good = size
        if size == most:
            return Largest(good, None)
        size = min(size * 2, most)
    bad = size
    while good is None and bad > 1:
        good, bad = (bad // 2, bad) if fits(bad // 2) else (None, bad // 2)
    if good is None:
        return Largest(None, bad)
    while bad - good > tolerance:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return Largest(good, bad)


def cheapest(cost: Callable[[int], float | None], known: dict[int, float], least: int, most: int) -> int | None:
    """The size with the lowest cost a unit, refined between the neighbours of the best one so far.

    `known` has the costs of sizes that were tried, and gets those that are tried here. None where nothing has a cost.
    Costs a unit are taken to fall and then rise over size, once; noise may hide a difference of a few percent.
    """
    if not known:
        return None
    for _ in range(MOST_REFINED):
        best = min(known, key=lambda size: (known[size], size))
        sizes = sorted(known)
        place = sizes.index(best)
        below = sizes[place - 1] if place else max(least, 1)
        above = sizes[place + 1] if place + 1 < len(sizes) else most
        tries = [size for size in (_between(below, best), _between(best, above)) if size is not None]
        tries = [size for size in tries if size not in known]
        if not tries:
            return best
        for size in tries:
            found = cost(size)
            if found is not None:
                known[size] = found
        if all(size not in known for size in tries):
            return best
    return min(known, key=lambda size: (known[size], size))


def _between(low: int, high: int) -> int | None:
    """The size in the middle by ratio; None where the two are close enough."""
    if high <= low * NARROW or high - low < 2:
        return None
    middle = round(math.sqrt(low * high))
    return min(max(middle, low + 1), high - 1)


LOOK_S = 0.02
WAIT_S = 3.0  # for the tape to reach the end of an attempt
REACHED_NS = 300_000_000  # beyond that end: slow sensors then have published too
SIZE_COLUMNS = (
    *(Column("size", ""), "fits", Column("runs", "", spare=1), Column("time", "s"), Column("units/s", "", spare=2)),
    *(Column("peak memory", "B"), Column("energy", "J", spare=3), Column("energy/unit", "J"), "reason"),
)
CERTAIN = 2.0  # standard errors between runs that make a difference


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try. `trials` is how often each size runs where its energy counts."""

    first: int = 1
    most: int | None = None
    tolerance: int = 1
    trials: int = 1
    energy: bool = True

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.first:
            raise UsageError(f"The largest size, {self.most}, is smaller than the first, {self.first}.")


@dataclass(frozen=True, slots=True)
class SizeFigures(ToDict):
    """All attempts at one size: whether it fits, why not, peak memory, seconds and energy of one run.

    `error_j` is the standard error of the mean over several runs; None where there was one: nothing is known of it.
    """

    JSON = (
        "size fits reason trials runtime_s peak_memory_bytes=peak_bytes energy standard_error_j=error_j "
        "joules_per_unit units_per_s"
    )

    size: int
    fits: bool
    reason: str
    trials: int
    runtime_s: float | None
    peak_bytes: float | None
    energy: Energy
    error_j: float | None = None

    @property
    def energy_per_unit(self) -> Energy | None:
        """Energy of one run over its size; None where it does not fit."""
        return None if self.energy.joules is None or not self.fits else self.energy / self.size

    @property
    def joules_per_unit(self) -> float | None:
        """The joules of that."""
        return None if self.energy_per_unit is None else self.energy_per_unit.joules

    @property
    def units_per_s(self) -> float | None:
        """How much of it is done in a second."""
        return self.size / self.runtime_s if self.fits and self.runtime_s else None


@dataclass(frozen=True, slots=True)
class Result(ToDict):
    """What the probe found. `undecided` are sizes whose interval reaches below the cheapest one's upper end."""

    JSON = "run device ended largest=largest.fits smallest_that_fails=largest.fails cheapest undecided sizes"

    run: str
    device: Device
    largest: Largest
    cheapest: int | None
    undecided: tuple[int, ...]
    sizes: tuple[SizeFigures, ...]
    ended: str = "found"

    def tables(self) -> list[Table]:
        """One row for each size, with the largest and the cheapest one as notes."""
        rows: list[list[Cell]] = [
            [
                *(one.size, one.fits, one.trials, one.runtime_s, one.units_per_s, one.peak_bytes),
                *(None if one.energy.joules is None else one.energy, one.energy_per_unit, one.reason),
            ]
            for one in self.sizes
        ]
        return [Table.of(*SIZE_COLUMNS, rows=rows, notes=self.lines())]

    def lines(self) -> list[str]:
        """The largest size, and the cheapest one with those that cannot be distinguished from it."""
        found = [self._largest()]
        if self.cheapest is not None:
            near = f"; indistinguishable: {', '.join(map(str, self.undecided))}" if self.undecided else ""
            found.append(f"cheapest: {self.cheapest}{near}")
        return found

    def _largest(self) -> str:
        fits, fails = self.largest.fits, self.largest.fails
        if self.ended == "interrupted":
            seen = "no size that fits was found" if fits is None else f"{fits} fits"
            return f"interrupted: {seen}" + ("" if fails is None else f"; {fails} does not fit")
        if fits is None:
            return "no size fits"
        if fails is not None:
            return f"largest size that fits: {fits} ({fails} does not)"
        if fits >= MOST_UNASKED:
            return f"largest size that fits: {fits}, the largest tried. Does the command use its size?"
        return f"largest size that fits: {fits}, the upper limit of the search"


@dataclass(slots=True)
class _Tried:
    states: list[State] = field(default_factory=list)
    peak: float | None = None


class Probe:
    """Tries sizes on one device, each try an item of a batch run. `stop` ends it after the attempt that runs."""

    def __init__(
        self,
        device: Device,
        settings: Settings,
        plan: Plan,
        meter: Meter,
        folder: Path,
        watch: Callable[[str], None] | None = None,
        *,
        lane: Callable[[int, Device, Mapping[str, str]], Lane] = Lane,
    ) -> None:
        self._clock: Clock = SystemClock()
        self._lane = lane
        self._device, self._settings, self._plan, self._meter = device, settings, plan, meter
        self._folder = folder
        self._watch = watch or (lambda text: None)
        self._tried: dict[int, _Tried] = {}
        self._runner: Runner | None = None
        self._experiment = Experiment(meter, clock=self._clock)
        self._found: Largest | None = None
        self._stopped = False
        self._count = 0

    def stop(self, how: str) -> None:
        """As `Runner.stop`; no further size is tried."""
        self._stopped = True
        if self._runner is not None:
            self._runner.stop(how)

    def work(self) -> None:
        """Find the largest size, then try what the search for the cheapest one asks for."""
        plan = self._plan
        journal = Journal(self._folder)
        try:
            journal.batch(self._settings.command, [], [self._device])
            self._found = largest(lambda size: self._try(journal, size), plan.first, plan.most, plan.tolerance)
            if plan.energy and self._found.fits is not None:
                known = {size: cost for size in sorted(self._tried) if (cost := self._cost(journal, size)) is not None}
                cheapest(lambda size: self._cost(journal, size), known, 1, self._found.fits)
        except _Stopped:
            pass
        finally:
            journal.close()

    def result(self, run: Run) -> Result:
        found = figures(run, read_journal(self._folder))
        sizes = tuple(self._size(size, tried, found) for size, tried in sorted(self._tried.items()))
        costs = {one.size: one for one in sizes if one.joules_per_unit is not None}
        best = min(costs.values(), key=lambda one: one.joules_per_unit or 0.0) if costs else None
        return Result(
            found.run,
            self._device,
            self._found or _so_far(self._tried),
            None if best is None else best.size,
            () if best is None else tuple(one.size for one in costs.values() if one is not best and _near(one, best)),
            sizes,
            "interrupted" if self._stopped else "found",
        )

    def _try(self, journal: Journal, size: int) -> bool:
        """One run of a size, and whether it ended well."""
        self._check()
        self._watch(f"size {size}")
        tried = self._tried.setdefault(size, _Tried())
        self._count += 1
        item = Item(
            self._count - 1, f"size-{size}#{len(tried.states) + 1}", str(size), {"size": str(size)}, float(size)
        )
        journal.batch(self._settings.command, [item], [self._device])
        state = State(item)
        tried.states.append(state)
        self._runner = Runner(
            [state], [self._device], self._settings, journal, self._meter.recording, clock=self._clock, lane=self._lane
        )
        with _Peak(self._device, self._clock) as peak:
            self._runner.run()
        tried.peak = max(filter(None, (tried.peak, peak.bytes)), default=None)
        code = state.attempts[-1].exit_code
        if code in NO_COMMAND:
            raise UsageError(str(state.attempts[-1].ended.get("stderr") or f"The command ended with {code}."))
        if state.status != DONE:
            self._check()
        return state.status == DONE

    def _check(self) -> None:
        if self._stopped:
            raise _Stopped

    def _cost(self, journal: Journal, size: int) -> float | None:
        """Joules a unit of a size, which is tried as often as asked; None where it does not fit or has no figure."""
        tried = self._tried.get(size)
        while tried is None or len(tried.states) < self._plan.trials:
            if not self._try(journal, size):
                return None
            tried = self._tried[size]
        if any(state.status != DONE for state in tried.states):
            return None
        joules = [self._joules(state) for state in tried.states]
        known = [one for one in joules if one is not None]
        return mean(known) / size if known else None

    def _joules(self, state: State) -> float | None:
        """What the tape has of an attempt by now; waits until it has all of it."""
        span = state.attempts[-1].span
        deadline_ns = self._clock.monotonic_ns() + round(WAIT_S * NS)
        while span is not None and self._meter.recording is not None:
            now_ns, run = self._clock.monotonic_ns(), self._experiment.live()
            end_ns = None if run is None else {one.id: one.end_ns for one in run.spans}.get(span)
            late = now_ns > deadline_ns
            if run is not None and end_ns is not None and (late or run.tapes[-1].extent_ns()[1] > end_ns + REACHED_NS):
                return run.energy(span).joules
            if late:
                return None
            self._clock.sleep_until(now_ns + NS // 10)
        return None

    def _size(self, size: int, tried: _Tried, found: BatchFigures) -> SizeFigures:
        mine = [item for item in found.items if item.state.item.row.get("size") == str(size)]
        fits = bool(mine) and all(item.state.status == DONE for item in mine)
        known = [item.energy for item in mine if item.energy.joules is not None]
        energy = added(known) / len(known) if known else Energy.refuse(mine[-1].energy.refused or "") if mine else None
        times = [seconds for item in mine if item.last and (seconds := item.last.attempt.runtime_s)]
        return SizeFigures(
            size,
            fits,
            "" if fits else next((item.why for item in mine if item.why), "it was interrupted"),
            len(mine),
            mean(times) if times else None,
            _peak(mine, tried.peak, self._device),
            energy or Energy.refuse("it never ran"),
            deviation([one.value for one in known]) / math.sqrt(len(known)) if len(known) > 1 else None,
        )


def _so_far(tried: Mapping[int, _Tried]) -> Largest:
    """What a search that was stopped had found. A size that was cut short neither fits nor fails."""
    fits = [size for size, one in tried.items() if all(state.status == DONE for state in one.states)]
    fails = [size for size, one in tried.items() if any(state.status == FAILED for state in one.states)]
    return Largest(max(fits, default=None), min(fails, default=None))


class _Stopped(Exception):
    """The probe was asked to end."""


class _Peak:
    """The most memory that a GPU had in use inside the block: looked at fifty times a second, by NVML."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self.bytes: float | None = None
        self._device, self._gpus, self._clock, self._done = device, GpuNow(), clock, clock.event()
        self._looking: Task | None = None

    def _look(self) -> None:
        while not self._done.is_set():
            seen = self._gpus.read(self._device)
            if seen is None:
                return
            self.bytes = max(self.bytes or 0.0, float(seen.memory_used_mb) * MIB)
            self._done.wait(LOOK_S)

    def __enter__(self) -> _Peak:
        if self._device.is_gpu:
            self._looking = self._clock.spawn(self._look, "peak-memory")
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._looking is not None:
            self._looking.join(timeout=5.0)


def _peak(mine: Sequence[ItemFigures], seen: float | None, device: Device) -> float | None:
    """Of the GPU's memory, by NVML and by the tape; of the process on the CPU."""
    if not device.is_gpu:
        return max((one.attempt.ended.get("max_rss_bytes") or 0 for i in mine for one in i.attempts), default=0) or None
    peaks = [during.high for i in mine for one in i.attempts if (during := one.use.get("memory")) is not None]
    return max([*peaks, *([] if seen is None else [seen])], default=None)


def _near(one: SizeFigures, best: SizeFigures) -> bool:
    """Whether the two are indistinguishable: what they share, a card's gain, cancels in the ratio."""
    more = (one.joules_per_unit or 0.0) - (best.joules_per_unit or 0.0)
    if more <= CERTAIN * math.hypot((one.error_j or 0.0) / one.size, (best.error_j or 0.0) / best.size):
        return True
    try:
        return (one.energy / one.size).ratio(best.energy / best.size).low <= 1.0
    except EverywattError:
        return False
