"""`everywatt slurm validate`: jobs whose record is not whole."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import readable_store, store_option
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.tables import Table
from everywatt.slurm.site.checks import Flaw, flaws
from everywatt.slurm.site.detail import FOREVER_S


@click.command(cls=Verb)
@click.option("--since", type=TIME, help="Only jobs that ended after this time.  [default: all]")
@click.option("--until", type=TIME, help="Only jobs that ended before this time.  [default: all]")
@store_option
@output_options
def command(since: int | None, until: int | None, store: Path | None, output: Output) -> int:
    """List jobs whose records are incomplete; the exit code is 1 if there are any. Nothing is changed or deleted.

    Reported are jobs without an end, without a record from some of their nodes, without a figure (with the reason), or
    observed for less than 90 % of their time; hours of nodes that do not add up; and files that cannot be read.
    """
    opened = readable_store(store)
    if not any((opened.path / name).exists() for name in ("jobs", "nodes")):
        raise UsageError(
            f"{opened.path} contains no records of jobs.", cure="--store DIR, the store to which nodes write"
        )
    found = flaws(opened, 0.0 if since is None else since / NS, FOREVER_S if until is None else until / NS)
    return told(found, output)


def told(found: list[Flaw], output: Output) -> int:
    """Print what was found; gives the exit code."""
    output.json("slurm-validation", {"findings": [asdict(flaw) for flaw in found], "ok": not found})
    if output.json_to is None:
        if not found:
            output.text("No problems found.")
            return 0
        rows = [[f.kind, f.job or None, f.user or None, f.node or None, _words(f)] for f in found]
        output.table(Table.of("KIND", "JOB", "USER", "NODE", "PROBLEM", rows=rows))
        jobs = len({flaw.job for flaw in found if flaw.job})
        output.text(f"{len(found)} findings in {jobs} jobs. Nothing was changed.")
    return 1 if found else 0


def _words(flaw: Flaw) -> str:
    return f"{flaw.file}: {flaw.problem}" if flaw.file else flaw.problem
