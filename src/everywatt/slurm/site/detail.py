"""One job in full: its nodes, steps and devices, and what its user may do better."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.core.format import (
    format_bytes,
    format_count,
    format_duration,
    format_joules,
    format_percent,
    format_rounded,
    format_watts,
)
from everywatt.core.jsonio import ToDict, declared
from everywatt.core.tables import Cell, Table, columns_of
from everywatt.ledger.engine import UJ
from everywatt.slurm.schema import JobOnNode, sum_known
from everywatt.slurm.site.figures import COVERED, amount, energy_of, percent, short, waste
from everywatt.slurm.site.store import FOREVER_S, Store
from everywatt.slurm.site.totals import jobs_where

IDLE_GPU_SHARE: Final = 0.2  # a GPU that was idle for less of a job's time is not worth a line
IDLE_GPU_S: Final = 60.0
LITTLE: Final = 0.5  # of CPUs and memory: less than this is reported
_ID = re.compile(r"(\d{1,18})(?:([_+])(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Detail:
    """One run of a job with its records, one for each node; `whole` is what `totals.jobs` makes of them."""

    rows: tuple[JobOnNode, ...]
    whole: Mapping[str, Any]

    @property
    def first(self) -> JobOnNode:
        """A record, for what is the same on all nodes."""
        return self.rows[0]

    @property
    def elapsed_s(self) -> float:
        """From the first start to the last end."""
        return max(row.end_s for row in self.rows) - min(row.start_s for row in self.rows)

    @property
    def energy_uj(self) -> int | None:
        """Own share of all nodes; None where one of them has no figure."""
        found: int | None = self.whole["energy_uj"]
        return found

    @property
    def missing(self) -> int:
        """Of how many nodes there is no record."""
        return max(max(row.nodes for row in self.rows) - len(self.rows), 0)

    def by_node(self) -> list[tuple[str, int]]:
        """Microjoules of nodes that have a figure, the largest first."""
        return _largest((row.node, row.energy_uj) for row in self.rows if row.energy_uj is not None)

    def by_step(self) -> list[tuple[str, int]]:
        """Microjoules of steps over all nodes, the largest first, and what is in no step."""
        steps = [(step.step, step.energy_uj) for row in self.rows for step in row.steps if step.energy_uj is not None]
        rest_uj = sum(row.energy_uj or 0 for row in self.rows) - sum(uj for _, uj in steps)
        return _largest([*steps, *([("(no step)", rest_uj)] if steps and rest_uj > 0 else [])])

    def by_device(self) -> list[tuple[str, int]]:
        """Microjoules of devices, named with their node where there are several, the largest first."""
        several = len(self.rows) > 1
        return _largest(
            (f"{row.node} {part.device}" if several else part.device, part.energy_uj)
            for row in self.rows
            for part in row.devices
        )

    def parts(self) -> list[tuple[str, list[tuple[str, int]], dict[str, str]]]:
        """By node, step and device where there are several: names with microjoules, and names with what is printed.

        A step of a record without its interval has the digits that the interval of the job leaves it.
        """
        several, whole = len(self.rows) > 1, self.whole
        nodes = {row.node: short(row.row()) for row in self.rows}
        devices = {
            f"{row.node} {part.device}" if several else part.device: format_joules(
                part.energy_uj / UJ, (part.energy_uj - part.low_uj) / UJ, (part.high_uj - part.energy_uj) / UJ
            )
            for row in self.rows
            for part in row.devices
        }
        ends_uj = whole["energy_uj"], whole["low_uj"], whole["high_uj"]
        share = 0.0 if None in ends_uj or not ends_uj[0] else (ends_uj[2] - ends_uj[1]) / 2 / ends_uj[0]
        steps = {name: format_rounded("J", share * uj / UJ, uj / UJ) for name, uj in self.by_step()}
        for name in {step.step for row in self.rows for step in row.steps}:
            mine = [step for row in self.rows for step in row.steps if step.step == name]
            ends = {end: sum_known(getattr(step, end) for step in mine) for end in ("energy_uj", "low_uj", "high_uj")}
            if None not in ends.values():
                steps[name] = short(ends)
        found = [
            ("node", self.by_node(), nodes),
            ("step", self.by_step(), steps),
            ("device", self.by_device(), devices),
        ]
        return [one for one in found if len(one[1]) > 1 or (one[1] and one[0] != "node")]

    def to_dict(self) -> dict[str, Any]:
        first, difference = self.first, slurm_difference(self)
        return {
            **declared(first, "id=shown_id job_id restart user account partition name state exit_code"),
            "elapsed_s": self.elapsed_s,
            "energy": energy_of(self.whole),
            "nodes": [{**row.row(), "energy": energy_of(row.row())} for row in self.rows],
            "by_node_j": {name: uj / UJ for name, uj in self.by_node()},
            "by_step_j": {name: uj / UJ for name, uj in self.by_step()},
            "by_device_j": {name: uj / UJ for name, uj in self.by_device()},
            "slurm_j": difference[0] if difference else None,
            "ours_over_slurm": difference[1] if difference else None,
            "hints": hints(self),
        }

    def lines(self) -> list[str]:
        """The job for people, one fact a line, with a bar for each of its nodes, steps and devices."""
        first, whole = self.first, self.whole
        again = f" (run {first.restart + 1})" if first.restart else ""
        where = first.node if len(self.rows) == 1 else f"{len(self.rows)} nodes"
        lines = [
            f"job {first.shown_id}{again}: {f'{first.name}   ' * bool(first.name)}{first.user}, "
            f"{first.account or 'no account'}",
            f"  {first.state}, {format_duration(self.elapsed_s)} on {where}, partition {first.partition or '-'}",
            f"  energy      {short(whole, '95 %')}, coverage {format_percent(whole['coverage'])}, {first.scope}",
            *([f"              {whole['refused']}"] if whole["energy_uj"] is None else []),
            *_amount_lines(self, whole),
            *_use_lines(self, whole),
        ]
        for title, pairs, shown in self.parts():
            lines += [f"by {title}", *bars(pairs, shown)]
        return [*lines, *(f"* {hint}" for hint in hints(self))]


@dataclass(frozen=True, slots=True)
class Details(ToDict):
    """The runs of a job, or the tasks of an array."""

    jobs: Sequence[Detail]

    def tables(self) -> list[Table]:
        """A job in full; of several tasks one row each."""
        if len({job.first.shown_id for job in self.jobs}) == 1:
            return [Table.lines(*job.lines()) for job in self.jobs]
        rows: list[list[Cell]] = [
            [job.first.shown_id, job.first.state, job.elapsed_s, short(job.whole)] for job in self.jobs
        ]
        known = [job for job in self.jobs if job.energy_uj is not None]
        refused = len(self.jobs) - len(known)
        ends = {end: sum_known(job.whole[end] for job in known) for end in ("energy_uj", "low_uj", "high_uj")}
        lengths_s = [(row.coverage, row.end_s - row.start_s) for job in known for row in job.rows]
        observed_s, all_s = sum(share * length_s for share, length_s in lengths_s), sum(each for _, each in lengths_s)
        total = short({**ends, "coverage": observed_s / all_s if all_s else 0.0}) if known else "no figure"
        note = f"{len(self.jobs)} jobs: {total}" + (f", {refused} without" if refused and known else "")
        return [Table.of(*columns_of("JOB, STATE, TIME [s], ENERGY [J]"), rows=rows, notes=[note])]


def _amount_lines(job: Detail, whole: Mapping[str, Any]) -> list[str]:
    """Context for the job's energy: its share of idle, the wall, Slurm's own count."""
    lines = []
    if whole["idle_uj"] is not None:
        lines.append(f"  idle share  {amount(whole, 'idle_uj')}   of the idle energy of its allocation")
    if whole["wall_uj"] is not None:
        rest_j = (whole["wall_uj"] - (whole["energy_uj"] or 0) - (whole["idle_uj"] or 0)) / UJ
        unexplained = f"{format_joules(rest_j)} of it is not explained by the chips"
        lines.append(f"  at the wall {format_joules(whole['wall_uj'] / UJ)}   {unexplained}")
    difference = slurm_difference(job)
    if difference:
        ratio = difference[1]
        beside = "" if ratio is None else f"   ours with the idle share: {format_percent(ratio, signed=True)}"
        lines.append(f"  Slurm       {format_joules(difference[0])}{beside}")
    return lines


def _use_lines(job: Detail, whole: Mapping[str, Any]) -> list[str]:
    """What the job used of its allocation, as far as that is known."""
    lines, first = [], job.first
    if whole["cpu_s"] is not None:
        used = percent(whole["cpu_s"], whole["allocated_cpu_s"]) or "-"
        count = whole["cpus"] or 0
        lines.append(
            f"  CPU         {format_duration(whole['cpu_s'])}, {used} of {count:g} CPU{'' if count == 1 else 's'}"
        )
    if whole["gpu_utilisation"] is not None:
        cards = format_count(sum(len(row.gpus) for row in job.rows), "GPU")
        lines.append(f"  GPU         {format_percent(whole['gpu_utilisation'])} of {cards}")
    if first.memory_peak_bytes is not None:
        asked = "" if first.memory_bytes is None else f" of {format_bytes(first.memory_bytes)}"
        lines.append(f"  memory      {format_bytes(first.memory_peak_bytes)}{asked}")
    return lines


def parse_id(text: str) -> tuple[int, str, int | None]:
    """`123`, `123_4` or `123+0` as (123, "" or sign, number). UsageError for any other form."""
    match = _ID.fullmatch(text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a job id.", cure="123, 123_4 or 123+0")
    return int(match[1]), match[2] or "", None if match[3] is None else int(match[3])


def find(store: Store, text: str, since_s: float = 0.0) -> list[Detail]:
    """The runs of a job, of one task of an array, or of all of them where the array's own id is given."""
    number, sign, part = parse_id(text)
    wheres = ["job_id = ?", "array_job_id = ?", "het_job_id = ?"]
    values: list[int] = [number]
    if sign:
        wheres = ["array_job_id = ? AND array_task_id = ?" if sign == "_" else "het_job_id = ? AND het_offset = ?"]
        values = [number, int(part or 0)]
    # When it ended is looked for first, by one column at a time: files say which numbers they hold.
    ends = " UNION ALL ".join(f"SELECT end_s FROM jobs WHERE {where}" for where in wheres)
    times = store.query(ends, values * len(wheres), since_s, FOREVER_S).column("end_s").to_pylist()
    if not times:
        return []
    bounds = max(min(times), since_s), max(times) + 1.0
    asked = " OR ".join(wheres), values * len(wheres)
    found: dict[tuple[str, int, int], list[JobOnNode]] = {}
    for row in store.jobs(*bounds, *asked).to_pylist():
        job = JobOnNode.of_row(row)
        found.setdefault(job.key[:3], []).append(job)
    wholes = jobs_where(store, *bounds, *asked)
    details = [
        Detail(tuple(sorted(rows, key=lambda row: row.node)), wholes[key])
        for key, rows in found.items()
        if key in wholes  # else the store has changed meanwhile
    ]
    return sorted(details, key=lambda job: (_place(job.first), job.first.cluster, job.first.job_id, job.first.restart))


def _place(row: JobOnNode) -> int:
    return row.array_task_id if row.array_task_id is not None else row.het_offset or 0


def hints(job: Detail) -> list[str]:
    """What of the allocation was not used, and what is not sure about the figure; the costliest first."""
    found = [*_gpu_hints(job.rows), *_cpu_hints(job), *_memory_hints(job.rows)]
    if found and job.whole["waste_uj"]:
        found.append((0, f"{waste(job.whole)} went into allocated hardware that was not used."))
    lines = [text for _, text in sorted(found, key=lambda pair: -pair[0])]
    if job.missing:
        lines.append(f"{job.missing} of its nodes have no record.")
    if job.energy_uj is not None and job.whole["coverage"] < COVERED:
        lines.append(f"Only {format_percent(job.whole['coverage'])} of it was observed.")
    return lines


def _gpu_hints(rows: Iterable[JobOnNode]) -> list[tuple[float, str]]:
    found = []
    for row in rows:
        length_s = row.end_s - row.start_s
        for use in row.gpu_use:
            if use.idle_s < IDLE_GPU_S or use.idle_s < IDLE_GPU_SHARE * length_s:
                continue
            watts = use.idle_uj / UJ / length_s
            power = format_watts(watts)
            drew = f"drew {power} idle" if watts > 0 else "was idle"
            name = use.uuid if use.uuid.startswith("GPU-") else f"GPU {use.uuid.removeprefix('gpu.')}"
            found.append((watts * use.idle_s, f"{name} of {row.node} {drew} for {format_duration(use.idle_s)}."))
    return found


def _cpu_hints(job: Detail) -> list[tuple[float, str]]:
    known = [row for row in job.rows if row.cpu_s is not None and row.cpus]
    if len(known) < len(job.rows):
        return []
    allocated = sum(row.cpus or 0.0 for row in known)
    seconds = sum((row.cpus or 0.0) * (row.end_s - row.start_s) for row in known)
    used = sum(row.cpu_s or 0.0 for row in known) / seconds if seconds else 1.0
    if used >= LITTLE or allocated <= 1:
        return []
    idle_j = sum(row.idle_uj or 0 for row in known) / UJ * (1 - used)
    return [(idle_j, f"{used * allocated:.1f} of {allocated:g} CPUs used on average.")]


def _memory_hints(rows: Iterable[JobOnNode]) -> list[tuple[float, str]]:
    known = [(row.memory_peak_bytes, row.memory_bytes) for row in rows if row.memory_peak_bytes and row.memory_bytes]
    if not known:
        return []
    peak, asked = max(known, key=lambda pair: pair[0] / pair[1])
    if peak >= LITTLE * asked:
        return []
    return [(0.0, f"At most {format_bytes(peak)} of the requested {format_bytes(asked)} of memory were used.")]


def _largest(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for name, uj in pairs:
        sums[name] = sums.get(name, 0) + uj
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))


def slurm_difference(job: Detail) -> tuple[float, float | None] | None:
    """What Slurm counted (J), and our figure with its share of idle over that, less 1; None where it counted none.

    Slurm reads whole nodes or sockets: what the job's own share and its share of idle leave is others' and idle CPUs'.
    """
    counted = [row.slurm_energy_j for row in job.rows if row.slurm_energy_j]
    if not counted:
        return None
    ours_uj = sum_known([job.energy_uj, sum_known(row.idle_uj for row in job.rows)])
    slurm_j = max(counted)
    return slurm_j, None if ours_uj is None else ours_uj / UJ / slurm_j - 1


def bars(
    pairs: Sequence[tuple[str, int]], words: Mapping[str, str] | None = None, width: int = 40, most: int = 16
) -> list[str]:
    """A bar chart for a terminal, one line each; what does not fit into `most` lines is one line of its own.

    `words` are what is printed of each, where that is more than its joules.
    """
    known = words or {}
    shown = list(pairs[:most])
    if len(pairs) > most:
        shown.append((f"({len(pairs) - most} more)", sum(uj for _, uj in pairs[most:])))
    largest = max((uj for _, uj in shown), default=0)
    room = max((len(name) for name, _ in shown), default=0)
    return [
        f"  {name:<{room}}  {'#' * round(width * max(uj, 0) / largest) if largest > 0 else '':<{width}}  "
        f"{known.get(name) or format_joules(uj / UJ)}"
        for name, uj in shown
    ]
