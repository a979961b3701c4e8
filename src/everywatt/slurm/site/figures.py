"""Rows of jobs as figures: an energy with its interval for JSON and for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from everywatt.core.format import format_duration, format_joules, format_percent, print_quantity
from everywatt.ledger.engine import UJ
from everywatt.slurm.site.totals import shown_id

COVERED: Final = 0.9  # a figure of which less was observed says so wherever it is listed


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
    """A job for JSON."""
    kept = (
        *(
            "job_id",
            "restart",
            "user",
            "account",
            "partition",
            "name",
            "state",
            "exit_code",
            "nodes",
            "start_s",
            "end_s",
        ),
        *("elapsed_s", "cpus", "gpus", "cpu_s", "memory_peak_bytes", "gpu_utilisation", "slurm_energy_j", "complete"),
    )
    return {
        "id": shown_id(row),
        "task_id": row.get("array_task_id"),
        **{name: row.get(name) for name in kept},
        "energy": energy_of(row),
        "idle_j": joules(row, "idle_uj"),
        "waste_j": joules(row, "waste_uj"),
        "wall_j": joules(row, "wall_uj"),
        "cpu_efficiency": share(row.get("cpu_s"), row.get("allocated_cpu_s")),
    }


def group_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sum of jobs for JSON."""
    plain = {name: row[name] for name in ("group", "jobs", "refused", "elapsed_s", "cpu_s", "gpu_s")}
    return {**plain, "energy": energy_of(row), "idle_j": joules(row, "idle_uj"), "waste_j": joules(row, "waste_uj")}


def nodes_of(sums: Mapping[str, int]) -> dict[str, float]:
    """What nodes drew in all, for JSON: jobs_j + idle_j + system_j is total_j."""
    return {name.removesuffix("_uj") + "_j": value / UJ for name, value in sums.items()}


def short(row: Mapping[str, Any], level: str = "") -> str:
    """`412 J ± 6`, or `refused`; with the level of the interval where it is given, else with a coverage below 90 %."""
    value, low, high = (joules(row, name) for name in ("energy_uj", "low_uj", "high_uj"))
    if value is None:
        return "refused"
    if low is None or high is None:
        return format_joules(value)
    shown = print_quantity(value, "J", value - low, high - value)
    if level:
        return shown.at(level)
    coverage = row.get("coverage")
    return str(shown) if coverage is None or coverage >= COVERED else f"{shown}, {format_percent(coverage)} covered"


def amount(row: Mapping[str, Any], name: str) -> str | None:
    """Microjoules of a column for people; None where they are not known."""
    value = joules(row, name)
    return None if value is None else format_joules(value)


def percent(part: float | None, whole: float | None) -> str | None:
    """A share for people; None where it is not known."""
    found = share(part, whole)
    return None if found is None else format_percent(found)


def share(part: float | None, whole: float | None) -> float | None:
    """A part of a whole, None where one of them is not known or the whole is nothing."""
    return None if part is None or not whole else min(part / whole, 1.0)


def time_of(row: Mapping[str, Any]) -> str:
    """How long a job ran."""
    return format_duration(row.get("elapsed_s") or 0.0)


_CELLS: Final[Mapping[str, Callable[[Mapping[str, Any]], str | int | None]]] = {
    "job": lambda row: shown_id(row) + (f" r{row['restart']}" if row["restart"] else ""),
    "user": lambda row: row["user"],
    "account": lambda row: row["account"] or None,
    "state": lambda row: row["state"],
    "nodes": lambda row: len(row["nodes"]),
    "jobs": lambda row: row["jobs"],
    "refused": lambda row: row["refused"],
    "time": time_of,
    "energy": short,
    "idle share": lambda row: amount(row, "idle_uj"),
    "waste": lambda row: amount(row, "waste_uj"),
    "cpu": lambda row: percent(row["cpu_s"], row["allocated_cpu_s"]),
    "gpu": lambda row: percent(row["gpu_utilisation"], 1.0),
    "name": lambda row: row["name"],
}


def cells(row: Mapping[str, Any], heads: Iterable[str]) -> list[str | float | None]:
    """A job, or a sum of jobs, for people: the cells of a table's columns by their heads."""
    return [_CELLS[head.lower()](row) for head in heads]


def joules(row: Mapping[str, Any], name: str) -> float | None:
    """Microjoules of a column as joules; None where they are not known."""
    value = row.get(name)
    return None if value is None else int(value) / UJ
