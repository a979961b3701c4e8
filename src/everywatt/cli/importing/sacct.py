"""`everywatt import sacct`: what Slurm's accounting knows goes into the store of a site."""

from __future__ import annotations

import time
from pathlib import Path

import click

from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import store_of, store_option, writing
from everywatt.core import foreign
from everywatt.core.clocks import NS
from everywatt.slurm.site.sacct import ask, fill, parse

DAY_S = 86_400.0


@click.command(cls=Verb)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--since", type=TIME, help="Jobs from this time on; a day ago by default. Applies to sacct, not to files."
)
@click.option("--until", type=TIME, help="Jobs up to this time; now by default.")
@store_option
@output_options
def command(files: tuple[Path, ...], since: int | None, until: int | None, store: Path | None, output: Output) -> None:
    """Add what sacct knows to a store: how jobs ended, their accounts, the energy counted by Slurm.

    Without a FILE, sacct is called. A FILE is the output of `SLURM_TIME_FORMAT=%s sacct -aDP --format=…`, with its
    header. A recorded job keeps its energy and gets its state; a job that was not recorded is added and marked as
    having no energy. Importing twice changes nothing.
    """
    opened = store_of(store)
    until_s = time.time() if until is None else until / NS
    since_s = until_s - DAY_S if since is None else since / NS
    texts = [foreign.read_text(path, errors="replace") for path in files] or [ask(since_s, until_s)]
    jobs = [job for text in texts for job in parse(text)]
    with writing(opened.path):
        changed, added = fill(opened, jobs)
    output.json("import-sacct", {"jobs": len(jobs), "changed": changed, "added": added})
    output.text(f"{len(jobs)} jobs in sacct: {changed} records updated, {added} jobs added without energy.")
