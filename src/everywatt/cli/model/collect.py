"""`everywatt model collect`: a load program and its recording in one: rows to learn from."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from everywatt.api.run import Run
from everywatt.cli.common.metering import meter_of, recording_of, start
from everywatt.cli.common.options import DURATION, Verb, output_options, settings_options
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.format import format_duration
from everywatt.core.units import parse_bytes
from everywatt.models.reading import run_table
from everywatt.models.screening import POWER_NAME
from everywatt.stress import Load, Program, Step, latin_hypercube, play
from everywatt.stress.playing import prepared

KINDS = ("integer", "float", "vector", "memory", "branchy")
LEAST_S = 10.0
IDLE_SHARE = 0.05


@click.command(cls=Verb)
@click.option("--time", "time_s", type=DURATION, default="10m", show_default=True, help="Total duration.")
@click.option("--cpu", "cores", type=click.IntRange(1, 4096), help="Cores to load; all by default.")
@click.option("--steps", type=click.IntRange(2, 10_000), help="Number of load steps; one every 3 s by default.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Kinds of CPU work, separated by commas.")
@click.option("--memory-bytes", type=click.IntRange(0), default=0, help="Memory at full load; none by default.")
@click.option("--disk", metavar="RATE", default="0", help="Also write to disk, at full load this much, such as 50MB/s.")
@click.option("--network", metavar="RATE", default="0", help="Also send over the loopback, at full load this much.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed; the same seed gives the same steps.")
@settings_options
@output_options
def command(
    time_s: float,
    cores: int | None,
    steps: int | None,
    kinds: str,
    memory_bytes: int,
    disk: str,
    network: str,
    seed: int,
    settings: Settings,
    output: Output,
) -> None:
    """Generate varied load and record everything that `model fit` can learn from.

    Load levels cover the space evenly (a Latin hypercube over cores and kinds of work), starting with idle. Other
    indicators of power (frequency, disk, network, instructions) are recorded too. Use the run with
    `everywatt model fit RUN --target …`.
    """
    if time_s < LEAST_S:
        raise UsageError(f"{format_duration(time_s)} is too short to fit a model.", cure="--time 1m or more")
    chosen = tuple(kind.strip() for kind in kinds.split(",") if kind.strip())
    unknown = [kind for kind in chosen if kind not in KINDS]
    if unknown or not chosen:
        raise UsageError(f"There is no kind of work {unknown[0] if unknown else kinds!r}.", cure=", ".join(KINDS))
    load = Load(
        cpu_cores=cores or os.cpu_count() or 1,
        cpu_kinds=chosen,
        ram_bytes=memory_bytes,
        disk_bytes_per_s=parse_bytes(disk),
        network_bytes_per_s=parse_bytes(network),
    )
    run, made = collected(load, time_s, steps, seed, settings, output)
    _tell(run, made, output)


def collected(
    load: Load, time_s: float, steps: int | None, seed: int, settings: Settings, output: Output
) -> tuple[Run, int]:
    """The run that was recorded while load covered its space, and how many steps it had."""
    idle_s = max(3.0, IDLE_SHARE * time_s)
    count = steps or max(4, round((time_s - idle_s) / 3.0))
    program = latin_hypercube(load, time_s=time_s - idle_s, steps=count, seed=seed, name="collect")
    program = Program((Step(idle_s), *program.steps), name="collect")
    prepared(program)
    use = {**settings.options.get("use", {}), "features": True}
    meter = meter_of(replace(settings, options={**settings.options, "use": use}), "collect")
    show = output.progress()
    start(meter, output, root=True)
    recording_of(meter)  # no load without a recording of it
    try:
        results = play(program, on_step=lambda step: show(f"step {step.index + 1} of {len(program.steps)}"))
    finally:
        meter.stop()
    return meter.run, len(results)


def _tell(run: Run, steps: int, output: Output) -> None:
    table, name = run_table([run]), run.name
    targets = [column for column in table.columns if POWER_NAME.search(column)]
    output.text(f"{name}: {steps} steps, {len(table)} rows of {len(table.columns)} columns")
    if targets:
        output.text(f"Next: everywatt model fit {name} --target {targets[0]} --out model.json")
    else:
        output.warn("No sensor measured power during this run, so no model can be fitted to it. Try: everywatt sensors")
    output.json(
        "model-collection",
        {"run": name, "path": str(run.path), "rows": len(table), "columns": list(table.columns), "targets": targets},
    )
