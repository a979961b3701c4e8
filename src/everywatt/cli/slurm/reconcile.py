"""`everywatt slurm reconcile`: what the sensors of a node say of the same day."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import WEEK_S, meter_options, period_options, readable_store, store_option
from everywatt.core.format import format_count
from everywatt.slurm.site.node_meters import NodeMeters
from everywatt.slurm.site.reconcile import ALERT, CHIPS, reconcile, sensors_in_series, table_of


@click.command(cls=Verb)
@meter_options
@click.option("--from", "url", metavar="URL", help="Prometheus or VictoriaMetrics with node sensors sent by agents.")
@click.option("--node", help="Only this node.")
@period_options("days", WEEK_S, "a week ago")
@store_option
@output_options
def command(
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
    sensors = {} if url is None else sensors_in_series(url, *period_s)
    for name, more in meters.sensors(period_s).items():
        sensors.setdefault(name, []).extend(more)
    days = reconcile(opened, sensors, *period_s, node)
    alerts = sum(one.kind == ALERT for day in days for one in day.findings)
    output.json("slurm-reconcile", {"days": [day.to_dict() for day in days], "alerts": alerts, "ok": not alerts})
    if output.json_to is not None:
        return 1 if alerts else 0
    if days:
        output.table(table_of(days))
    if not any(len(day.figures) > 1 or day.slurm for day in days):
        output.text("Nothing was compared: no sensor beside the chips. Try --from, --archive with --map, or --run.")
    scopes = sorted({day.figures[CHIPS].scope for day in days if CHIPS in day.figures})
    if scopes:
        slurm = " Slurm's count is of jobs that had their node to themselves." if any(day.slurm for day in days) else ""
        output.text(f"Chips: {' or '.join(scopes)}.{slurm}")
    output.text(f"{format_count(len(days), 'node-day')}, {format_count(alerts, 'alert')}.")
    return 1 if alerts else 0
