"""Which channels speak for a device, and which of them may be added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from everywatt.core.budget import Term
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.domains import WHOLE as WHOLE
from everywatt.core.domains import in_total
from everywatt.core.lazy_dataclass import dataclass
from everywatt.tape.reader import StoredGroup, Tape

# Slopes are taken between instants whose uncertainties differ by at most so much of the distance between them.
UNEVEN = 0.2
BLUNT = 0.03  # a power that is shown live is of a stretch whose length is known to this share of it
COARSE = 0.1  # the same of a power in a chart or table, where a step may be one period
SHARPER = 2  # an instant that is known so many times better starts such a stretch again
PATIENCE_NS = 3 * NS  # how long instants that are known better are waited for
_FAMILY = {Domain.PACKAGE: "cpu", Domain.CORE: "core", Domain.NODE: "node"}


@dataclass(frozen=True, slots=True)
class Source:
    """One channel of one tape that joules can come from, and the channels that count the same joules."""

    tape: Tape
    group: StoredGroup
    channel: Channel
    mirrors: tuple[tuple[StoredGroup, Channel], ...] = ()

    @property
    def domain(self) -> Domain:
        """What its joules cover."""
        assert self.channel.domain is not None
        return self.channel.domain

    @property
    def label(self) -> str:
        """The name of its part in a figure: the device, and the domain where the device has several."""
        return part_name(self.channel)

    @property
    def family(self) -> str:
        """Its word in a scope: cpu, dram, gpu, psys, …"""
        if self.channel.pedigree is Pedigree.MODELLED:
            return "machine"
        if self.channel.device == "psys":
            return "psys"
        return _FAMILY.get(self.domain, self.domain.value)


def part_name(channel: Channel) -> str:
    """`cpu.0`, `dram.0`, `gpu.1`; for a core or uncore counter `cpu.0 core`."""
    if channel.domain in (Domain.CORE, Domain.UNCORE, Domain.GPU_MEMORY, Domain.RAIL):
        middle = channel.name.removeprefix(channel.device).strip(".").rsplit(".", 1)[0]
        return f"{channel.device} {middle}".strip() if middle else channel.device
    return channel.device


def sources(tape: Tape) -> list[Source]:
    """One source for each device and domain of a tape: a counter where there is one, else the best gauge."""
    best: dict[tuple[str, Domain, str], list[tuple[StoredGroup, Channel]]] = {}
    for group in tape.groups:
        for channel in group.info.channels:
            if channel.carries_energy and channel.domain is not None:
                key = (channel.device, channel.domain, part_name(channel))
                best.setdefault(key, []).append((group, channel))
    found = []
    for candidates in best.values():
        candidates.sort(key=lambda pair: _rank(pair[0].info, pair[1]))
        group, channel = candidates[0]
        found.append(Source(tape, group, channel, tuple(candidates[1:])))
    return found


def _rank(group: GroupInfo, channel: Channel) -> tuple[int, int, int, int]:
    return (
        channel.mirror_of is not None,
        channel.pedigree is Pedigree.MODELLED,
        channel.kind is not Kind.COUNTER,
        group.channels.index(channel),
    )


def addable(candidates: Iterable[Source]) -> list[Source]:
    """Provably disjoint chips, the outermost first; whole-machine meters only where there are no chips."""
    return in_total(candidates, lambda source: source.channel)


def splittable(candidates: Sequence[Source]) -> list[Source]:
    """The sources that owners can share: a module only where no chip inside it is measured by itself.

    A process uses a module's CPU or its GPU, so that use says nothing about the module as a whole.
    """
    parts = (Domain.PACKAGE, Domain.GPU)
    if not any(source.domain in parts and not source.channel.in_slot for source in candidates):
        return list(candidates)
    return [source for source in candidates if source.domain is not Domain.MODULE]


def shows_power(length_ns: int, first_half_ns: float, last_half_ns: float, share: float = BLUNT) -> bool:
    """Whether the length of a stretch between two counts, each published within a half-width, is known well.

    Each may lie anywhere within its widths. Where a recorder reads too seldom they lie at the same end of both, so that
    half-widths that are alike do no harm to a stretch of some seconds.
    """
    patient = length_ns >= PATIENCE_NS
    unsure_ns = abs(last_half_ns - first_half_ns) if patient else last_half_ns + first_half_ns
    return unsure_ns <= share * length_ns


def scope_of(parts: Sequence[Source]) -> str:
    """`cpu+dram+gpu`: what a total covers."""
    order = ("machine", "module", "cpu", "soc", "dram", "gpu", "gpu-memory", "rail", "psys", "node", "psu", "wall")
    families = {source.family for source in parts}
    return "+".join(sorted(families, key=lambda f: order.index(f) if f in order else len(order)))


def edge_key(source: Source, at_ns: int) -> str:
    """Whose error it is where an edge of a window lies inside a cell: a family of all cards of a model.

    They often work in step: cards under one load that publish together are off by the same, which a total adds up.
    """
    host, channel = source.tape.host, source.channel
    own = f"{host}:{channel.name}:{at_ns}"
    return f"edge:{host}:{channel.facts.cards}:{at_ns}|{own}" if channel.facts.cards else f"edge:{own}"


def error_family(channel: Channel, device: str) -> str:
    """Whose systematic errors a channel shares: those of cards of its model, or only its own device's."""
    facts = channel.facts
    return device if facts.calibrated or facts.cards is None else facts.cards


def systematic_terms(channel: Channel, device: str, gain_j: float, offset_j: float) -> list[Term]:
    """Gain and offset of a sensor as independent factors, of 95 % half-widths in joules.

    They are what cards of one model share, what is the card's own, and the part of the offset that goes with the gain.
    `device` names the device among all hosts.
    """
    facts, family = channel.facts, error_family(channel, device)
    freedom = math.inf if facts.freedom is None else facts.freedom
    of_gain, of_offset = ("model", "model") if channel.pedigree is Pedigree.MODELLED else ("gain", "offset")
    parts = (
        (of_gain, "gain", gain_j, facts.gain_alike),
        (of_offset, "gain", offset_j * facts.correlation, facts.gain_alike),
        (of_offset, "offset", offset_j * math.sqrt(1 - facts.correlation**2), facts.offset_alike),
    )
    terms = []
    for source, name, width_j, alike in parts:
        shared = 1.0 if family == device else alike
        for owner, share in ((family, shared), (device, 1 - shared)):
            if width_j and share > 0:
                terms.append(Term(source, f"{name}:{owner}", width_j * math.sqrt(share), freedom))
    return terms
