"""`everywatt slurm daily` and `annotate`: what a site does once a day, and the energy of jobs in Slurm's accounting."""

from __future__ import annotations

import shlex
import shutil
import time
from datetime import date, timedelta
from pathlib import Path

import click

from everywatt.cli.common.options import FILE, Verb, carbon_options, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import DAY_S, period_options, store_of, store_option, writing
from everywatt.core import foreign
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_count
from everywatt.footprint.carbon import factors_of
from everywatt.slurm.locks import exclusive
from everywatt.slurm.node.hooks import SITE_UNITS, cron_line, site_unit
from everywatt.slurm.site.daily import LOCK, open_to_all, protect
from everywatt.slurm.site.daily import daily as work_through
from everywatt.slurm.site.sacct import annotate as write_comments
from everywatt.slurm.site.sacct import ask, fill, parse
from everywatt.slurm.site.store import Store, day_bounds_s, day_of


@click.command(cls=Verb)
@click.option("--date", "day", metavar="YYYY-MM-DD", help="Day, in UTC.  [default: yesterday]")
@click.option("--sacct", "sacct_file", type=FILE, help="Output of sacct to read instead of calling it.")
@click.option("--no-sacct", is_flag=True, help="Do not call sacct, even if it is installed.")
@click.option("--group", help="Group of administrators that may read the store.")
@click.option("--units", is_flag=True, help="Print the systemd timer and the cron line, and exit.")
@store_option
@carbon_options
@output_options
def daily(
    day: str | None,
    sacct_file: Path | None,
    no_sacct: bool,
    group: str | None,
    units: bool,
    store: Path | None,
    settings: Settings,
    output: Output,
) -> None:
    """Do the daily work of a site: join sacct, compact past days, sum up carbon and cost, update users' folders.

    Safe to repeat: everything is derived from the store and replaced as a whole. Only one process works on a store at a
    time; a second one exits at once. Run as root, it gives each user STORE/users/NAME, which only that user can read;
    `slurm jobs`, `job` and `summary` read it if the store itself is not readable.
    """
    opened = store_of(store)
    if units:
        _print_units(opened.path, group, output)
        return
    wanted = _day(day)
    if not opened.path.is_dir():
        raise UsageError(f"There is no store at {opened.path}.", cure="nodes create it: everywatt slurm install")
    factors = factors_of(settings)
    with writing(opened.path), exclusive(opened.path / LOCK) as mine:
        if not mine:
            facts = {"date": wanted.isoformat(), "busy": True}
            output.facts("slurm-daily", facts, "Another process is working on this store.")
            return
        if group is not None:
            protect(opened.path, group)
        joined = _sacct(opened, wanted, sacct_file, no_sacct, output)
        done = work_through(opened, wanted, factors)
        done.sacct = joined
    if group is None and open_to_all(opened.path):
        output.warn(
            "Every user of this machine can read everyone's jobs. --group ADMINS restricts the store to a group."
        )
    output.result("slurm-daily", done, busy=False)
    if done.without_account:
        names = ", ".join(name or "(no name)" for name in done.without_account)
        output.warn(f"No account on this machine, so no folder: {names}")


def _day(text: str | None) -> date:
    if text is None:
        return day_of(time.time()) - timedelta(days=1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a day.", cure="a day such as 2026-11-15") from None


def _sacct(store: Store, day: date, file: Path | None, off: bool, output: Output) -> dict[str, int] | None:
    """What sacct contributed; None if it was not called. A daily run continues without it."""
    if file is None and (off or shutil.which("sacct") is None):
        return None
    try:
        text = ask(*day_bounds_s(day)) if file is None else foreign.read_text(file, errors="replace")
    except EverywattError as error:
        if file is not None:
            raise
        output.warn(f"{error.message} The day is summed up without sacct.")
        return None
    jobs = parse(text)
    changed, added = fill(store, jobs)
    return {"jobs": len(jobs), "changed": changed, "added": added}


def _print_units(store: Path, group: str | None, output: Output) -> None:
    found = shutil.which("everywatt") or "everywatt"
    options = f"--group {shlex.quote(group)}" if group else ""
    files = {name: site_unit(name, found, store, options) for name in SITE_UNITS}
    cron = cron_line(found, store, options)
    texts = [f"# /etc/systemd/system/{name}\n{text}" for name, text in files.items()]
    texts.append(f"# /etc/cron.d/everywatt, where there is no systemd\n{cron}")
    output.facts("slurm-daily-units", {"files": files, "cron": cron}, *texts)


@click.command(cls=Verb)
@period_options("jobs that ended", 2 * DAY_S, "two days ago")
@click.option("--dry", is_flag=True, help="Show what would be written, and write nothing.")
@store_option
@output_options
def annotate(period_s: tuple[float, float], dry: bool, store: Path | None, output: Output) -> int:
    """Write the energy of jobs to Slurm's accounting (AdminComment), where `sacct -o AdminComment` shows it.

    Needs slurmdbd and the rights of a Slurm administrator. A comment of another tool is never replaced, and a user's
    own comment is another field. Repeating writes only what has changed. Exits with 1 if sacctmgr refused something.
    """
    done = write_comments(store_of(store), *period_s, dry=dry)
    output.result("slurm-annotate", done)
    for job, why in list(done.failed.items())[:10]:
        output.warn(f"job {job}: {why}")
    if done.foreign:
        jobs = ", ".join(done.foreign[:5])
        output.warn(f"{format_count(len(done.foreign), 'job')} with a comment of another tool, which stays: {jobs}")
    return 1 if done.failed else 0
