"""`everywatt slurm daily`: what a site does once a day."""

from __future__ import annotations

import shlex
import shutil
import time
from datetime import date, timedelta
from pathlib import Path

import click

from everywatt.cli.common.options import Verb, carbon_options, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import factor_lines, store_of, store_option, writing
from everywatt.core import foreign
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_quantity
from everywatt.footprint.carbon import factors_of
from everywatt.slurm.locks import exclusive
from everywatt.slurm.node.units import SITE_UNITS, cron_line, site_unit
from everywatt.slurm.site.daily import LOCK, Done, daily, open_to_all, protect
from everywatt.slurm.site.periods import day_bounds_s, day_of
from everywatt.slurm.site.sacct import ask, fill, parse
from everywatt.slurm.site.store import Store


@click.command(cls=Verb)
@click.option("--date", "day", metavar="YYYY-MM-DD", help="Day, in UTC.  [default: yesterday]")
@click.option(
    "--sacct",
    "sacct_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output of sacct to read instead of calling it.",
)
@click.option("--no-sacct", is_flag=True, help="Do not call sacct, even if it is installed.")
@click.option("--group", help="Group of administrators that may read the store.")
@click.option("--units", is_flag=True, help="Print the systemd timer and the cron line, and exit.")
@store_option
@carbon_options
@output_options
def command(
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
            output.json("slurm-daily", {"date": wanted.isoformat(), "busy": True})
            output.text("Another process is working on this store.")
            return
        if group is not None:
            protect(opened.path, group)
        joined = _sacct(opened, wanted, sacct_file, no_sacct, output)
        done = daily(opened, wanted, factors, factor_lines(factors))
    if group is None and open_to_all(opened.path):
        output.warn(
            "Every user of this machine can read everyone's jobs. --group ADMINS restricts the store to a group."
        )
    output.json("slurm-daily", {**done.to_dict(), "sacct": joined, "busy": False})
    if output.json_to is None:
        _print(done, joined, output)


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


def _print(done: Done, joined: dict[str, int] | None, output: Output) -> None:
    total = done.summary["total"]
    energy = "no energy" if total["energy_j"] is None else format_quantity(total["energy_j"] / 3600, "Wh")
    output.text(f"{done.day}: {total['jobs']} jobs, {energy}, {total['refused']} records without energy")
    if joined is not None:
        output.text(f"sacct: {joined['jobs']} jobs, {joined['changed']} records changed, {joined['added']} jobs added")
    for name, count in done.compacted.items():
        output.text(f"compact: {name} ({count} files)")
    output.text(f"users: {', '.join(done.users) or 'none'}")
    if done.without_account:
        names = ", ".join(name or "(no name)" for name in done.without_account)
        output.warn(f"No account on this machine, so no folder: {names}")


def _print_units(store: Path, group: str | None, output: Output) -> None:
    found = shutil.which("everywatt") or "everywatt"
    options = f"--group {shlex.quote(group)}" if group else ""
    files = {name: site_unit(name, found, store, options) for name in SITE_UNITS}
    cron = cron_line(found, store, options)
    output.json("slurm-daily-units", {"files": files, "cron": cron})
    for name, text in files.items():
        output.text(f"# /etc/systemd/system/{name}\n{text}")
    output.text(f"# /etc/cron.d/everywatt, where there is no systemd\n{cron}")
