"""`everywatt slurm wall`: what wattmeters saw, joined to the jobs of their nodes."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import DAY_S, meter_options, period_options, store_of, store_option, writing
from everywatt.core.format import format_count
from everywatt.slurm.site.node_meters import NodeMeters
from everywatt.slurm.site.wall import RULE, join_wall, table_of


@click.command(cls=Verb)
@meter_options
@period_options("jobs that ended", DAY_S, "a day ago")
@click.option("--dry", is_flag=True, help="Show the result without writing it.")
@store_option
@output_options
def command(meters: NodeMeters, period_s: tuple[float, float], dry: bool, store: Path | None, output: Output) -> None:
    """Add the energy measured by wattmeters to jobs: each gets its energy at the wall beside that of its chips.

    FILE are recordings of an Omegawatt (or --archive), with --map; or --run NODE=RUN for a run that has a BMC or meter,
    as `everywatt import ipmi` makes. What the chips of a node do not explain is shared in proportion to their energy:
    part of it goes with a job's own share, part with its share of idle; idle and the system keep theirs. Repeating
    changes nothing.
    """
    opened = store_of(store)
    changed, nodes = join_wall(opened, meters.walls(period_s), *period_s)
    if changed and not dry:
        with writing(opened.path):
            opened.append(changed, "wall")
    output.json("slurm-wall", {"nodes": [node.to_dict() for node in nodes], "changed": len(changed), "dry": dry})
    if output.json_to is None:
        output.table(table_of(nodes))
        count = format_count(len(changed), "record")
        output.text(f"{count} {'would get' if dry else 'got'} their energy at the wall; {RULE}.")
