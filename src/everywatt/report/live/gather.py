"""From rows of a tape, as they come, to devices: power now, joules so far, rolling averages, history, state.

How sure the joules are: the error budget is worked out now and then, and carried on in between. The two edges of the
window, what was not read yet there, and the quantum of a reading stay what they are while the energy grows; all else
(gain, offset, aliasing, gaps) is taken to grow with it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from everywatt.core.budget import Budget
from everywatt.core.channels import Channel, Kind, Row
from everywatt.core.clocks import NS
from everywatt.core.device import natural
from everywatt.core.energy import Energy
from everywatt.core.errors import TapeError
from everywatt.energy.quality import HELD_BACK
from everywatt.energy.sources import SHARPER, Source, addable, scope_of, shows_power, sources
from everywatt.energy.window import pedigree_of, source_energies, windows_energy
from everywatt.report.live.snapshot import Amount, DeviceNow, HostNow, Snapshot
from everywatt.tape.accumulate import Accumulator, energy_channels, publication_ns
from everywatt.tape.following import Rows
from everywatt.tape.reader import Tape

CONSTANTS_S = (1.0, 5.0, 15.0)


@dataclass(slots=True)
class Rolling:
    """Averages over the time constants of `constants_s`; None until the first stretch, which they start from."""

    constants_s: tuple[float, ...] = CONSTANTS_S
    watts: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watts = self.watts or [None] * len(self.constants_s)

    def add(self, power_w: float, duration_s: float) -> None:
        """Power was `power_w` for `duration_s` seconds."""
        for index, (before, constant_s) in enumerate(zip(self.watts, self.constants_s, strict=True)):
            if before is None:
                self.watts[index] = power_w
            else:
                self.watts[index] = before - (power_w - before) * math.expm1(-duration_s / constant_s)


STANDING = ("edges", "quantum")
FIRST_S = 2.0
LONGEST_S = 120.0
YOUNG_S = 30.0
SETTLED_S = 10.0
COST_SHARE = 0.001  # of one core


@dataclass(frozen=True, slots=True)
class Width:
    """A 95 % interval in two parts: joules that stand, and shares of the energy that grow with it."""

    standing_j: float
    growing: float
    bounds_j: tuple[float, float]  # below and above
    bounds: tuple[float, float]

    @classmethod
    def of(cls, energy: Energy, inner: Energy) -> Width | None:
        """The parts of a figure's budget; None where there is no figure. `inner` is of when all devices were read."""
        if not energy.joules:
            return None
        terms, size = energy.budget.terms, abs(energy.joules)
        (below_j, above_j), found = _bounds_j(energy), _bounds_j(inner)
        grow = [side / abs(inner.joules) if inner.joules else 0.0 for side in found]
        return cls(
            Budget(tuple(term for term in terms if term.source in STANDING)).sides()[0],
            Budget(tuple(term for term in terms if term.source not in STANDING)).sides()[0] / size,
            (max(below_j - grow[0] * size, 0.0), max(above_j - grow[1] * size, 0.0)),
            (grow[0], grow[1]),
        )

    def at(self, joules: float) -> tuple[float, float]:
        """How far below and above, in joules, where the energy is `joules`."""
        size = abs(joules)
        spread = math.hypot(self.standing_j, self.growing * size)
        below, above = (spread + one_j + grow * size for one_j, grow in zip(self.bounds_j, self.bounds, strict=True))
        return below, above


def _bounds_j(energy: Energy) -> tuple[float, float]:
    bounds = energy.budget.bounds
    return sum(bound.below for bound in bounds), sum(bound.above for bound in bounds)


class Bounds:
    """95 % half-widths of each device and of the total (label "")."""

    def __init__(self, *, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = cpu_clock
        self._tape: Tape | None = None
        self._sources: list[Source] = []
        self._widths: dict[str, Width] = {}
        self._next_s = FIRST_S
        self.notes: tuple[str, ...] = ()

    def adopt(self, tape: Tape, found: Sequence[Source]) -> None:
        """From now on ask this tape."""
        self._tape, self._sources = tape, list(found)
        # A young tape's edges are wide: what the one before it said stands for a while.
        self._next_s = YOUNG_S if self._widths else FIRST_S

    def of(self, label: str, joules: float) -> tuple[float | None, float | None]:
        """How far the energy may be below and above, in joules; None where it is not known yet."""
        found = self._widths.get(label)
        return (None, None) if found is None else found.at(joules)

    def update(self, age_s: float, *, now: bool = False) -> None:
        """Work the budget out again `now`, or where it is time: the more it costs, the more seldom.

        `age_s` is how long the tape is.
        """
        if self._tape is None or (age_s < self._next_s and not now):
            return
        began_s = self._clock()
        try:
            self._tape.refresh()
            start_ns, end_ns = self._tape.extent_ns()
        except TapeError:
            return
        whole, notes = self._energies(start_ns, end_ns)
        inner, _ = self._energies(*self._read_by_all(start_ns, end_ns))
        if age_s >= SETTLED_S or now:  # at a tape's very start not all devices have been read yet
            self.notes = notes
        self._widths.update({label: width for label in whole if (width := Width.of(whole[label], inner[label]))})
        cost_s = self._clock() - began_s
        self._next_s = age_s + min(max(FIRST_S, cost_s / COST_SHARE), LONGEST_S)

    def _energies(self, start_ns: int, end_ns: int) -> tuple[dict[str, Energy], tuple[str, ...]]:
        """The total (label ""), every source, and the total's notes."""
        whole = windows_energy(self._sources, [(start_ns, end_ns)])
        found = {"": whole, **dict(whole.parts)}
        for source in self._sources:
            if source.label not in found:
                found[source.label] = source_energies(source, [(start_ns, end_ns)])
        return found, whole.notes

    def _read_by_all(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """From when on and until when every device was read of those that still are, if there is such a time."""
        groups = {source.group.id: source.tape for source in self._sources}
        found = [(tape.frames(g, start_ns, start_ns), tape.frames(g, end_ns, end_ns)) for g, tape in groups.items()]
        ends = [(first[0].first_ns, last[-1].last_ns) for first, last in found if first and last]
        going = [(first_ns, last_ns) for first_ns, last_ns in ends if end_ns - last_ns < YOUNG_NS]
        inner = max((first for first, _ in going), default=start_ns), min((last for _, last in going), default=end_ns)
        return inner if inner[0] < inner[1] else (start_ns, end_ns)


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HISTORY = 240
TRACE = 128
STALE_PERIODS = 5
YOUNG_NS = 5 * NS  # the first publications of devices are a second apart
NEARLY = 0.9  # publications jitter: a stretch of this share of the interval is a whole one


@dataclass(slots=True)
class Line:
    """One source of joules: what it has accumulated, and power over the last stretch."""

    channel: Channel
    label: str
    title: str
    group: str
    place: int
    expected_s: float
    in_total: bool
    base_j: float = 0.0
    base_ns: int = 0
    joules: float = 0.0
    observed_ns: int = 0
    at_ns: int = 0
    mark: tuple[int, float, int, int] | None = None
    power_w: float | None = None
    rolling: Rolling = field(default_factory=Rolling)
    history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    trace: deque[tuple[int, float, int]] = field(default_factory=lambda: deque(maxlen=TRACE))

    def stands(self, total: float, observed_ns: int, at_ns: int, stretch_ns: int, width_ns: int = 0) -> None:
        """What has accumulated at `at_ns`, which is known to `width_ns`; a stretch that is long enough becomes a power.

        Until it has been found when a card publishes, and whenever its recorder is held up, the slope between two of
        its counts says little: a stretch goes on until its length is known well.
        """
        facts = self.channel.facts
        raw = total if self.channel.kind is Kind.COUNTER else total / NS
        observed_ns += self.base_ns
        self.joules = self.base_j + raw * self.channel.scale * facts.gain + facts.bias_w * (observed_ns / NS)
        self.observed_ns, self.at_ns = observed_ns, at_ns
        self.trace.append((at_ns, self.joules, observed_ns))
        mark = self.mark
        if mark is None:
            self.mark = (at_ns, self.joules, observed_ns, width_ns)
        elif at_ns - mark[0] >= stretch_ns and shows_power(at_ns - mark[0], mark[3] / 2, width_ns / 2):
            self._close_stretch(mark, width_ns)
        elif mark[3] > SHARPER * width_ns:
            self.mark = (at_ns, self.joules, observed_ns, width_ns)

    def between(self, starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
        """Joules and observed seconds of some stretches, by straight lines between the newest readings."""
        at, joules, seen = (np.array(column) for column in zip(*self.trace, strict=True))
        done = np.interp(ends_ns, at, joules) - np.interp(starts_ns, at, joules)
        return done, (np.interp(ends_ns, at, seen) - np.interp(starts_ns, at, seen)) / NS

    def _close_stretch(self, mark: tuple[int, float, int, int], width_ns: int) -> None:
        seen_ns = self.observed_ns - mark[2]
        if seen_ns > 0:
            self.power_w = (self.joules - mark[1]) / (seen_ns / NS)
            self.rolling.add(self.power_w, (self.at_ns - mark[0]) / NS)
            self.history.append(self.power_w)
        self.mark = (self.at_ns, self.joules, self.observed_ns, width_ns)


class Gatherer:
    """What is known of one machine, fed with rows. Several tapes may follow one another."""

    def __init__(self, interval_s: float, *, memory_total_bytes: Mapping[str, float] | None = None) -> None:
        self.interval_s = interval_s
        self.bounds = Bounds()
        self.scope = ""
        self.last_ns = 0
        self._first_ns = 0
        self._before_ns = 0
        self.tape_ns = 0  # where the tape begins that is read now
        self._totals = dict(memory_total_bytes or {})
        self._stretch_ns = round(NEARLY * interval_s * NS)
        self.lines: dict[str, Line] = {}  # every source of joules by its label
        self._by_group: dict[str, list[Line]] = {}
        self._sums: dict[str, Accumulator] = {}
        self._state: dict[str, float] = {}
        self._cpu_mark: tuple[float, float] | None = None
        self._cpu_pct: float | None = None
        self._cpu_history: deque[float] = deque(maxlen=HISTORY)

    def adopt(self, tape: Tape, *, continues: bool = False) -> None:
        """Read on from this tape. `continues`: it holds rows of the same recorder, so no time is left out."""
        known = sources(tape)
        added = {source.label for source in addable(known)}
        self.scope = scope_of([source for source in known if source.label in added])
        self._by_group = {}
        for source in known:
            line = self._line(source, source.label in added)
            self._by_group.setdefault(line.group, []).append(line)
        if not continues:
            self._before_ns = self.elapsed_ns
            self._first_ns = self.last_ns = tape.extent_ns()[0]
            self._sums = {}
            for line in self.lines.values():
                line.base_j, line.base_ns, line.mark = line.joules, line.observed_ns, None
        self.tape_ns = tape.extent_ns()[0]
        self.bounds.adopt(tape, known)

    @property
    def elapsed_ns(self) -> int:
        """How long has been recorded, over all tapes."""
        return self._before_ns + self.last_ns - self._first_ns

    @property
    def tape_s(self) -> float:
        """How long the tape is that is read now."""
        return (self.last_ns - self.tape_ns) / NS

    def _line(self, source: Source, in_total: bool) -> Line:
        info = source.group.info
        place = energy_channels(info).index(info.channels.index(source.channel))
        line = self.lines.get(source.label)
        if line is None or line.channel != source.channel:
            base = (0.0, 0) if line is None else (line.joules, line.observed_ns)
            line = Line(
                source.channel,
                source.label,
                info.label,
                info.name,
                place,
                source.group.expected_period_s,
                in_total,
                *base,
            )
            self.lines[source.label] = line
        line.group, line.place, line.in_total = info.name, place, in_total
        return line

    def feed(self, news: Sequence[Rows]) -> None:
        for part in news:
            info = part.group.info
            if info.name in self._by_group:
                self._count(part)
            for channel, index in ((c, i) for i, c in enumerate(info.channels) if not c.carries_energy):
                self._remember(channel, index, part.rows)
            if info.name == "use.host":
                self._host()

    def _count(self, part: Rows) -> None:
        group, rows = part.group, part.rows
        total = self._sums.get(group.info.name)
        if total is None:
            # Where this tape stood already when we came.
            cums = part.frame.cum if part.frame is not None else ()
            if part.frame is not None:
                total = Accumulator.resumed(group.info, group.expected_period_s, rows[0], cums)
            else:
                total = Accumulator(group.info, group.expected_period_s)
                total.add(rows[0])
            self._sums[group.info.name] = total
            self._stand(part, total, rows[0])
            self._seen(rows[0])
        for row in rows:
            at_ns = publication_ns(row)
            if total.last_ns is None or at_ns > total.last_ns:
                total.add(row, at_ns)
                self._stand(part, total, row)
        self._seen(rows[-1])

    def _stand(self, part: Rows, total: Accumulator, row: Row) -> None:
        info, cums = part.group.info, total.cum()
        width_ns = row.late_ns - row.early_ns if info.tracked else 0
        for line in self._by_group[info.name]:
            cum = cums[line.place]
            if cum.last_ns > line.at_ns:
                blunt_ns = width_ns if line.channel.kind is Kind.COUNTER else 0
                line.stands(cum.total, cum.observed_ns, cum.last_ns, self._stretch_ns, blunt_ns)

    def _seen(self, row: Row) -> None:
        self.last_ns = max(self.last_ns, publication_ns(row))

    def _remember(self, channel: Channel, index: int, rows: Sequence[Row]) -> None:
        for row in reversed(rows):
            value = row.values[index]
            if math.isfinite(value):
                self._state[channel.name] = value * channel.scale
                return

    def _host(self) -> None:
        busy, idle = self._state.get("host.cpu_time"), self._state.get("host.idle_time")
        if busy is None or idle is None:
            return
        if self._cpu_mark is not None:
            worked, rested = busy - self._cpu_mark[0], idle - self._cpu_mark[1]
            if worked < 0 or rested < 0 or worked + rested <= 0:
                self._cpu_mark = (busy, idle)
                return
            self._cpu_pct = 100 * worked / (worked + rested)
            self._cpu_history.append(self._cpu_pct)
        self._cpu_mark = (busy, idle)

    # What is known now.

    def devices(self, now_ns: int) -> tuple[DeviceNow, ...]:
        """Every device, those of the total first."""
        lines = sorted(self.lines.values(), key=lambda line: (not line.in_total, _order(line.label)))
        return tuple(self._device(line, now_ns) for line in lines)

    def _device(self, line: Line, now_ns: int) -> DeviceNow:
        name = line.channel.device
        age_s = (now_ns - line.at_ns) / NS if line.at_ns else None
        stale = age_s is None or age_s > STALE_PERIODS * max(line.expected_s, self.interval_s)
        throttle = self._state.get(f"{name}.throttle")
        plain = line.label == name
        return DeviceNow(
            name=line.label,
            label=line.title,
            power_w=None if stale else line.power_w,
            averages_w=tuple(line.rolling.watts),
            energy=self._amount(line),
            in_total=line.in_total,
            utilisation_pct=self._utilisation(name) if plain else None,
            memory_bytes=self._state.get(f"{name}.memory") if plain else None,
            memory_total_bytes=self._totals.get(name) if plain else None,
            temperature_c=self._state.get(f"{name}.temperature") if plain else None,
            clock_mhz=self._state.get(f"{name}.clock_sm") if plain else None,
            throttled=None if throttle is None or not plain else bool(int(throttle) & HELD_BACK),
            power_limit_w=self._state.get(f"{name}.power_limit") if plain else None,
            history_w=tuple(line.history),
            age_s=age_s,
            settling=line.power_w is None and (not stale or self.elapsed_ns < YOUNG_NS),
        )

    def _utilisation(self, device: str) -> float | None:
        own = self._state.get(f"{device}.utilisation")
        whole = device == "host" or (device == "cpu.0" and "cpu.1" not in self.lines)
        return self._cpu_pct if own is None and whole else own

    def _amount(self, line: Line) -> Amount:
        if not line.at_ns:
            return Amount(refused="no reading yet")
        elapsed_ns = max(self.elapsed_ns, 1)
        below, above = self.bounds.of(line.label, line.joules)
        return Amount(
            line.joules,
            None if below is None else line.joules - below,
            None if above is None else line.joules + above,
            pedigree_of(line.channel).value,
            min(1.0, line.observed_ns / elapsed_ns) if elapsed_ns > YOUNG_NS else 1.0,
        )

    def total(self, devices: Sequence[DeviceNow]) -> Amount:
        """The sum over the devices of the total."""
        counted = [device.energy for device in devices if device.in_total and device.energy.joules is not None]
        if not counted:
            return Amount(refused="no energy has been measured yet")
        joules = math.fsum(amount.joules or 0.0 for amount in counted)
        below, above = self.bounds.of("", joules)
        return Amount(
            joules,
            None if below is None else joules - below,
            None if above is None else joules + above,
            "+".join(dict.fromkeys(amount.pedigree for amount in counted)),
            min(amount.coverage for amount in counted),
        )

    def snapshot(
        self, source: str, devices: tuple[DeviceNow, ...], host: str, notes: Sequence[str], at_ns: int
    ) -> Snapshot:
        """What is known of these devices at an instant (UTC), without owners; each note once."""
        power_w, averages_w, history_w = sum_of(devices)
        return Snapshot(
            source=source,
            at_ns=at_ns,
            elapsed_s=self.elapsed_ns / NS,
            devices=devices,
            total_w=power_w,
            averages_w=averages_w,
            total=self.total(devices),
            scope=self.scope,
            history_w=history_w,
            host=self.host(host),
            notes=tuple(dict.fromkeys(notes)),
        )

    def host(self, name: str) -> HostNow:
        memory = self._state.get("host.memory")
        return HostNow(name, self._cpu_pct, memory, self._totals.get("host"), tuple(self._cpu_history))


def left_out(devices: Sequence[DeviceNow]) -> list[str]:
    """Notes on devices of the total that tell nothing any more: power is then that of the others."""
    silent = [device for device in devices if device.in_total and device.power_w is None and not device.settling]
    if len(silent) == sum(device.in_total for device in devices):
        return []  # a stalled recording is reported as a whole
    ages = {device.name: "" if device.age_s is None else f" for {device.age_s:.0f} s" for device in silent}
    return [f"{name}: no reading{age}; power is that of the others" for name, age in ages.items()]


def sum_of(devices: Sequence[DeviceNow]) -> tuple[float | None, tuple[float | None, ...], tuple[float, ...]]:
    """Power, averages and history of the total. An average of a sum is the sum of the averages.

    No power while one of the devices has none yet.
    """
    counted = [device for device in devices if device.in_total]
    powers = [device.power_w for device in counted if device.power_w is not None]
    if any(device.settling for device in counted):
        powers = []  # a sum without them would be of something else
    averages = []
    for index in range(len(CONSTANTS_S)):
        known = [a for device in counted if (a := device.averages_w[index]) is not None]
        averages.append(math.fsum(known) if known else None)
    histories = [device.history_w for device in counted if device.history_w]
    length = min(map(len, histories), default=0)
    history = tuple(map(math.fsum, zip(*(h[len(h) - length :] for h in histories), strict=True)))
    return (math.fsum(powers) if powers else None), tuple(averages), history


def _order(label: str) -> tuple[object, ...]:
    """Processors, memory, cards, then the others; cpu.2 before cpu.10."""
    return {"cpu": "0", "dram": "1", "gpu": "2"}.get(label.partition(".")[0], label), natural(label)
