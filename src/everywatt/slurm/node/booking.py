"""From a node's tape to what each job owes: own share by the ledger, idle by allocation, the rest is the system's.

Booking goes on from where it stopped, hour by hour, so a job of weeks costs no more memory than one of seconds, and
jobs + idle + system is the node, to the microjoule, for each hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from everywatt.core.budget import Bound, Budget
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.energy import Energy, join_labels
from everywatt.energy.sources import Source, addable, sources, splittable
from everywatt.ledger.build import ledger
from everywatt.ledger.engine import UJ, apportion, microjoules
from everywatt.ledger.idle import Idle
from everywatt.ledger.levels import find_levels
from everywatt.ledger.owners import Entry, Ledger, OwnerKind
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.processes import LATE
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.state import Account, ends_uj, unseen_budget
from everywatt.slurm.node.tapes import gpu_busy_s, gpu_memory_bytes, memory_mean_bytes, step_times
from everywatt.slurm.schema import NODE_ENDS, SUMMED, NodeHour, sum_known
from everywatt.tape.reader import Tape

HOUR_S: Final = 3600
SCRAP_S: Final = 0.25
HOST_JOB: Final = "host"  # the ledger's owner of what is in no job
COLUMNS: Final = ("jobs", "idle", "system")  # what becomes of a device's joules in an hour


def horizon_s(tape: Tape, latest_s: float) -> float:
    """Up to when (UTC, at most `latest_s`) a tape shows who used what: tables of processes are written last.

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


def learn_idle(tape: Tape, idle: dict[str, Idle]) -> None:
    """Take over what a tape shows of the idle power of its devices, where that is surer than what is known."""
    for label, found in find_levels(tape, {}).items():
        known = idle.get(label)
        if known is None or (not found.observed, found.spread_w) <= (not known.observed, known.spread_w):
            idle[label] = found


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
    bridge: bool = False,
) -> list[NodeHour]:
    """Charge a stretch of UTC time on one tape to its jobs; gives what jobs, idle and the system had of each device in
    each hour of it. `accounts` grow.

    `idle` is what the node knows of its devices' idle power; what this tape shows more surely replaces it, unless it is
    a `bridge` over a time without a recorder. On a bridge, use and power are spread evenly over all of it, and so is a
    job that was there for a part of it. `late` gets accounts of jobs (by id) whose processes were there and of which no
    hook has reported yet: they are a part of the system until then.
    """
    if not bridge:
        learn_idle(tape, idle)
    hours: list[NodeHour] = []
    low_ns, high_ns = tape.extent_ns()
    start_s, end_s = max(start_s, tape.to_utc_ns(low_ns) / NS), min(end_s, tape.to_utc_ns(high_ns) / NS)
    for low_s, high_s in _cuts(start_s, end_s, [*_again_s(jobs), *_handed_s(jobs)]):
        window = max(tape.from_utc_ns(round(low_s * NS)), low_ns), min(tape.from_utc_ns(round(high_s * NS)), high_ns)
        if window[1] > window[0]:
            made = ledger([tape], [[window]], by="step", baseline=idle)
            if made.total.joules is None:
                hours += book_unseen(tape, node, jobs, accounts, low_s, high_s)
                continue
            made = _with_own_edges(made) if bridge else made
            between_s = (start_s, end_s) if bridge else (low_s, high_s)
            here = [job for job in jobs if job.start_s < between_s[1] and (job.end_s or high_s) > between_s[0]]
            piece = _Piece(tape, made, here, accounts, {} if late is None else late, low_s, high_s)
            piece.book()
            hours += _hour_rows(tape, node, piece.totals, (low_s, high_s), dict(made.total.parts))
    return hours


def _with_own_edges(made: Ledger) -> Ledger:
    """A ledger whose errors at the edges cancel with no others: when the readings around them were published is found
    from more readings on the tapes before and after a bridge, and so otherwise.
    """

    def apart(energy: Energy) -> Energy:
        terms = [
            term._replace(key=f"bridge {term.key}") if term.source == "edges" else term for term in energy.budget.terms
        ]
        return replace(energy, budget=Budget(tuple(terms), energy.budget.bounds))

    def parts_apart(entry: Entry) -> Entry:
        parts = tuple((device, apart(part)) for device, part in entry.energy.parts)
        return replace(entry, energy=replace(entry.energy, parts=parts))

    return replace(made, entries=tuple(map(parts_apart, made.entries)))


def book_unseen(
    tape: Tape, node: str, jobs: Sequence[NodeJob], accounts: dict[str, Account], start_s: float, end_s: float
) -> list[NodeHour]:
    """Note that nothing is known of a stretch of UTC time before a tape: in the accounts of jobs, and in node hours.

    Of hours that lie in it whole there are no rows: the machine may have been switched off.
    """
    devices = [source.label for source in addable(splittable(sources(tape)))]
    for job in jobs:
        if (inside_s := _inside(job, start_s, end_s)) > 0:
            account = accounts.setdefault(job.key, Account())
            account.observed_s += inside_s
            for device in devices:
                account.unseen_s[device] += inside_s
    nothing = {device: _Amounts() for device in devices}
    cuts = list(_cuts(start_s, end_s, ()))
    ends = dict.fromkeys((cuts[0], cuts[-1]))
    return [row for between_s in ends for row in _hour_rows(tape, node, nothing, between_s, {})]


def book_doubt(
    jobs: Collection[NodeJob], accounts: dict[str, Account], hours: Sequence[NodeHour], start_s: float, end_s: float
) -> list[NodeHour]:
    """Jobs that ended in a stretch, and whose CPU time in it is unknown: what the system had may be theirs.

    Gives the hours with that in their intervals.
    """
    rows = [row for row in hours if not is_gpu(row.device) and row.system_uj > 0]
    for job in jobs:
        account = accounts.setdefault(job.key, Account())
        account.covered_s = max(account.covered_s - _inside(job, start_s, end_s), 0.0)
        for row in rows:
            bound = Bound("cpu time", f"{row.device} at {row.from_s}", 0.0, row.system_uj / UJ)
            account.doubt(row.device, Budget((), (bound,)))
            for step in account.steps_uj:
                account.charge_step(step, 0, Budget((), (bound,)))
    if not jobs:
        return list(hours)
    return [
        replace(row, jobs_high_uj=(row.jobs_high_uj or 0) + row.system_uj, system_low_uj=0) if row in rows else row
        for row in hours
    ]


def _again_s(jobs: Sequence[NodeJob]) -> list[float]:
    """When jobs began that had run before: their processes go by one number, so their runs are booked apart."""
    runs = Counter(job.job_id for job in jobs)
    return [job.start_s for job in jobs if runs[job.job_id] > 1]


def _handed_s(jobs: Sequence[NodeJob]) -> list[float]:
    """When GPUs were handed over: what a card did without a listed process belongs to the job that had it just then."""
    return [at_s for job in jobs if job.gpus for at_s in (job.start_s, job.end_s) if at_s is not None]


def _cuts(start_s: float, end_s: float, at_s: Iterable[float]) -> Iterable[tuple[float, float]]:
    """A stretch of time, cut at full hours and at these times, but for scraps that no sensor could resolve."""
    further = sorted(cut_s for cut_s in at_s if start_s < cut_s < end_s - SCRAP_S)
    while start_s < end_s:
        while further and further[0] <= start_s + SCRAP_S:
            further.pop(0)
        cut_s = min((start_s // HOUR_S + 1) * HOUR_S, end_s, *further[:1])
        yield start_s, cut_s
        start_s = cut_s


@dataclass(slots=True)
class _Amounts:
    """Microjoules of a device by column, each with the budgets of what was added to it."""

    uj: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    budgets: dict[str, list[Budget]] = field(default_factory=lambda: {column: [] for column in COLUMNS})

    def add(self, column: str, uj: int, budget: Budget) -> None:
        self.uj[column] += uj
        self.budgets[column].append(budget)

    def columns(self) -> dict[str, int]:
        """The columns of a `NodeHour`: amounts and the ends of their intervals."""
        found: dict[str, int] = {}
        for column, uj in self.uj.items():
            names = (f"{column}_uj", f"{column}_low_uj", f"{column}_high_uj")
            found |= zip(names, (uj, *ends_uj(uj, Budget.sum(self.budgets[column]))), strict=True)
        return found


@dataclass(slots=True)
class _Piece:
    """A stretch of UTC time within an hour, the jobs that were there in it, and what became of each device's joules."""

    tape: Tape
    made: Ledger
    jobs: Sequence[NodeJob]
    accounts: dict[str, Account]
    late: dict[str, Account]
    low_s: float
    high_s: float
    totals: dict[str, _Amounts] = field(default_factory=dict)

    def book(self) -> None:
        """Charge owners of the ledger, then what follows from allocation."""
        self._charge_processes()
        self._charge_gpus_alone()
        self._charge_idle()
        for job in self.jobs:
            self._note_gpus(job)
            self._note_coverage(job)

    def _account(self, job: NodeJob) -> Account:
        return self.accounts.setdefault(job.key, Account())

    def _between_ns(self, job: NodeJob | None = None) -> tuple[int, int]:
        """The stretch, or how long a job was in it, on the tape's own clock."""
        low_s, high_s = self.low_s, self.high_s
        if job is not None:
            low_s, high_s = max(job.start_s, low_s), min(job.end_s or high_s, high_s)
        return self.tape.from_utc_ns(round(low_s * NS)), self.tape.from_utc_ns(round(high_s * NS))

    def _charge_processes(self) -> None:
        times = step_times(self.tape, *self._between_ns()) if self.jobs else {}
        memory = memory_mean_bytes(self.tape, *self._between_ns()) if self.jobs else {}
        for entry in self.made.entries:
            job_id, _, step = entry.owner.id.removeprefix("slurm:").partition(".")
            of_job = entry.owner.kind is OwnerKind.JOB and entry.owner.id != HOST_JOB
            runs = [job for job in self.jobs if job_id in (str(job.job_id), job.sluid)] if of_job else []
            column = "jobs" if runs else "idle" if entry.owner.kind is OwnerKind.IDLE else "system"
            amounts, parts = _by_device(entry), dict(entry.energy.parts)
            budgets = {device: parts[device].budget if device in parts else Budget() for device in amounts}
            for device, uj in amounts.items():
                self.totals.setdefault(device, _Amounts()).add(column, uj, budgets[device])
            if not of_job:
                continue
            if runs:
                account = self._account(max(runs, key=lambda job: _inside(job, self.low_s, self.high_s)))
            else:
                account = self.late.setdefault(job_id, Account(pedigree=self.made.total.pedigree))
                account.charged_s = self.high_s
                for device, uj in amounts.items():
                    place = f"{int(self.low_s // HOUR_S * HOUR_S)} {device}"
                    ends = (account.hours_uj, account.hours_low_uj, account.hours_high_uj)
                    for kept, more_uj in zip(ends, (uj, *ends_uj(uj, budgets[device])), strict=True):
                        kept[place] += more_uj
            _charge(account, entry, amounts, budgets, step, times.get(entry.owner.id, (self.low_s, self.high_s)))
            if entry.owner.id in memory:
                byte_s = memory[entry.owner.id] * (self.high_s - self.low_s)
                account.memory_byte_s = (account.memory_byte_s or 0.0) + byte_s

    def _charge_gpus_alone(self) -> None:
        """What a GPU did without a listed process belongs to the job that it was given to, if that had it alone."""
        lost = next((entry for entry in self.made.entries if entry.owner.kind is OwnerKind.UNATTRIBUTED), None)
        length_s = self.high_s - self.low_s
        for device, uj in _by_device(lost).items() if lost is not None else ():
            holders = [(job, _inside(job, self.low_s, self.high_s)) for job in self.jobs if device in job.devices]
            held_s = sum(seconds for _, seconds in holders)
            if lost is None or uj <= 0 or held_s <= 0 or held_s > length_s * 1.001:
                continue
            weights = [*(seconds for _, seconds in holders), max(length_s - held_s, 0.0)]
            part = dict(lost.energy.parts)[device]
            for (job, _), amount in zip(holders, apportion(uj, weights)[:-1], strict=True):
                budget = part.budget.scaled(amount / uj)
                self._account(job).charge(device, amount, budget)
                self.totals[device].add("system", -amount, budget.scaled(-1.0))
                self.totals[device].add("jobs", amount, budget)

    def _charge_idle(self) -> None:
        """A job's share of idle, of which it stays a part: a GPU's while the job had it, the machine's by CPUs."""
        cpus = float(self.tape.meta.get("host", {}).get("cpus") or 0)
        for device, of_device in self.totals.items():
            gpu = is_gpu(device)
            capacity = (1.0 if gpu else cpus) * (self.high_s - self.low_s)
            weights = [
                _inside(job, self.low_s, self.high_s) * (float(device in job.devices) if gpu else (job.cpus or 0.0))
                for job in self.jobs
            ]
            idle_uj = of_device.uj["idle"]
            if capacity <= 0 or sum(weights) <= 0 or idle_uj <= 0:
                continue
            amounts = apportion(idle_uj, [*weights, max(capacity - sum(weights), 0.0)])
            budget = Budget.sum(of_device.budgets["idle"])
            for job, amount in zip(self.jobs, amounts[:-1], strict=True):
                if amount:
                    self._account(job).charge_idle(device, amount, budget.scaled(amount / idle_uj))

    def _note_gpus(self, job: NodeJob) -> None:
        """How busy the GPUs of a job were while it had them, and how full."""
        account, (start_ns, end_ns) = self._account(job), self._between_ns(job)
        for gpu in dict.fromkeys(job.devices):
            busy_s, known_s = gpu_busy_s(self.tape, gpu, start_ns, end_ns)
            account.gpu_busy_s[gpu] += busy_s
            account.gpu_known_s[gpu] += known_s
            memory = gpu_memory_bytes(self.tape, gpu, start_ns, end_ns)
            if memory is not None:
                account.gpu_memory_bytes[gpu] = max(account.gpu_memory_bytes.get(gpu, 0), memory[0])
                byte_s, seconds = account.gpu_memory_byte_s.get(gpu, (0.0, 0.0))
                more_s = (end_ns - start_ns) / NS
                account.gpu_memory_byte_s[gpu] = [byte_s + memory[1] * more_s, seconds + more_s]

    def _note_coverage(self, job: NodeJob) -> None:
        account, total = self._account(job), self.made.total
        inside_s = _inside(job, self.low_s, self.high_s)
        account.observed_s += inside_s
        seen = [part.coverage for device, part in total.parts if not is_gpu(device) or device in job.devices]
        account.covered_s += inside_s * min(seen, default=total.coverage)
        for device, part in total.parts:
            if part.coverage < 1.0:
                account.unseen_s[device] += inside_s * (1.0 - part.coverage)
        account.pedigree = join_labels(label for label in (account.pedigree, total.pedigree) if label)


def _by_device(entry: Entry) -> dict[str, int]:
    """Whole microjoules by device; they add up to the entry."""
    amounts = {name: microjoules(part.value) for name, part in entry.energy.parts if part.joules is not None}
    rest_uj = entry.microjoules - sum(amounts.values())
    if rest_uj:
        largest = max(amounts, key=lambda name: abs(amounts[name]), default="not told")
        amounts[largest] = amounts.get(largest, 0) + rest_uj
    return amounts


def _charge(
    account: Account,
    entry: Entry,
    amounts: Mapping[str, int],
    budgets: Mapping[str, Budget],
    step: str,
    ran_s: tuple[float, float],
) -> None:
    for device, uj in amounts.items():
        account.charge(device, uj, budgets[device])
    if step:
        account.charge_step(step, sum(amounts.values()), Budget.sum(budgets.values()))
        seen = account.steps_s.setdefault(step, [*ran_s])
        seen[1] = max(seen[1], ran_s[1])
    if "cpu_s" in entry.use:
        account.cpu_s = (account.cpu_s or 0.0) + entry.use["cpu_s"]
    if "rss_bytes" in entry.use:
        account.memory_peak_bytes = max(account.memory_peak_bytes or 0, int(entry.use["rss_bytes"]))


def _inside(job: NodeJob, low_s: float, high_s: float) -> float:
    return max(min(job.end_s or high_s, high_s) - max(job.start_s, low_s), 0.0)


def _hour_rows(
    tape: Tape,
    node: str,
    totals: Mapping[str, _Amounts],
    between_s: tuple[float, float],
    parts: Mapping[str, Energy],
) -> Iterable[NodeHour]:
    known = {source.label: source for source in addable(splittable(sources(tape)))}
    for device, of_device in totals.items():
        source, part = known.get(device), parts.get(device)
        total_uj = sum(of_device.uj.values())
        total_ends_uj = ends_uj(total_uj, part.budget if part is not None else Budget())
        yield NodeHour(
            hour_s=int(between_s[0] // HOUR_S * HOUR_S),
            node=node,
            device=device,
            domain=source.domain.value if source else "",
            source=sensor_of(source) if source else "",
            total_uj=total_uj,
            total_low_uj=total_ends_uj[0],
            total_high_uj=total_ends_uj[1],
            **of_device.columns(),
            coverage=part.coverage if part is not None else 0.0,
            from_s=between_s[0],
            to_s=between_s[1],
        )


def move_to_jobs(hours: Iterable[NodeHour], late: Account) -> list[NodeHour]:
    """Hours in which what a late job used is of jobs and no longer of the system."""
    moved = []
    for row in hours:
        place = f"{row.hour_s} {row.device}"
        uj = late.hours_uj.get(place, 0)
        row = replace(row, jobs_uj=row.jobs_uj + uj, system_uj=row.system_uj - uj)
        if None not in (row.jobs_low_uj, row.jobs_high_uj, row.system_low_uj, row.system_high_uj):
            row = replace(
                row,
                jobs_low_uj=(row.jobs_low_uj or 0) + late.hours_low_uj.get(place, 0),
                jobs_high_uj=(row.jobs_high_uj or 0) + late.hours_high_uj.get(place, 2 * uj),
                # What is left is no surer than the whole was.
                system_low_uj=max((row.system_low_uj or 0) - uj, 0),
                system_high_uj=(row.system_high_uj or 0) - uj,
            )
        moved.append(row)
    return moved


def with_unseen(row: NodeHour) -> NodeHour:
    """The hour, its intervals wide enough for what no sensor saw of it; none where nothing was seen.

    `merge_hours` needs them as they were: what has not been seen yet may be bridged.
    """
    length_s = row.to_s - row.from_s
    seen_s = row.coverage * length_s
    if row.coverage >= 1.0 or length_s <= 0:
        return row
    if seen_s <= 0:
        return replace(row, **dict.fromkeys(NODE_ENDS))  # type: ignore[arg-type]
    wider: dict[str, int] = {}
    for name in SUMMED:
        high = f"{name.removesuffix('_uj')}_high_uj"
        if (high_uj := getattr(row, high)) is not None:
            wider[high] = ends_uj(high_uj, unseen_budget(name, getattr(row, name), seen_s, length_s - seen_s))[1]
    return replace(row, **wider)  # type: ignore[arg-type]


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
        # Errors of one sensor and of one idle level do not cancel in time: ends are added as they are.
        added = {name: sum_known(getattr(one, name) for one in (there, row)) for name in (*SUMMED, *NODE_ENDS)}
        share = min(covered_s / (to_s - from_s), 1.0) if to_s > from_s else min(there.coverage, row.coverage)
        found[row.key] = replace(there, **added, coverage=share, from_s=from_s, to_s=to_s)
    return list(found.values())
