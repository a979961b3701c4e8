"""`everywatt meter compare`: what the chips say beside what the wall says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np

from everywatt.api.run import Run, load
from everywatt.cli.common.options import DURATION, RUN, Verb, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.tables import Cell, Column, Table
from everywatt.meters.block import Block, Oddities
from everywatt.meters.plugmap import check_against, load_map
from everywatt.meters.wall import Node, compare_node, from_saved, line_of, line_of_blocks, meter_sources, saved, single

AROUND_NS = 600 * NS
Read = Callable[..., Iterator[Block]]


def make(read: Read) -> click.Command:
    """The verb; `read` gives the blocks of files or of an archive."""

    @click.command("compare", cls=Verb)
    @click.argument("files", nargs=-1, metavar="FILE...", type=click.Path(path_type=Path))
    @click.option(
        "--chips", "chips", type=RUN, multiple=True, help="Run with the chips of a node; repeat for more nodes."
    )
    @click.option("--nodes", metavar="NAMES", help="Nodes of these runs, in order; their hosts by default.")
    @click.option("--wall", type=RUN, help="Run that contains a meter (may be the run of the chips), instead of FILE.")
    @click.option("--archive", type=click.Path(path_type=Path), metavar="DIR", help="Archive of meters.")
    @click.option("--meter", metavar="NAME", help="Meter to read, if there are several.")
    @click.option("--map", "map_file", type=click.Path(path_type=Path), metavar="FILE", help="Map of plugs to nodes.")
    @click.option("--every", type=DURATION, default="10s", show_default=True, help="Length of a cell.")
    @click.option(
        "--from", "from_file", type=click.Path(path_type=Path), metavar="FILE", help="Saved comparison to show."
    )
    @click.option(
        "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Write a plot to this file: .png, .svg or .pdf."
    )
    @click.option("-o", "--out", type=click.Path(path_type=Path), help="Save the cells as JSON.")
    @output_options
    def command(
        files: tuple[Path, ...],
        chips: tuple[str, ...],
        nodes: str | None,
        wall: str | None,
        archive: Path | None,
        meter: str | None,
        map_file: Path | None,
        every: float,
        from_file: Path | None,
        plot: Path | None,
        out: Path | None,
        output: Output,
    ) -> None:
        """Compare chips with the wall for each node, with the clock offset and the fitted overhead.

        The wall is FILE or --archive of an Omegawatt with --map (all plugs without one), or --wall RUN. The clock
        offset is estimated from the signals, printed and removed; if the signals are flat, it is refused and nothing is
        shifted.
        """
        if not every > 0:
            raise UsageError("--cell must be above zero.", cure="--every 10s")
        if from_file is not None:
            _show(from_saved(from_file), output, plot)
            return
        if not chips:
            raise UsageError("No run of chips was given.", cure="--chips RUN")
        runs = [load(name) for name in chips]
        names = nodes.split(",") if nodes else [_host(run) for run in runs]
        if len(names) != len(runs) or len(set(names)) != len(names):
            raise UsageError(
                f"{len(runs)} runs but {len(set(names))} node names.", cure="--nodes with one name per run"
            )
        found = []
        for name, run in zip(names, runs, strict=True):
            if wall is not None:
                at_wall = run if wall in (run.name, str(run.path)) else load(wall)
                line = line_of(at_wall, meter_sources(single(at_wall)))
            else:
                line = line_of_blocks(
                    list(_beside(run, name, lambda *w: read(files, archive, meter, *w), map_file, meter))
                )
            found.append(compare_node(name, run, line, every))
        if out is not None:
            write_text(out, json.dumps(saved(found), indent=1) + "\n")
            output.say(f"Saved {out}.")
        _show(found, output, plot)

    return command


def _beside(
    run: Run, node: str, read: Callable[..., Iterator[Block]], map_file: Path | None, meter: str | None
) -> list[Block]:
    """The rows of a node's plugs over the time of a run, and as long before and after as clocks may differ."""
    begun_ns, ended_ns = (run.tapes[0].to_utc_ns(at) for at in run.tapes[0].extent_ns())
    period, plugs = (begun_ns - AROUND_NS, ended_ns + AROUND_NS), None
    sample = next(read(period, None, Oddities()), None)
    if sample is None:
        raise MeasurementRefused(f"{node}: the meter has no rows during {run.name}.")
    if map_file is not None:
        table = load_map(map_file)
        plugs, _ = plugs_of(map_file, node, meter, (begun_ns, ended_ns), sample)
        # Before and after the run other plugs may feed the node: their rows are not its own.
        turns = [
            at for feed in table.feeds if feed.node == node for at in (feed.from_ns, feed.until_ns) if at is not None
        ]
        period = (
            max([period[0], *(at for at in turns if at <= begun_ns)]),
            min([period[1], *(at for at in turns if at >= ended_ns)]),
        )
    return list(read(period, plugs, Oddities()))


def plugs_of(
    map_file: Path | None, node: str, meter: str | None, period: tuple[int | None, int | None], sample: Block
) -> tuple[list[int], int | None]:
    """The plugs that feed a node at the time of a recording, and when that changes where no end was given.

    sample  the first rows of the recording, with all plugs
    """
    if map_file is None:
        raise UsageError("Selecting a node requires a map of plugs.", cure="--map map.toml")
    table, first_ns = load_map(map_file), int(sample.utc_ns[0])
    start_ns, end_ns = period
    since_ns = first_ns if start_ns is None else start_ns
    feeds = table.feeds_of(node, meter or "", since_ns, since_ns + 1 if end_ns is None else end_ns)
    check_against(feeds, sample)
    return [feed.plug for feed in feeds], table.changes_ns(node, meter or "", since_ns) if end_ns is None else None


def _host(run: Run) -> str:
    host = run.meta.get("host")
    name = host.get("name") if isinstance(host, dict) else None
    return str(name or run.name)


def _show(nodes: list[Node], output: Output, plot: Path | None) -> None:
    if plot is not None:
        from everywatt.report.plots import plot_wall

        output.say(f"Plot: {plot_wall(nodes, plot)}.")

    def mean(values: object) -> float:
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        return float(known.mean()) if len(known) else float("nan")

    told = []
    for node in nodes:
        fit = node.overhead
        told.append(
            {
                "node": node.name,
                "cells": len(node.start_s),
                "cpu_w": mean(node.cpu_w),
                "gpu_w": mean(node.gpu_w),
                "wall_w": mean(node.wall_w),
                "gap_pct": node.gap_pct,
                "clock_offset_s": node.clock.seconds,
                "clock": str(node.clock),
                "overhead": None
                if fit is None
                else {
                    "a_w": fit.a_w,
                    "a_within_w": fit.a_within_w,
                    "b": fit.b,
                    "b_within": fit.b_within,
                    "r2": fit.r2,
                },
            }
        )
    output.json("meter-compare", {"nodes": told, "cells": saved(nodes)})
    powers = (Column(name, "W") for name in ("CPU", "GPU", "WALL"))
    rows: list[list[Cell]] = [
        [
            node.name,
            len(node.start_s),
            *(mean(values) for values in (node.cpu_w, node.gpu_w, node.wall_w)),
            node.gap_pct / 100,
            str(node.overhead) if node.overhead else "not fitted: too few cells, or the chips' power hardly varied",
        ]
        for node in nodes
    ]
    output.table(Table.of("NODE", Column("CELLS", ""), *powers, Column("GAP", "%"), "OVERHEAD", rows=rows))
    for node in nodes:
        output.say(f"{node.name}: clock of the chips minus clock of the meter: {node.clock}")
