"""`everywatt slurm jobs`: what jobs cost, one by one or added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import WEEK_S, period_options, pseudonyms_option, readable_store, store_option
from everywatt.cli.slurm.table import print_jobs
from everywatt.core.errors import UsageError
from everywatt.core.format import format_joules
from everywatt.core.tables import Table
from everywatt.ledger.engine import UJ
from everywatt.slurm.site.figures import cells, group_of, job_of, nodes_of
from everywatt.slurm.site.from_series import jobs_of_series
from everywatt.slurm.site.pseudonyms import Pseudonyms, read_key
from everywatt.slurm.site.totals import GROUPS, SORTS, Wanted, jobs, node_sums, sums

HEADERS = ["JOB", "USER", "ACCOUNT", "STATE", "NODES", "TIME", "ENERGY", "IDLE SHARE", "CPU", "GPU", "NAME"]


@click.command(cls=Verb)
@click.option("--user", help="Only jobs of this user.")
@click.option("--account", help="Only jobs of this account.")
@click.option("--state", help="Only jobs in these states: COMPLETED or a prefix of it, or FAILED,TIMEOUT.")
@click.option("--partition", help="Only jobs of this partition.")
@click.option("--node", help="Only the parts of jobs that ran on this node.")
@period_options("jobs that ended", WEEK_S, "a week ago")
@click.option("--sort", type=click.Choice(list(SORTS)), default="end", help="Figure to sort by.")
@click.option("--by", type=click.Choice(GROUPS), help="Add jobs up by this.")
@click.option("--waste", is_flag=True, help="Show the energy that was allocated but not used, worst first.")
@click.option("--from", "url", metavar="URL", help="Prometheus or VictoriaMetrics fed by agents, instead of the store.")
@click.option("--limit", type=click.IntRange(min=1), help="List at most this many jobs.")
@pseudonyms_option
@store_option
@output_options
def command(
    user: str | None,
    account: str | None,
    state: str | None,
    partition: str | None,
    node: str | None,
    period_s: tuple[float, float],
    sort: str,
    by: str | None,
    waste: bool,
    url: str | None,
    limit: int | None,
    key_file: Path | None,
    store: Path | None,
    output: Output,
) -> None:
    """List the jobs of a site with the energy of each, or add them up (--by).

    ENERGY is a job's own share of what its nodes drew, with a 95 % interval; IDLE SHARE is what the CPUs and GPUs of
    its allocation draw when idle. --waste shows the part of that which the job did not use. The last line shows that
    jobs, idle and system add up to what the nodes drew in those hours.
    """
    pseudonyms = None if key_file is None else read_key(key_file)
    wanted = Wanted(*period_s, user, account, state, partition, node)
    if url is not None:
        if by is not None or waste:
            raise UsageError(
                "Jobs from series have no waste and cannot be added up.", cure="--by and --waste need the store"
            )
        rows = _hidden(jobs_of_series(url, wanted, sort, limit), pseudonyms)
        output.json("slurm-jobs", {"jobs": [job_of(row) for row in rows], "from": url})
        if output.json_to is None:
            _print_jobs(rows, False, wanted, output)
        return
    opened = readable_store(store)
    nodes = node_sums(opened, *period_s)
    if by is not None:
        rows = sums(opened, wanted, by)
        rows = rows if pseudonyms is None else pseudonyms.groups(by, rows)
        output.json("slurm-sums", {"by": by, "groups": [group_of(row) for row in rows], "nodes": nodes_of(nodes)})
        if output.json_to is None:
            heads = ("JOBS", "REFUSED", "TIME", "ENERGY", "IDLE SHARE", "CPU", *(["WASTE"] if waste else []))
            shown = [[row["group"] or "(none)", *cells(row, heads)] for row in rows]
            output.table(Table.of(by.upper(), *heads, rows=shown, right=range(1, len(heads) + 1)))
    else:
        rows = _hidden(jobs(opened, wanted, "waste" if waste and sort == "end" else sort, limit), pseudonyms)
        output.json("slurm-jobs", {"jobs": [job_of(row) for row in rows], "nodes": nodes_of(nodes)})
        if output.json_to is None:
            _print_jobs(rows, waste, wanted, output)
    if opened.leave_out:
        output.warn(
            f"{len(opened.leave_out)} files of the store are damaged and were skipped: everywatt slurm validate"
        )
    if nodes["total_uj"] and output.json_to is None:
        parts = ", ".join(f"{name} {format_joules(nodes[f'{name}_uj'] / UJ)}" for name in ("jobs", "idle", "system"))
        output.text(f"nodes in these hours: {format_joules(nodes['total_uj'] / UJ)} = {parts}")


def _hidden(rows: list[dict[str, Any]], pseudonyms: Pseudonyms | None) -> list[dict[str, Any]]:
    return rows if pseudonyms is None else [pseudonyms.row(row) for row in rows]


def _print_jobs(rows: Sequence[Mapping[str, Any]], waste: bool, wanted: Wanted, output: Output) -> None:
    if not rows:
        filters = ((name, getattr(wanted, name)) for name in ("user", "account", "state", "partition", "node"))
        given = ", ".join(f"{name} {value}" for name, value in filters if value is not None)
        output.text(f"No job {f'with {given} ' if given else ''}ended in that period.")
        return
    headers = [*HEADERS[:-1], "WASTE", HEADERS[-1]] if waste else HEADERS
    print_jobs(headers, [cells(row, headers) for row in rows], 4, output)
