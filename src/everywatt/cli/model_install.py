"""`everywatt model install`: a model becomes the sensor `model` of this user, moved to this machine where asked."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import click

from everywatt.cli.model_tables import model_argument, percent, table_of
from everywatt.cli.options import Verb, output_options
from everywatt.cli.output import Output, write_text
from everywatt.core.config import user_file
from everywatt.core.errors import ConfigError, UsageError

SECTION = re.compile(r"^\[sensor\.model\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


@click.command(cls=Verb)
@model_argument
@click.option(
    "--against", metavar="RUN", help="A recording of this machine beside a sensor: move the model here by it."
)
@click.option(
    "--target", metavar="COLUMN", help="The channel of the sensor in that recording; the model's own unless set."
)
@click.option("--remove", is_flag=True, help="No longer use a model.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and change nothing.")
@output_options
def command(model: Path, against: str | None, target: str | None, remove: bool, dry_run: bool, output: Output) -> None:
    """Use a model as a sensor from now on: copy it beside your settings and name it there.

    With --against RUN, a few minutes of this machine recorded beside any sensor, the model of another machine is moved
    here: gain and offset are fitted, and the interval is made at least as wide as what is left over.
    """
    from everywatt.models.modelfile import dumps, load_model

    config = user_file(os.environ, Path(os.environ.get("HOME", "/")))
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    if remove:
        _write(config, SECTION.sub("", text), dry_run)
        output.say(f"The sensor 'model' is no longer in {config}.")
        return
    fitted = load_model(model)
    if fitted.form.kind == "plugin":
        raise UsageError("A model of a plug-in cannot be a sensor: it needs more than the recorder loads.")
    if against is not None:
        from everywatt.models.applying import transfer

        table = table_of([against])
        before = fitted
        fitted = transfer(fitted, table, target or fitted.target, socket.gethostname())
        if target is not None:
            fitted = replace(fitted, target=target)
        moved = fitted.about["transferred"]
        output.text(
            f"Moved from {before.host or 'elsewhere'}: × {moved['gain']:.4g} {moved['offset_w']:+.3g} W, "
            f"{percent(moved['error_pct'])} off here over {moved['rows']} rows."
        )
    copy = config.parent / "models" / f"{re.sub(r'[^A-Za-z0-9._-]', '-', model.stem)}.json"
    section = f'[sensor.model]\nfile = "models/{copy.name}"\n'
    if not dry_run:
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_text(copy, dumps(fitted))
    rest = SECTION.sub("", text)
    _write(config, (rest.rstrip("\n") + "\n\n" if rest.strip() else "") + section, dry_run)
    told = "Would be" if dry_run else "Is"
    output.say(f"{told} in {config}: [sensor.model] file = models/{copy.name}. Try: everywatt sensors")
    output.json(
        "model-install", {"file": str(copy), "config": str(config), "gain": fitted.gain, "offset_w": fitted.offset_w}
    )


def _write(config: Path, text: str, dry_run: bool) -> None:
    """Write the settings, after making sure that they can still be read."""
    import tomllib

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{config} would not be readable: {error}.", cure="write [sensor.model] there by hand"
        ) from None
    if not dry_run:
        config.parent.mkdir(parents=True, exist_ok=True)
        write_text(config, text)
