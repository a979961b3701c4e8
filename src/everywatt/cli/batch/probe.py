"""`everywatt batch probe -- CMD {size}`: the largest size that fits, and the cheapest one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from everywatt.batch.devices import CPU, lay_out
from everywatt.batch.probe import Plan, Probe
from everywatt.batch.runner import KILL
from everywatt.batch.runner import Settings as RunnerSettings
from everywatt.cli.batch.common import (
    WithCommand,
    batch_meter,
    gpus_option,
    stopping,
    wanted_gpus,
    words_of,
)
from everywatt.cli.common.metering import recording_of, start
from everywatt.cli.common.options import DURATION, PATH, output_options, settings_options
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError


@click.command("probe", cls=WithCommand)
@click.option("--initial", type=click.IntRange(1), default=1, help="Size to start with.  [default: 1]")
@click.option("--max", "most", type=click.IntRange(1), default=None, help="Largest size to try.  [default: 2^30]")
@click.option(
    "--step", type=click.IntRange(1), default=1, help="Resolution with which to find the largest size.  [default: 1]"
)
@click.option("--trials", type=click.IntRange(1), default=1, help="Measured runs of each size.  [default: 1]")
@click.option("--largest-only", is_flag=True, help="Do not search for the cheapest size.")
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default=None,
    help="Treat a run that takes longer than this as not fitting.",
)
@click.option("--plot", "picture", type=PATH, metavar="FILE", help="Write a plot to this file: .png, .svg or .pdf.")
@gpus_option
@settings_options
@output_options
def command(
    initial: int,
    most: int | None,
    step: int,
    trials: int,
    largest_only: bool,
    timeout_s: float | None,
    picture: Path | None,
    gpus: str | None,
    settings: Settings,
    output: Output,
) -> int:
    """Find the largest size that fits, by doubling and bisecting, then the one with the fewest joules per unit.

    {size} in the command is replaced by a whole number, such as a batch size or a length. A run that exits with a code
    other than 0 does not fit; the table gives the reason. Ctrl-C keeps partial results.
    """
    words = words_of()
    if picture is not None:
        from everywatt.report.plots import check_ending, load_altair

        check_ending(picture)
        load_altair()  # before an hour of runs, not after
    if not any("{size}" in word or "{input}" in word for word in words):
        raise UsageError(
            "The command does not contain {size}.", cure="everywatt batch probe -- CMD --batch-size {size}"
        )
    lanes = lay_out(os.environ, gpus=wanted_gpus(gpus))
    output.say(*lanes.notes)
    device = lanes.devices[0] if lanes.devices else CPU
    plan = Plan(initial, most, step, trials, not largest_only)
    meter = batch_meter("probe", [device], settings)
    start(meter, output, root=True, command=["everywatt", "batch", "probe", "--", *words], reaper=os.getpid())
    folder = recording_of(meter).path.parent
    show = output.progress()
    runner = RunnerSettings(words, max_retries=0, timeout_s=timeout_s, hash_files=False)
    probe = Probe(device, runner, plan, meter, folder, show)
    try:
        with stopping(KILL, output) as (ready, caught):
            ready(probe)
            probe.work()
    finally:
        meter.stop()
    result = probe.result(meter.run)
    output.json("batch-probe", result.to_dict())
    output.table(*(replace(table, notes=()) for table in result.tables()))
    output.text(*result.lines())
    output.say(f"  run     {result.run}   (everywatt batch summary {result.run})")
    if picture is not None and result.largest.fits is not None:
        from everywatt.report.plots import plot_sizes

        plot_sizes([one.to_dict() for one in result.sizes], result.cheapest, picture)
        output.say(f"  plot    {picture}")
    if caught:
        return 128 + caught[0]
    return 0 if result.largest.fits is not None else 1
