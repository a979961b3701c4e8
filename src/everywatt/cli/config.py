"""`everywatt config show`: the settings that hold here, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from everywatt.cli.common.options import Verb, output_options, settings_here
from everywatt.cli.common.output import Output
from everywatt.core.config import SETTINGS, Settings
from everywatt.core.tables import Table


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Show the settings and where each comes from."""


@command.command(cls=Verb)
@output_options
def show(output: Output) -> None:
    """Print every setting with its value and its origin: flag, environment, project file, user file or default."""
    settings = settings_here(quiet=output.quiet)
    rows = setting_rows(settings)
    output.json("config", {"settings": rows, "warnings": settings.warnings})
    output.table(
        Table.of(
            "SETTING",
            "VALUE",
            "ORIGIN",
            rows=[[row["name"], _shown(row["name"], row["value"]), _origin(row)] for row in rows],
        )
    )


def setting_rows(settings: Settings) -> list[dict[str, Any]]:
    """Each setting, and each tag and each sensor by itself, as plain data."""
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS:
        value = settings.value(setting.name)
        if setting.name in ("tag", "sensor") and value:
            rows += [_row(settings, f"{setting.name}.{key}", entry) for key, entry in value.items()]
        else:
            rows.append(_row(settings, setting.name, value))
    return rows


def _row(settings: Settings, name: str, value: Any) -> dict[str, Any]:
    origin = settings.origins[name]
    return {"name": name, "value": value, "source": origin.source, "where": origin.where or None}


def _origin(row: Mapping[str, Any]) -> str:
    return f"{row['source']} ({row['where']})" if row["where"] else str(row["source"])


def _shown(name: str, value: Any) -> str:
    if value is None or value == {}:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g} s" if name == "period" else f"{value:g}"
    if name == "price":
        return f"{value[0]:g} {value[1]}".strip()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {entry}" for key, entry in value.items())
    return ",".join(value) if isinstance(value, tuple) else str(value)
