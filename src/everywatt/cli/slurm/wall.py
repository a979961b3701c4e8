"""`everywatt slurm wall` and `reconcile`: what meters of whole nodes saw, joined to jobs and beside other sensors."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import FILE, FOLDER, TAG, Verb, gathered, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import DAY_S, WEEK_S, period_options, readable_store, store_of, store_option, writing
from everywatt.net.api import ApiClient
from everywatt.slurm.site.reconcile import Reconciled, sensors_in_series
from everywatt.slurm.site.reconcile import reconcile as reconcile_days
from everywatt.slurm.site.wall import JoinedWall, NodeMeters, join_wall

meter_options = gathered(
    "meters",
    NodeMeters,
    click.argument("files", nargs=-1, metavar="[FILE]...", type=FILE),
    click.option("--map", "map_file", type=FILE, help="Map of plugs to nodes."),
    click.option("--archive", type=FOLDER, help="Archive of meters, instead of files."),
    click.option("--meter", metavar="NAME", help="Meter of the archive, if it has several."),
    click.option("--run", "runs", type=TAG, multiple=True, metavar="NODE=RUN", help="Run of a node's BMC or meter."),
)
"""Adds the argument and options that name the meters of nodes; the function gets them as `meters`."""


@click.command(cls=Verb)
@meter_options
@period_options("jobs that ended", DAY_S, "a day ago")
@click.option("--dry", is_flag=True, help="Show the result without writing it.")
@store_option
@output_options
def wall(meters: NodeMeters, period_s: tuple[float, float], dry: bool, store: Path | None, output: Output) -> None:
    """Add the energy measured by wattmeters to jobs: each gets its energy at the wall beside that of its chips.

    FILE are recordings of an Omegawatt (or --archive), with --map; or --run NODE=RUN for a run that has a BMC or meter,
    as `everywatt import ipmi` makes. What the chips of a node do not explain is shared in proportion to their energy:
    part of it goes with a job's own share, part with its share of idle; idle and the system keep theirs. Repeating
    changes nothing.
    """
    opened = store_of(store)
    found = JoinedWall(*join_wall(opened, meters.walls(period_s), *period_s), dry)
    if found.changed and not dry:
        with writing(opened.path):
            opened.append(found.changed, "wall")
    output.result("slurm-wall", found)


@click.command(cls=Verb)
@meter_options
@click.option("--from", "url", metavar="URL", help="Prometheus or VictoriaMetrics with node sensors sent by agents.")
@click.option("--node", help="Only this node.")
@period_options("days", WEEK_S, "a week ago")
@store_option
@output_options
def reconcile(
    meters: NodeMeters,
    url: str | None,
    node: str | None,
    period_s: tuple[float, float],
    store: Path | None,
    output: Output,
) -> int:
    """Show chips, node sensor, wall and Slurm's ConsumedEnergy of each node and day side by side.

    A figure that is smaller than one that contains it has another scope, and is reported as such. A part that is larger
    than the whole, beyond their intervals, is an alert, and the exit code is 1. Only hours that all sensors of a node
    saw are compared; Slurm's count is compared with the chips of the same jobs, if they had their node to themselves.
    """
    opened = readable_store(store)
    sensors = {} if url is None else sensors_in_series(ApiClient(url), *period_s)
    for name, more in meters.sensors(period_s).items():
        sensors.setdefault(name, []).extend(more)
    found = Reconciled(reconcile_days(opened, sensors, *period_s, node))
    output.result("slurm-reconcile", found)
    return 1 if found.alerts else 0
