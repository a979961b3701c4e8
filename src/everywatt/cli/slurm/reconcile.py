"""`everywatt slurm reconcile`: what the sensors of a node say of the same day."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from everywatt.api.run import Run, load
from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import readable_store, store_option
from everywatt.cli.slurm.wall import RunWall, meter_options, meter_walls
from everywatt.core.clocks import NS
from everywatt.core.format import format_count, format_joules, print_quantity
from everywatt.core.tables import Table
from everywatt.energy.sources import sources
from everywatt.meters.importing import GAIN_PCT
from everywatt.meters.power import single
from everywatt.slurm.site.reconcile import ALERT, CHIPS, ORDER, Figure, NodeDay, Sensor, reconcile, sensors_in_series

WEEK_S = 7 * 86_400.0


@click.command(cls=Verb)
@meter_options
@click.option("--from", "url", metavar="URL", help="Prometheus or VictoriaMetrics with node sensors sent by agents.")
@click.option("--node", help="Only this node.")
@click.option("--since", type=TIME, help="Only days after this time.  [default: a week ago]")
@click.option("--until", type=TIME, help="Only days before this time.  [default: now]")
@store_option
@output_options
def command(
    files: tuple[Path, ...],
    map_file: Path | None,
    archive: Path | None,
    meter: str | None,
    runs: tuple[tuple[str, str], ...],
    url: str | None,
    node: str | None,
    since: int | None,
    until: int | None,
    store: Path | None,
    output: Output,
) -> int:
    """Show chips, node sensor, wall and Slurm's ConsumedEnergy of each node and day side by side.

    A figure that is smaller than one that contains it has another scope, and is reported as such. A part that is larger
    than the whole, beyond their intervals, is an alert, and the exit code is 1. Only hours that all sensors of a node
    saw are compared; Slurm's count is compared with the chips of the same jobs, if they had their node to themselves.
    """
    opened = readable_store(store)
    until_s = time.time() if until is None else until / NS
    since_s = until_s - WEEK_S if since is None else since / NS
    sensors: dict[str, list[Sensor]] = {} if url is None else sensors_in_series(url, since_s, until_s)
    for name, line in meter_walls(files, map_file, archive, meter, (since_s, until_s)).items():
        sensors.setdefault(name, []).append(Sensor("wall", line, GAIN_PCT / 100))
    for name, place in runs:
        sensors.setdefault(name, []).extend(_of_run(load(place)))
    days = reconcile(opened, sensors, since_s, until_s, node)
    alerts = sum(one.kind == ALERT for day in days for one in day.findings)
    output.json("slurm-reconcile", {"days": [day.to_dict() for day in days], "alerts": alerts, "ok": not alerts})
    if output.json_to is None:
        _print(days, output)
        output.text(f"{format_count(len(days), 'node-day')}, {format_count(alerts, 'alert')}.")
    return 1 if alerts else 0


def _of_run(run: Run) -> list[Sensor]:
    """The sensors of a whole node in a run, each kind by itself."""
    found = []
    for domain in ORDER:
        devices = [source.label for source in sources(single(run)) if source.domain.value == domain]
        if devices:
            energies = [run.energy(device=device) for device in devices]
            joules = sum(one.joules or 0.0 for one in energies)
            widths = [one.half_width for one in energies]
            known = joules > 0 and not any(width is None for width in widths)
            # Sensors of one kind err alike, so their widths are added.
            relative = sum(width or 0.0 for width in widths) / joules if known else None
            found.append(Sensor(domain, RunWall(run, devices), relative))
    return found


def _print(days: Sequence[NodeDay], output: Output) -> None:
    heads = ("NODE", "DAY", "HOURS", "CHIPS", "NODE SENSOR", "POWER SUPPLY", "WALL", "SLURM", "ITS CHIPS", "FINDING")
    rows = []
    for day in days:
        cells = [_cell(day.figures.get(name)) for name in (CHIPS, *ORDER)]
        text = "; ".join(f"{'ALERT: ' if one.kind == ALERT else ''}{one.text}" for one in day.findings)
        rows.append([day.node, day.day.isoformat(), day.hours, *cells, _cell(day.slurm), _cell(day.ours), text or None])
    shown = [place for place in range(len(heads)) if place < 4 or any(row[place] is not None for row in rows)]
    table = Table.of(
        *(heads[place] for place in shown),
        rows=[[row[place] for place in shown] for row in rows],
        right=[at for at, place in enumerate(shown) if 2 <= place <= 8],
    )
    if rows:
        output.table(table)
    if not any(len(day.figures) > 1 or day.slurm for day in days):
        output.text("Nothing was compared: no sensor beside the chips. Try --from, --archive with --map, or --run.")
    scopes = sorted({day.figures[CHIPS].scope for day in days if CHIPS in day.figures})
    if scopes:
        slurm = " Slurm's count is of jobs that had their node to themselves." if any(day.slurm for day in days) else ""
        output.text(f"Chips: {' or '.join(scopes)}.{slurm}")


def _cell(figure: Figure | None) -> str | None:
    if figure is None:
        return None
    if figure.low is None or figure.high is None:
        return format_joules(figure.joules)
    return str(print_quantity(figure.joules, "J", figure.joules - figure.low, figure.high - figure.joules))
