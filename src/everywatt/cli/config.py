"""`everywatt config`, `plugins` and `completion`: how everywatt is set up here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from everywatt.cli.common.group import Members
from everywatt.cli.common.options import Verb, output_options, settings_here
from everywatt.cli.common.output import Output
from everywatt.cli.main import PROGRAM
from everywatt.core.config import SETTINGS, Settings
from everywatt.core.plugins import GROUPS, OWN
from everywatt.core.tables import Table

SHELLS = ("bash", "zsh", "fish")


@click.group(cls=Members, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Show the settings and where each comes from."""


@command.command(cls=Verb)
@output_options
def show(output: Output) -> None:
    """Print every setting with its value and its origin: flag, environment, project file, user file or default."""
    settings = settings_here()
    output.result("config", SettingList(settings))


@dataclass(frozen=True, slots=True)
class SettingList:
    """The settings, each with where it comes from."""

    settings: Settings

    def to_dict(self) -> dict[str, Any]:
        return {"settings": setting_rows(self.settings), "warnings": self.settings.warnings}

    def tables(self) -> list[Table]:
        rows = [
            [
                row["name"],
                _shown(row["name"], row["value"]),
                row["source"] + (f" ({row['where']})" if row["where"] else ""),
            ]
            for row in setting_rows(self.settings)
        ]
        return [Table.of("SETTING", "VALUE", "ORIGIN", rows=rows)]


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


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point. `error` is None where it loads."""

    group: str
    name: str
    target: str
    distribution: str | None
    version: str | None
    error: str | None


@click.command(cls=Verb)
@output_options
def plugins(output: Output) -> int:
    """List the plug-ins of every entry-point group, where each comes from, and whether it loads.

    The exit code is 1 if one does not load.
    """
    found = PluginList(find_plugins(os.environ))
    output.result("plugins", found)
    if not found.plugins:
        output.say(f"No plug-ins are installed (groups: {', '.join(found.groups)}).")
    return 1 if any(plugin.error for plugin in found.plugins) else 0


@dataclass(frozen=True, slots=True)
class PluginList:
    """The plug-ins of all groups."""

    plugins: Sequence[Plugin]

    @property
    def groups(self) -> list[str]:
        """All groups, those without a plug-in too."""
        return sorted({*GROUPS, *(plugin.group for plugin in self.plugins)})

    def to_dict(self) -> dict[str, Any]:
        return {"groups": self.groups, "plugins": [asdict(plugin) for plugin in self.plugins]}

    def tables(self) -> list[Table]:
        rows = [[p.group, p.name, p.target, _source(p), p.error or "yes"] for p in self.plugins]
        return [Table.of("GROUP", "NAME", "TARGET", "FROM", "LOADS", rows=rows)] if rows else []


def find_plugins(environ: Mapping[str, str]) -> list[Plugin]:
    """Every entry point of everywatt's groups, and the sensors that EVERYWATT_PLUGINS names."""
    points = entry_points()
    found = [
        _load(point)
        for group in sorted(points.groups)
        if group.startswith(f"{OWN}.")
        for point in points.select(group=group)
        if point.dist is None or point.dist.name != OWN
    ]
    for item in filter(None, (part.strip() for part in environ.get("EVERYWATT_PLUGINS", "").split(","))):
        name, _, target = item.partition("=")
        if ":" in target:
            found.append(_load(EntryPoint(name, target, "everywatt.sensors")))
        else:
            found.append(Plugin("everywatt.sensors", item, target, None, None, "not of the form name=module:Class"))
    return found


def _load(point: EntryPoint) -> Plugin:
    distribution = point.dist
    name, version = (distribution.name, distribution.version) if distribution else (None, None)
    return Plugin(point.group, point.name, point.value, name, version, _failure(point))


def _failure(point: EntryPoint) -> str | None:
    try:
        point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may do anything
        return f"{type(error).__name__}: {error}"
    return None


def _source(plugin: Plugin) -> str:
    return f"{plugin.distribution} {plugin.version}" if plugin.distribution else "EVERYWATT_PLUGINS"


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    For bash: eval "$(everywatt completion bash)" in ~/.bashrc; the same for zsh in ~/.zshrc. For fish: save it as
    ~/.config/fish/completions/everywatt.fish.
    """
    from click.shell_completion import get_completion_class

    from everywatt.cli.common.group import COMPLETE_VARIABLE, cli

    maker = get_completion_class(shell)
    assert maker is not None, f"completion is available for {SHELLS}"
    click.echo(maker(cli(), {}, PROGRAM, COMPLETE_VARIABLE).source())
