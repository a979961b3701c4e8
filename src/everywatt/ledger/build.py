"""The book: what tapes and devices say, in one ledger of whole microjoules that adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from everywatt.core.energy import Energy
from everywatt.core.format import format_joules, format_percent
from everywatt.energy.combine import combine
from everywatt.ledger import idle as idling
from everywatt.ledger.entries import Page, entries
from everywatt.ledger.groups import describer, grouper
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import idle_levels
from everywatt.ledger.owners import Checks, Ledger, in_microjoules
from everywatt.ledger.split.policy import check_policy
from everywatt.ledger.split.shares import NOBODY_AT, DeviceShares, TapeShares
from everywatt.ledger.split.sharing import share_tape
from everywatt.tape.reader import Tape

# The two paths to a device's joules may differ by rounding, and by what sampling leaves open at the window's edges.
PATHS_SHARE = 1e-4
SAMPLING = ("edges", "aliasing", "quantum")
MUCH_UNATTRIBUTED = 0.02

Baseline = float | Mapping[str, float | Idle] | None


def ledger(
    tapes: Sequence[Tape],
    windows: Sequence[Sequence[tuple[int, int]]],
    by: str = "process",
    *,
    idle_policy: str = "separate",
    baseline: Baseline = None,
    notes: Sequence[str] = (),
) -> Ledger:
    """Every joule of some windows of each tape with its owner.

    `baseline` is idle power in watts, of all devices together or by device (watts, or an `Idle` that was found
    elsewhere); without it idle is found on the tapes.
    """
    check_policy(idle_policy)
    hosts = [str(tape.meta.get("host", {}).get("name", "")) for tape in tapes]
    several = len(set(hosts)) > 1
    levels = idle_levels(tapes)
    if baseline is not None:
        levels = [idling.given(level, baseline) for level in levels]
    if by == "span":
        from everywatt.ledger.spans.span_book import span_book  # a quarter of what the ledger loads

        return span_book(tapes, windows, levels, idle_policy=idle_policy, notes=notes)
    own, about = grouper(by, tapes), describer(by, tapes)
    pages = []
    for tape, host, level, asked in zip(tapes, hosts, levels, windows, strict=True):
        if asked:
            prefix = host if several else ""
            made = share_tape(
                tape, asked, host=prefix, own=own, about=about, levels=level, policy=idle_policy, notes=notes
            )
            pages.append(made)
    return close(by, pages, [host for host, asked in zip(hosts, windows, strict=True) if asked], idle_policy)


def close(by: str, pages: Sequence[TapeShares], hosts: Sequence[str], idle_policy: str) -> Ledger:
    """One ledger of what each tape says. Checks the conservation law, and says where it does not hold."""
    if not pages:
        total = Energy.refuse("nothing was recorded in that window")
        return Ledger(by, total, (), Checks(0, 0.0, 0.0), idle_policy, notes=(total.refused or "",))
    total = combine([(host, page.total) for host, page in zip(hosts, pages, strict=True)])
    if total.joules is None:
        return Ledger(by, total, (), Checks(0, 0.0, 0.0), idle_policy, notes=(total.refused or "",))
    total = in_microjoules(total)
    told: list[str] = []
    paths_j = tolerance_j = 0.0
    idle: dict[str, object] = {}
    checked = []
    for page in pages:
        devices = []
        for device in page.devices:
            name = f"{page.host}/{device.label}" if page.host else device.label
            idle[name] = device.idle.to_dict()
            most_j = _tolerance_j(device)
            miss_j = device.paths_j - device.energy.value
            paths_j, tolerance_j = paths_j + miss_j, tolerance_j + most_j
            told += [*device.notes, *([f"{name}: {device.idle.note}"] if device.idle.note else [])]
            if abs(miss_j) > most_j:
                told.append(
                    f"{name}: the sum over intervals and the integral of the window differ by {format_joules(miss_j)}; "
                    "the difference is unattributed"
                )
            devices.append(_with_missing(device, -miss_j if -miss_j > most_j else 0.0))
        checked.append(replace(page, devices=tuple(devices)))
        told += page.notes
    found, missing_uj = entries(by, [Page(page, total) for page in checked], total)
    made = Ledger(by, total, found, Checks(missing_uj, paths_j, tolerance_j), idle_policy, idle)
    if made.unattributed_share > MUCH_UNATTRIBUTED:
        told.append(f"{format_percent(made.unattributed_share)} of the energy could not be attributed")
    if missing_uj:
        told.append(f"the owners do not add up: {missing_uj} µJ are missing")
    return replace(made, notes=tuple(dict.fromkeys(told)))


def _tolerance_j(device: DeviceShares) -> float:
    sampling = device.energy.budget.by_source()
    return PATHS_SHARE * abs(device.energy.value) + sum(sampling.get(name, 0.0) for name in SAMPLING) + 1e-6


def _with_missing(device: DeviceShares, missing_j: float) -> DeviceShares:
    if missing_j <= 0:
        return device
    active_j = device.active_j.copy()
    active_j[NOBODY_AT] += missing_j
    return replace(device, active_j=active_j)
