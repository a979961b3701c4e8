"""`everywatt show RUN`: a run's energy, devices, spans and quality."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from everywatt.api.run import load
from everywatt.cli.common.options import RUN, Verb, between_option, carbon_options, output_options
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings
from everywatt.core.format import format_duration
from everywatt.footprint.carbon import carbon_lines, factors_of, footprint
from everywatt.report.text import summary


@click.command(cls=Verb)
@click.argument("run", type=RUN, default="last")
@click.option("--span", default=None, help="Restrict to this span, by name or id.")
@between_option
@carbon_options
@output_options
def command(
    run: str, span: str | None, between: tuple[float, float] | None, settings: Settings, output: Output
) -> None:
    """Show a run: energy, devices, spans, quality. RUN is a name, a path or `last`.

    Carbon and cost follow, separate from joules, if factors for them are set.
    """
    opened = load(run)
    if span is not None or between is not None:
        energy = opened.energy(span, between=between)
        output.json("energy", {"name": opened.name, "energy": energy.to_dict()})
        output.text(str(energy))
        return
    data = opened.to_dict()
    found = footprint(opened, factors_of(settings))
    if found is not None:
        data["carbon"] = found.to_dict()
    output.json("run", {key: value for key, value in data.items() if key not in ("schema", "kind")})
    meta = opened.meta
    output.text(f"{opened.name}   {opened.started:%Y-%m-%d %H:%M:%S} UTC on {meta.get('host', {}).get('name', '?')}")
    if meta.get("command"):
        output.text(f"  command {shown_command(meta['command'])}")
    for line in summary(opened):
        output.text(line)
    for line in carbon_lines(found) if found is not None else []:
        output.text(line)
    rates = [f"{name}: {_asked(entry)}{_got(entry)}" for name, entry in data["quality"]["groups"].items()]
    for rate in rates:
        output.text(f"  rate    {rate}")
    if meta.get("tags"):
        output.text("  tags    " + ", ".join(f"{key}={value}" for key, value in meta["tags"].items()))
    if meta.get("note"):
        output.text(f"  note    {meta['note']}")
    for point in opened.points[-5:]:
        when = (point.at_ns - opened.tapes[0].extent_ns()[0]) / 1e9
        output.text(f"  point   {point.name} = {point.value} at {format_duration(when)}")


def _asked(entry: Mapping[str, Any]) -> str:
    """The requested period; empty for imports, which have none."""
    period_s = entry["requested_period_s"]
    return f"requested {format_duration(period_s)}, " if period_s else ""


def shown_command(words: list[str], most: int = 160) -> str:
    """The command on one line, as it could be typed again; cut where it is very long."""
    line = shlex.join(words).replace("\n", "\\n")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _got(entry: Mapping[str, Any]) -> str:
    if entry["achieved_period_s"] is None:
        return "one reading" if entry["rows"] == 1 else "no readings"
    return f"achieved {format_duration(entry['achieved_period_s'])}"
