"""`everywatt plugins`: what others added by entry point, and whether it loads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.core.plugins import GROUPS, OWN
from everywatt.core.tables import Table


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
def command(output: Output) -> int:
    """List the plug-ins of every entry-point group, where each comes from, and whether it loads.

    The exit code is 1 if one does not load.
    """
    plugins = find_plugins(os.environ)
    groups = sorted({*GROUPS, *(plugin.group for plugin in plugins)})
    output.json("plugins", {"groups": groups, "plugins": [asdict(plugin) for plugin in plugins]})
    if plugins:
        rows = [[p.group, p.name, p.target, _source(p), "yes" if p.error is None else p.error] for p in plugins]
        output.table(Table.of("GROUP", "NAME", "TARGET", "FROM", "LOADS", rows=rows))
    else:
        output.say(f"No plug-ins are installed (groups: {', '.join(groups)}).")
    return 1 if any(plugin.error for plugin in plugins) else 0


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
