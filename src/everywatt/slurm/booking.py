"""From a node's tape to what each job owes: own share by the ledger, idle by allocation, the rest is the system's.

Booking goes on from where it stopped, hour by hour, so a job of weeks costs no more memory than one of seconds, and
jobs + idle + system is the node, to the microjoule, for each hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.clocks import NS
from everywatt.core.energy import join_labels
from everywatt.energy.sources import Source, addable, sources
from everywatt.ledger.account import tape_use
from everywatt.ledger.amounts import apportion, microjoules
from everywatt.ledger.book import ledger
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import find_levels
from everywatt.ledger.owners import Entry, Ledger, OwnerKind
from everywatt.slurm.node_jobs import NodeJob
from everywatt.slurm.schema import NodeHour
from everywatt.tape.reader import Tape

HOUR_S: Final = 3600
HOST_JOB: Final = "host"  # the ledger's owner of what is in no job


@dataclass(slots=True)
class Account:
    """What one job owes so far on this node."""

    own_uj: dict[str, int] = field(default_factory=dict)
    idle_uj: dict[str, int] = field(default_factory=dict)
    steps_uj: dict[str, int] = field(default_factory=dict)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    observed_s: float = 0.0
    covered_s: float = 0.0
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    gpu_busy_s: dict[str, float] = field(default_factory=dict)
    pedigree: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the state on disk."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "budgets"}
        data["budgets"] = {
            device: {
                "terms": [[t.source, t.key, t.joules] for t in budget.terms],
                "bounds": [[b.source, b.key, b.below, b.above] for b in budget.bounds],
            }
            for device, budget in self.budgets.items()
        }
        return data

    @classmethod
    def of_dict(cls, data: Mapping[str, Any]) -> Account:
        """Back from plain data."""
        known = {name: data[name] for name in cls.__slots__ if name in data and name != "budgets"}
        account = cls(**known)
        for device, budget in data.get("budgets", {}).items():
            terms = tuple(Term(*term) for term in budget["terms"])
            account.budgets[device] = Budget(terms, tuple(Bound(*bound) for bound in budget["bounds"]))
        return account


@dataclass(frozen=True, slots=True)
class Piece:
    """One booked stretch: what of each device jobs, idle and the system had."""

    hours: tuple[NodeHour, ...]
    notes: tuple[str, ...] = ()


def horizon_s(tape: Tape) -> float:
    """Up to when (UTC) a tape tells who used what: of a live one the tables of processes come last."""
    last_ns = tape.extent_ns()[1]
    use = tape_use(tape)
    if not tape.sealed and use.processes is not None and use.busy is not None:
        told = (use.processes.edges[-1:], use.busy.at_ns[-1:].tolist())
        last_ns = min(last_ns, *(times[-1] if times else 0 for times in told))
    return tape.to_utc_ns(last_ns) / NS


def book(
    tape: Tape,
    node: str,
    jobs: Sequence[NodeJob],
    accounts: dict[str, Account],
    start_s: float,
    end_s: float,
    idle: dict[str, Idle],
) -> list[Piece]:
    """Charge a stretch of UTC time on one tape to its jobs; gives what each hour of it was. `accounts` grow.

    `idle` is what the node knows of its devices' idle power; what this tape tells more surely replaces it.
    """
    for label, found in find_levels(tape, {}).items():
        if label not in idle or found.spread_w <= idle[label].spread_w:
            idle[label] = found
    pieces = []
    for low_s, high_s in _hours(start_s, end_s):
        window = (tape.from_utc_ns(round(low_s * NS)), tape.from_utc_ns(round(high_s * NS)))
        low_ns, high_ns = tape.extent_ns()
        window = max(window[0], low_ns), min(window[1], high_ns)
        if window[1] > window[0]:
            made = ledger([tape], [[window]], by="step", baseline=idle)
            pieces.append(_book_piece(tape, made, node, jobs, accounts, low_s, high_s))
    return pieces


def _hours(start_s: float, end_s: float) -> Iterable[tuple[float, float]]:
    while start_s < end_s:
        cut_s = min((start_s // HOUR_S + 1) * HOUR_S, end_s)
        yield start_s, cut_s
        start_s = cut_s


def _book_piece(
    tape: Tape,
    made: Ledger,
    node: str,
    jobs: Sequence[NodeJob],
    accounts: dict[str, Account],
    low_s: float,
    high_s: float,
) -> Piece:
    if made.total.joules is None:
        return Piece((), (made.total.refused or "no energy",))
    here = [job for job in jobs if job.start_s < high_s and (job.end_s is None or job.end_s > low_s)]
    by_id: dict[str, list[NodeJob]] = {}
    for job in here:
        by_id.setdefault(str(job.job_id), []).append(job)
        if job.sluid:
            by_id.setdefault(job.sluid, []).append(job)
    totals: dict[str, dict[str, int]] = {}
    for entry in made.entries:
        job_id, _, step = entry.owner.id.removeprefix("slurm:").partition(".")
        runs = by_id.get(job_id, []) if entry.owner.kind is OwnerKind.JOB and entry.owner.id != HOST_JOB else []
        column = "jobs" if runs else "idle" if entry.owner.kind is OwnerKind.IDLE else "system"
        parts = dict(entry.energy.parts)
        amounts = _by_device(entry)
        for device, uj in amounts.items():
            of_device = totals.setdefault(device, dict.fromkeys(("jobs", "idle", "system"), 0))
            of_device[column] += uj
        if runs:
            job = _which(runs, low_s, high_s)
            account = accounts.setdefault(job.key, Account())
            _charge(account, entry, amounts, step, low_s, high_s)
            for device in amounts:
                account.budgets[device] = account.budgets.get(device, Budget()) + parts[device].budget
    _charge_gpus_alone(made, here, accounts, totals, low_s, high_s)
    _charge_idle(tape, here, accounts, totals, low_s, high_s)
    for job in here:
        account = accounts.setdefault(job.key, Account())
        inside_s = min(job.end_s or high_s, high_s) - max(job.start_s, low_s)
        account.observed_s += inside_s
        account.covered_s += inside_s * made.total.coverage
        account.pedigree = join_labels(label for label in (account.pedigree, made.total.pedigree) if label)
    return Piece(tuple(_hour_rows(tape, node, totals, (low_s, high_s), dict(made.total.parts))), made.notes)


def _which(runs: Sequence[NodeJob], low_s: float, high_s: float) -> NodeJob:
    """Of two runs of a requeued job in one stretch the one that was longer in it."""
    return max(runs, key=lambda job: min(job.end_s or high_s, high_s) - max(job.start_s, low_s))


def _by_device(entry: Entry) -> dict[str, int]:
    """Whole microjoules by device; they add up to the entry."""
    parts = {name: part.value for name, part in entry.energy.parts if part.joules is not None}
    amounts = {name: microjoules(joules) for name, joules in parts.items()}
    rest_uj = entry.microjoules - sum(amounts.values())
    if rest_uj:
        largest = max(amounts, key=lambda name: abs(amounts[name]), default="not told")
        amounts[largest] = amounts.get(largest, 0) + rest_uj
    return amounts


def _charge(account: Account, entry: Entry, amounts: Mapping[str, int], step: str, low_s: float, high_s: float) -> None:
    for device, uj in amounts.items():
        account.own_uj[device] = account.own_uj.get(device, 0) + uj
    if step:
        account.steps_uj[step] = account.steps_uj.get(step, 0) + sum(amounts.values())
        seen = account.steps_s.setdefault(step, [low_s, high_s])
        seen[1] = high_s
    if "cpu_s" in entry.use:
        account.cpu_s = (account.cpu_s or 0.0) + entry.use["cpu_s"]
    if "rss_bytes" in entry.use:
        account.memory_peak_bytes = max(account.memory_peak_bytes or 0, int(entry.use["rss_bytes"]))


def _charge_gpus_alone(
    made: Ledger,
    here: Sequence[NodeJob],
    accounts: dict[str, Account],
    totals: dict[str, dict[str, int]],
    low_s: float,
    high_s: float,
) -> None:
    """What a GPU did that nobody could be found for is of the job that it was given to, if that had it alone."""
    lost = next((entry for entry in made.entries if entry.owner.kind is OwnerKind.UNATTRIBUTED), None)
    if lost is None:
        return
    for device, uj in _by_device(lost).items():
        holders = [(job, _inside(job, low_s, high_s)) for job in here if device in _gpus(job)]
        held_s = sum(seconds for _, seconds in holders)
        if uj <= 0 or held_s <= 0 or held_s > (high_s - low_s) * 1.001:
            continue
        weights = [seconds for _, seconds in holders]
        free_s = max(high_s - low_s - held_s, 0.0)
        part = dict(lost.energy.parts)[device]
        for (job, _), amount in zip(holders, apportion(uj, [*weights, free_s])[:-1], strict=True):
            account = accounts.setdefault(job.key, Account())
            account.own_uj[device] = account.own_uj.get(device, 0) + amount
            more = part.budget.scaled(amount / uj)
            account.budgets[device] = account.budgets.get(device, Budget()) + more
            totals[device]["system"] -= amount
            totals[device]["jobs"] += amount


def _charge_idle(
    tape: Tape,
    here: Sequence[NodeJob],
    accounts: dict[str, Account],
    totals: Mapping[str, Mapping[str, int]],
    low_s: float,
    high_s: float,
) -> None:
    """A job's share of idle, of which it stays a part: a GPU's while the job had it, the machine's by CPUs and time."""
    cpus = float(tape.meta.get("host", {}).get("cpus") or 0)
    length_s = high_s - low_s
    for device, of_device in totals.items():
        gpu = device.startswith("gpu.")
        capacity = length_s if gpu else cpus * length_s
        weights = {
            job.key: _inside(job, low_s, high_s) * (float(device in _gpus(job)) if gpu else (job.cpus or 0.0))
            for job in here
        }
        taken = sum(weights.values())
        if capacity <= 0 or taken <= 0 or of_device["idle"] <= 0:
            continue
        keys = list(weights)
        amounts = apportion(of_device["idle"], [*weights.values(), max(capacity - taken, 0.0)])
        for key, amount in zip(keys, amounts[:-1], strict=True):
            account = accounts.setdefault(key, Account())
            account.idle_uj[device] = account.idle_uj.get(device, 0) + amount


def _inside(job: NodeJob, low_s: float, high_s: float) -> float:
    return max(min(job.end_s or high_s, high_s) - max(job.start_s, low_s), 0.0)


def _gpus(job: NodeJob) -> set[str]:
    return {f"gpu.{index}" for index in job.gpus}


def _hour_rows(
    tape: Tape,
    node: str,
    totals: Mapping[str, Mapping[str, int]],
    between_s: tuple[float, float],
    parts: Mapping[str, Any],
) -> Iterable[NodeHour]:
    known = {source.label: source for source in addable(sources(tape))}
    for device, of_device in totals.items():
        source = known.get(device)
        yield NodeHour(
            hour_s=int(between_s[0] // HOUR_S * HOUR_S),
            node=node,
            device=device,
            domain=source.domain.value if source else "",
            source=sensor_of(source) if source else "",
            total_uj=sum(of_device.values()),
            jobs_uj=of_device["jobs"],
            idle_uj=of_device["idle"],
            system_uj=of_device["system"],
            coverage=parts[device].coverage if device in parts else 0.0,
            from_s=between_s[0],
            to_s=between_s[1],
        )


def sensor_of(source: Source) -> str:
    """Which sensor measured: the first word of its group, as `rapl` or `nvml`."""
    return source.group.info.name.split(".", 1)[0]


def merge_hours(pieces: Iterable[NodeHour]) -> list[NodeHour]:
    """One row for each hour and device of several stretches."""
    found: dict[tuple[int, str, str, str], NodeHour] = {}
    for row in pieces:
        there = found.get(row.key)
        if there is None:
            found[row.key] = row
            continue
        found[row.key] = NodeHour(
            *row.key[:3],
            row.domain,
            row.source,
            there.total_uj + row.total_uj,
            there.jobs_uj + row.jobs_uj,
            there.idle_uj + row.idle_uj,
            there.system_uj + row.system_uj,
            min(there.coverage, row.coverage),
            min(there.from_s, row.from_s),
            max(there.to_s, row.to_s),
        )
    return list(found.values())
