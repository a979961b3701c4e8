"""A ledger by span over all tapes of a run, with what the tapes know of the use of processes that spans name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from everywatt.core.clocks import length_s
from everywatt.core.device import Device, is_gpu
from everywatt.core.energy import Energy, combine
from everywatt.core.errors import UsageError
from everywatt.energy.sources import sources, splittable
from everywatt.ledger.engine import microjoules
from everywatt.ledger.idle import Idle
from everywatt.ledger.owners import Checks, Entry, Ledger, in_microjoules, in_order
from everywatt.ledger.spans.span_sweep import Line
from everywatt.ledger.spans.spans import BY_OVERLAP, Windows, span_ledger
from everywatt.ledger.use.account import TapeUse, tape_use
from everywatt.ledger.use.usage import GpuUse
from everywatt.tape.reader import Tape


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
            pages.append((str(tape.meta.get("host", {}).get("name", "")), page))
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
