"""Devices as the agent counts them: one line of joules for each device and domain, fed row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.energy.sources import addable, part_name, sources, splittable
from everywatt.fleet.idle import IdleFinder
from everywatt.ledger.engine import Level
from everywatt.ledger.split.amounts import UJ
from everywatt.tape.accumulate import Accumulator, energy_channels, publication_ns
from everywatt.tape.reader import StoredGroup

STALE_PERIODS = 5
STALE_S = 5.0
UNEVEN = 0.2  # as in `api.power`: instants are compared where their doubts differ by so much of the distance


def pedigree_word(channel: Channel) -> str:
    """`modelled`, `counter` where the hardware counted, else `integrated`."""
    if channel.pedigree is Pedigree.MODELLED:
        return Pedigree.MODELLED.value
    return (Pedigree.COUNTER if channel.kind is Kind.COUNTER else Pedigree.INTEGRATED).value


@dataclass(slots=True)
class Line:
    """One counter of joules. `settled_uj` is what is told; what came since waits for its owners."""

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
    power_w: float | None = None
    half_ns: float = 0.0  # how far the instant of the newest row may be off
    resumed_ns: int = 0  # a counter's last row before the start of the agent, 0 where it does not go on from one
    _after_gap: tuple[float, int, int, float] | None = None  # joules, observed, at, half: the first row after the start
    _anchor: tuple[float, int, int, float] | None = None  # joules, observed, at, half: where power was taken last

    @property
    def key(self) -> str:
        """`device|domain`: its name in files."""
        return f"{self.device}|{self.domain}"

    @property
    def kind(self) -> str:
        """How its energy is shared: `gpu`, `dram`, or `cpu` for all that goes by CPU time."""
        return {Domain.GPU: "gpu", Domain.DRAM: "dram"}.get(self.channel.domain or Domain.NODE, "cpu")

    def stands(self, total: float, observed_ns: int, at_ns: int, half_ns: float = 0.0) -> None:
        """What its channel has accumulated since the agent started, at `at_ns`, give or take `half_ns`."""
        facts = self.channel.facts
        raw = total if self.channel.kind is Kind.COUNTER else total / NS
        self.joules = raw * self.channel.scale * facts.gain + facts.bias_w * (observed_ns / NS)
        self.observed_ns, self.at_ns, self.half_ns = observed_ns, at_ns, half_ns
        self.first_ns = self.first_ns or at_ns
        if self.resumed_ns and at_ns > self.resumed_ns:
            self.resumed_ns, self._after_gap = 0, (self.joules, observed_ns, at_ns, half_ns)

    def settle_gap(self) -> tuple[int, float]:
        """What was counted while the agent did not run, once a row shows it: microjoules and seconds, else zeros."""
        if self._after_gap is None:
            return 0, 0.0
        joules, observed_ns, at_ns, _ = self._anchor = self._after_gap
        self._after_gap = None
        fresh_uj = max(self.base_uj + round(joules * UJ) - self.settled_uj, 0)
        self.settled_uj += fresh_uj
        self.settled_ns, self.settled_seen_ns = at_ns, observed_ns
        return fresh_uj, observed_ns / NS

    def settle(self) -> tuple[int, float]:
        """Take what has come since the last time: microjoules (never below 0) and the seconds that were observed."""
        fresh_uj = self.base_uj + round(self.joules * UJ) - self.settled_uj
        seen_ns = self.observed_ns - self.settled_seen_ns
        if self.at_ns == self.settled_ns or fresh_uj < 0:
            return 0, 0.0
        self.settled_uj += fresh_uj
        self.settled_ns, self.settled_seen_ns = self.at_ns, self.observed_ns
        self._take_power()
        return fresh_uj, seen_ns / NS

    def _take_power(self) -> None:
        """Mean power since an instant that is known about as well as this one: between others it would be wild."""
        before = self._anchor
        if before is not None:
            joules, observed_ns, at_ns, half_ns = before
            if abs(self.half_ns - half_ns) > UNEVEN * (self.at_ns - at_ns):
                return
            if self.observed_ns > observed_ns:
                self.power_w = max(self.joules - joules, 0.0) / ((self.observed_ns - observed_ns) / NS)
        self._anchor = (self.joules, self.observed_ns, self.at_ns, self.half_ns)

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
    _sums: dict[str, Accumulator] = field(default_factory=dict)
    _by_group: dict[str, list[Line]] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Sequence[tuple[GroupInfo, float]]) -> Lines:
        """Lines for groups with the periods at which their rows should come."""
        stored = [StoredGroup(number, info, expected_s) for number, (info, expected_s) in enumerate(groups, 1)]
        # It asks a tape for its groups only.
        found = sources(SimpleNamespace(groups=stored))  # type: ignore[arg-type]
        counted = {source.channel.name for source in addable(splittable(found))}
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
            line.idle = IdleFinder(line.kind) if in_total else None
            made.all.append(line)
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
            if cum.last_ns > line.at_ns:
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
        """What a tape has to know to tell these counters from itself: where each stands and since when; its channel."""
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
        """Watch the channels of a group."""
        mine = [(place, channel) for place, channel in enumerate(info.channels) if not channel.carries_energy]
        self._places[info.name] = mine
        for _, channel in mine:
            self.channels[channel.name] = channel
            self.expected_s[channel.name] = expected_s

    def feed(self, group: str, rows: Sequence[Row]) -> None:
        """The newest rows of a group."""
        row = rows[-1]
        at_ns = publication_ns(row)
        for place, channel in self._places.get(group, ()):
            value = row.values[place]
            if math.isfinite(value):
                self.values[channel.name] = (value * channel.scale, at_ns)

    def value(self, name: str, now_ns: int) -> tuple[float, int] | None:
        """A channel's value and when; None where there is none, or it is stale."""
        found = self.values.get(name)
        if found is None or now_ns - found[1] > max(STALE_PERIODS * self.expected_s[name], STALE_S) * NS:
            return None
        return found
