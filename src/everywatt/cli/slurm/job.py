"""`everywatt slurm job ID`: one job in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import readable_store, store_option
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.format import format_bytes, format_count, format_duration, format_joules, format_percent
from everywatt.core.tables import Table
from everywatt.ledger.engine import UJ
from everywatt.slurm.site.detail import Detail, bars, find, hints, slurm_difference
from everywatt.slurm.site.figures import energy_of, percent, short
from everywatt.slurm.site.totals import summed


@click.command(cls=Verb)
@click.argument("job", metavar="ID")
@click.option("--since", type=TIME, help="Consider only jobs that ended after this time.  [default: all]")
@store_option
@output_options
def command(job: str, since: int | None, store: Path | None, output: Output) -> None:
    """Show one job: its energy by node, step and device, and what it did not use of its allocation.

    ID is 123, a task of an array (123_4), or a component of a heterogeneous job (123+0); the id of an array shows its
    tasks. If Slurm counted energy itself (ConsumedEnergyRaw), it is shown beside ours with the difference.
    """
    opened = readable_store(store)
    found = find(opened, job, 0.0 if since is None else since / NS)
    if not found:
        raise UsageError(f"The store has no job {job}.", cure="everywatt slurm jobs --since -30d")
    output.json("slurm-job", {"jobs": [_plain(detail) for detail in found]})
    if output.json_to is not None:
        return
    if len({detail.first.shown_id for detail in found}) > 1:
        _print_tasks(found, output)
        return
    for detail in found:
        _print(detail, output)


def _plain(job: Detail) -> dict[str, Any]:
    first, difference = job.first, slurm_difference(job)
    return {
        "id": first.shown_id,
        **{name: getattr(first, name) for name in ("job_id", "restart", "user", "account", "partition", "name")},
        "state": first.state,
        "exit_code": first.exit_code,
        "elapsed_s": job.elapsed_s,
        "energy": energy_of(summed(job.rows)),
        "nodes": [{**row.row(), "energy": energy_of(row.row())} for row in job.rows],
        "by_node_j": {name: uj / UJ for name, uj in job.by_node()},
        "by_step_j": {name: uj / UJ for name, uj in job.by_step()},
        "by_device_j": {name: uj / UJ for name, uj in job.by_device()},
        "slurm_j": difference[0] if difference else None,
        "ours_over_slurm": difference[1] if difference else None,
        "hints": hints(job),
    }


def _print_tasks(found: Sequence[Detail], output: Output) -> None:
    rows = []
    for job in found:
        whole = summed(job.rows)
        rows.append([job.first.shown_id, job.first.state, format_duration(job.elapsed_s), short(whole)])
    total_uj = sum(job.energy_uj or 0 for job in found)
    refused = sum(job.energy_uj is None for job in found)
    output.table(Table.of("JOB", "STATE", "TIME", "ENERGY", rows=rows, right=(2, 3)))
    output.text(f"{len(found)} jobs: {format_joules(total_uj / UJ)}" + (f", {refused} without" if refused else ""))


def _print(job: Detail, output: Output) -> None:
    first, whole = job.first, summed(job.rows)
    again = f" (run {first.restart + 1})" if first.restart else ""
    output.text(f"job {first.shown_id}{again}: {first.name}   {first.user}, {first.account or 'no account'}")
    where = first.node if len(job.rows) == 1 else f"{len(job.rows)} nodes"
    output.text(f"  {first.state}, {format_duration(job.elapsed_s)} on {where}, partition {first.partition or '-'}")
    output.text(f"  energy      {short(whole, '95 %')}, coverage {format_percent(whole['coverage'])}, {first.scope}")
    if whole["energy_uj"] is None:
        output.text(f"              {whole['refused']}")
    if whole["idle_uj"] is not None:
        output.text(f"  idle share  {format_joules(whole['idle_uj'] / UJ)}   of the idle energy of its allocation")
    if whole["wall_uj"] is not None:
        output.text(f"  at the wall {format_joules(whole['wall_uj'] / UJ)}   {_unexplained(whole)}")
    difference = slurm_difference(job)
    if difference:
        beside = (
            ""
            if difference[1] is None
            else f"   ours with the idle share: {format_percent(difference[1], signed=True)}"
        )
        output.text(f"  Slurm       {format_joules(difference[0])}{beside}")
    if whole["cpu_s"] is not None:
        used = percent(whole["cpu_s"], whole["allocated_cpu_s"]) or "-"
        count = whole["cpus"] or 0
        output.text(
            f"  CPU         {format_duration(whole['cpu_s'])}, {used} of {count:g} CPU{'' if count == 1 else 's'}"
        )
    if whole["gpu_utilisation"] is not None:
        cards = format_count(sum(len(row.gpus) for row in job.rows), "GPU")
        output.text(f"  GPU         {format_percent(whole['gpu_utilisation'])} of {cards}")
    if first.memory_peak_bytes is not None:
        asked = "" if first.memory_bytes is None else f" of {format_bytes(first.memory_bytes)}"
        output.text(f"  memory      {format_bytes(first.memory_peak_bytes)}{asked}")
    for title, pairs in (("node", job.by_node()), ("step", job.by_step()), ("device", job.by_device())):
        if len(pairs) > 1 or (pairs and title != "node"):
            output.text(f"by {title}")
            for line in bars(pairs):
                output.text(line)
    for hint in hints(job):
        output.text(f"* {hint}")


def _unexplained(whole: dict[str, Any]) -> str:
    chips_uj = (whole["energy_uj"] or 0) + (whole["idle_uj"] or 0)
    return f"{format_joules((whole['wall_uj'] - chips_uj) / UJ)} of it is not explained by the chips"
