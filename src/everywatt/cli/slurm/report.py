"""`everywatt slurm report` and `summary`: a month of a site as a page or a table, and a few lines for a login."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from everywatt.cli.common.options import Verb, carbon_options, out_option, output_options
from everywatt.cli.common.output import Output, check_ending, write_text
from everywatt.cli.slurm.common import pseudonyms_option, readable_store, store_option
from everywatt.core.config import Settings
from everywatt.core.platforms import user_name
from everywatt.footprint.carbon import factors_of
from everywatt.slurm.site.monthly import month_of, month_of_site, month_of_user, period_of_site
from everywatt.slurm.site.users import read_key

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
