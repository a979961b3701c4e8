"""Jobs and their sums for JSON and for people: each row an energy with its interval, and the tables of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from everywatt.core.format import (
    format_count,
    format_joules,
    format_percent,
    format_rounded,
    format_watts,
    print_quantity,
)
from everywatt.core.jsonio import ToDict, declared
from everywatt.core.tables import Cell, Column, Table, columns_of
from everywatt.ledger.engine import UJ
from everywatt.ledger.text import scale_of, steps_of
from everywatt.slurm.schema import IDLE_ENDS, NODE_ENDS, SUMMED, JobOnNode
from everywatt.slurm.site.totals import Wanted, shown_id

COVERED: Final = 0.9  # a figure of which less was observed says so wherever it is listed
UNKNOWN: Final = " (coverage unknown)"  # of jobs from series
WHOLE: Final = "from start to end"  # what sums of jobs are of, other than those of nodes
OWN: Final = ("energy_uj", "low_uj", "high_uj")  # an amount with the ends of its interval
IDLE: Final = ("idle_uj", *IDLE_ENDS)


def energy_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The energy object of a row, as every command prints it; refused with the reason where there is no figure."""
    data: dict[str, Any] = {
        "joules": joules(row, "energy_uj"),
        "low": joules(row, "low_uj"),
        "high": joules(row, "high_uj"),
        "scope": row.get("scope") or "",
        "pedigree": row.get("pedigree") or "",
        "coverage": row.get("coverage"),
        "parts": {},
        "notes": [row["note"]] if row.get("note") else [],
    }
    if data["joules"] is None:
        data["refused"] = row.get("refused") or "it was not recorded on all of its nodes"
    return data


def job_of(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
        *("job_id", "restart", "user", "account", "partition", "name", "state", "exit_code", "nodes", "start_s"),
        "end_s",
        *("elapsed_s", "cpus", "gpus", "cpu_s", "memory_peak_bytes", "gpu_utilisation", "slurm_energy_j", "complete"),
    )
    return {
        "id": shown_id(row),
        "task_id": row.get("array_task_id"),
        **{name: row.get(name) for name in kept},
        "energy": energy_of(row),
        **idle_of(row),
        "waste_j": joules(row, "waste_uj"),
        "wall_j": joules(row, "wall_uj"),
        "cpu_efficiency": share(row.get("cpu_s"), row.get("allocated_cpu_s")),
    }


def group_of(row: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: row[name] for name in ("group", "jobs", "refused", "elapsed_s", "cpu_s", "gpu_s")}
    return {**plain, "energy": energy_of(row), **idle_of(row), "waste_j": joules(row, "waste_uj")}


def idle_of(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The share of idle with the ends of its interval, for JSON."""
    return {f"{name.removesuffix('_uj')}_j": joules(row, name) for name in ("idle_uj", *IDLE_ENDS)}


def nodes_of(sums: Mapping[str, int]) -> dict[str, float | None]:
    """What nodes drew in all, for JSON: jobs_j + idle_j + system_j is total_j; coverage of their devices' time."""
    names = (name for name in (*SUMMED, *NODE_ENDS) if name in sums)
    joules_of = {name.removesuffix("_uj") + "_j": joules(sums, name) for name in names}
    return {**joules_of, "coverage": share(sums["covered_ms"], sums["known_ms"])} if sums else {}


def partly_covered(coverage: float | None) -> str:
    """` (coverage 83.3 %)` after a figure, where that is little; else nothing."""
    return f" (coverage {format_percent(coverage)})" if coverage is not None and coverage < COVERED else ""


def short(row: Mapping[str, Any], level: str = "") -> str:
    """`412 J ± 6`, or `refused`; with the level of the interval where it is given, else with a coverage below 90 %."""
    value, low, high = (joules(row, name) for name in OWN)
    if value is None:
        return "refused"
    if low is None or high is None:
        return format_joules(value)
    shown = print_quantity(value, "J", value - low, high - value)
    if level:
        return shown.at(level)
    return f"{shown}{partly_covered(row.get('coverage'))}"


def rounded(row: Mapping[str, Any], unit: str, value: float, of: Sequence[str] = OWN) -> str:
    """What follows from an amount of a row, its energy, with the digits that the interval of that leaves."""
    amount_uj, low_uj, high_uj = (row.get(name) for name in of)
    half = 0.0 if not amount_uj or low_uj is None or high_uj is None else (high_uj - low_uj) / 2 / amount_uj * value
    return format_rounded(unit, half, value)


def waste(row: Mapping[str, Any]) -> str | None:
    """The part of an idle share that was not used, with the digits that the share's interval leaves it."""
    value = joules(row, "waste_uj")
    return None if value is None else rounded(row, "J", value, IDLE)


def amount(row: Mapping[str, Any], name: str) -> str | None:
    """Microjoules of a column for people, with the interval where there is one; None where they are not known.

    Where no energy beside them says so, with a coverage below 90 %.
    """
    stem = name.removesuffix("_uj")
    value, low, high = joules(row, name), joules(row, f"{stem}_low_uj"), joules(row, f"{stem}_high_uj")
    if value is None or low is None or high is None:
        return None if value is None else format_joules(value)
    covered = partly_covered(row.get("coverage")) if row.get("energy_uj") is None else ""
    return f"{format_joules(value, value - low, high - value)}{covered}"


def shown_run(row: Mapping[str, Any]) -> str:
    """The id of a run of a job: `123`, and after it was requeued once `123 r1`."""
    return shown_id(row) + (f" r{row['restart']}" if row["restart"] else "")


def percent(part: float | None, whole: float | None) -> str | None:
    """A share for people; None where it is not known."""
    found = share(part, whole)
    return None if found is None else format_percent(found)


def share(part: float | None, whole: float | None) -> float | None:
    """A part of a whole, None where one of them is not known or the whole is nothing."""
    return None if part is None or not whole else min(part / whole, 1.0)


def joules(row: Mapping[str, Any], name: str) -> float | None:
    """Microjoules of a column as joules; None where they are not known."""
    value = row.get(name)
    return None if value is None else int(value) / UJ


_COLUMNS: Final[Mapping[str, tuple[str | None, Callable[[Mapping[str, Any]], Cell]]]] = {
    "job": (None, shown_run),
    "user": (None, lambda row: row["user"]),
    "account": (None, lambda row: row["account"] or None),
    "state": (None, lambda row: row["state"]),
    "nodes": ("", lambda row: len(row["nodes"])),
    "jobs": ("", lambda row: row["jobs"]),
    "refused": ("", lambda row: row["refused"]),
    "time": ("s", lambda row: row.get("elapsed_s") or 0.0),
    "energy": ("J", lambda row: short(row)),
    "idle share": ("J", lambda row: amount(row, "idle_uj")),
    "waste": ("J", lambda row: waste(row)),
    "cpu": ("%", lambda row: share(row["cpu_s"], row["allocated_cpu_s"])),
    "gpu": ("%", lambda row: share(row["gpu_utilisation"], 1.0)),
    "name": (None, lambda row: row["name"]),
}
_SPARE: Final = ("nodes", "gpu", "account", "cpu", "user", "idle share", "state")  # left out first without room for all


def columns(*heads: str) -> list[Column]:
    """Columns of a table of jobs or of sums, by their heads."""
    ranks = {name: rank for rank, name in enumerate(_SPARE, 1)}
    return [Column(head, _COLUMNS[head.lower()][0], spare=ranks.get(head.lower(), 0)) for head in heads]


def cells(row: Mapping[str, Any], heads: Iterable[str]) -> list[Cell]:
    """A job, or a sum of jobs: the cells of those columns."""
    return [_COLUMNS[head.lower()][1](row) for head in heads]


def sums_table(by: str, heads: Sequence[str], rows: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()) -> Table:
    """Jobs added up by `by`, one row for each group."""
    shown = [[row["group"] or "(none)", *cells(row, heads)] for row in rows]
    return Table.of(by.upper(), *columns(*heads), rows=shown, notes=notes)


def balance(nodes: Mapping[str, int]) -> str:
    """What nodes drew: `3893 J (3290 … 4530) = jobs 798 J (690 … 906), idle …`, which adds up as printed."""
    names = tuple(name.removesuffix("_uj") for name in SUMMED)
    ends_j = [(joules(nodes, f"{name}_low_uj"), joules(nodes, f"{name}_high_uj")) for name in names]
    total_j, (low_j, high_j) = nodes["total_uj"] / UJ, ends_j[0]
    scale = scale_of(total_j, 0.0 if low_j is None or high_j is None else (high_j - low_j) / 2, 2)
    parts = steps_of([nodes[f"{name}_uj"] for name in names[1:]], scale)
    amounts = [scale.amount(steps, *ends) for steps, ends in zip((sum(parts), *parts), ends_j, strict=True)]
    total, *shown = (f"{one.number} {one.unit}{f' ({one.ends})' if one.ends else ''}" for one in amounts)
    covered = partly_covered(share(nodes["covered_ms"], nodes["known_ms"]))
    return f"{total} = {', '.join(map(' '.join, zip(names[1:], shown, strict=True)))}{covered}"


def nodes_line(nodes: Mapping[str, int], of: str | None = None) -> str:
    """What all nodes, or one, drew in the hours of a period, in which jobs of its ends are only in part."""
    return f"{'nodes' if of is None else of} in these hours: {balance(nodes)}"


def _listed(what: str, rows: Sequence[Mapping[str, Any]], refused: int, *more: str) -> list[Table]:
    """The sum of what is listed, and how much of it is missing; nothing where nothing is listed."""
    if not rows:
        return []
    known = [row for row in rows if row["energy_uj"] is not None]
    names = [name for name in OWN if known and all(row.get(name) is not None for row in known)]
    seen_s = [(row["elapsed_s"] * row["coverage"], row["elapsed_s"]) for row in known if row["coverage"] is not None]
    coverage = share(*map(sum, zip(*seen_s, strict=True))) if seen_s else None
    sums_of = {name: sum(row[name] for row in known) for name in names}
    total = short({**sums_of, "coverage": coverage}) if known else "no energy"
    total += UNKNOWN if known and coverage is None else ""
    facts = [f"{what}: {total}", *([f"{refused} refused"] if refused else []), *more]
    return [Table.lines(", ".join(facts))]


def _node_lines(nodes: Mapping[str, int] | None, of: str | None = None) -> list[Table]:
    """The proof that jobs, idle and system are what nodes drew; nothing where that is not known."""
    return [Table.lines(nodes_line(nodes, of))] if nodes and nodes["total_uj"] else []


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs one by one, and what nodes drew meanwhile; `url` is where they come from instead of the store, `validate`
    the command that lists what is missing."""

    rows: Sequence[Mapping[str, Any]]
    wanted: Wanted
    nodes: Mapping[str, int] | None = None
    url: str | None = None
    waste: bool = False
    validate: str = "everywatt slurm validate"

    def to_dict(self) -> dict[str, Any]:
        beside = {"from": self.url} if self.nodes is None else {"nodes": nodes_of(self.nodes)}
        return {"jobs": [job_of(row) for row in self.rows], **beside}

    def tables(self) -> list[Table]:
        if not self.rows:
            names = ("user", "account", "state", "partition", "node")
            given = ", ".join(f"{n} {value}" for n in names if (value := getattr(self.wanted, n)) is not None)
            return [
                Table.lines(f"No job {f'with {given} ' if given else ''}ended in that period."),
                *_node_lines(self.nodes, self.wanted.node),
            ]
        heads = ["JOB", "USER", "ACCOUNT", "STATE", "NODES", "TIME", "ENERGY", "IDLE SHARE", "CPU", "GPU", "NAME"]
        heads[-1:-1] = ["WASTE"] if self.waste else []
        table = Table.of(*columns(*heads), rows=[cells(row, heads) for row in self.rows])
        node = self.wanted.node
        what = f"{format_count(len(self.rows), 'job')} {f'on {node}' if node is not None else WHOLE}"
        refused = sum(row["energy_uj"] is None for row in self.rows)
        # Of the parts of jobs on one node it is not known whether there are others.
        incomplete = sum(row.get("complete") is False for row in self.rows) if node is None else 0
        more = [f"{incomplete} incomplete ({self.validate})"] if incomplete else []
        return [table, *_listed(what, self.rows, refused, *more), *_node_lines(self.nodes, node)]


@dataclass(frozen=True, slots=True)
class JobSums:
    """Jobs added up by `by`, and what nodes drew meanwhile."""

    by: str
    rows: Sequence[Mapping[str, Any]]
    nodes: Mapping[str, int]
    waste: bool = False
    node: str | None = None  # the only one, where one was asked for

    def to_dict(self) -> dict[str, Any]:
        return {"by": self.by, "groups": [group_of(row) for row in self.rows], "nodes": nodes_of(self.nodes)}

    def tables(self) -> list[Table]:
        heads = ("JOBS", "REFUSED", "TIME", "ENERGY", "IDLE SHARE", "CPU", *(["WASTE"] if self.waste else []))
        what = f"all jobs {f'on {self.node}' if self.node is not None else WHOLE}"
        listed = _listed(what, self.rows, sum(row["refused"] for row in self.rows))
        return [sums_table(self.by, heads, self.rows), *listed, *_node_lines(self.nodes, self.node)]


@dataclass(frozen=True, slots=True)
class RunningJobs(ToDict):
    """Jobs that run now, the most powerful first; `as_of_s` is the time of their figures."""

    JSON: ClassVar[str] = "jobs=rows from=url as_of_s"
    rows: Sequence[Mapping[str, Any]]
    url: str | None
    as_of_s: float

    def tables(self) -> list[Table]:
        """The jobs with their power, and the sum of it."""
        rows = [
            [
                *(row["job_id"], row["user"], row["account"] or None, len(row["nodes"]), row["elapsed_s"]),
                *(row["power_w"], None if row["energy_j"] is None else short(stored)),
                *(amount(stored, "idle_uj"), waste(stored)),
            ]
            for row, stored in ((row, _as_stored(row)) for row in self.rows)
        ]
        watts = [row["power_w"] for row in self.rows if row["power_w"] is not None]
        power = f", {format_watts(sum(watts))}" if watts else ""
        when = f"{datetime.fromtimestamp(self.as_of_s, UTC):%Y-%m-%dT%H:%M:%S}Z"
        unknown = UNKNOWN if any(row["coverage"] is None for row in self.rows) else ""
        note = f"{format_count(len(rows), 'job')} running{power}; energy as of {when}{unknown}."
        heads = columns_of("JOB, USER, ACCOUNT, NODES [], TIME [s], POWER [W], ENERGY [J], IDLE SHARE [J], WASTE [J]")
        return [Table.of(*heads, rows=rows, notes=[note])]


def running_row(job: JobOnNode, now_s: float) -> dict[str, Any]:
    """A job that runs on this node, as `running_in_series` gives it; power is its mean since it started."""
    seconds = (job.end_s - job.start_s) * job.coverage
    row = declared(job, "energy_uj low_uj high_uj idle_uj idle_low_uj idle_high_uj waste_uj")
    energy_j = joules(row, "energy_uj")
    return {
        **declared(job, "job_id=shown_id user account partition"),
        "nodes": [job.node],
        "elapsed_s": now_s - job.start_s,
        "power_w": None if energy_j is None or seconds <= 0 else energy_j / seconds,
        **{name.replace("_uj", "_j"): joules(row, name) for name in row},
        "coverage": job.coverage,
    }


def _as_stored(row: Mapping[str, Any]) -> dict[str, Any]:
    """A job that runs with its amounts in microjoules, as the store has them."""
    joules_of = {name: value for name, value in row.items() if name.endswith("_j") and value is not None}
    return {**row, **{f"{name[:-2]}_uj": round(value * UJ) for name, value in joules_of.items()}}
