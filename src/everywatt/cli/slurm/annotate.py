"""`everywatt slurm annotate`: the energy of jobs in Slurm's accounting."""

from __future__ import annotations

import time
from pathlib import Path

import click

from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import store_of, store_option
from everywatt.core.clocks import NS
from everywatt.core.format import format_count
from everywatt.slurm.site.annotate import annotate

DAY_S = 86_400.0


@click.command(cls=Verb)
@click.option("--since", type=TIME, help="Only jobs that ended after this time.  [default: two days ago]")
@click.option("--until", type=TIME, help="Only jobs that ended before this time.  [default: now]")
@click.option("--dry", is_flag=True, help="Show what would be written, and write nothing.")
@store_option
@output_options
def command(since: int | None, until: int | None, dry: bool, store: Path | None, output: Output) -> int:
    """Write the energy of jobs to Slurm's accounting (AdminComment), where `sacct -o AdminComment` shows it.

    Needs slurmdbd and the rights of a Slurm administrator. A comment of another tool is never replaced, and a user's
    own comment is another field. Repeating writes only what has changed. Exits with 1 if sacctmgr refused something.
    """
    until_s = time.time() if until is None else until / NS
    since_s = until_s - 2 * DAY_S if since is None else since / NS
    done = annotate(store_of(store), since_s, until_s, dry=dry)
    output.json("slurm-annotate", {**done.to_dict(), "dry": dry})
    for job, why in list(done.failed.items())[:10]:
        output.warn(f"job {job}: {why}")
    if done.foreign:
        jobs = ", ".join(done.foreign[:5])
        output.warn(f"{format_count(len(done.foreign), 'job')} with a comment of another tool, which stays: {jobs}")
    verb = "would get" if dry else "got"
    output.text(f"{format_count(done.written, 'job')} {verb} a comment, {done.same} had it, {len(done.failed)} failed.")
    return 1 if done.failed else 0
