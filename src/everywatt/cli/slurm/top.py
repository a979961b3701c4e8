"""`everywatt slurm top`: jobs that run, by power."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import spool_of, spool_option
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count, format_duration, format_joules, format_watts
from everywatt.core.tables import Table
from everywatt.ledger.engine import UJ
from everywatt.slurm.node.record import running
from everywatt.slurm.node.state import STATE, State
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.from_series import running_in_series

HEADERS = ("JOB", "USER", "ACCOUNT", "NODES", "TIME", "POWER", "ENERGY", "IDLE SHARE", "WASTE")


@click.command(cls=Verb)
@click.option("--from", "url", metavar="URL", help="Prometheus or VictoriaMetrics fed by agents: the whole site.")
@click.option("--limit", type=click.IntRange(min=1), help="List at most this many jobs.")
@spool_option
@output_options
def command(url: str | None, limit: int | None, spool: Path | None, output: Output) -> None:
    """List the running jobs, the most powerful first, with their energy so far.

    On a node POWER is a job's mean since its start and WASTE the unused part of its idle share, both up to the last
    update of `slurm node`. With --from it is the power of the last two minutes on all nodes; series have no idle share
    and no waste.
    """
    now_s = as_of_s = time.time()
    if url is not None:
        rows = running_in_series(url, now_s)
    else:
        path = spool_of(spool) / STATE
        if not path.exists():
            raise UsageError(f"No jobs are recorded here: {path} is not there.", cure="--from URL, or run it on a node")
        state = State.read(path)
        as_of_s = min(state.booked_s or now_s, now_s)
        rows = sorted((_row(job, now_s) for job in running(state, now_s)), key=lambda row: -(row["power_w"] or 0.0))
    rows = rows[:limit]
    output.json("slurm-top", {"jobs": rows, "from": url, "as_of_s": as_of_s})
    if output.json_to is None:
        cells = [_cells(row) for row in rows]
        output.table(Table.of(*HEADERS, rows=cells, right=range(3, len(HEADERS))))
        watts = [row["power_w"] for row in rows if row["power_w"] is not None]
        power = f", {format_watts(sum(watts))}" if watts else ""
        when = datetime.fromtimestamp(as_of_s, UTC)
        output.text(f"{format_count(len(rows), 'job')} running{power}; energy as of {when:%Y-%m-%dT%H:%M:%S}Z.")


def _row(job: JobOnNode, now_s: float) -> dict[str, Any]:
    seconds = (job.end_s - job.start_s) * job.coverage
    return {
        "job_id": job.shown_id,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "nodes": [job.node],
        "elapsed_s": now_s - job.start_s,
        "power_w": None if job.energy_uj is None or seconds <= 0 else job.energy_uj / UJ / seconds,
        "energy_j": None if job.energy_uj is None else job.energy_uj / UJ,
        "idle_j": None if job.idle_uj is None else job.idle_uj / UJ,
        "waste_j": None if job.waste_uj is None else job.waste_uj / UJ,
    }


def _cells(row: Mapping[str, Any]) -> list[str | float | None]:
    power = None if row["power_w"] is None else format_watts(row["power_w"])
    joules = [None if row[name] is None else format_joules(row[name]) for name in ("energy_j", "idle_j", "waste_j")]
    elapsed = None if row["elapsed_s"] is None else format_duration(row["elapsed_s"])
    return [row["job_id"], row["user"], row["account"] or None, len(row["nodes"]), elapsed, power, *joules]
