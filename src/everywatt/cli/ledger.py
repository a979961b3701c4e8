"""`everywatt ledger RUN`: every joule of a run with its owner."""

from __future__ import annotations

from collections.abc import Mapping

import click

from everywatt.api.run import load
from everywatt.cli.common.options import RUN, Verb, between_option, output_options
from everywatt.cli.common.output import Output
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_watts
from everywatt.core.units import parse_power_w
from everywatt.ledger.groups import KINDS
from everywatt.ledger.owners import POLICIES, Ledger
from everywatt.report.ledger_text import ledger_table, method_words


@click.command(cls=Verb)
@click.argument("run", type=RUN, default="last")
@click.option("--by", type=click.Choice(KINDS), default="process", help="Kind of owner.")
@click.option("--idle-policy", type=click.Choice(POLICIES), default="separate", help="Who is charged for idle energy.")
@click.option("--baseline", metavar="W", help="Idle power: 35W in total, or cpu.0=35W,gpu.0=12W.")
@click.option("--span", default=None, help="Restrict to this span, by name or id.")
@between_option
@click.option("--top", type=click.IntRange(min=1), default=20, help="Print this many owners and sum up the others.")
@output_options
def command(
    run: str,
    by: str,
    idle_policy: str,
    baseline: str | None,
    span: str | None,
    between: tuple[float, float] | None,
    top: int,
    output: Output,
) -> None:
    """Show who used the energy of a run: owners, idle, everywatt itself, and the unattributed rest.

    RUN is a name, a path or `last`. The rows add up to the total, to the last digit printed. --json lists all owners.
    """
    opened = load(run)
    level = None if baseline is None else parse_baseline(baseline)
    if isinstance(level, Mapping):
        known = [name for name, _ in opened.energy().parts]
        for device in level:
            if device not in known:
                raise UsageError(f"This run has no device '{device}'; it has: {', '.join(known) or 'none'}.")
    found = opened.ledger(by, span=span, between=between, idle_policy=idle_policy, baseline=level)
    if found.total.joules is None:
        raise MeasurementRefused(found.total.refused or "No energy was measured.", cure="everywatt doctor")
    output.json("ledger", {"name": opened.name, **found.to_dict()})
    output.text(f"{opened.name}   {found.total}")
    output.table(ledger_table(found, top))
    for line in idle_lines(found):
        output.text(line)
    for note in found.notes:
        output.text(f"! {note}")


def parse_baseline(text: str) -> float | dict[str, float]:
    """Watts of `35W`, or watts by device of `cpu.0=35W,gpu.0=12W`. Raises UsageError."""
    if "=" not in text:
        watts = parse_power_w(text)
        if watts < 0:
            raise UsageError(f"'{text}' is below zero.", cure="an idle power such as 35W")
        return watts
    levels = {}
    for word in text.split(","):
        device, _, power = word.partition("=")
        level = parse_baseline(power) if power and "=" not in power else None
        if not device.strip() or not isinstance(level, float):
            raise UsageError(f"'{word}' is not a device with its idle power.", cure="cpu.0=35W,gpu.0=12W")
        levels[device.strip()] = level
    return levels


def idle_lines(ledger: Ledger) -> list[str]:
    """`idle cpu.0: 20.6 W ± 0.5, measured`: one line a device."""
    lines = []
    for device, idle in ledger.idle.items():
        held = f", {format_watts(idle['held_watts'])} more while held" if idle.get("held_watts") else ""
        watts = format_watts(idle["watts"], min(idle["watts"], idle["spread_w"]), idle["spread_w"])
        lines.append(f"idle {device}: {watts}, {method_words(idle['method'])}{held}")
    return lines
