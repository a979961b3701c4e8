"""`everywatt slurm import TREE`: jobs that Lab-IA recorded go into the store."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import FOLDER, store_of, store_option, writing
from everywatt.core.clocks import NS
from everywatt.formats.labia.job_tree import read_tree
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.detail import FOREVER_S
from everywatt.slurm.site.store import Store


@click.command(cls=Verb)
@click.argument("tree", type=FOLDER)
@click.option("--zone-h", type=float, default=0.0, help="Offset of its local times from UTC, in hours.  [default: 0]")
@click.option("--since", type=TIME, help="Only jobs that ended after this time.  [default: all]")
@click.option("--until", type=TIME, help="Only jobs that ended before this time.  [default: all]")
@store_option
@output_options
def command(
    tree: Path, zone_h: float, since: int | None, until: int | None, store: Path | None, output: Output
) -> None:
    """Read Lab-IA's tree of jobs (prolog_log/YYYY_MM/USER/JOB) into the store of a site.

    TREE may be the whole tree, a month, a user or a job. Energy is the share that the log gave to the job; a missing
    end is inferred from the last reading and marked. Importing twice changes nothing. Jobs that cannot be read are
    listed.
    """
    opened = store_of(store)
    found = read_tree(tree, {"zone_h": zone_h})
    since_s, until_s = 0.0 if since is None else since / NS, FOREVER_S if until is None else until / NS
    wanted = [job for job in found.jobs if since_s <= job.end_s < until_s]
    new = _new(opened, wanted)
    if new:
        with writing(opened.path):
            opened.append(new, "labia")
    problems = [{"path": str(path), "problem": why} for path, why in found.problems]
    output.json("slurm-import", {"jobs": len(wanted), "added": len(new), "problems": problems})
    inferred = sum(not job.complete for job in new)
    output.text(f"{len(wanted)} jobs, {len(new)} added" + (f", {inferred} with an inferred end" if inferred else ""))
    for path, why in found.problems:
        output.warn(f"{path}: {why}")


def _new(store: Store, jobs: list[JobOnNode]) -> list[JobOnNode]:
    """Those that the store does not have yet."""
    if not jobs:
        return []
    since_s, until_s = min(job.end_s for job in jobs), max(job.end_s for job in jobs) + 1
    sql = "SELECT cluster, job_id, restart, node FROM jobs"
    rows = store.query(sql, [], since_s, until_s).to_pylist()
    known = {(row["cluster"], row["job_id"], row["restart"], row["node"]) for row in rows}
    return [job for job in jobs if job.key not in known]
