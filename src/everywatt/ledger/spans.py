"""Concurrent spans as owners: queries, chunks or steps that overlap share what the devices drew while they were open.

In each stretch between two edges a device's energy is shared by the innermost spans that are open: equally, or, where
spans name the process behind them (attribute `pid`), by what these processes used. A span with the attribute `devices`
takes part in those devices only. What a parent is charged with is its own time, when none of its children is open.
A span's energy is gross, idle included, as `Run.energy(span=…)` is; `by_part` tells the share of idle where that is
known. Time outside of all spans belongs to `other`, so owners always add up to the total.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.channels import Kind
from everywatt.core.clocks import NS, length_s
from everywatt.core.device import Device, is_gpu
from everywatt.core.energy import Energy, combine, join_labels, total
from everywatt.core.errors import UsageError
from everywatt.core.spans import Span
from everywatt.energy.sources import Source, addable, edge_key, sources, splittable
from everywatt.energy.ticks import Ticks
from everywatt.energy.window import FEW_WINDOWS, source_ticks, windows_energy
from everywatt.ledger.engine import UJ, apportion, microjoules, of_devices
from everywatt.ledger.idle import Idle
from everywatt.ledger.owners import (
    UNATTRIBUTED,
    Checks,
    Entry,
    Ledger,
    Owner,
    OwnerKind,
    Part,
    in_microjoules,
    in_order,
)
from everywatt.ledger.span_sweep import (
    Line,
    Pieces,
    SpanOwners,
    Stretches,
    span_owners,
    takes_part,
)
from everywatt.ledger.use.account import TapeUse, tape_use
from everywatt.ledger.use.usage import GpuUse
from everywatt.tape.columns import Floats
from everywatt.tape.reader import Tape

OUTSIDE = Owner(OwnerKind.OTHER, "other", "outside the spans")
EXACT_SPANS = 64  # up to so many, what an edge takes from one span it gives to another, in the budgets too
BY_OVERLAP = "by-overlap"
UNSEEN = ("aliasing", "gap")  # bounds of what lies somewhere in the time, and not in all of it alike
TOLERANCE = 1e-4  # of the total: two ways of adding up the same readings
Windows = Sequence[tuple[int, int]]
Use = Callable[[int, str], Line | None]


def span_ledger(
    candidates: Sequence[Source],
    windows: Windows,
    spans: Sequence[Span],
    *,
    use: Use | None = None,
    idle_w: Mapping[str, float] | None = None,
) -> Ledger:
    """Who of `spans` owes what of these windows (disjoint, monotonic ns) of a tape.

    `use` gives for a pid and a device what the process had used over time (instants and amounts), None where that is
    not known. `idle_w` are idle watts by device: so much of each stretch is shared equally, whatever was used.
    """
    whole = in_microjoules(windows_energy(candidates, windows))
    open_until = max((end for _, end in windows), default=0)
    owners = span_owners(spans, open_until)
    counted = {label: part for label, part in whole.parts if part.joules is not None}
    measured = [source for source in addable(candidates) if source.label in counted]
    amounts = of_devices(microjoules(whole.joules or 0.0), [counted[source.label].value for source in measured])
    accounts = [
        _account(source, counted[source.label], amount, windows, owners, use, (idle_w or {}).get(source.label))
        for source, amount in zip(measured, amounts, strict=True)
    ]
    entries = _entries(owners, accounts, whole)
    missing = microjoules(whole.joules or 0.0) - sum(entry.microjoules for entry in entries)
    paths = sum(account.paths_j for account in accounts)
    checks = Checks(missing, paths, TOLERANCE * abs(whole.joules or 0.0) + 1e-6 * len(accounts))
    return Ledger("span", whole, in_order(entries), checks, BY_OVERLAP, notes=_notes(owners))


@dataclass(frozen=True)
class _Account:
    """One device: microjoules of each span (active, idle), of outside, and what could not be placed.

    Of each span and at last of outside: `edges` is what the edges leave open, `times` its share of the time, and
    `unseen_j` what the sensor did not see of that: a half-width, and how much less and more cannot be excluded.
    """

    label: str
    energy: Energy
    whole_uj: int
    active_uj: list[int]
    idle_uj: list[int]
    outside_uj: int
    lost_uj: int
    edges: Sequence[tuple[Term, ...]]
    unseen_j: Floats
    times: Sequence[float]
    by_use: bool
    paths_j: float


def _account(
    source: Source,
    energy: Energy,
    whole_uj: int,
    windows: Windows,
    owners: SpanOwners,
    use: Use | None,
    idle_w: float | None,
) -> _Account:
    count = len(owners.spans)
    ticks = source_ticks(source, windows[0][0], windows[-1][1])
    active, idle, owned_s, unseen_j = np.zeros(count), np.zeros(count), np.zeros(count + 1), np.zeros((3, count + 1))
    outside = measured = seen = 0.0
    pieces = owners.pieces(source.label) if count else Pieces(*(np.zeros(0, dtype=np.int64),) * 3)
    for start_ns, end_ns in windows:
        if ticks is None:
            break
        cut = Stretches.cut(pieces, start_ns, end_ns)
        joules = np.nan_to_num(ticks.many(cut.edges_ns[:-1], cut.edges_ns[1:])[0])
        seen += float(joules.sum())
        joules = np.maximum(joules, 0.0)
        seconds = np.diff(cut.edges_ns) / NS
        owned_s += np.append(cut.equally(seconds, count), cut.outside(seconds))
        for side, amount in zip(unseen_j, ticks.unseen_j(cut.edges_ns[:-1], cut.edges_ns[1:]), strict=True):
            side += np.append(cut.equally(amount, count), cut.outside(amount))
        base = np.minimum(joules, (idle_w or 0.0) * seconds)
        idle += cut.equally(base, count)
        more, by_use = _active(cut, joules - base, owners, use, source.label)
        active, measured, outside = active + more, measured + by_use, outside + cut.outside(joules)
    weights = np.maximum(np.concatenate((active, idle, [outside])), 0.0)
    if not weights.sum() > 0:
        nothing, none = [0] * count, [()] * (count + 1)
        return _Account(source.label, energy, whole_uj, nothing, nothing, 0, whole_uj, none, unseen_j, [], False, 0.0)
    amounts = apportion(whole_uj, weights)
    known = {term.key: abs(term.joules) for term in energy.budget.terms if term.source == "edges"}
    edges, placed = _edges(source, ticks, windows, pieces, owners, known)
    budget = energy.budget
    stepped = "quantum" if source.channel.kind is Kind.COUNTER else ""  # in the edges
    terms = (term for term in budget.terms if term.key not in placed and term.source != stepped)
    rest = replace(energy, budget=Budget(tuple(terms), budget.bounds))
    paths_j = seen - energy.value
    times = (owned_s / owned_s.sum()).tolist() if owned_s.sum() > 0 else []
    shares = amounts[:count], amounts[count:-1], amounts[-1], 0
    return _Account(source.label, rest, whole_uj, *shares, edges, unseen_j, times, measured > 0, paths_j)


def _active(cut: Stretches, joules: Floats, owners: SpanOwners, use: Use | None, device: str) -> tuple[Floats, float]:
    count = len(owners.spans)
    if use is None or not owners.process.any():
        return cut.equally(joules, count), 0.0
    return cut.by_use(joules, count, owners.process, lambda pid: use(pid, device) if pid else None)


def _edges(
    source: Source,
    ticks: Ticks | None,
    windows: Windows,
    pieces: Pieces,
    owners: SpanOwners,
    known: Mapping[str, float],
) -> tuple[list[tuple[Term, ...]], set[str]]:
    """What is not known of the instants at which spans start and end, of each span and at last of outside.

    An edge's error moves joules from one side to the other, so it counts for a span by how its share differs there. At
    the ends of the windows, whose widths are `known` if they are few, there is nothing on the other side: the span
    open there carries it, however short it is. Gives the keys of these too. For many spans only the
    edges of a span's own pieces are counted, which is nearly all of it.
    """
    terms: list[list[Term]] = [[] for _ in range(len(owners.spans) + 1)]
    placed: set[str] = set()
    if ticks is None:
        return [()] * len(terms), placed
    device = f"{source.tape.host}:{source.channel.device}"
    exact = len(owners.spans) <= EXACT_SPANS
    for start_ns, end_ns in windows:
        cut = Stretches.cut(pieces, start_ns, end_ns)
        keys = [edge_key(source, edge_ns) for edge_ns in cut.edges_ns.tolist()]
        width = ticks.curve.edge_half_width((cut.edges_ns - ticks.origin_ns) / NS)
        for end in (0, -1):
            if len(windows) <= FEW_WINDOWS:
                width[end] = known.get(keys[end], 0.0)
            placed.add(keys[end])
        if source.channel.kind is Kind.COUNTER:  # its step is of both ends of a window together
            width = np.hypot(width, (source.channel.facts.quantum or 0.0) / math.sqrt(2))
        share = np.divide(1.0, cut.open, out=np.zeros(len(cut.open)), where=cut.open > 0)
        table = _all_edges(cut, share, width, len(terms)) if exact else _own_edges(cut, share, width, len(terms))
        for number, edge, joules in table:
            terms[number].append(Term("edges", keys[edge], joules))
    if exact:
        return [tuple(own) for own in terms], placed
    names = [*(span.id for span in owners.spans), OUTSIDE.id]
    return [_few(own, name, device) for own, name in zip(terms, names, strict=True)], placed


def _all_edges(cut: Stretches, share: Floats, width: Floats, count: int) -> list[tuple[int, int, float]]:
    table = np.zeros((count, len(share) + 2))  # all shares are 0 before and after the window
    for number, first, after in zip(cut.pieces.owner, cut.first, cut.after, strict=True):
        table[number, first + 1 : after + 1] += share[first:after]
    table[-1, 1:-1] = cut.open == 0
    steps = (table[:, :-1] - table[:, 1:]) * width
    return [(int(n), int(k), float(steps[n, k])) for n, k in zip(*np.nonzero(steps), strict=True)]


def _own_edges(cut: Stretches, share: Floats, width: Floats, count: int) -> list[tuple[int, int, float]]:
    found = []
    for number, first, after in zip(cut.pieces.owner, cut.first, cut.after, strict=True):
        if after > first:
            found.append((int(number), int(first), -float(share[first] * width[first])))
            found.append((int(number), int(after), float(share[after - 1] * width[after])))
    free = np.pad((cut.open == 0).astype(np.float64), 1)
    steps = (free[:-1] - free[1:]) * width
    return found + [(count - 1, int(k), float(steps[k])) for k in np.flatnonzero(steps)]


def _few(terms: Sequence[Term], span: str, device: str) -> tuple[Term, ...]:
    if len(terms) <= 2:
        return tuple(terms)
    return (Term("edges", f"edge:{device}:span:{span}", float(np.hypot.reduce([term.joules for term in terms]))),)


def _entries(owners: SpanOwners, accounts: Sequence[_Account], whole: Energy) -> list[Entry]:
    entries = []
    for number, span in enumerate(owners.spans):
        shares = [(a, a.active_uj[number], a.idle_uj[number]) for a in accounts]
        if owners.devices[number] is not None:
            shares = [share for share in shares if takes_part(share[0].label, owners.devices[number] or frozenset())]
        parts = {a.label: _scaled(a, active + idle, number) for a, active, idle in shares}
        by_part = {Part.ACTIVE: sum(share[1] for share in shares), Part.IDLE: sum(share[2] for share in shares)}
        if not by_part[Part.IDLE]:
            del by_part[Part.IDLE]
        method = "overlap and use" if any(a.by_use for a, *_ in shares) and owners.process.any() else "overlap"
        energy = _sum(parts, whole)
        entries.append(Entry(_owner(span), energy, by_part, method=method, details=_details(span)))
    others: tuple[tuple[Owner, int | None, list[tuple[_Account, int]]], ...] = (
        (OUTSIDE, len(owners.spans), [(account, account.outside_uj) for account in accounts]),
        (UNATTRIBUTED, None, [(account, account.lost_uj) for account in accounts]),
    )
    for owner, place, amounts in others:
        if any(amount for _, amount in amounts):
            parts = {account.label: _scaled(account, amount, place) for account, amount in amounts}
            by_part = {Part.ACTIVE: sum(amount for _, amount in amounts)}
            entries.append(Entry(owner, _sum(parts, whole), by_part, method="overlap"))
    return entries


def _scaled(account: _Account, amount_uj: int, number: int | None) -> Energy:
    """A share of a device's energy: its budget scaled, the offset by time, and its own edges, aliasing and gaps."""
    share = amount_uj / account.whole_uj if account.whole_uj else 0.0
    own = number if number is not None and number < len(account.times) else None
    timed = share if own is None else account.times[own]
    budget = account.energy.budget
    aliasing = [] if own is None else [term for term in budget.terms if term.source == "aliasing"]
    scaled = [
        term._replace(joules=term.joules * (timed if "offset" in (term.source, term.key[:6]) else share))
        for term in budget.terms
        if term not in aliasing
    ]
    if aliasing:
        family = aliasing[0].key.partition("|")[0]
        scaled.append(Term("aliasing", f"{family}|{account.label}:span:{own}", float(account.unseen_j[0, own])))
    edges = account.edges[number] if number is not None else ()
    bounds = budget.scaled(share).bounds
    if own is not None:
        below, above = account.unseen_j[1:, own].tolist()
        hidden = (Bound("aliasing", f"hidden:{account.label}:span:{own}", below, above),) if below or above else ()
        bounds = (*(bound for bound in bounds if bound.source not in UNSEEN), *hidden)
    whole = Budget((*scaled, *edges), bounds)
    return replace(account.energy, joules=amount_uj / UJ, budget=whole, notes=())


def _sum(parts: Mapping[str, Energy], whole: Energy) -> Energy:
    if not parts:
        return Energy(0.0, scope=whole.scope, pedigree=whole.pedigree, coverage=whole.coverage)
    everything = len(parts) == sum(part.joules is not None for _, part in whole.parts)
    return total(parts, scope=whole.scope if everything else join_labels(part.scope for part in parts.values()))


def _owner(span: Span) -> Owner:
    return Owner(OwnerKind.SPAN, span.id, span.name)


def _details(span: Span) -> dict[str, Any]:
    details: dict[str, Any] = {
        "parent": span.parent,
        "duration_s": span.duration_s,
        "attributes": dict(span.attributes),
    }
    if span.end_ns is None:
        details["open"] = True
    return details


def _notes(owners: SpanOwners) -> tuple[str, ...]:
    notes = []
    if not owners.spans:
        notes.append("the run has no spans: everything is outside them")
    still = sum(span.end_ns is None for span in owners.spans)
    if still:
        notes.append(f"{still} of {len(owners.spans)} spans did not end: charged up to the end of the window")
    return tuple(notes)


def span_book(
    tapes: Sequence[Tape],
    windows: Sequence[Windows],
    levels: Sequence[Mapping[str, Idle]],
    *,
    idle_policy: str = "separate",
    notes: Sequence[str] = (),
) -> Ledger:
    """Every joule of some windows of each tape with the span that owes it."""
    if idle_policy != "separate":
        raise UsageError(
            "Spans share idle energy by overlap: each gets what the devices drew while it was open.",
            cure="leave --idle-policy out, or group by process",
        )
    pages, seconds = [], []
    for tape, asked, level in zip(tapes, windows, levels, strict=True):
        if asked:
            idle_w = {label: idle.watts for label, idle in level.items()}
            page = span_ledger(
                splittable(sources(tape)), asked, tape.spans(), use=UseOfPids(tape_use(tape)), idle_w=idle_w
            )
            pages.append((tape.host, page))
            seconds.append(length_s(asked))
    if not pages:
        total = Energy.refuse("nothing was recorded in that window")
        return Ledger("span", total, (), Checks(0, 0.0, 0.0), BY_OVERLAP, notes=(total.refused or "",))
    book = pages[0][1] if len(pages) == 1 else _joined(pages, seconds)
    several = len({host for host, _ in pages}) > 1
    idle = {
        f"{tape.meta['host']['name']}/{label}" if several else label: level.to_dict()
        for tape, found in zip(tapes, levels, strict=True)
        for label, level in found.items()
    }
    return replace(book, idle=idle, notes=tuple(dict.fromkeys((*notes, *book.notes))))


def _joined(pages: Sequence[tuple[str, Ledger]], seconds: Sequence[float]) -> Ledger:
    """One ledger of several: a span that goes on in another segment is one owner."""
    total = in_microjoules(combine([(host, page.total) for host, page in pages], seconds))
    found: dict[str, list[tuple[str, Entry]]] = {}
    for host, page in pages:
        for entry in page.entries:
            found.setdefault(entry.owner.id, []).append((host, entry))
    entries = [_one(same) for same in found.values()]
    notes = tuple(note for _, page in pages for note in page.notes)
    missing = sum(page.checks.missing_uj for _, page in pages)
    # Each page adds up by itself; joules of all pages together may round to another microjoule.
    rounding = microjoules(total.joules or 0.0) - sum(microjoules(page.total.joules or 0.0) for _, page in pages)
    if rounding and entries:
        largest = max(range(len(entries)), key=lambda index: entries[index].microjoules)
        entries[largest] = _with_more(entries[largest], rounding)
    paths = sum(page.checks.paths_j for _, page in pages)
    tolerance = sum(page.checks.tolerance_j for _, page in pages)
    return Ledger("span", total, in_order(entries), Checks(missing, paths, tolerance), BY_OVERLAP, notes=notes)


def _one(same: Sequence[tuple[str, Entry]]) -> Entry:
    first = same[0][1]
    if len(same) == 1:
        return first
    by_part = dict(first.by_part_uj)
    for _, entry in same[1:]:
        for part, amount in entry.by_part_uj.items():
            by_part[part] = by_part.get(part, 0) + amount
    energy = combine([(host, entry.energy) for host, entry in same])
    return replace(first, energy=energy, by_part_uj=by_part, details={**first.details, **same[-1][1].details})


def _with_more(entry: Entry, more_uj: int) -> Entry:
    by_part = dict(entry.by_part_uj)
    largest = max(by_part, key=lambda part: by_part[part])
    by_part[largest] += more_uj
    joules = sum(by_part.values()) / 1e6
    return replace(entry, by_part_uj=by_part, energy=replace(entry.energy, joules=joules))


class UseOfPids:
    """What processes used of a device over time, by pid: CPU seconds, or SM seconds for a GPU."""

    def __init__(self, use: TapeUse) -> None:
        self._use = use

    def __call__(self, pid: int, device: str) -> Line | None:
        """Instants and what had been used by then; None where the tape does not say."""
        if is_gpu(device):
            return None if self._use.gpus is None else _sm_line(self._use.gpus, pid, Device.parse(device).name)
        return self._cpu_line(pid)

    def _cpu_line(self, pid: int) -> Line | None:
        processes = self._use.processes
        if processes is None or pid not in processes.seen:
            return None
        numbers = [number for number, facts in enumerate(processes.processes) if facts.pid == pid]
        records = processes.records
        mine = np.isin(records.number, numbers)
        begin, end, amount = records.from_ns[mine], records.to_ns[mine], records.cpu_s[mine]
        instants = np.unique(np.concatenate((begin, end, np.array(processes.edges, dtype=np.int64))))
        rate = np.zeros(len(instants))
        per_ns = amount / np.maximum(end - begin, 1)
        np.add.at(rate, np.searchsorted(instants, begin), per_ns)
        np.add.at(rate, np.searchsorted(instants, end), -per_ns)
        used = np.concatenate(([0.0], np.cumsum(np.cumsum(rate)[:-1] * np.diff(instants))))
        return instants, used


def _sm_line(gpus: GpuUse, pid: int, number: str) -> Line | None:
    edges = gpus.edges.get(int(number)) if number.isdecimal() else None
    if not edges or len(edges) < 2:
        return None
    instants = np.array(edges, dtype=np.int64)
    shares = []
    for tenants in gpus.tenants[int(number)]:
        mine = [tenant.sm for tenant in tenants if tenant.pid == pid]
        if any(sm is None for sm in mine):
            return None
        shares.append(sum(sm or 0.0 for sm in mine) / 100)
    return instants, np.concatenate(([0.0], np.cumsum(np.array(shares) * np.diff(instants) / 1e9)))
