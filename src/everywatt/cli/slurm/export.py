"""`everywatt slurm export --to KIND`: jobs as Lab-IA's tables and trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import click

from everywatt.cli.common.options import Verb, carbon_options, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import DAY_S, period_options, pseudonyms_option, readable_store, store_option, writing
from everywatt.core.config import Settings
from everywatt.footprint.carbon import Factors, factors_of
from everywatt.formats.labia.job_tree import write_job
from everywatt.formats.labia.users_csv import Grams, append, row_of
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.carbon import hours_of, intensity_of
from everywatt.slurm.site.pseudonyms import read_key
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.users import is_name

KINDS = {"labia-csv": "labia", "labia-csv-co2": "co2", "labia-tree": ""}


@click.command(cls=Verb)
@click.option("--to", "kind", type=click.Choice(list(KINDS)), required=True, help="Output format.")
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Output folder.")
@click.option("--user", help="Only jobs of this user.")
@period_options("jobs that ended", 31 * DAY_S, "31 days ago")
@pseudonyms_option
@store_option
@carbon_options
@output_options
def command(
    kind: str,
    out: Path,
    user: str | None,
    period_s: tuple[float, float],
    key_file: Path | None,
    store: Path | None,
    settings: Settings,
    output: Output,
) -> None:
    """Add jobs to the per-user tables of Lab-IA (USER.csv), or write its tree of jobs.

    labia-csv has the old columns in kWh; labia-csv-co2 has Wh and emissions: RTE by --intensity-file, ADEME by
    --intensity or --country. Repeating adds nothing; concurrent exports leave one sorted file without duplicates.
    labia-tree writes YYYY_MM/USER/JOB with the job's mean powers, and never overwrites a file.
    """
    pseudonyms = None if key_file is None else read_key(key_file)
    opened = readable_store(store)
    where, values = ('"user" = ?', [user]) if user is not None else ("true", list[str]())
    table = opened.jobs(*period_s, where, values)
    jobs = [JobOnNode.of_row(row) for row in table.to_pylist()]
    jobs = jobs if pseudonyms is None else [pseudonyms.job(job) for job in jobs]
    named = [is_name(job.user) for job in jobs]
    if kind == "labia-tree":
        with writing(out):
            written = [write_job(out, job) for job, good in zip(jobs, named, strict=True) if good]
        added, left, files = sum(folder is not None for folder in written), named.count(False), len(written)
    else:
        rates = _rates(opened, table, factors_of(settings), period_s[1])
        rows: dict[str, list[list[str]]] = {}
        for job, rate, good in zip(jobs, rates, named, strict=True):
            if good and (row := row_of(job, KINDS[kind], rate)) is not None:
                rows.setdefault(job.user, []).append(row)
        with writing(out):
            added = sum(append(out, name, of_user, KINDS[kind]) for name, of_user in sorted(rows.items()))
        left, files = len(jobs) - sum(map(len, rows.values())), len(rows)
    facts = {"to": kind, "folder": str(out), "added": added, "left_out": left, "files": files}
    output.json("slurm-export", facts)
    output.text(f"{out}: {added} added, {left} skipped (no energy, duration or name)")


def _rates(store: Store, table: object, factors: Factors, until_s: float) -> Sequence[Grams]:
    """Grams per kWh of each record, with the PUE."""
    count = len(table)  # type: ignore[arg-type]
    pue = 1.0 if factors.pue is None else factors.pue
    constant = None if factors.intensity is None else factors.intensity.g_per_kwh * pue
    if factors.curve is None or not count:
        return [Grams(None, constant)] * count
    found = intensity_of(table, hours_of(store, table, until_s), factors.curve) * pue
    return [Grams(None if math.isnan(rate) else float(rate), constant) for rate in found]
