"""`everywatt show`, `ledger`, `list` and `why`: what is known of runs."""

from __future__ import annotations

from collections.abc import Mapping

import click

from everywatt.api.run import Run, load
from everywatt.cli.common.options import (
    TAG,
    Verb,
    between_option,
    footprint_options,
    output_options,
    run_argument,
    settings_here,
)
from everywatt.cli.common.output import Output
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.units import parse_power_w
from everywatt.footprint.carbon import Factors
from everywatt.ledger.groups import KINDS
from everywatt.ledger.owners import POLICIES
from everywatt.ledger.text import LedgerReport
from everywatt.report.text import RunList, RunReport, Why, causes, readable, run_footprint, sums_by_tag
from everywatt.tape.mending import empty_spool
from everywatt.tape.run_store import existing_home, list_runs

span_option = click.option("--span", default=None, help="Restrict to this span, by name or id.")


@click.command(cls=Verb)
@run_argument
@span_option
@between_option
@footprint_options
@output_options
def show(run: str, span: str | None, between: tuple[float, float] | None, factors: Factors, output: Output) -> None:
    """Show a run: energy, devices, spans, quality. RUN is a name, a path or `last`.

    Carbon and cost follow, separate from joules, if factors for them are set.
    """
    opened = load(run)
    if span is None and between is None:
        output.result("run", RunReport(opened, run_footprint(opened, factors)))
        return
    energy = opened.energy(span, between=between)
    output.facts("energy", {"name": opened.name, "energy": energy.to_dict()}, str(energy))


@click.command(cls=Verb)
@run_argument
@click.option("--by", type=click.Choice(KINDS), default="process", help="Kind of owner.")
@click.option("--idle-policy", type=click.Choice(POLICIES), default="separate", help="Who is charged for idle energy.")
@click.option("--baseline", metavar="W", help="Idle power: 35W in total, or cpu.0=35W,gpu.0=12W.")
@span_option
@between_option
@click.option("--top", type=click.IntRange(min=1), default=20, help="Print this many owners and sum up the others.")
@output_options
def ledger(
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
    output.result("ledger", LedgerReport(opened.name, found, top))


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


@click.command("list", cls=Verb)
@click.option(
    "--sum", "sum_tag", default=None, metavar="TAG", help="Add up runs: tag=value, or a tag for one sum per value."
)
@click.option("--tag", "tags", type=TAG, multiple=True, help="List only runs with this tag.")
@click.option("--limit", type=int, default=50, show_default=True, help="List at most this many, newest first.")
@output_options
def list_(sum_tag: str | None, tags: tuple[tuple[str, str], ...], limit: int, output: Output) -> None:
    """List runs, or add them up: `list --sum project=alpha`, `list --sum project` (or `--sum tag=project`)."""
    empty_spool()
    home = existing_home(settings_here().home)
    runs = [run for _, run in readable(list_runs(home), load, output.warn)]
    chosen = [run for run in runs if all(run.meta.get("tags", {}).get(key) == value for key, value in tags)]
    if sum_tag is None:
        listed = list(readable(chosen[-limit:] if limit > 0 else chosen, Run.energy, output.warn))
        output.result("runs", RunList(home, listed))
        if not listed:
            output.say(f"There are no runs in {home}{' with this tag' if tags else ''}.")
        return
    found = sums_by_tag(chosen, sum_tag, output.warn)
    if not found.groups:
        output.say(f"No run has the tag {sum_tag}.")
    output.result("sums", found)


@click.command(cls=Verb)
@run_argument
@span_option
@click.option("--device", default=None, help="Restrict to this device, such as gpu.0.")
@click.option("--net", is_flag=True, help="Explain net energy (above idle).")
@output_options
def why(run: str, span: str | None, device: str | None, net: bool, output: Output) -> None:
    """Explain where the interval of a run's energy comes from, and what would narrow it and by how much."""
    opened = load(run)
    energy = opened.energy_net(span) if net else opened.energy(span, device=device)
    if energy.joules is None:
        known = net and opened.energy(span).joules is not None  # then the reason says how to measure idle
        cure = None if known else "everywatt doctor"
        raise MeasurementRefused(energy.refused or "No energy was measured.", cure=cure)
    chosen = (
        opened.duration_s if span is None else sum(s.duration_s or 0 for s in opened.spans if span in (s.id, s.name))
    )
    output.result("why", Why(opened.name, energy, causes(energy, chosen)))
