"""`everywatt meter …`: wattmeters at the wall, recorded, archived and read."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import click

from everywatt.api.run import Run, load
from everywatt.cli.common.group import Members
from everywatt.cli.common.options import DURATION, PATH, RUN, TIME, Verb, as_value, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.common.progress import task
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_duration, format_percent
from everywatt.core.jsonio import as_data, declared
from everywatt.core.tables import Cell, Column, Table, columns_of
from everywatt.meters.archive import read_archive, store
from everywatt.meters.block import Block, Oddities
from everywatt.meters.capture import Capture
from everywatt.meters.importing import blocks_of_files, plug_numbers
from everywatt.meters.plugmap import check_against, load_map, unchanged
from everywatt.meters.stats import MeterStats, PlugStats, stats
from everywatt.meters.wall import (
    EnergyLine,
    Node,
    compare_node,
    from_saved,
    line_of,
    meter_line,
    meter_sources,
    saved,
    single,
)

PATHS = click.argument("files", nargs=-1, metavar="FILE...", type=PATH)
METER = click.option("--meter", metavar="NAME", help="Meter to read, if there are several.")
START = click.option("--start", type=TIME, help="Start of the period.")
END = click.option("--end", type=TIME, help="End of the period.")
MAP = click.option("--map", "map_file", type=PATH, metavar="FILE", help="Map of plugs to nodes (map.toml).")

AROUND_NS = 600 * NS  # clocks of a meter and a node may differ by so much


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a meter come from: files, or an archive of one or several meters."""

    files: tuple[Path, ...]
    archive: Path | None = None
    meter: str | None = None

    def read(
        self, odd: Oddities, start_ns: int | None = None, end_ns: int | None = None, plugs: Sequence[int] | None = None
    ) -> Iterator[Block]:
        """The rows of a period, of all plugs or of some."""
        if (self.archive is None) == (not self.files):
            raise UsageError("Pass files or an archive.", cure="everywatt meter stats FILE… or --archive DIR")
        if self.archive is not None:
            return iter(read_archive(self.archive, self.meter, start_ns, end_ns, plugs))
        missing = [path for path in self.files if not path.is_file()]
        if missing:
            raise UsageError(f"There is no file {missing[0]}.")
        return blocks_of_files(self.files, odd, start_ns, end_ns, plugs)


ARCHIVE = click.option("--archive", type=PATH, metavar="DIR", help="Archive of meters.")


@click.group(cls=Members, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Record, archive and analyse wattmeters."""


@command.command("stats", cls=Verb)
@PATHS
@ARCHIVE
@METER
@START
@END
@click.option("--plug", "plugs", metavar="LIST", help="Restrict to these plugs, such as 1,5 or 1-6, and their sum.")
@click.option("--node", metavar="NAME", help="Restrict to the plugs of this node, and their sum; requires --map.")
@MAP
@click.option("--head", is_flag=True, help="Print the first rows as recorded.")
@output_options
@as_value("rows", Rows)
def stats_command(
    rows: Rows,
    start: int | None,
    end: int | None,
    plugs: str | None,
    node: str | None,
    map_file: Path | None,
    head: bool,
    output: Output,
) -> None:
    """Count, median, maximum, minimum, mean, energy and coverage of the plugs of a meter.

    FILE is output of `wattmetre-read` (CSV, TSV, gzip, zip) or Parquet from an archive; files of one meter are joined
    in order of time. --archive reads a period of an archive instead.
    """
    odd, change_ns = Oddities(), None
    chosen, total = _chosen(plugs, node)
    if node is not None:
        sample = next(rows.read(Oddities(), start, end), None)
        if sample is None:
            raise MeasurementRefused("No rows were recorded in that period.")
        if map_file is None:
            raise UsageError("Selecting a node requires a map of plugs.", cure="--map map.toml")
        table, since_ns = load_map(map_file), int(sample.utc_ns[0]) if start is None else start
        chosen = table.plugs_of(node, rows.meter, since_ns, since_ns + 1 if end is None else end, sample)
        change_ns = table.changes_ns(node, rows.meter or "", since_ns) if end is None else None
    blocks = unchanged(rows.read(odd, start, end, chosen), change_ns, f"'{node}'")
    first = next(blocks, None)
    if first is None:
        raise MeasurementRefused("No rows were recorded in that period.")
    if head:
        _head(first, chosen, output)
        return
    with task(output, "statistics"):
        found = stats(chain((first,), blocks), [str(plug) for plug in chosen] if chosen else None, total)
    assert found is not None
    _show(found, odd, output)


def _chosen(plugs: str | None, node: str | None) -> tuple[list[int] | None, str | None]:
    """The plugs that are asked for, None for all or for those of a node, and what their sum is called."""
    if plugs is not None and node is not None:
        raise UsageError("Plugs and a node cannot be combined.")
    if plugs is None:
        return None, node
    numbers = plug_numbers(plugs)
    return numbers, "+".join(map(str, numbers)) if len(numbers) > 1 else None


def _head(block: Block, plugs: Sequence[int] | None, output: Output) -> None:
    names = [str(plug) for plug in plugs or range(1, block.plugs + 1)]
    rows = [
        [_stamp(int(at)), *(float(value) if math.isfinite(value) else None for value in (*volts, *watts))]
        for at, volts, watts in zip(block.utc_ns[:10], block.volts[:10], block.watts[:10], strict=True)
    ]
    output.json("meter-head", {"plugs": names, "rows": rows})
    columns: list[str | Column] = [
        "TIME (UTC)",
        *(Column(f"U{phase}", "V") for phase in (1, 2, 3)),
        *(Column(name, "W") for name in names),
    ]
    output.table(Table.of(*columns, rows=rows))


def _stamp(utc_ns: int) -> str:
    seconds, ns = divmod(utc_ns, NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{ns // 1_000_000:03d}"


def _show(found: MeterStats, odd: Oddities, output: Output) -> None:
    output.json("meter-stats", {**found.to_dict(), "oddities": odd.sentences()})
    figures: list[PlugStats] = [*found.plugs, *([found.total] if found.total else [])]
    rows: list[list[Cell]] = [
        [
            plug.name,
            plug.count,
            *(plug.median_w, plug.max_w, plug.min_w, plug.mean_w),
            plug.joules,
            plug.kwh * 1e3,
            found.coverage,
        ]
        for plug in figures
    ]
    columns = "PLUG, COUNT [], MEDIAN [W], MAX [W], MIN [W], MEAN [W], ENERGY [J], WATT-HOURS [Wh], COVERAGE [%]"
    output.table(Table.of(*columns_of(columns), rows=rows))
    seconds = (found.end_ns - found.start_ns) / NS
    output.say(
        f"{found.rows} rows from {_stamp(found.start_ns)} to {_stamp(found.end_ns)} UTC ({format_duration(seconds)}); "
        f"{format_percent(found.repeats / found.rows)} of them repeat the previous row."
    )
    for line in odd.sentences():
        output.say(f"In the files: {line}.")


@command.command("import", cls=Verb)
@PATHS
@click.option("--archive", type=PATH, metavar="DIR", required=True, help="Archive to write to.")
@METER
@output_options
def import_command(files: tuple[Path, ...], archive: Path, meter: str | None, output: Output) -> None:
    """Add recordings of a meter to an archive, as Parquet: raw rows, and exact aggregates by second and by minute.

    For a run that `show` and `report` can read, use `everywatt import omegawatt` instead.
    """
    if not files:
        raise UsageError("No file was given.", cure="everywatt meter import FILE… --archive DIR")
    odd = Oddities()
    with task(output, "import"):
        stored = store(archive, meter or "meter", Rows(files).read(odd))
    if not stored:
        raise MeasurementRefused("The files contain no rows.")
    files_made = [str(path) for path in stored]
    output.facts("meter-import", {"files": files_made, "oddities": odd.sentences()}, *files_made)
    for line in odd.sentences():
        output.say(f"In the files: {line}.")


@command.command("map", cls=Verb)
@PATHS
@MAP
@METER
@output_options
def map_command(files: tuple[Path, ...], map_file: Path | None, meter: str | None, output: Output) -> None:
    """Check and list a map of plugs, and compare it with recordings if FILE is given.

    A plug that is mapped to a phase without voltage, to two nodes at once, or that the meter does not have, is an
    error. Tables of Lab-IA (JSON) can be read too.
    """
    if map_file is None:
        raise UsageError("No map was given.", cure="--map map.toml")
    table = load_map(map_file)
    odd = Oddities()
    for path in files:
        first = next(Rows((path,)).read(odd), None)
        if first is not None:
            at_ns = int(first.utc_ns[0])
            feeds = [feed for feed in table.feeds if not meter or feed.meter in ("", meter)]
            check_against([feed for feed in feeds if feed.holds(at_ns, at_ns + 1)], first)
    rows = [
        [
            feed.node,
            feed.meter or None,
            feed.plug,
            feed.supply or None,
            feed.phase,
            _day(feed.from_ns),
            _day(feed.until_ns),
        ]
        for feed in table.feeds
    ]
    headers = ["NODE", "METER", "PLUG", "SUPPLY", "PHASE", "FROM", "UNTIL"]
    output.json("meter-map", {"feeds": [dict(zip(map(str.lower, headers), row, strict=True)) for row in rows]})
    output.table(Table.of(*headers, rows=rows, right=(2, 4)))


def _day(utc_ns: int | None) -> str | None:
    return None if utc_ns is None else f"{datetime.fromtimestamp(utc_ns / NS, UTC):%Y-%m-%d %H:%M}"


@command.command("capture", cls=Verb)
@click.argument("port")
@click.option("--archive", type=PATH, metavar="DIR", required=True, help="Archive to write to.")
@METER
@click.option("--text", is_flag=True, help="PORT delivers the text output of wattmetre-read, not binary frames.")
@click.option("--rotate", metavar="HH:MM", default="07:00", show_default=True, help="Hour at which a new file starts.")
@click.option("--zip", "zips", is_flag=True, help="Also write zip files in the layout of Lab-IA.")
@click.option("--baud", type=int, default=921_600, show_default=True, help="Baud rate of the serial line.")
@click.option("--for", "duration", type=DURATION, help="Stop after this long; by default, run until stopped.")
@output_options
def capture_command(
    port: str,
    archive: Path,
    meter: str | None,
    text: bool,
    rotate: str,
    zips: bool,
    baud: int,
    duration: float | None,
    output: Output,
) -> None:
    """Record an Omegawatt meter continuously into an archive.

    PORT is a serial device (/dev/ttyUSB0), a pipe, a file, or - for standard input. Capture continues after an
    unplugged adapter or a full disk and, when restarted, after a kill. SIGHUP starts a new file; SIGTERM and Ctrl-C
    stop it.
    """
    turn = _clock(rotate)
    name = meter or (Path(port).name if port != "-" else "meter")
    kind = "text" if text else "serial"
    capture = Capture(port, archive, name, kind, turn=turn, baud=baud, zips=zips, tell=output.say)
    signal.signal(signal.SIGTERM, lambda number, frame: capture.stop())
    signal.signal(signal.SIGINT, lambda number, frame: capture.stop())
    signal.signal(signal.SIGHUP, lambda number, frame: capture.rotate())
    output.say(f"Capturing {port} into {archive}.")
    done = capture.run(duration)
    output.facts("meter-capture", asdict(done), *done.packed)
    unit = "lines" if text else "frames"
    output.say(f"{done.frames} {unit}, {done.rotations} rotations, {done.outages} outages, {done.bad} bad frames.")
    if done.lost_bytes:
        raise MeasurementRefused(
            f"{done.lost_bytes} bytes could not be written and are lost.", cure="free some disk space"
        )


def _clock(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    hour, minute = (int(match[1]), int(match[2])) if match else (99, 99)
    if hour > 23 or minute > 59:
        raise UsageError(f"'{text}' is not an hour of the day.", cure="--rotate 07:00")
    return hour, minute


@command.command("compare", cls=Verb)
@PATHS
@click.option("--chips", "chips", type=RUN, multiple=True, help="Run with the chips of a node; repeat for more nodes.")
@click.option("--nodes", metavar="NAMES", help="Nodes of these runs, in order; their hosts by default.")
@click.option("--wall", type=RUN, help="Run that contains a meter (may be the run of the chips), instead of FILE.")
@ARCHIVE
@METER
@MAP
@click.option("--every", type=DURATION, default="10s", show_default=True, help="Length of a cell.")
@click.option("--from", "from_file", type=PATH, metavar="FILE", help="Saved comparison to show.")
@click.option("--plot", type=PATH, metavar="FILE", help="Write a plot to this file: .png, .svg or .pdf.")
@click.option("-o", "--out", type=PATH, help="Save the cells as JSON.")
@output_options
@as_value("rows", Rows)
def compare_command(
    rows: Rows,
    chips: tuple[str, ...],
    nodes: str | None,
    wall: str | None,
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
    if from_file is not None:
        _show_nodes(from_saved(from_file), output, plot)
        return
    if not chips:
        raise UsageError("No run of chips was given.", cure="--chips RUN")
    runs = [load(name) for name in chips]
    names = nodes.split(",") if nodes else [_host(run) for run in runs]
    if len(names) != len(runs) or len(set(names)) != len(names):
        raise UsageError(f"{len(runs)} runs but {len(set(names))} node names.", cure="--nodes with one name per run")
    found = []
    for name, run in zip(names, runs, strict=True):
        if wall is not None:
            at_wall = run if wall in (run.name, str(run.path)) else load(wall)
            line: EnergyLine | None = line_of(at_wall, meter_sources(single(at_wall)))
        else:
            line = meter_line(_beside(run, name, rows, map_file))
        if line is None:
            raise MeasurementRefused(f"{name}: the meter has no rows during {run.name}.")
        found.append(compare_node(name, run, line, every))
    if out is not None:
        write_text(out, json.dumps(saved(found), indent=1) + "\n")
        output.say(f"Saved {out}.")
    _show_nodes(found, output, plot)


def _beside(run: Run, node: str, rows: Rows, map_file: Path | None) -> Iterator[Block]:
    """The rows of a node's plugs over the time of a run, and as long before and after as clocks may differ."""
    begun_ns, ended_ns = (run.tapes[0].to_utc_ns(at) for at in run.tapes[0].extent_ns())
    period, plugs = (begun_ns - AROUND_NS, ended_ns + AROUND_NS), None
    sample = next(rows.read(Oddities(), *period), None)
    if sample is None:
        raise MeasurementRefused(f"{node}: the meter has no rows during {run.name}.")
    if map_file is not None:
        table, inner = load_map(map_file), (begun_ns, ended_ns)
        plugs, period = table.plugs_of(node, rows.meter, *inner, sample), table.own_time(node, inner, period)
    return rows.read(Oddities(), *period, plugs)


def _host(run: Run) -> str:
    host = run.meta.get("host")
    name = host.get("name") if isinstance(host, dict) else None
    return str(name or run.name)


def _show_nodes(nodes: list[Node], output: Output, plot: Path | None) -> None:
    if plot is not None:
        from everywatt.report.plots import plot_wall

        output.say(f"Plot: {plot_wall(nodes, plot)}.")

    data = [
        {
            "node": node.name,
            "cells": len(node.start_s),
            **node.means_w(),
            **as_data(declared(node, "gap_pct clock_offset_s=clock.seconds overhead")),
            "clock": str(node.clock),
        }
        for node in nodes
    ]
    output.json("meter-compare", {"nodes": data, "cells": saved(nodes)})
    unfitted = "not fitted: too few cells, or the chips' power hardly varied"
    rows: list[list[Cell]] = [
        [node.name, len(node.start_s), *node.means_w().values(), node.gap_pct / 100, str(node.overhead or unfitted)]
        for node in nodes
    ]
    columns = columns_of("NODE, CELLS [], CPU [W], GPU [W], WALL [W], GAP [%], OVERHEAD")
    output.table(Table.of(*columns, rows=rows))
    for node in nodes:
        output.say(f"{node.name}: clock of the chips minus clock of the meter: {node.clock}")
