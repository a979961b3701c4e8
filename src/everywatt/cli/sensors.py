"""`everywatt sensors`: what exists, what works, one real value of each channel, and why the others do not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from everywatt.cli.common.options import Verb, estimate_option, output_options, sensors_option, settings_here
from everywatt.cli.common.output import Output
from everywatt.core.errors import NoSensor
from everywatt.core.format import format_bytes
from everywatt.core.tables import Table
from everywatt.doctor.coverage import NOT_USED, Coverage, coverage, every_report, shown
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.registry import choose, known, must_be_known


@click.command(cls=Verb)
@click.option("--all", "everything", is_flag=True, help="Also list absent sensors and channels of sensors not in use.")
@sensors_option
@estimate_option
@output_options
def command(everything: bool, sensors: str | None, estimate: bool | None, output: Output) -> int:
    """List the sensors of this machine: what a total will contain, which sensors work, and a value of each channel.

    The exit code is 4 if no sensor delivers power and --no-estimate rules out the modelled sensor.
    """
    settings = settings_here({"sensors": sensors, "estimate": estimate}, quiet=output.quiet)
    request = Request(
        devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        estimate=settings.estimate,
        options=settings.options,
        sensors=settings.sensors,
    )
    reports, covered = probe_all(known(), request, settings.sensors)
    power = any(report.usable and report.power for report in reports)
    total = {"scope": covered.scope or None, "parts": [part.label for part in covered.total]}
    output.json("sensors", {"sensors": [report_row(report) for report in reports], "power": power, "total": total})
    show(reports, covered, output, everything=everything or settings.sensors is not None)
    if power or settings.estimate:
        return 0
    output.error("No sensor on this machine delivers power, and estimates are disabled.")
    return NoSensor.exit_code


def probe_all(
    targets: Mapping[str, str], request: Request, wanted: Sequence[str] | None = None
) -> tuple[list[Report], Coverage]:
    """What each sensor says of itself, and what a run would add up. `wanted` limits the sensors by name.

    Replay has no hardware to probe. A sensor that a run would not use, because a better one works, is probed as well.
    """
    must_be_known(wanted or (), targets)
    names = list(wanted or [name for name in targets if name != "replay"])
    choice = choose({name: targets[name] for name in names}, request, wanted)
    covered = coverage(group.info for group in choice.groups)
    for group in choice.groups:
        group.close()
    reports = every_report(choice, targets, request)
    return [reports[name] for name in names if name in reports], covered


def report_row(report: Report) -> dict[str, Any]:
    """One sensor as plain data."""
    return {
        "sensor": report.sensor,
        "state": str(report.state),
        "power": report.power and report.usable,
        "why": report.why or None,
        "cure": report.cure,
        "samples": dict(report.samples),
        "missing": dict(report.missing),
        "devices": [dict(device) for device in report.devices],
    }


def show(reports: Sequence[Report], covered: Coverage, output: Output, *, everything: bool) -> None:
    """What a total contains, then tables: the sensors that work or could, the cards, the channels in use."""
    _show_total(covered, output)
    order = [State.USABLE, State.UNUSABLE, State.ABSENT]
    listed = [report for report in reports if everything or report.state is not State.ABSENT]
    listed.sort(key=lambda report: (order.index(report.state), report.why.startswith(NOT_USED)))
    absent = [report.sensor for report in reports if report not in listed]
    if listed:
        rows = [[r.sensor, r.state, len(r.samples) or None, r.why or None, r.cure] for r in listed]
        output.table(Table.of("SENSOR", "STATE", "CHANNELS", "REASON", "FIX", rows=rows, right=[2]))
    if absent:
        output.text()
        output.text(f"absent  {', '.join(absent)} (reasons: everywatt sensors --all)")
    cards = {str(device["uuid"]): device for report in reports for device in report.devices if device.get("uuid")}
    if cards:
        output.text()
        output.table(
            Table.of(
                "CARD", "NAME", "MEMORY", "MEASURED", "UUID", rows=[_card(card) for card in cards.values()], right=[2]
            )
        )
    values = [
        [report.sensor, channel, shown(channel, value), report.missing.get(channel)]
        for report in listed
        if report.usable and (everything or not report.why.startswith(NOT_USED))
        for channel, value in _channels(report).items()
    ]
    if values:
        output.text()
        output.table(Table.of("SENSOR", "CHANNEL", "VALUE", "REASON", rows=values, right=[2]))


def _show_total(covered: Coverage, output: Output) -> None:
    if not covered.parts:
        return
    by_way: dict[str, list[str]] = {}
    for part in covered.total:
        by_way.setdefault(part.pedigree, []).append(part.label)
    ways = "; ".join(f"{' + '.join(labels)} ({way})" for way, labels in by_way.items())
    output.text(f"total   {covered.scope}: {ways}")
    if covered.others:
        output.text(f"beside  {', '.join(part.text for part in covered.others)}")
    output.text()


def _card(card: Mapping[str, Any]) -> list[str | None]:
    memory = card.get("memory_bytes")
    measured = "yes" if card.get("selected", True) else "no: CUDA_VISIBLE_DEVICES"
    return [
        str(card["device"]),
        str(card.get("name") or "") or None,
        None if memory is None else format_bytes(float(memory)),
        measured,
        str(card["uuid"]),
    ]


def _channels(report: Report) -> dict[str, float | None]:
    """The channels with a value, then those without."""
    return {**report.samples, **{name: None for name in report.missing if name not in report.samples}}
