"""`everywatt slurm validate`, `forget`, `export` and `import`: the records of a store checked, deleted, and moved."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from everywatt.cli.common.options import FILE, FOLDER, TIME, Verb, carbon_options, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import (
    DAY_S,
    period_options,
    pseudonyms_option,
    readable_store,
    spool_of,
    spool_option,
    store_of,
    store_option,
    writing,
)
from everywatt.core import foreign
from everywatt.core.clocks import NS
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count
from everywatt.footprint.carbon import Factors, factors_of
from everywatt.formats.labia import Grams, add_rows, read_tree, table_row, write_job
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.carbon import hours_of, intensity_of
from everywatt.slurm.site.checks import Flaws, flaws
from everywatt.slurm.site.retention import Forgotten, Whose
from everywatt.slurm.site.retention import forget as forget_records
from everywatt.slurm.site.sacct import ask, fill, parse
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.users import is_name, read_key

KINDS = {"labia-csv": "labia", "labia-csv-co2": "co2", "labia-tree": ""}


@click.command(cls=Verb)
@period_options("jobs that ended")
@store_option
@output_options
def validate(period_s: tuple[float, float], store: Path | None, output: Output) -> int:
    """List jobs whose records are incomplete; the exit code is 1 if there are any. Nothing is changed or deleted.

    Reported are jobs without an end, without a record from some of their nodes, without a figure (with the reason), or
    observed for less than 90 % of their time; hours of nodes that do not add up; and files that cannot be read.
    """
    opened = readable_store(store)
    if not any((opened.path / name).exists() for name in ("jobs", "nodes")):
        raise UsageError(
            f"{opened.path} contains no records of jobs.", cure="--store DIR, the store to which nodes write"
        )
    found = flaws(opened, *period_s)
    output.result("slurm-validation", Flaws(found))
    return 1 if found else 0


@click.command(cls=Verb)
@click.option("--user", help="Delete the records of this user.")
@click.option("--all-users", is_flag=True, help="Delete the records of all users: a limit on how long they are kept.")
@click.option("--before", type=TIME, required=True, help="Only jobs that ended before this time.")
@click.option("--yes", is_flag=True, help="Delete without asking; required without a terminal.")
@click.option("--dry", is_flag=True, help="Show what would be deleted, and delete nothing.")
@spool_option
@store_option
@output_options
def forget(
    user: str | None,
    all_users: bool,
    before: int,
    yes: bool,
    dry: bool,
    spool: Path | None,
    store: Path | None,
    output: Output,
) -> int:
    """Delete the records of a user's jobs that ended before a time.

    They are deleted from the store, the daily sums, the user's folder and this node's spool, and counted first. Hours
    of nodes hold no names and stay. Slurm's own accounting is not changed: a later import from sacct brings its jobs
    back, without energy. Exits with 1 if something is left.
    """
    if (user is None) != all_users:
        raise UsageError("Whose records?", cure="either --user NAME or --all-users")
    opened, place = store_of(store), spool_of(spool)
    if not opened.path.is_dir():
        raise UsageError(f"There is no store at {opened.path}.", cure="--store DIR")
    whose = Whose(user, before / NS)
    found = forget_records(opened, place, whose, delete=False)
    if not (dry or found.nothing):
        if not yes:
            _ask(found)
        with writing(opened.path):
            found = forget_records(opened, place, whose, delete=True)
    output.result("slurm-forget", found)
    for text in found.left:
        output.warn(f"left: {text}")
    return 1 if found.left else 0


def _ask(found: Forgotten) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{found} would be deleted, and there is no terminal to ask.", cure="--yes")
    if not click.confirm(f"{found}. Delete them?", err=True):
        raise UsageError("Nothing was deleted.")


@click.command(cls=Verb)
@click.option("--to", "kind", type=click.Choice(list(KINDS)), required=True, help="Output format.")
@click.option("-o", "--out", type=FOLDER, required=True, help="Output folder.")
@click.option("--user", help="Only jobs of this user.")
@period_options("jobs that ended", 31 * DAY_S, "31 days ago")
@pseudonyms_option
@store_option
@carbon_options
@output_options
def export(
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
            if good and (row := table_row(job, KINDS[kind], rate)) is not None:
                rows.setdefault(job.user, []).append(row)
        with writing(out):
            added = sum(add_rows(out, name, of_user, KINDS[kind]) for name, of_user in sorted(rows.items()))
        left, files = len(jobs) - sum(map(len, rows.values())), len(rows)
    facts = {"to": kind, "folder": str(out), "added": added, "left_out": left, "files": files}
    output.facts("slurm-export", facts, f"{out}: {added} added, {left} skipped (no energy, duration or name)")


def _rates(store: Store, table: object, factors: Factors, until_s: float) -> Sequence[Grams]:
    """Grams per kWh of each record, with the PUE."""
    count = len(table)  # type: ignore[arg-type]
    pue = 1.0 if factors.pue is None else factors.pue
    constant = None if factors.intensity is None else factors.intensity.g_per_kwh * pue
    if factors.curve is None or not count:
        return [(None, constant)] * count
    found = intensity_of(table, hours_of(store, table, until_s), factors.curve) * pue
    return [(None if math.isnan(rate) else float(rate), constant) for rate in found]


@click.command(cls=Verb)
@click.argument("tree", type=FOLDER)
@click.option("--zone-h", type=float, default=0.0, help="Offset of its local times from UTC, in hours.  [default: 0]")
@period_options("jobs that ended")
@store_option
@output_options
def import_(tree: Path, zone_h: float, period_s: tuple[float, float], store: Path | None, output: Output) -> None:
    """Read Lab-IA's tree of jobs (prolog_log/YYYY_MM/USER/JOB) into the store of a site.

    TREE may be the whole tree, a month, a user or a job. Energy is the share that the log gave to the job; a missing
    end is inferred from the last reading and marked. Importing twice changes nothing. Jobs that cannot be read are
    listed.
    """
    opened = store_of(store)
    found = read_tree(tree, {"zone_h": zone_h})
    wanted = [job for job in found.jobs if period_s[0] <= job.end_s < period_s[1]]
    new = _new(opened, wanted)
    if new:
        with writing(opened.path):
            opened.append(new, "labia")
    problems = [{"path": str(path), "problem": why} for path, why in found.problems]
    inferred = sum(not job.complete for job in new)
    ends = f", {inferred} with an inferred end" if inferred else ""
    facts = {"jobs": len(wanted), "added": len(new), "problems": problems}
    output.facts("slurm-import", facts, f"{format_count(len(wanted), 'job')}, {len(new)} added{ends}")
    for path, why in found.problems:
        output.warn(f"{path}: {why}")


def _new(store: Store, jobs: list[JobOnNode]) -> list[JobOnNode]:
    """Those that the store does not have yet."""
    if not jobs:
        return []
    since_s, until_s = min(job.end_s for job in jobs), max(job.end_s for job in jobs) + 1
    sql = "SELECT cluster, job_id, restart, node FROM jobs"
    rows = store.query(sql, [], since_s, until_s).to_pylist()
    known = {(row["cluster"], row["job_id"], row["restart"], row["node"]) for row in rows}
    return [job for job in jobs if job.key not in known]


@click.command(cls=Verb)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=FILE)
@click.option(
    "--since", type=TIME, help="Jobs from this time on; a day ago by default. Applies to sacct, not to files."
)
@click.option("--until", type=TIME, help="Jobs up to this time; now by default.")
@store_option
@output_options
def import_sacct(
    files: tuple[Path, ...], since: int | None, until: int | None, store: Path | None, output: Output
) -> None:
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
    updated, more = format_count(changed, "record"), format_count(added, "job")
    line = f"{format_count(len(jobs), 'job')} in sacct: {updated} updated, {more} added without energy."
    output.facts("import-sacct", {"jobs": len(jobs), "changed": changed, "added": added}, line)
