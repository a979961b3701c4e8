"""`everywatt slurm report --monthly`: a month of a site as a page, a table or JSON."""

from __future__ import annotations

import time
from pathlib import Path

import click

from everywatt.cli.common.options import Verb, carbon_options, out_option, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.slurm.common import factor_lines, pseudonyms_option, readable_store, store_option
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.tables import Table
from everywatt.footprint.carbon import factors_of
from everywatt.report.html.site import site_page
from everywatt.slurm.site.figures import cells, short
from everywatt.slurm.site.monthly import Month, month_of_site, period_of_site
from everywatt.slurm.site.periods import month_of
from everywatt.slurm.site.pseudonyms import read_key

LAST_S = 30 * 86_400.0


@click.command(cls=Verb)
@click.option("--monthly", is_flag=True, help="Current calendar month, instead of the last 30 days.")
@click.option("--month", metavar="YYYY-MM", help="Calendar month to report.")
@out_option
@pseudonyms_option
@store_option
@carbon_options
@output_options
def command(
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
    if out is not None and out.suffix.lower() not in (".html", ".htm", ".csv"):
        raise UsageError(f"{out}: a report ends in .html or .csv.", cure="-o month.html or -o month.csv")
    pseudonyms = None if key_file is None else read_key(key_file)
    factors = factors_of(settings)
    opened, now_s = readable_store(store), time.time()
    if monthly or month is not None:
        found = month_of_site(opened, month or month_of(now_s), factors)
    else:
        found = period_of_site(opened, (now_s - LAST_S, now_s), "the last 30 days", factors)
    found = found if pseudonyms is None else pseudonyms.month(found)
    if out is not None:
        page = out.suffix.lower() != ".csv"
        write_text(out, site_page(found, factor_lines(factors), factors.currency) if page else found.csv())
    output.json("slurm-report", {**found.to_dict(), "file": None if out is None else str(out)})
    if output.json_to is not None:
        return
    if out is not None:
        output.text(str(out))
    else:
        _print(found, output)


def _print(month: Month, output: Output) -> None:
    for by in ("user", "account", "state"):
        heads = ("JOBS", "ENERGY", "IDLE SHARE", "WASTE")
        rows = [[row["group"] or "(none)", *cells(row, heads)] for row in month.groups[by]]
        output.table(Table.of(by.upper(), *heads, rows=rows, right=range(1, 5)))
        output.text()
    output.text(f"{month.month}: {month.total['jobs']} jobs, {short(month.total)}")
