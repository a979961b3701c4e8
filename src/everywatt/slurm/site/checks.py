"""Which records of a store are not whole, and why. Nothing is changed, and nothing is ever deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everywatt.core.format import format_percent
from everywatt.slurm.site.figures import COVERED
from everywatt.slurm.site.store import Store, broken_files
from everywatt.slurm.site.totals import shown_id

KINDS: Final = ("unreadable", "quarantined", "no-end", "missing-nodes", "refused", "coverage", "does-not-add-up")

_TORN: Final = """
SELECT cluster, job_id, restart, array_job_id, array_task_id, het_job_id, het_offset, "user", node, state, end_s,
  energy_uj, coverage, refused, complete, note
FROM jobs WHERE end_s >= ? AND end_s < ? AND (NOT complete OR energy_uj IS NULL OR coverage < ?)
ORDER BY end_s, job_id, node
"""
_MISSING: Final = """
SELECT first(array_job_id) AS array_job_id, first(array_task_id) AS array_task_id, first(het_job_id) AS het_job_id,
  first(het_offset) AS het_offset, job_id, first("user") AS "user", max(nodes) AS asked, count(*) AS found,
  list(node ORDER BY node) AS there
FROM jobs WHERE end_s >= ? AND end_s < ? GROUP BY cluster, job_id, restart HAVING count(*) < max(nodes) ORDER BY job_id
"""
_SUMS: Final = """
SELECT hour_s, node, device, total_uj - jobs_uj - idle_uj - system_uj AS off FROM nodes
WHERE hour_s >= ? AND hour_s < ? AND total_uj <> jobs_uj + idle_uj + system_uj ORDER BY hour_s, node
"""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is not whole: what kind (one of KINDS), of which job and node, and in words."""

    kind: str
    job: str
    user: str
    node: str
    problem: str
    file: Path | None = None


def is_store(path: Path) -> bool:
    """Whether a folder is the store of a site."""
    return (path / "jobs").is_dir() and any((path / "jobs").glob("date=*"))


def flaws(store: Store, since_s: float, until_s: float) -> list[Flaw]:
    """All that is not whole among jobs that ended in [since, until): files first, then jobs, then hours of nodes."""
    broken = dict(broken_files(store.path))
    rest = Store(store.path, leave_out=list(broken))
    found = [Flaw("unreadable", "", "", "", f"cannot be read: {why}", path) for path, why in broken.items()]
    for node, names in store.quarantined().items():
        found += [Flaw("quarantined", "", "", node, f"{name} is in the quarantine of its spool") for name in names]
    bounds = [since_s, until_s]
    for row in rest.query(_TORN, [*bounds, COVERED], since_s, until_s).to_pylist():
        found += _record_flaws(row)
    for row in rest.query(_MISSING, bounds, since_s, until_s).to_pylist():
        there = ", ".join(row["there"])
        problem = f"{row['asked'] - row['found']} of {row['asked']} nodes have no record; there is {there}"
        found.append(Flaw("missing-nodes", shown_id(row), row["user"] or "", "", problem))
    for row in rest.query(_SUMS, bounds, since_s, until_s).to_pylist():
        problem = (
            f"hour {row['hour_s']}, {row['device']}: jobs, idle and system differ from the total by {row['off']} µJ"
        )
        found.append(Flaw("does-not-add-up", "", "", row["node"], problem))
    return found


def _record_flaws(row: dict[str, Any]) -> Iterator[Flaw]:
    who = shown_id(row), row["user"] or "", row["node"]
    if not row["complete"]:
        yield Flaw("no-end", *who, row["note"] or "its end was not observed")
    if row["energy_uj"] is None:
        yield Flaw("refused", *who, row["refused"] or "it has no energy")
    elif row["coverage"] < COVERED:
        yield Flaw("coverage", *who, f"{format_percent(row['coverage'])} of it was observed")
