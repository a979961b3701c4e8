"""`everywatt slurm wall`: what wattmeters saw, joined to the jobs of their nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run, load
from everywatt.cli.common.options import TAG, TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import FOLDER, store_of, store_option, writing
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.tables import Column, Table
from everywatt.meters.archive import read_archive
from everywatt.meters.block import Block, Oddities
from everywatt.meters.files import blocks_of
from everywatt.meters.plugmap import load_map
from everywatt.meters.power import meter_sources, single
from everywatt.slurm.site.wall import RULE, NodeWall, Wall, join_wall, meter_line

FILE = click.Path(path_type=Path, dir_okay=False)
DAY_S = 86_400.0
MARGIN_S = 31 * DAY_S  # a job may have begun that long before the time that is asked for


def meter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and options that name the meters of nodes."""
    for option in (
        click.option(
            "--run", "runs", type=TAG, multiple=True, metavar="NODE=RUN", help="Run of a node's BMC or meter."
        ),
        click.option("--meter", metavar="NAME", help="Meter of the archive, if it has several."),
        click.option("--archive", type=FOLDER, help="Archive of meters, instead of files."),
        click.option("--map", "map_file", type=FILE, help="Map of plugs to nodes."),
        click.argument("files", nargs=-1, metavar="[FILE]...", type=FILE),
    ):
        command = option(command)
    return command


@click.command(cls=Verb)
@meter_options
@click.option("--since", type=TIME, help="Only jobs that ended after this time.  [default: a day ago]")
@click.option("--until", type=TIME, help="Only jobs that ended before this time.  [default: now]")
@click.option("--dry", is_flag=True, help="Show the result without writing it.")
@store_option
@output_options
def command(
    files: tuple[Path, ...],
    map_file: Path | None,
    archive: Path | None,
    meter: str | None,
    runs: tuple[tuple[str, str], ...],
    since: int | None,
    until: int | None,
    dry: bool,
    store: Path | None,
    output: Output,
) -> None:
    """Add the energy measured by wattmeters to jobs: each gets its energy at the wall beside that of its chips.

    FILE are recordings of an Omegawatt (or --archive), with --map; or --run NODE=RUN for a run that has a BMC or meter,
    as `everywatt import ipmi` makes. What the chips of a node do not explain is shared in proportion to their energy:
    part of it goes with a job's own share, part with its share of idle; idle and the system keep theirs. Repeating
    changes nothing.
    """
    opened = store_of(store)
    until_s = time.time() if until is None else until / NS
    since_s = until_s - DAY_S if since is None else since / NS
    walls = meter_walls(files, map_file, archive, meter, (since_s, until_s)) | {n: RunWall(load(r)) for n, r in runs}
    if not walls:
        raise UsageError("No meter was given.", cure="FILE --map MAP, --archive DIR --map MAP, or --run NODE=RUN")
    changed, nodes = join_wall(opened, walls, since_s, until_s)
    if changed and not dry:
        with writing(opened.path):
            opened.append(changed, "wall")
    output.json("slurm-wall", {"nodes": [node.to_dict() for node in nodes], "changed": len(changed), "dry": dry})
    if output.json_to is None:
        _print(nodes, len(changed), dry, output)


class RunWall:
    """A run of a node that has a meter of the whole in it: the outermost one, unless `devices` are given."""

    def __init__(self, run: Run, devices: Sequence[str] = ()) -> None:
        self.run = run
        tape = single(run)
        self.devices = devices or [source.label for source in meter_sources(tape)]
        self.origin_s = tape.to_utc_ns(tape.extent_ns()[0]) / NS
        self.end_s = tape.to_utc_ns(tape.extent_ns()[1]) / NS

    def seen(
        self, low_s: npt.NDArray[np.float64], high_s: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Joules of stretches, scaled to their whole length, and the share of each that was observed."""
        joules, share = np.full(len(low_s), np.nan), np.zeros(len(low_s))
        for place, (low, high) in enumerate(zip(low_s.tolist(), high_s.tolist(), strict=True)):
            between = max(low, self.origin_s) - self.origin_s, min(high, self.end_s) - self.origin_s
            if between[1] <= between[0]:
                continue
            found = [self.run.energy(between=between, device=device) for device in self.devices]
            inside = (between[1] - between[0]) / max(high - low, 1e-9)
            share[place] = min(one.coverage for one in found) * inside
            if all(one.joules is not None and one.coverage > 0 for one in found):
                joules[place] = sum((one.joules or 0.0) / one.coverage for one in found) / inside
        return joules, share


def meter_walls(
    files: Sequence[Path],
    map_file: Path | None,
    archive: Path | None,
    meter: str | None,
    bounds_s: tuple[float, float],
) -> dict[str, Wall]:
    """Lines of nodes by a wattmeter's files or archive, with the map of its plugs; {} where none is given."""
    if not files and archive is None:
        return {}
    if map_file is None:
        raise UsageError("No map of plugs to nodes was given.", cure="--map map.toml")
    plugs = load_map(map_file)
    start_ns, end_ns = round((bounds_s[0] - MARGIN_S) * NS), round((bounds_s[1] + 3600) * NS)
    walls: dict[str, Wall] = {}
    for node in plugs.nodes:
        chosen = [feed.plug for feed in plugs.feeds_of(node, meter or "", round(bounds_s[0] * NS), end_ns)]
        line = meter_line(_blocks(files, archive, meter, (start_ns, end_ns), chosen))
        if line is not None:
            walls[node] = line
    return walls


def _blocks(
    files: Sequence[Path], archive: Path | None, meter: str | None, between: tuple[int, int], plugs: Sequence[int]
) -> Iterator[Block]:
    if archive is not None:
        yield from read_archive(archive, meter, *between, plugs)
    for file in files:
        yield from blocks_of(file, Oddities(), *between, plugs)


def _print(nodes: Sequence[NodeWall], changed: int, dry: bool, output: Output) -> None:
    rows = [
        [
            node.node,
            node.hours,
            *(node.chips_j, node.wall_j, node.unexplained),
            *(node.jobs, node.jobs_j),
            node.why,
        ]
        for node in nodes
    ]
    energies = (Column("CHIPS", "J"), Column("WALL", "J"), Column("UNEXPLAINED", "%"))
    jobs = (Column("JOBS", ""), Column("WALL OF JOBS", "J"), "")
    output.table(Table.of("NODE", Column("HOURS", ""), *energies, *jobs, rows=rows))
    output.text(f"{changed} records {'would get' if dry else 'got'} their energy at the wall; {RULE}.")
