"""`everywatt slurm summary`: a few lines for a message after login."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.options import Verb, carbon_options, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import readable_store, store_option
from everywatt.core.config import Settings
from everywatt.core.format import format_count, format_joules, format_money, format_percent, format_quantity
from everywatt.core.jobs import user_name
from everywatt.footprint.carbon import factors_of
from everywatt.ledger.engine import UJ
from everywatt.slurm.site.carbon import charged, in_all
from everywatt.slurm.site.figures import COVERED, job_of, percent, short, time_of
from everywatt.slurm.site.monthly import plain
from everywatt.slurm.site.periods import month_bounds_s, month_of
from everywatt.slurm.site.totals import Wanted, jobs, shown_id

J_PER_WH = 3600.0
LAST_S = 31 * 86_400.0


@click.command(cls=Verb)
@click.option("--user", default="me", help="User whose jobs to summarise.  [default: you]")
@click.option("--last", type=click.IntRange(min=0), default=3, help="Number of recent jobs to list.  [default: 3]")
@store_option
@carbon_options
@output_options
def command(user: str, last: int, store: Path | None, settings: Settings, output: Output) -> None:
    """Summarise a user's jobs in a few lines: this month's energy, carbon and cost if factors are set, recent jobs.

    Meant as a login message, called from /etc/profile.d. A user without jobs gets one line.
    """
    opened = readable_store(store)
    name = user_name(os.geteuid()) if user == "me" else user
    now_s = time.time()
    month = month_of(now_s)
    since_s, until_s = month_bounds_s(month)
    table = charged(opened, since_s, until_s, factors_of(settings), name)
    total = in_all(table)
    wanted = Wanted(now_s - LAST_S, now_s + 1, user=name)
    recent = jobs(opened, wanted)[-last:] if last else []
    output.json(
        "slurm-summary", {"user": name, "month": month, **plain(total), "last": [job_of(row) for row in recent]}
    )
    if output.json_to is not None:
        return
    if not total["jobs"]:
        output.text(f"everywatt: no job of {name} ended in {month}.")
    else:
        output.text(f"everywatt: {name}, {month}: {_counted(total['jobs'])}, {', '.join(facts(total, settings))}")
    for row in reversed(recent):
        used = [f"CPU {percent(row['cpu_s'], row['allocated_cpu_s']) or '-'}"]
        used += [f"GPU {format_percent(row['gpu_utilisation'])}"] if row["gpu_utilisation"] is not None else []
        output.text(f"  {shown_id(row):<10} {row['state']:<10} {time_of(row):>12}  {short(row):>16}  {', '.join(used)}")


def facts(total: dict[str, Any], settings: Settings) -> list[str]:
    """Energy, carbon and cost for people; what is not known is left out or said."""
    if total["energy_uj"] is None:
        return ["energy unknown"]
    joules = total["energy_uj"] / UJ
    below, above = (
        (total["energy_uj"] - (total["low_uj"] or 0)) / UJ,
        ((total["high_uj"] or 0) - total["energy_uj"]) / UJ,
    )
    told = [f"{format_joules(joules, below, above)} ({format_quantity(joules / J_PER_WH, 'Wh')})"]
    if total["carbon_varying_g"] is not None:
        gap = f" without {_counted(total['uncovered'])}" if total["uncovered"] else ""
        told.append(f"{format_quantity(total['carbon_varying_g'], 'g CO2e')}{gap} (grid intensity at the time)")
    if total["carbon_g"] is not None:
        told.append(format_quantity(total["carbon_g"], "g CO2e"))
    if total["cost"] is not None:
        told.append(format_money(total["cost"], settings.price[1] if settings.price else ""))
    if total["waste_uj"]:
        told.append(f"{format_joules(total['waste_uj'] / UJ)} for allocated but unused hardware")
    if total["coverage"] is not None and total["coverage"] < COVERED:
        told.append(f"{format_percent(total['coverage'])} covered")
    if total["refused"]:
        told.append(f"{total['refused']} without energy")
    return told


def _counted(number: int) -> str:
    return format_count(number, "job")
