"""Devices as the agent counts them: one line of joules for each device and domain, fed row by row."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.device import Device
from everywatt.energy.sources import (
    PATIENCE_NS,
    SHARPER,
    UNEVEN,
    addable,
    part_name,
    shows_power,
    sources,
    splittable,
    systematic_terms,
)
from everywatt.ledger.counters import Factors
from everywatt.ledger.engine import UJ, Level
from everywatt.ledger.idle import FEW_CELLS, QUIET_S, Watched, find_idle, kind_of
from everywatt.tape.accumulate import Accumulator, energy_channels, publication_ns
from everywatt.tape.reader import StoredGroup

CELL_S = 5.0
MOST_CELLS = 1440  # two hours


class IdleFinder:
    """Fed with stretches; `level` is what is known so far. `limit_w` is the most that the device can draw, if known."""

    def __init__(self, kind: str, limit_w: float | None = None) -> None:
        self._kind, self._limit_w = kind, limit_w
        self._known: Level | None = None
        self._watts, self._uses, self._held = array("d"), array("d"), array("b")
        self._sum_j = self._sum_use = self._seconds = self._half_s = 0.0
        self._holding = False

    def know(self, level: Level | None) -> None:
        """What was found before this start: used until idle is observed again."""
        self._known = level

    def add(self, joules: float, seconds: float, use: float | None, held: bool = False, half_s: float = 0.0) -> None:
        """One stretch: how busy the device was, from 0 to 1 (None: not known), and whether a process held it.

        Its end may be off by `half_s`: no cell ends where that cannot be compared with where it began.
        """
        if seconds <= 0 or use is None:
            return
        self._sum_j += joules
        self._sum_use += min(max(use, 0.0), 1.0) * seconds
        self._seconds += seconds
        self._holding |= held
        known = abs(half_s - self._half_s) <= UNEVEN * self._seconds
        if known and self._seconds >= (QUIET_S if len(self._watts) < FEW_CELLS else CELL_S):
            self._watts.append(self._sum_j / self._seconds)
            self._uses.append(self._sum_use / self._seconds)
            self._held.append(self._holding)
            self._sum_j = self._sum_use = self._seconds = 0.0
            self._half_s, self._holding = half_s, False
            if len(self._watts) > MOST_CELLS:
                for column in (self._watts, self._uses, self._held):
                    del column[: MOST_CELLS // 8]

    def level(self) -> Level | None:
        """Idle and held watts; what was known before the start while idle has not been observed since."""
        if self._watts:
            held = [bool(cell) for cell in self._held] if self._kind == "gpu" else None
            seen = Watched(self._watts, self._uses, CELL_S, self._kind, held, self._limit_w)
        elif self._seconds > 0:
            seen = Watched([self._sum_j / self._seconds], [self._sum_use / self._seconds], 0.0, self._kind)
        else:
            return self._known
        found = find_idle(seen)
        if found is None or (self._known is not None and (not found.observed or found.method == "quiet, held")):
            return self._known
        return found.level


STALE_PERIODS = 5
STALE_S = 5.0
EXACT = Factors()
FACTORS_S = 15.0  # how often the interval of a counter's increments is recomputed
WINDOW_S = 60.0  # intervals hold for windows of a minute or more: what instants are off by is in each of them
Z95_UNIFORM = 1.96 / math.sqrt(12)  # 95 % half-width of a sum of uniform errors, as a share of their width
VAGUE_NS = NS // 10  # an instant that is off by up to this is as good as any


def pedigree_word(channel: Channel) -> str:
    """`modelled`, `counter` where the hardware counted, else `integrated`."""
    if channel.pedigree is Pedigree.MODELLED:
        return Pedigree.MODELLED.value
    return (Pedigree.COUNTER if channel.kind is Kind.COUNTER else Pedigree.INTEGRATED).value


def accumulated_joules(channel: Channel, total: float, observed_ns: int) -> float:
    """Joules of a channel's running total (`tape.accumulate`) over so much observed time, corrected by its facts."""
    raw = total if channel.kind is Kind.COUNTER else total / NS
    return raw * channel.scale * channel.facts.gain + channel.facts.bias_w * (observed_ns / NS)


@dataclass(slots=True)
class Line:
    """One counter of joules. `settled_uj` is what is published; newer energy waits to be shared among owners."""

    device: str
    domain: str
    pedigree: str
    channel: Channel
    group: str
    place: int
    expected_s: float
    in_total: bool
    idle: IdleFinder | None = None
    level: Level | None = None
    base_uj: int = 0
    settled_uj: int = 0
    settled_ns: int = 0
    settled_seen_ns: int = 0
    joules: float = 0.0
    observed_ns: int = 0
    at_ns: int = 0
    first_ns: int = 0
    low_uj: int = 0  # ends of the 95 % interval of `settled_uj`
    high_uj: int = 0
    widths: tuple[float, float] = (
        0.0,
        0.0,
    )  # of a model that reports an interval: shares of its watts, below and above
    _factors: Factors = EXACT
    _factors_of: tuple[float, float] = (0.0, -FACTORS_S)  # joules and observed seconds when they were found
    _unseen_power: float = 0.0  # sum of squares (J²) of what power changed by from one interval to the next
    _most_w: float = 0.0
    _unseen_s: float = 0.0  # time that no reading covers, and that the interval does not have yet
    power_w: float | None = None
    half_ns: float = 0.0  # how far the instant of the newest row may be off
    _vaguest_ns: float = 0.0  # and of those since the interval was found last
    vague_ns: int = 0  # since when rows were passed over, 0 where the newest was not
    resumed_ns: int = 0  # a counter's last row before the start of the agent, 0 where it does not go on from one
    _after_gap: tuple[float, int, int, float] | None = None  # joules, observed, at, half: the first row after the start
    _anchor: tuple[float, int, int, float] | None = None  # joules, observed, at, half: where power was taken last

    key: str = field(init=False)  # `device|domain`: its name in files
    number: int | None = field(init=False)  # which GPU or package it is; None if its name has no number
    kind: str = field(init=False)  # how its energy is shared: `gpu`, `dram`, or `cpu` for all that goes by CPU time

    def __post_init__(self) -> None:
        self.key = f"{self.device}|{self.domain}"
        self.number = Device.parse(self.channel.device).index
        self.kind = kind_of(self.channel.domain)

    def stands(self, total: float, observed_ns: int, at_ns: int, half_ns: float = 0.0) -> None:
        """What its channel has accumulated since the agent started, at `at_ns`, give or take `half_ns`."""
        self.joules = accumulated_joules(self.channel, total, observed_ns)
        self.observed_ns, self.at_ns, self.half_ns = observed_ns, at_ns, half_ns
        self._vaguest_ns = max(self._vaguest_ns, half_ns)
        self.first_ns = self.first_ns or at_ns
        if self.resumed_ns and at_ns > self.resumed_ns:
            self.resumed_ns, self._after_gap = 0, (self.joules, observed_ns, at_ns, half_ns)

    def passes_over(self, at_ns: int, half_ns: float) -> bool:
        """Whether to wait for a row whose instant is known better: until a sensor's period is found, it is vague.

        The joules come with that row. Sensors that are always vague, or slow, are not waited for again and again.
        Joules of a gauge are integrated over its own times, so that those fit.
        """
        known = half_ns <= max(VAGUE_NS, 2 * self.half_ns)
        if known or self.channel.kind is Kind.GAUGE or self.expected_s * NS > PATIENCE_NS:
            self.vague_ns = 0
            return False
        self.vague_ns = self.vague_ns or at_ns
        return at_ns - self.vague_ns < PATIENCE_NS

    def settle_gap(self) -> tuple[int, float]:
        """What was counted while the agent did not run, once a row shows it: microjoules and seconds, else zeros."""
        if self._after_gap is None:
            return 0, 0.0
        joules, observed_ns, at_ns, _ = self._anchor = self._after_gap
        self._after_gap = None
        fresh_uj = max(self.base_uj + round(joules * UJ) - self.settled_uj, 0)
        self._count(fresh_uj)
        self.settled_ns, self.settled_seen_ns = at_ns, observed_ns
        return fresh_uj, observed_ns / NS

    def settle(self) -> tuple[int, float]:
        """Take what has come since the last time: microjoules (never below 0) and the seconds that were observed."""
        fresh_uj = self.base_uj + round(self.joules * UJ) - self.settled_uj
        seen_ns = self.observed_ns - self.settled_seen_ns
        if self.at_ns == self.settled_ns or fresh_uj < 0:
            return 0, 0.0
        self._find_factors(fresh_uj / UJ, seen_ns / NS, (self.at_ns - (self.settled_ns or self.first_ns)) / NS)
        self._count(fresh_uj)
        self.settled_ns, self.settled_seen_ns = self.at_ns, self.observed_ns
        self._take_power()
        return fresh_uj, seen_ns / NS

    def _count(self, fresh_uj: int) -> None:
        self.settled_uj += fresh_uj
        self.low_uj += int(fresh_uj * self._factors.low)
        self.high_uj += math.ceil(fresh_uj * self._factors.high)

    def _find_factors(self, fresh_j: float, seconds: float, passed_s: float) -> None:
        """The interval of what is counted next, from the mean power since it was found last."""
        self._unseen_s += passed_s - seconds if passed_s - seconds > self.expected_s else 0.0
        if seconds <= 0:
            return
        power_w = fresh_j / seconds
        if self.channel.kind is Kind.GAUGE and self.power_w is not None:
            # Between two readings power may have been anything between them.
            self._unseen_power += ((power_w - self.power_w) * seconds) ** 2
        # Unobserved power may have been anything from zero to the highest that was measured.
        self._most_w = max(self._most_w, power_w)
        self.high_uj += math.ceil((self.channel.facts.max_w or self._most_w) * self._unseen_s * UJ)
        self._unseen_s = 0.0
        joules, observed_s = self.joules, self.observed_ns / NS
        before_j, before_s = self._factors_of
        if observed_s - before_s >= FACTORS_S and joules > before_j:
            self._factors_of = joules, observed_s
            self._factors = Factors.of(
                self.budget(joules - before_j, observed_s - max(before_s, 0.0)), joules - before_j
            )
            self._vaguest_ns = self.half_ns

    def budget(self, joules: float, seconds: float) -> Budget:
        """The error budget of joules that were counted in so many seconds.

        It has the edges of windows of a minute: at both, the instant of a reading may be off.
        """
        facts = self.channel.facts
        gain = max((facts.gain_pct or 0.0) / 100, self.widths[0])
        terms = systematic_terms(self.channel, self.device, joules * gain, (facts.offset_w or 0.0) * seconds)
        if self._unseen_power and self.joules > 0:
            width_j = Z95_UNIFORM * math.sqrt(self._unseen_power) * min(joules / self.joules, 1.0)
            terms.append(Term("aliasing", f"aliasing:{self.device}", width_j))
        if self._vaguest_ns:
            edges_s = Z95_UNIFORM * math.sqrt(2) * 2 * self._vaguest_ns / NS
            terms.append(Term("edges", f"edges:{self.device}", joules * min(edges_s / WINDOW_S, 1.0)))
        above = max(self.widths[1] - gain, 0.0)
        return Budget(tuple(terms), (Bound("model", self.device, 0.0, joules * above),) if above else ())

    @property
    def sampling_only(self) -> bool:
        """Whether the gain and offset of its sensor are unknown, so that its interval covers sampling only."""
        return self.channel.facts.gain_pct is None and self.channel.facts.offset_w is None

    def restore(self, low_uj: int | None, high_uj: int | None) -> None:
        """Restore a published interval; without one, the energy may be anything from zero to twice the counter."""
        self.low_uj = 0 if low_uj is None else min(low_uj, self.settled_uj)
        self.high_uj = 2 * self.settled_uj if high_uj is None else max(high_uj, self.settled_uj)

    def _take_power(self) -> None:
        """Mean power since an instant that is known about as well as this one: between others it would be wild."""
        half_ns = 0.0 if self.channel.kind is Kind.GAUGE else self.half_ns  # it is integrated over its own times
        before = self._anchor
        if before is not None:
            joules, observed_ns, at_ns, before_ns = before
            if not shows_power(self.at_ns - at_ns, before_ns, half_ns):
                if before_ns <= SHARPER * half_ns:
                    return
            elif self.observed_ns > observed_ns:
                self.power_w = max(self.joules - joules, 0.0) / ((self.observed_ns - observed_ns) / NS)
        self._anchor = (self.joules, self.observed_ns, self.at_ns, half_ns)

    def stale(self, now_ns: int) -> bool:
        """Whether its sensor has been silent for too long."""
        return not self.at_ns or now_ns - self.at_ns > max(STALE_PERIODS * self.expected_s, STALE_S) * NS

    def coverage(self, now_ns: int) -> float | None:
        """The share of the time since its first reading that was observed; None before there is any."""
        whole_ns = (now_ns if self.stale(now_ns) else self.at_ns) - self.first_ns
        return None if not self.first_ns or whole_ns < NS // 2 else min(1.0, self.observed_ns / whole_ns)


@dataclass(slots=True)
class Lines:
    """All lines of a machine, and the accumulators behind them."""

    all: list[Line] = field(default_factory=list)
    modules: list[Line] = field(default_factory=list)  # that have chips whose energy is shared
    patient: bool = True  # whether rows whose instant is vague may be passed over
    _sums: dict[str, Accumulator] = field(default_factory=dict)
    _by_group: dict[str, list[Line]] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Sequence[tuple[GroupInfo, float]]) -> Lines:
        """Lines for groups with the periods at which their rows should come."""
        stored = [StoredGroup(number, info, expected_s) for number, (info, expected_s) in enumerate(groups, 1)]
        # It asks a tape for its groups only.
        found = sources(SimpleNamespace(groups=stored))  # type: ignore[arg-type]
        counted = {source.channel.name for source in addable(splittable(found))}
        modules = {source.channel.name for source in addable(found)} - counted
        made = cls()
        taken: set[tuple[str, str]] = set()
        for source in found:
            channel, info = source.channel, source.group.info
            device = part_name(channel) if channel.domain is Domain.RAIL else channel.device
            if (device, source.domain.value) in taken:
                device = part_name(channel)
            taken.add((device, source.domain.value))
            place = energy_channels(info).index(info.channels.index(channel))
            in_total = channel.name in counted
            line = Line(
                device,
                source.domain.value,
                pedigree_word(channel),
                channel,
                info.name,
                place,
                source.group.expected_period_s,
                in_total,
            )
            line.idle = IdleFinder(line.kind, channel.facts.max_w) if in_total else None
            made.all.append(line)
            made.modules += [line] if channel.name in modules else []
            made._by_group.setdefault(info.name, []).append(line)
            if info.name not in made._sums:
                made._sums[info.name] = Accumulator(info, source.group.expected_period_s)
        return made

    def feed(self, group: str, rows: Iterable[Row]) -> None:
        """Rows of a group, in order of publication or nearly."""
        sums = self._sums.get(group)
        if sums is None:
            return
        half_ns = 0.0
        for row in sorted(rows, key=publication_ns):
            at_ns = publication_ns(row)
            if sums.last_ns is None or at_ns > sums.last_ns:
                sums.add(row, at_ns)
                half_ns = (row.late_ns - row.early_ns) / 2
        cums = sums.cum()
        for line in self._by_group[group]:
            cum = cums[line.place]
            if cum.last_ns > line.at_ns and not (self.patient and line.passes_over(cum.last_ns, half_ns)):
                line.stands(cum.total, cum.observed_ns, cum.last_ns, half_ns)

    def resume(self, group: str, row: Row) -> None:
        """Go on from the last row of this boot that an agent before wrote: counters have counted since."""
        self.feed(group, [row])
        for line in self._by_group.get(group, ()):
            if line.channel.kind is Kind.COUNTER and line.at_ns:
                line.resumed_ns = line.at_ns

    def unseen(self, group: str, since_ns: int) -> None:
        """Nothing is known of a group since an instant (before the boot it is below zero): coverage counts from it."""
        for line in self._by_group.get(group, ()):
            line.first_ns = since_ns

    def total(self) -> list[Line]:
        """The lines whose energy has owners: those that may be added up."""
        return [line for line in self.all if line.in_total]

    def to_dict(self) -> dict[str, Any]:
        """What a tape needs to compute these counters by itself: each one's value, start and channel."""
        return {
            line.key: {
                "uj": line.settled_uj if line.settled_ns else line.base_uj,
                "at_ns": line.settled_ns,
                "group": line.group,
                "channel": line.channel.name,
            }
            for line in self.all
        }


@dataclass(slots=True)
class States:
    """The newest value of every channel that carries no energy, with when it was published."""

    values: dict[str, tuple[float, int]] = field(default_factory=dict)
    expected_s: dict[str, float] = field(default_factory=dict)
    channels: dict[str, Channel] = field(default_factory=dict)
    _places: dict[str, list[tuple[int, Channel]]] = field(default_factory=dict)

    def add_group(self, info: GroupInfo, expected_s: float) -> None:
        mine = [(place, channel) for place, channel in enumerate(info.channels) if not channel.carries_energy]
        self._places[info.name] = mine
        for _, channel in mine:
            self.channels[channel.name] = channel
            self.expected_s[channel.name] = expected_s

    def feed(self, group: str, rows: Sequence[Row]) -> None:
        row = rows[-1]
        at_ns = publication_ns(row)
        for place, channel in self._places.get(group, ()):
            value = row.values[place]
            if math.isfinite(value):
                self.values[channel.name] = (value * channel.scale, at_ns)

    def value(self, name: str, now_ns: int) -> tuple[float, int] | None:
        """A channel's value and its time; None if it is missing or stale."""
        found = self.values.get(name)
        if found is None or now_ns - found[1] > max(STALE_PERIODS * self.expected_s[name], STALE_S) * NS:
            return None
        return found
