"""The book: what tapes and devices say, in one ledger of whole microjoules that adds up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from everywatt.core.budget import Budget
from everywatt.core.clocks import length_s
from everywatt.core.energy import Energy, combine, join_labels
from everywatt.core.format import format_joules, format_percent
from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.sources import sources, splittable
from everywatt.energy.window import windows_energy
from everywatt.ledger import idle as idling
from everywatt.ledger.engine import (
    MODULE_REST,
    NO_LEVEL,
    REST_DEVICE,
    TWO_INTEGRALS,
    UJ,
    apportion,
    microjoules,
    of_devices,
)
from everywatt.ledger.groups import Grouping
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import idle_levels
from everywatt.ledger.owners import (
    IDLE,
    METER,
    OTHER,
    UNATTRIBUTED,
    Checks,
    Entry,
    Ledger,
    Owner,
    OwnerKind,
    Part,
    check_policy,
    in_microjoules,
    in_order,
)
from everywatt.ledger.split.intervals import budgets
from everywatt.ledger.split.sharing import DeviceShares, TapeShares, share_tape
from everywatt.ledger.split.split import IDLE_AT, UNATTRIBUTED_AT
from everywatt.tape.reader import Tape

# The two paths to a device's joules may differ by rounding, and by what sampling leaves open at the window's edges.
PATHS_SHARE = 1e-4
SAMPLING = ("edges", "aliasing", "quantum")
MUCH_UNATTRIBUTED = 0.02
PARTS = (Part.ACTIVE, Part.HELD, Part.IDLE)

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
    hosts = [tape.host for tape in tapes]
    several = len(set(hosts)) > 1
    levels = idle_levels(tapes)
    if baseline is not None:
        levels = [idling.given(level, baseline) for level in levels]
    if by == "span":
        from everywatt.ledger.spans import span_book  # a quarter of what the ledger loads

        book = span_book(tapes, windows, levels, idle_policy=idle_policy, notes=notes)
        return _with_rest(book, _modules(tapes, windows, hosts))
    grouping = Grouping.of(by, tapes)
    pages = []
    for tape, host, level, asked in zip(tapes, hosts, levels, windows, strict=True):
        if asked:
            prefix = host if several else ""
            pages.append(
                share_tape(tape, asked, host=prefix, grouping=grouping, levels=level, policy=idle_policy, notes=notes)
            )
    used = [(host, length_s(asked)) for host, asked in zip(hosts, windows, strict=True) if asked]
    return _with_rest(close(by, pages, used, idle_policy), _modules(tapes, windows, hosts))


def _modules(tapes: Sequence[Tape], windows: Sequence[Sequence[tuple[int, int]]], hosts: Sequence[str]) -> Energy:
    """Energy of the windows with modules in place of their chips; refused where no tape has a module that has some."""
    asked = [(t, host, w) for t, host, w in zip(tapes, hosts, windows, strict=True) if w]
    if all(len(splittable(found)) == len(found) for found in (sources(tape) for tape, *_ in asked)):
        return Energy.refuse("no chip of a module is measured by itself")
    figures = [(host, windows_energy(sources(tape), between)) for tape, host, between in asked]
    return combine(figures, [length_s(between) for *_, between in asked])


def _with_rest(made: Ledger, modules: Energy) -> Ledger:
    """The ledger of chips of modules as that of the modules: what is beside the chips is unattributed."""
    rest_uj = microjoules(modules.joules or 0.0) - made.microjoules
    if modules.joules is None or made.total.joules is None or rest_uj <= 0:
        return made
    rest = modules - replace(made.total, scope=modules.scope)
    rest = replace(rest, joules=rest_uj / UJ, scope=REST_DEVICE, parts=(), notes=(), signed=False)
    owner = Owner(OwnerKind.DEVICE, REST_DEVICE, REST_DEVICE) if made.by == "device" else UNATTRIBUTED
    others = [entry for entry in made.entries if entry.owner != owner]
    lost = next((entry for entry in made.entries if entry.owner == owner), Entry(owner, Energy(0.0, scope=REST_DEVICE)))
    energy = replace(
        lost.energy,
        joules=(lost.microjoules + rest_uj) / UJ,
        budget=lost.energy.budget + rest.budget,
        parts=(*lost.energy.parts, (REST_DEVICE, rest)),
        most_j=lost.energy.most_j + rest.value + rest.sides()[1],
    )
    by_part = {**lost.by_part_uj, Part.ACTIVE: lost.by_part_uj.get(Part.ACTIVE, 0) + rest_uj}
    lost = replace(lost, energy=energy, by_part_uj=by_part, method="; ".join(filter(None, (lost.method, MODULE_REST))))
    total = replace(in_microjoules(modules), parts=(*made.total.parts, (REST_DEVICE, rest)))
    share = format_percent(rest_uj / microjoules(modules.joules))
    note = f"owners share the chips of a module; the rest of the module ({share} of the total) is unattributed"
    return replace(made, total=total, entries=in_order([*others, lost]), notes=(*made.notes, note))


def close(by: str, pages: Sequence[TapeShares], used: Sequence[tuple[str, float]], idle_policy: str) -> Ledger:
    """One ledger of what each tape says, each of a host and so many seconds.

    Checks the conservation law, and says where it does not hold.
    """
    if not pages:
        total = Energy.refuse("nothing was recorded in that window")
        return Ledger(by, total, (), Checks(0, 0.0, 0.0), idle_policy, notes=(total.refused or "",))
    figures = [(host, page.total) for (host, _), page in zip(used, pages, strict=True)]
    total = combine(figures, [seconds for _, seconds in used])
    if total.joules is None:
        return Ledger(by, total, (), Checks(0, 0.0, 0.0), idle_policy, notes=(total.refused or "",))
    total = in_microjoules(total)
    notes: list[str] = []
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
            notes += [*device.notes, *([f"{name}: {device.idle.note}"] if device.idle.note else [])]
            if abs(miss_j) > most_j:
                notes.append(
                    f"{name}: the sum over intervals and the integral of the window differ by {format_joules(miss_j)}; "
                    "the difference is unattributed"
                )
            devices.append(_with_missing(device, -miss_j if -miss_j > most_j else 0.0))
        checked.append(replace(page, devices=tuple(devices)))
        notes += page.notes
    found, missing_uj = _entries(by, checked, total)
    made = Ledger(by, total, found, Checks(missing_uj, paths_j, tolerance_j), idle_policy, idle)
    if made.unattributed_share > MUCH_UNATTRIBUTED:
        notes.append(f"{format_percent(made.unattributed_share)} of the energy could not be attributed")
    if missing_uj:
        notes.append(f"the owners do not add up: {missing_uj} µJ are missing")
    return replace(made, notes=tuple(dict.fromkeys(notes)))


def _tolerance_j(device: DeviceShares) -> float:
    sampling = device.energy.budget.by_source()
    return PATHS_SHARE * abs(device.energy.value) + sum(sampling.get(name, 0.0) for name in SAMPLING) + 1e-6


def _with_missing(device: DeviceShares, missing_j: float) -> DeviceShares:
    if missing_j <= 0:
        return device
    active_j = device.active_j.copy()
    active_j[UNATTRIBUTED_AT] += missing_j
    return replace(device, active_j=active_j, reasons=(*device.reasons, TWO_INTEGRALS))


@dataclass(slots=True)
class _Account:
    """An owner's account while the book is written: microjoules by device and reason."""

    owner: Owner
    uj: dict[str, list[int]] = field(default_factory=dict)
    budgets: dict[str, list[Budget]] = field(default_factory=dict)
    pedigrees: dict[str, str] = field(default_factory=dict)
    coverage: dict[str, float] = field(default_factory=dict)
    most_j: dict[str, float] = field(default_factory=dict)  # no owner of a device has more than that drew
    use: dict[str, float] = field(default_factory=dict)
    methods: dict[str, None] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    processes: int = 0


def _entries(by: str, pages: Sequence[TapeShares], total: Energy) -> tuple[tuple[Entry, ...], int]:
    """The entries in order, and how many microjoules are missing from the total (should be 0)."""
    whole_uj = microjoules(total.value)
    accounts: dict[Owner, _Account] = {}
    pairs = [(page, device) for page in pages for device in page.devices]
    amounts = of_devices(whole_uj, [device.energy.value for _, device in pairs])
    for (shares, device), uj in zip(pairs, amounts, strict=True):
        _book(by, accounts, shares, device, uj)
    rest_uj = whole_uj - sum(amounts)
    if rest_uj:
        # A device that gave joules in one window only is not a part of the whole.
        lost = accounts.setdefault(UNATTRIBUTED, _Account(UNATTRIBUTED))
        lost.uj["not told"] = [rest_uj, 0, 0]
        lost.methods[NO_LEVEL] = None
    for page in pages:
        _measured(by, accounts, page)
    for special in (IDLE, UNATTRIBUTED):
        if by != "device":
            accounts.setdefault(special, _Account(special))
    found = [_entry(account, total) for account in accounts.values() if _is_listed(account)]
    return in_order(found), whole_uj - sum(entry.microjoules for entry in found)


def _book(by: str, accounts: dict[Owner, _Account], shares: TapeShares, device: DeviceShares, uj: int) -> None:
    name = f"{shares.host}/{device.label}" if shares.host else device.label
    rows = _rows(device, uj)
    if uj > 0:
        for index in np.flatnonzero(device.owned_s).tolist():  # nothing, or as much as idle may be less
            rows.setdefault(index, [0, 0, 0])
    booked: dict[Owner, list[int]] = {}
    doubts: dict[Owner, float] = {}
    owned_s: dict[Owner, float] = {}
    occupied: dict[Owner, float] = {}
    for index, parts in rows.items():
        owner = _owner(by, shares, index, name)
        sums = booked.setdefault(owner, [0, 0, 0])
        for part, amount in enumerate(parts):
            sums[part] += amount
        doubts[owner] = float(np.hypot(doubts.get(owner, 0.0), device.doubt_j[index]))
        owned_s[owner] = owned_s.get(owner, 0.0) + float(device.owned_s[index])
        if device.occupancy is not None:
            occupied[owner] = occupied.get(owner, 0.0) + device.occupancy[index]
    owners = list(booked)
    made = budgets(
        device.energy.budget,
        name,
        device.idle.level,
        [owner.id for owner in owners],
        [(booked[owner][0] + booked[owner][1]) / UJ for owner in owners],
        [booked[owner][2] / UJ for owner in owners],
        [owned_s[owner] for owner in owners],
        [doubts[owner] for owner in owners],
        device.unsure,
        [occupied[owner] for owner in owners] if occupied else None,
    )
    for owner, budget in zip(owners, made, strict=True):
        account = accounts.setdefault(owner, _Account(owner))
        sums = account.uj.setdefault(name, [0, 0, 0])
        for part, amount in enumerate(booked[owner]):
            sums[part] += amount
        account.budgets.setdefault(name, []).append(budget)
        account.pedigrees[name] = device.energy.pedigree
        drew_j = device.energy.value + device.energy.sides()[1] + 1 / UJ  # amounts are whole microjoules
        account.most_j[name] = account.most_j.get(name, 0.0) + drew_j
        account.coverage[name] = min(device.energy.coverage, account.coverage.get(name, 1.0))
        if owner == UNATTRIBUTED:
            account.methods |= dict.fromkeys(device.reasons)
        elif booked[owner][0] or booked[owner][1]:
            account.methods[device.method] = None
        elif booked[owner][2] and owner in (IDLE,):
            account.methods[device.idle.method] = None


def _rows(device: DeviceShares, uj: int) -> dict[int, list[int]]:
    """Microjoules by owner: active, held, idle. What is below zero, or has no owner, is idle's."""
    joules = np.stack((device.active_j, device.held_j, device.idle_j))
    if uj <= 0 or not joules.sum() > 0:
        return {IDLE_AT: [0, 0, uj]}
    part, index = np.nonzero(joules > 0)
    rows: dict[int, list[int]] = {}
    amounts = apportion(uj, joules[part, index])
    for which, owner, amount in zip(part.tolist(), index.tolist(), amounts, strict=True):
        if amount:  # less than a microjoule has no owner, and no part of the error
            rows.setdefault(owner, [0, 0, 0])[which] += amount
    return rows


def _owner(by: str, shares: TapeShares, index: int, device: str) -> Owner:
    if by == "device":
        return Owner(OwnerKind.DEVICE, device, device)
    owner = shares.owners[index]
    if not shares.host or owner in (IDLE, METER, OTHER, UNATTRIBUTED):
        return owner
    return Owner(owner.kind, f"{shares.host}/{owner.id}", f"{shares.host}: {owner.label}")


def _measured(by: str, accounts: dict[Owner, _Account], shares: TapeShares) -> None:
    """What was measured of each owner, and who it is."""
    if by == "device":
        return
    sums: dict[tuple[Owner, str], float] = {}
    for name, column in shares.use.items():
        for index in np.flatnonzero(np.isfinite(column)).tolist():
            if index == UNATTRIBUTED_AT or (column[index] == 0 and index >= len((IDLE, METER, OTHER, UNATTRIBUTED))):
                continue
            key = (_owner(by, shares, index, ""), name)
            sums[key] = sums.get(key, 0.0) + float(column[index])
    for (owner, name), amount in sums.items():
        account = accounts.get(owner)
        if account is None and name == "cpu_s" and amount > 0:
            account = accounts.setdefault(owner, _Account(owner))
        if account is not None:
            before = account.use.get(name, 0.0)
            account.use[name] = max(before, amount) if name.endswith("_bytes") else before + amount
    for index, details in shares.details.items():
        account = accounts.get(_owner(by, shares, index, ""))
        if account is not None and account.owner.kind is not OwnerKind.OTHER:
            account.processes += 1
            account.details |= details


def _is_listed(account: _Account) -> bool:
    """Whether an owner has an entry: it used something, has energy, or may have some that counts as another's."""
    if account.use or account.owner in (IDLE, UNATTRIBUTED) or any(map(any, account.uj.values())):
        return True
    return any(term.joules for budgets in account.budgets.values() for budget in budgets for term in budget.terms)


def _entry(account: _Account, total: Energy) -> Entry:
    parts = []
    sums = [0, 0, 0]
    for name, amounts in account.uj.items():
        sums = [before + amount for before, amount in zip(sums, amounts, strict=True)]
        if any(amounts):
            budget = Budget.sum(account.budgets.get(name, []))
            pedigree, coverage = account.pedigrees.get(name, ""), account.coverage.get(name, 1.0)
            most_j = account.most_j.get(name, math.inf)
            parts.append((name, Energy(sum(amounts) / UJ, budget, name, pedigree, coverage, most_j=most_j)))
    energy = Energy(
        sum(sums) / UJ,
        Budget.sum(budget for budgets in account.budgets.values() for budget in budgets),
        total.scope,
        join_labels(part.pedigree for _, part in parts) or total.pedigree,
        total.coverage,
        tuple(parts),
        most_j=sum(account.most_j.values()) if account.most_j.keys() >= account.uj.keys() else math.inf,
    )
    by_part = {part: amount for part, amount in zip(PARTS, sums, strict=True) if amount}
    details = dict(account.details) | ({"processes": account.processes} if account.processes > 1 else {})
    joint = "; " if account.owner == UNATTRIBUTED else "+"
    return Entry(account.owner, energy, by_part, account.use, joint.join(m for m in account.methods if m), details)
