"""Which domain contains which, and what may be added up: totals are taken over provably disjoint domains only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

from everywatt.core.channels import Channel, Domain, Kind, Pedigree

Item = TypeVar("Item")


class Answer(StrEnum):
    """Three answers, because "does psys include the GPU?" has no general one."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


WHOLE = (Domain.WALL, Domain.PSU, Domain.NODE)  # whole machines: a total of their own beside that of the chips
_MEMORY = frozenset({Domain.DRAM, Domain.GPU_MEMORY})
_CPU = frozenset({Domain.PACKAGE, Domain.CORE, Domain.UNCORE})
_CHIPS = _CPU | _MEMORY | {Domain.MODULE, Domain.SOC, Domain.GPU, Domain.RAIL}
_INSIDE: dict[Domain, frozenset[Domain]] = {
    Domain.WALL: _CHIPS | {Domain.PSU, Domain.NODE},
    Domain.PSU: _CHIPS | {Domain.NODE},
    Domain.NODE: _CPU | {Domain.MODULE, Domain.SOC},
    # A superchip: its processor with memory and I/O, and its GPUs with theirs.
    Domain.MODULE: _CPU | _MEMORY | {Domain.GPU},
    Domain.SOC: _CPU | {Domain.RAIL},
    Domain.PACKAGE: frozenset({Domain.CORE, Domain.UNCORE}),
    Domain.GPU: frozenset({Domain.GPU_MEMORY}),
}
_PERHAPS_INSIDE: dict[Domain, frozenset[Domain]] = {
    Domain.NODE: _MEMORY | {Domain.GPU, Domain.RAIL},
    Domain.MODULE: frozenset({Domain.SOC, Domain.RAIL}),
    Domain.SOC: _MEMORY | {Domain.GPU},
    # A rail of a board that we do not know may feed any of its chips.
    **dict.fromkeys((Domain.PACKAGE, Domain.CORE, *_MEMORY, Domain.GPU), frozenset({Domain.RAIL})),
    Domain.UNCORE: frozenset({Domain.GPU, Domain.RAIL}),
}
# Chips from the outermost inwards; a rail of an unknown board before the parts of a package.
_PREFERENCE = (
    *(Domain.MODULE, Domain.SOC, Domain.PACKAGE, Domain.DRAM, Domain.GPU, Domain.RAIL),
    *(Domain.CORE, Domain.UNCORE, Domain.GPU_MEMORY, Domain.NODE, Domain.PSU, Domain.WALL),
)


def contains(outer: Domain, inner: Domain) -> Answer:
    """Whether joules of `inner` are also in `outer`, on one host."""
    if outer == inner or inner in _INSIDE.get(outer, ()):
        return Answer.YES
    return Answer.UNKNOWN if inner in _PERHAPS_INSIDE.get(outer, ()) else Answer.NO


def disjoint(one: Domain, other: Domain) -> bool:
    """True where it is certain that no joule is in both (two devices of one domain are two devices)."""
    if one == other:
        return True
    return contains(one, other) is Answer.NO and contains(other, one) is Answer.NO


def in_total(items: Iterable[Item], channel: Callable[[Item], Channel]) -> list[Item]:
    """Those of `items` that a total adds up: the outermost chips that are provably disjoint.

    Whole-machine meters are taken only where there are no chips, and then one kind of them by one instrument.
    `channel` gives an item's channel, which has a domain; each device and domain occurs once.
    """

    def modelled(item: Item) -> bool:
        return channel(item).pedigree is Pedigree.MODELLED

    def domain(item: Item) -> Domain:
        found = channel(item).domain
        assert found is not None
        return found

    ordered = sorted(items, key=lambda item: (modelled(item), _PREFERENCE.index(domain(item))))
    chips: list[Item] = []
    for item in ordered:
        if domain(item) not in WHOLE and all(_apart(channel(item), channel(other)) for other in chips):
            chips.append(item)
    first = next(iter(ordered), None)
    if chips or first is None:
        return chips
    same = [item for item in ordered if domain(item) == domain(first) and modelled(item) == modelled(first)]
    if domain(first) is Domain.WALL:
        return same  # a machine may have several plugs
    # Two supplies of one kind are two, but two instruments for a whole machine measure the same: a counter is better.
    best = min(same, key=lambda item: channel(item).kind is not Kind.COUNTER)
    return [item for item in same if _kind_of(channel(item).device) == _kind_of(channel(best).device)]


def _apart(one: Channel, other: Channel) -> bool:
    """True where no joule is in both: by their domains, or because one is a module and the other a card beside it."""
    assert one.domain is not None and other.domain is not None
    beside = any(a.domain is Domain.MODULE and b.in_slot for a, b in ((one, other), (other, one)))
    return beside or disjoint(one.domain, other.domain)


def _kind_of(device: str) -> str:
    """A device's name without its number: `psys.1` → `psys`, `hwmon.corsairpsu-1` → `hwmon.corsairpsu`."""
    return re.sub(r"[.-]\d+$", "", device)
