"""`everywatt slurm jobs`, `job` and `top`: what jobs cost, one by one, added up, in full, or while they run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.options import TIME, Verb, carbon_options, out_option, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.common.results import check_ending
from everywatt.cli.slurm.common import (
    WEEK_S,
    period_options,
    pseudonyms_option,
    readable_store,
    spool_of,
    spool_option,
    store_option,
    with_store,
)
from everywatt.core.clocks import NS
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count
from everywatt.core.platforms import user_name
from everywatt.footprint.carbon import factors_of
from everywatt.net.api import ApiClient
from everywatt.slurm.node.state import STATE, State, running
from everywatt.slurm.site.detail import Details, find
from everywatt.slurm.site.figures import JobList, JobSums, RunningJobs, running_row
from everywatt.slurm.site.from_series import jobs_of_series, running_in_series
from everywatt.slurm.site.monthly import month_of, month_of_site, month_of_user, period_of_site
from everywatt.slurm.site.totals import GROUPS, SORTS, Wanted, node_sums, sums
from everywatt.slurm.site.totals import jobs as jobs_of_store
from everywatt.slurm.site.users import Pseudonyms, read_key


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
def jobs(
    period_s: tuple[float, float],
    sort: str,
    by: str | None,
    waste: bool,
    url: str | None,
    limit: int | None,
    key_file: Path | None,
    store: Path | None,
    output: Output,
    **only: Any,
) -> None:
    """List the jobs of a site with the energy of each, or add them up (--by).

    ENERGY is a job's own share of what its nodes drew, with a 95 % interval; IDLE SHARE is what the CPUs and GPUs of
    its allocation draw when idle. --waste shows the part of that which the job did not use. The last line shows that
    jobs, idle and system add up to what the nodes drew in those hours.
    """
    pseudonyms = None if key_file is None else read_key(key_file)
    wanted = Wanted(*period_s, **only)
    if url is not None:
        if by is not None or waste:
            raise UsageError(
                "Jobs from series have no waste and cannot be added up.", cure="--by and --waste need the store"
            )
        rows = _hidden(jobs_of_series(ApiClient(url), wanted, sort, limit), pseudonyms)
        output.result("slurm-jobs", JobList(rows, wanted, url=url))
        return
    opened = readable_store(store)
    nodes = node_sums(opened, *period_s, wanted.node)
    if by is not None:
        rows = sums(opened, wanted, by)
        rows = rows if pseudonyms is None else pseudonyms.groups(by, rows)
        output.result("slurm-sums", JobSums(by, rows, nodes, waste, wanted.node))
    else:
        rows = _hidden(jobs_of_store(opened, wanted, "waste" if waste and sort == "end" else sort, limit), pseudonyms)
        validate = with_store("everywatt slurm validate", store)
        output.result("slurm-jobs", JobList(rows, wanted, nodes, waste=waste, validate=validate))
    if opened.leave_out:
        validate = with_store("everywatt slurm validate", store)
        output.warn(f"{format_count(len(opened.leave_out), 'damaged file')} of the store skipped: {validate}")


def _hidden(rows: list[dict[str, Any]], pseudonyms: Pseudonyms | None) -> list[dict[str, Any]]:
    return rows if pseudonyms is None else [pseudonyms.row(row) for row in rows]


@click.command(cls=Verb)
@click.argument("job", metavar="ID")
@click.option("--since", type=TIME, help="Consider only jobs that ended after this time.  [default: all]")
@store_option
@output_options
def job(job: str, since: int | None, store: Path | None, output: Output) -> None:
    """Show one job: its energy by node, step and device, and what it did not use of its allocation.

    ID is 123, a task of an array (123_4), or a component of a heterogeneous job (123+0); the id of an array shows its
    tasks. If Slurm counted energy itself (ConsumedEnergyRaw), it is shown beside ours with the difference.
    """
    found = find(readable_store(store), job, 0.0 if since is None else since / NS)
    if not found:
        raise UsageError(f"The store has no job {job}.", cure=with_store("everywatt slurm jobs --since -30d", store))
    output.result("slurm-job", Details(found))


@click.command(cls=Verb)
@click.option("--from", "url", metavar="URL", help="Prometheus or VictoriaMetrics fed by agents: the whole site.")
@click.option("--limit", type=click.IntRange(min=1), help="List at most this many jobs.")
@spool_option
@output_options
def top(url: str | None, limit: int | None, spool: Path | None, output: Output) -> None:
    """List the running jobs, the most powerful first, with their energy so far.

    On a node POWER is a job's mean since its start and WASTE the unused part of its idle share, both up to the last
    update of `slurm node`. With --from it is the power of the last two minutes on all nodes; series have no idle share
    and no waste.
    """
    now_s = as_of_s = time.time()
    if url is not None:
        rows = running_in_series(ApiClient(url), now_s)
    else:
        path = spool_of(spool) / STATE
        if not path.exists():
            raise UsageError(f"No jobs are recorded here: {path} is not there.", cure="--from URL, or run it on a node")
        state = State.read(path)
        as_of_s = min(state.booked_s or now_s, now_s)
        rows = sorted(
            (running_row(one, now_s) for one in running(state, now_s)), key=lambda row: -(row["power_w"] or 0.0)
        )
    output.result("slurm-top", RunningJobs(rows[:limit], url, as_of_s))


LAST_S = 30 * 86_400.0


@click.command(cls=Verb)
@click.option("--monthly", is_flag=True, help="Current calendar month, instead of the last 30 days.")
@click.option("--month", metavar="YYYY-MM", help="Calendar month to report.")
@out_option
@pseudonyms_option
@store_option
@carbon_options
@output_options
def report(
    monthly: bool,
    month: str | None,
    out: Path | None,
    key_file: Path | None,
    store: Path | None,
    settings: Settings,
    output: Output,
) -> None:
    """Report a month (or 30 days) of a site by user, account, state, partition and day, with carbon and cost.

    --out is FILE.html (one self-contained page) or FILE.csv; without it a short table is printed. Carbon and cost are
    included if their factors are set; --intensity-file adds carbon from the grid's intensity at each time.
    """
    check_ending(out, (".html", ".htm", ".csv"))
    pseudonyms = None if key_file is None else read_key(key_file)
    factors = factors_of(settings)
    opened, now_s = readable_store(store), time.time()
    if monthly or month is not None:
        found = month_of_site(opened, month or month_of(now_s), factors)
    else:
        found = period_of_site(opened, (now_s - LAST_S, now_s), "the last 30 days", factors)
    found = found if pseudonyms is None else pseudonyms.month(found)
    if out is None:
        output.result("slurm-report", found, file=None)
        return
    from everywatt.report.html.site import site_page

    page = out.suffix.lower() != ".csv"
    write_text(out, site_page(found, factors.lines(), factors.currency) if page else found.csv())
    output.facts("slurm-report", {**found.to_dict(), "file": str(out)}, str(out))


@click.command(cls=Verb)
@click.option("--user", default="me", help="User whose jobs to summarise.  [default: you]")
@click.option("--last", type=click.IntRange(min=0), default=3, help="Number of recent jobs to list.  [default: 3]")
@store_option
@carbon_options
@output_options
def summary(user: str, last: int, store: Path | None, settings: Settings, output: Output) -> None:
    """Summarise a user's jobs in a few lines: this month's energy, carbon and cost if factors are set, recent jobs.

    Meant as a login message, called from /etc/profile.d. A user without jobs gets one line.
    """
    name = user_name(os.geteuid()) if user == "me" else user
    found = month_of_user(readable_store(store), name, factors_of(settings), time.time(), last)
    output.result("slurm-summary", found)
