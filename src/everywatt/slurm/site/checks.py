"""Which records of a store are not whole, and why; and what nodes lack to record their jobs. Nothing is changed."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_count, format_percent
from everywatt.core.tables import Table
from everywatt.doctor.diagnose import Check, Verdict
from everywatt.slurm.lists import expand
from everywatt.slurm.node.hooks import Site
from everywatt.slurm.site.figures import COVERED
from everywatt.slurm.site.store import Store, broken_files
from everywatt.slurm.site.totals import shown_id

KINDS: Final = ("unreadable", "quarantined", "no-end", "missing-nodes", "refused", "coverage", "does-not-add-up")
SRUN_S: Final = 300.0  # longest time for all nodes to answer
CLOCK_S: Final = 1.0  # a clock that is off by more charges readings to the wrong jobs

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


@dataclass(frozen=True, slots=True)
class Flaws:
    """What is not whole in a store."""

    found: Sequence[Flaw]

    def to_dict(self) -> dict[str, Any]:
        return {"findings": [asdict(flaw) for flaw in self.found], "ok": not self.found}

    def tables(self) -> list[Table]:
        if not self.found:
            return [Table.lines("No problems found.")]
        rows = [
            [f.kind, f.job or None, f.user or None, f.node or None, f"{f.file}: {f.problem}" if f.file else f.problem]
            for f in self.found
        ]
        jobs = len({flaw.job for flaw in self.found if flaw.job})
        note = f"{format_count(len(self.found), 'finding')} in {format_count(jobs, 'job')}. Nothing was changed."
        return [Table.of("KIND", "JOB", "USER", "NODE", "PROBLEM", rows=rows, notes=[note])]


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


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """The checks of nodes by name; `only_wrong` leaves out what is fine when they are printed."""

    found: Mapping[str, Sequence[Check]]
    only_wrong: bool = False

    @property
    def wrong(self) -> int:
        return sum(check.verdict == Verdict.FAIL for checks in self.found.values() for check in checks)

    def to_dict(self) -> dict[str, Any]:
        nodes = {node: [asdict(check) for check in checks] for node, checks in self.found.items()}
        return {"nodes": nodes, "ok": not self.wrong}

    def tables(self) -> list[Table]:
        rows = [
            [check.verdict, node, check.name, check.seen, check.cure or None]
            for node, checks in self.found.items()
            for check in checks
            if not self.only_wrong or check.verdict == Verdict.FAIL
        ]
        line = f"{format_count(len(self.found), 'node')}, {format_count(self.wrong, 'finding')}."
        table = Table.of("", "NODE", "CHECK", "SEEN", "TRY", rows=rows)
        return [*([table] if rows else []), Table.lines(line)]


def checks_by_srun(nodes: str, site: Site, slurm_conf: Path) -> NodeChecks:
    """The checks of nodes such as n[1-20], each made there. A node that does not answer has a finding."""
    names = expand(nodes)
    if not names:
        raise UsageError(f"'{nodes}' is not a list of nodes.", cure="--nodes 'n[1-20]'")
    words = [site.command, "slurm", "check", "--json", "--slurm-conf", slurm_conf]
    words += ["--folder", site.folder, "--spool", site.spool, "--store", site.store]
    # The shell on the node knows what Slurm calls it.
    shell = ["sh", "-c", 'exec "$@" --node "$SLURMD_NODENAME"', "sh"]
    asked = ["srun", "--label", f"--nodelist={nodes}", f"--nodes={len(names)}", "--ntasks-per-node=1", *shell, *words]
    began_s = time.time()
    try:
        done = subprocess.run([*map(str, asked)], capture_output=True, text=True, timeout=SRUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EverywattError(f"srun: {error}.", cure="run `everywatt slurm check` on the node itself") from None
    texts: dict[str, list[str]] = {}
    for line in done.stdout.split("\n"):
        if match := re.fullmatch(r"\s*(\d+): ?(.*)", line):
            texts.setdefault(match[1], []).append(match[2])
    found: dict[str, list[Check]] = {}
    for text in texts.values():
        try:
            answer = json.loads("\n".join(text))
            for node, checks in answer["nodes"].items():
                found[node] = [Check(**check) for check in checks] + _clock_offset(answer.get("utc_s"), began_s)
        except (ValueError, KeyError, TypeError):
            continue
    why = done.stderr.strip()[-200:] or "no answer"
    silent = [Check("answer", Verdict.FAIL, why, "everywatt slurm check on that node")]
    return NodeChecks({name: found.get(name, silent) for name in names}, only_wrong=True)


def _clock_offset(utc_s: float | None, began_s: float) -> list[Check]:
    """A finding where a node's clock, read between `began_s` and now, is outside of that time."""
    if utc_s is None:
        return []  # an earlier version
    ahead_s, behind_s = utc_s - time.time(), began_s - utc_s
    if max(ahead_s, behind_s) <= CLOCK_S:
        return []
    seen = f"ahead of this machine by {ahead_s:.1f} s" if ahead_s > 0 else f"behind this machine by {behind_s:.1f} s"
    return [Check("clock offset", Verdict.FAIL, seen, "the same NTP servers for all nodes")]
