"""From a node's tape to what each job owes: own share by the ledger, idle by allocation, the rest is the system's.

Booking goes on from where it stopped, hour by hour, so a job of weeks costs no more memory than one of seconds, and
jobs + idle + system is the node, to the microjoule, for each hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from everywatt.core.budget import Bound, Budget
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.energy import join_labels
from everywatt.energy.sources import Source, addable, sources, splittable
from everywatt.ledger.build import ledger
from everywatt.ledger.engine import UJ, apportion, microjoules
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import find_levels
from everywatt.ledger.owners import Entry, Ledger, OwnerKind
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.processes import LATE
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.state import Account
from everywatt.slurm.node.tapes import gpu_busy_s, gpu_memory_bytes, memory_mean_bytes, step_times
from everywatt.slurm.schema import SUMMED, NodeHour
from everywatt.tape.reader import Tape

HOUR_S: Final = 3600
SCRAP_S: Final = 0.25
HOST_JOB: Final = "host"  # the ledger's owner of what is in no job


def horizon_s(tape: Tape, latest_s: float) -> float:
    """Up to when (UTC, at most `latest_s`) a tape tells who used what: tables of processes are written last.

    On a live tape, and on one whose recorder was killed, it is an instant at which processes were read, so that no
    stretch between two reads is cut.
    """
    last_ns = min(tape.extent_ns()[1], tape.from_utc_ns(round(latest_s * NS)))
    use = tape_use(tape)
    if use.processes is not None and use.busy is not None:
        busy_ns = int(use.busy.at_ns[-1]) if len(use.busy.at_ns) else 0
        before = bisect_right(use.processes.edges, min(last_ns, busy_ns))
        looked_ns = use.processes.edges[before - 1] if before else 0
        if not tape.sealed or last_ns - looked_ns > LATE * use.period_s * NS:
            last_ns = looked_ns
    return tape.to_utc_ns(last_ns) / NS


def book(
    tape: Tape,
    node: str,
    jobs: Sequence[NodeJob],
    accounts: dict[str, Account],
    start_s: float,
    end_s: float,
    idle: dict[str, Idle],
    *,
    late: dict[str, Account] | None = None,
    learn: bool = True,
) -> list[NodeHour]:
    """Charge a stretch of UTC time on one tape to its jobs; gives what jobs, idle and the system had of each device in
    each hour of it. `accounts` grow.

    `idle` is what the node knows of its devices' idle power; if it may `learn`, what this tape tells more surely
    replaces it. `late` gets accounts of jobs (by id) whose processes were there and of which no hook has told yet: they
    are a part of the system until then.
    """
    for label, found in find_levels(tape, {}).items() if learn else ():
        if label not in idle or found.spread_w <= idle[label].spread_w:
            idle[label] = found
    hours: list[NodeHour] = []
    low_ns, high_ns = tape.extent_ns()
    start_s, end_s = max(start_s, tape.to_utc_ns(low_ns) / NS), min(end_s, tape.to_utc_ns(high_ns) / NS)
    for low_s, high_s in _cuts(start_s, end_s, [*_again_s(jobs), *_handed_s(jobs)]):
        window = max(tape.from_utc_ns(round(low_s * NS)), low_ns), min(tape.from_utc_ns(round(high_s * NS)), high_ns)
        if window[1] > window[0]:
            made = ledger([tape], [[window]], by="step", baseline=idle)
            hours += _book_piece(tape, made, node, jobs, accounts, low_s, high_s, {} if late is None else late)
    return hours


def book_unseen(
    tape: Tape, node: str, jobs: Sequence[NodeJob], accounts: dict[str, Account], start_s: float, end_s: float
) -> list[NodeHour]:
    """Note that nothing is known of a stretch of UTC time before a tape: in the accounts of jobs, and in node hours.

    Of hours that lie in it whole there are no rows: the machine may have been switched off.
    """
    devices = [source.label for source in addable(splittable(sources(tape)))]
    for job in jobs:
        inside_s = _inside(job, start_s, end_s)
        if inside_s > 0:
            account = accounts.setdefault(job.key, Account())
            account.observed_s += inside_s
            for device in devices:
                account.unseen_s[device] = account.unseen_s.get(device, 0.0) + inside_s
    nothing = {device: dict.fromkeys(("jobs", "idle", "system"), 0) for device in devices}
    cuts = list(_cuts(start_s, end_s, ()))
    ends = dict.fromkeys((cuts[0], cuts[-1]))
    return [row for between_s in ends for row in _hour_rows(tape, node, nothing, between_s, {})]


def book_doubt(
    jobs: Iterable[NodeJob], accounts: dict[str, Account], hours: Iterable[NodeHour], start_s: float, end_s: float
) -> None:
    """Jobs that ended in a stretch, and whose CPU time in it is unknown: what the system had may be theirs."""
    rows = [row for row in hours if not is_gpu(row.device) and row.system_uj > 0]
    for job in jobs:
        account = accounts.setdefault(job.key, Account())
        account.covered_s = max(account.covered_s - _inside(job, start_s, end_s), 0.0)
        for row in rows:
            bound = Bound("cpu time", f"{row.device} at {row.from_s}", 0.0, row.system_uj / UJ)
            account.budgets[row.device] = account.budgets.get(row.device, Budget()) + Budget((), (bound,))


def _again_s(jobs: Sequence[NodeJob]) -> list[float]:
    """When jobs began that had run before: their processes go by one number, so their runs are booked apart."""
    runs = Counter(job.job_id for job in jobs)
    return [job.start_s for job in jobs if runs[job.job_id] > 1]


def _handed_s(jobs: Sequence[NodeJob]) -> list[float]:
    """When GPUs were handed over: what a card did that nobody is listed for is of who had it just then."""
    return [at_s for job in jobs if job.gpus for at_s in (job.start_s, job.end_s) if at_s is not None]


def _cuts(start_s: float, end_s: float, at_s: Iterable[float]) -> Iterable[tuple[float, float]]:
    """A stretch of time, cut at full hours and at these times, but for scraps that no sensor could tell of."""
    further = sorted(cut_s for cut_s in at_s if start_s < cut_s < end_s - SCRAP_S)
    while start_s < end_s:
        while further and further[0] <= start_s + SCRAP_S:
            further.pop(0)
        cut_s = min((start_s // HOUR_S + 1) * HOUR_S, end_s, *further[:1])
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
    late: dict[str, Account],
) -> list[NodeHour]:
    if made.total.joules is None:
        return book_unseen(tape, node, jobs, accounts, low_s, high_s)
    here = [job for job in jobs if job.start_s < high_s and (job.end_s is None or job.end_s > low_s)]
    by_id: dict[str, list[NodeJob]] = {}
    for job in here:
        by_id.setdefault(str(job.job_id), []).append(job)
        if job.sluid:
            by_id.setdefault(job.sluid, []).append(job)
    totals: dict[str, dict[str, int]] = {}
    low_ns, high_ns = tape.from_utc_ns(round(low_s * NS)), tape.from_utc_ns(round(high_s * NS))
    times = step_times(tape, low_ns, high_ns) if here else {}
    memory = memory_mean_bytes(tape, low_ns, high_ns) if here else {}
    for entry in made.entries:
        job_id, _, step = entry.owner.id.removeprefix("slurm:").partition(".")
        of_job = entry.owner.kind is OwnerKind.JOB and entry.owner.id != HOST_JOB
        runs = by_id.get(job_id, []) if of_job else []
        column = "jobs" if runs else "idle" if entry.owner.kind is OwnerKind.IDLE else "system"
        parts = dict(entry.energy.parts)
        amounts = _by_device(entry)
        for device, uj in amounts.items():
            of_device = totals.setdefault(device, dict.fromkeys(("jobs", "idle", "system"), 0))
            of_device[column] += uj
        if of_job:
            account = (
                accounts.setdefault(_which(runs, low_s, high_s).key, Account())
                if runs
                else late.setdefault(job_id, Account(pedigree=made.total.pedigree))
            )
            _charge(account, entry, amounts, step, times.get(entry.owner.id, (low_s, high_s)))
            if entry.owner.id in memory:
                account.memory_byte_s = (account.memory_byte_s or 0.0) + memory[entry.owner.id] * (high_s - low_s)
            for device in amounts:
                account.budgets[device] = account.budgets.get(device, Budget()) + parts[device].budget
            if not runs:
                account.charged_s = high_s
                for device, uj in amounts.items():
                    place = f"{int(low_s // HOUR_S * HOUR_S)} {device}"
                    account.hours_uj[place] = account.hours_uj.get(place, 0) + uj
    _charge_gpus_alone(made, here, accounts, totals, low_s, high_s)
    _charge_idle(tape, here, accounts, totals, low_s, high_s)
    _note_gpus(tape, here, accounts, low_s, high_s)
    for job in here:
        account = accounts.setdefault(job.key, Account())
        inside_s = _inside(job, low_s, high_s)
        account.observed_s += inside_s
        seen = [part.coverage for device, part in made.total.parts if not is_gpu(device) or device in _gpus(job)]
        account.covered_s += inside_s * min(seen, default=made.total.coverage)
        for device, part in made.total.parts:
            if part.coverage < 1.0:
                account.unseen_s[device] = account.unseen_s.get(device, 0.0) + inside_s * (1.0 - part.coverage)
        account.pedigree = join_labels(label for label in (account.pedigree, made.total.pedigree) if label)
    return list(_hour_rows(tape, node, totals, (low_s, high_s), dict(made.total.parts)))


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


def _charge(account: Account, entry: Entry, amounts: Mapping[str, int], step: str, ran_s: tuple[float, float]) -> None:
    for device, uj in amounts.items():
        account.own_uj[device] = account.own_uj.get(device, 0) + uj
    if step:
        account.steps_uj[step] = account.steps_uj.get(step, 0) + sum(amounts.values())
        seen = account.steps_s.setdefault(step, [*ran_s])
        seen[1] = max(seen[1], ran_s[1])
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
        gpu = is_gpu(device)
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


def _note_gpus(tape: Tape, here: Sequence[NodeJob], accounts: dict[str, Account], low_s: float, high_s: float) -> None:
    """How busy the GPUs of jobs were while they had them, and how full."""
    for job in here:
        start_ns = tape.from_utc_ns(round(max(job.start_s, low_s) * NS))
        end_ns = tape.from_utc_ns(round(min(job.end_s or high_s, high_s) * NS))
        account = accounts.setdefault(job.key, Account())
        for gpu in _gpus(job):
            busy_s, known_s = gpu_busy_s(tape, gpu, start_ns, end_ns)
            account.gpu_busy_s[gpu] = account.gpu_busy_s.get(gpu, 0.0) + busy_s
            account.gpu_known_s[gpu] = account.gpu_known_s.get(gpu, 0.0) + known_s
            memory = gpu_memory_bytes(tape, gpu, start_ns, end_ns)
            if memory is not None:
                account.gpu_memory_bytes[gpu] = max(account.gpu_memory_bytes.get(gpu, 0), memory[0])
                byte_s, seconds = account.gpu_memory_byte_s.get(gpu, (0.0, 0.0))
                more_s = (end_ns - start_ns) / NS
                account.gpu_memory_byte_s[gpu] = [byte_s + memory[1] * more_s, seconds + more_s]


def _inside(job: NodeJob, low_s: float, high_s: float) -> float:
    return max(min(job.end_s or high_s, high_s) - max(job.start_s, low_s), 0.0)


def _gpus(job: NodeJob) -> set[str]:
    return set(job.devices)


def _hour_rows(
    tape: Tape,
    node: str,
    totals: Mapping[str, Mapping[str, int]],
    between_s: tuple[float, float],
    parts: Mapping[str, Any],
) -> Iterable[NodeHour]:
    known = {source.label: source for source in addable(splittable(sources(tape)))}
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


def move_to_jobs(hours: Iterable[NodeHour], late: Account) -> list[NodeHour]:
    """Hours in which what a late job used is of jobs and no longer of the system."""
    moved = []
    for row in hours:
        uj = late.hours_uj.get(f"{row.hour_s} {row.device}", 0)
        moved.append(replace(row, jobs_uj=row.jobs_uj + uj, system_uj=row.system_uj - uj))
    return moved


def sensor_of(source: Source) -> str:
    """Which sensor measured: the first word of its group, as `rapl` or `nvml`."""
    return source.group.info.name.split(".", 1)[0]


def merge_hours(pieces: Iterable[NodeHour]) -> list[NodeHour]:
    """One row for each hour and device of several stretches. Time between two stretches was not covered."""
    found: dict[tuple[int, str, str, str], NodeHour] = {}
    for row in pieces:
        there = found.get(row.key)
        if there is None:
            found[row.key] = row
            continue
        from_s, to_s = min(there.from_s, row.from_s), max(there.to_s, row.to_s)
        covered_s = sum(one.coverage * (one.to_s - one.from_s) for one in (there, row))
        added = {name: getattr(there, name) + getattr(row, name) for name in SUMMED}
        share = min(covered_s / (to_s - from_s), 1.0) if to_s > from_s else min(there.coverage, row.coverage)
        found[row.key] = replace(there, **added, coverage=share, from_s=from_s, to_s=to_s)
    return list(found.values())
