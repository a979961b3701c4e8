"""`everywatt model install`: a model becomes the sensor `model` of this user, moved to this machine where asked."""

from __future__ import annotations

import os
import re
import socket
import tomllib
from dataclasses import replace
from pathlib import Path

import click

from everywatt.cli.common.options import DURATION, FILE, Verb, output_options
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.model.collect import LEAST_S, collected
from everywatt.cli.model.tables import percent, table_of
from everywatt.core.config import resolve, user_file
from everywatt.core.errors import ConfigError, UsageError
from everywatt.core.format import format_duration, format_number, format_quantity
from everywatt.models.applying import scale_warnings, transfer
from everywatt.models.form import Model
from everywatt.models.modelfile import dumps, load_model
from everywatt.models.reading import run_table
from everywatt.models.screening import POWER_NAME
from everywatt.models.sensor import of_target
from everywatt.models.table import Table
from everywatt.recorder.request import model_file
from everywatt.sensors.base import Request
from everywatt.sensors.registry import known, probe
from everywatt.stress import Load

SECTION = re.compile(r"^\[sensor\.model\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


@click.command(cls=Verb)
@click.argument("model", type=FILE, required=False)
@click.option(
    "--against",
    metavar="SENSOR|RUN",
    help="Adapt MODEL (by default the installed one) to this sensor now, or to a recording of it.",
)
@click.option(
    "--time", "time_s", type=DURATION, default="3m", show_default=True, help="How long to record beside a sensor."
)
@click.option("--target", metavar="COLUMN", help="Channel of the sensor in that recording; by default the model's own.")
@click.option("--remove", is_flag=True, help="Stop using a model.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, without changing anything.")
@output_options
def command(
    model: Path | None,
    against: str | None,
    time_s: float,
    target: str | None,
    remove: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Use a model as a sensor from now on: copy it beside your settings and enable it there.

    With --against, the model of another machine is transferred to this one, using a sensor (load is generated for
    --time while it is recorded) or a recording of one: gain and offset are fitted, and the interval is widened to at
    least the remaining error.
    """
    config = user_file(os.environ, Path(os.environ.get("HOME", "/")))
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    if remove:
        without = SECTION.sub("", text)
        if without == text:
            output.say(f"{config} has no [sensor.model]: nothing to remove.")
            return
        _write(config, without, dry_run)
        output.say(f"[sensor.model] {'would be' if dry_run else 'was'} removed from {config}.")
        return
    if model is None and against is None:
        raise UsageError("No model is named.", cure="everywatt model install MODEL (or --remove)")
    if model is None:
        installed = model_file(resolve().options)
        if not installed:
            raise UsageError(
                "No model is named, and none is installed.", cure="everywatt model install MODEL --against SENSOR|RUN"
            )
        model = Path(installed)
    fitted = load_model(model)
    if fitted.form.kind == "plugin":
        raise UsageError("A model from a plug-in cannot be a sensor: the recorder does not load plug-ins for models.")
    if against is not None:
        table = _beside(against, time_s, output)
        before = fitted
        target = target or _target(table, fitted)
        fitted = replace(transfer(fitted, table, target, socket.gethostname()), target=target)
        moved = fitted.about["transferred"]
        output.text(
            f"Transferred from {before.host or 'another machine'}: × {format_number(moved['gain'])}, offset "
            f"{format_quantity(moved['offset_w'], 'W', signed=True)}, error {percent(moved['error_pct'])} here over "
            f"{moved['rows']} rows."
        )
    copy = config.parent / "models" / f"{re.sub(r'[^A-Za-z0-9._-]', '-', model.stem)}.json"
    section = f'[sensor.model]\nfile = "models/{copy.name}"\n'
    if not dry_run:
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_text(copy, dumps(fitted))
    rest = SECTION.sub("", text)
    _write(config, (rest.rstrip("\n") + "\n\n" if rest.strip() else "") + section, dry_run)
    done = "Would be added" if dry_run else "Added"
    output.say(f"{done} to {config}: [sensor.model] file = models/{copy.name}. Try: everywatt sensors")
    for warning in scale_warnings(fitted):
        output.warn(warning)
    output.json(
        "model-install", {"file": str(copy), "config": str(config), "gain": fitted.gain, "offset_w": fitted.offset_w}
    )


def _beside(against: str, time_s: float, output: Output) -> Table:
    """The table of a recording, made now where a sensor is named."""
    if against not in known():
        return table_of([against])
    if time_s < LEAST_S:
        raise UsageError(f"{format_duration(time_s)} is too short to calibrate.", cure="--time 3m")
    settings = replace(resolve(), sensors=(against, "use"))
    _, report = probe(against, known()[against], Request(options=settings.options, sensors=settings.sensors))
    if not report.usable or not report.power:
        raise UsageError(
            f"{against} delivers no power here: {report.why.rstrip('.')}.", cure=report.cure or "everywatt sensors"
        )
    output.say(f"Generating load for {format_duration(time_s)} beside {against}.")
    run, _ = collected(Load(cpu_cores=os.cpu_count() or 1), time_s, None, 0, settings, output)
    return run_table([run])


def _target(table: Table, model: Model) -> str:
    """The column that measures the model's own target where the table has it, else the one power that is there."""
    own, powers = model.target, [name for name in table.columns if POWER_NAME.search(name)]
    measured = [name for name in (own, *of_target(model)) if name in table.columns]
    if measured or not powers:
        return measured[0] if measured else own
    if len(powers) > 1:
        raise UsageError(f"There is no {own} here; choose one of {', '.join(powers)}.", cure=f"--target {powers[0]}")
    return powers[0]


def _write(config: Path, text: str, dry_run: bool) -> None:
    """Write the settings, after making sure that they can still be read."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{config} would become unreadable: {error}.", cure="add [sensor.model] to it by hand"
        ) from None
    if not dry_run:
        config.parent.mkdir(parents=True, exist_ok=True)
        write_text(config, text)
