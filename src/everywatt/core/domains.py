"""Which domain contains which: yes, no or unknown. Totals are taken over provably disjoint sets only."""

from __future__ import annotations

from enum import StrEnum

from everywatt.core.channels import Domain


class Answer(StrEnum):
    """Three answers, because "does psys include the GPU?" has no general one."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


_CHIPS = (Domain.SOC, Domain.PACKAGE, Domain.CORE, Domain.UNCORE, Domain.DRAM, Domain.GPU, Domain.RAIL)
_YES = {
    **{(Domain.WALL, inner): Answer.YES for inner in (Domain.PSU, Domain.NODE, *_CHIPS)},
    **{(Domain.PSU, inner): Answer.YES for inner in (Domain.NODE, *_CHIPS)},
    (Domain.NODE, Domain.PACKAGE): Answer.YES,
    (Domain.NODE, Domain.CORE): Answer.YES,
    (Domain.NODE, Domain.UNCORE): Answer.YES,
    (Domain.NODE, Domain.SOC): Answer.YES,
    (Domain.PACKAGE, Domain.CORE): Answer.YES,
    (Domain.PACKAGE, Domain.UNCORE): Answer.YES,
    (Domain.SOC, Domain.PACKAGE): Answer.YES,
    (Domain.SOC, Domain.CORE): Answer.YES,
    (Domain.SOC, Domain.UNCORE): Answer.YES,
    (Domain.SOC, Domain.RAIL): Answer.YES,
}
_UNKNOWN = {
    (Domain.NODE, Domain.DRAM),
    (Domain.NODE, Domain.GPU),
    (Domain.NODE, Domain.RAIL),
    (Domain.SOC, Domain.DRAM),
    (Domain.SOC, Domain.GPU),
    (Domain.UNCORE, Domain.GPU),
    # A rail of a board that we do not know may feed any of its chips.
    *((chip, Domain.RAIL) for chip in (Domain.PACKAGE, Domain.CORE, Domain.UNCORE, Domain.DRAM, Domain.GPU)),
}


def contains(outer: Domain, inner: Domain) -> Answer:
    """Whether joules of `inner` are also in `outer`, on one host."""
    if outer == inner:
        return Answer.YES
    if (outer, inner) in _YES:
        return Answer.YES
    return Answer.UNKNOWN if (outer, inner) in _UNKNOWN else Answer.NO


def disjoint(one: Domain, other: Domain) -> bool:
    """True where it is certain that no joule is in both (two devices of one domain are two devices)."""
    if one == other:
        return True
    return contains(one, other) is Answer.NO and contains(other, one) is Answer.NO
