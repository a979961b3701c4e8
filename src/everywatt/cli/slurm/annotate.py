"""`everywatt slurm annotate`: the energy of jobs in Slurm's accounting."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import DAY_S, period_options, store_of, store_option
from everywatt.core.format import format_count
from everywatt.slurm.site.annotate import annotate


@click.command(cls=Verb)
@period_options("jobs that ended", 2 * DAY_S, "two days ago")
@click.option("--dry", is_flag=True, help="Show what would be written, and write nothing.")
@store_option
@output_options
def command(period_s: tuple[float, float], dry: bool, store: Path | None, output: Output) -> int:
    """Write the energy of jobs to Slurm's accounting (AdminComment), where `sacct -o AdminComment` shows it.

    Needs slurmdbd and the rights of a Slurm administrator. A comment of another tool is never replaced, and a user's
    own comment is another field. Repeating writes only what has changed. Exits with 1 if sacctmgr refused something.
    """
    done = annotate(store_of(store), *period_s, dry=dry)
    output.json("slurm-annotate", {**done.to_dict(), "dry": dry})
    for job, why in list(done.failed.items())[:10]:
        output.warn(f"job {job}: {why}")
    if done.foreign:
        jobs = ", ".join(done.foreign[:5])
        output.warn(f"{format_count(len(done.foreign), 'job')} with a comment of another tool, which stays: {jobs}")
    verb = "would get" if dry else "got"
    output.text(f"{format_count(done.written, 'job')} {verb} a comment, {done.same} had it, {len(done.failed)} failed.")
    return 1 if done.failed else 0
