"""`everywatt sensors`: what exists, what works, one real value of each channel, and why the others do not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from everywatt.cli.common.options import Verb, estimate_option, output_options, sensors_option, settings_here
from everywatt.cli.common.output import Output
from everywatt.core.errors import NoSensor
from everywatt.core.format import format_bytes, format_quantity
from everywatt.core.tables import Table
from everywatt.sensors.base import Report, Request
from everywatt.sensors.registry import known, must_be_known, probe

# Samples are in SI units, whatever the hardware counts in.
UNITS = (
    ("energy", "J"),
    ("power", "W"),
    ("power_average", "W"),
    ("power_limit", "W"),
    ("utilisation", "%"),
    ("active", "%"),
    ("occupancy", "%"),
    ("temperature", "°C"),
    ("clock_sm", "MHz"),
    ("clock_memory", "MHz"),
    ("_time", "s"),
)


@click.command(cls=Verb)
@sensors_option
@estimate_option
@output_options
def command(sensors: str | None, estimate: bool | None, output: Output) -> int:
    """List the sensors of this machine: which work, a current value of each channel, and why the others are missing.

    The exit code is 4 if no sensor delivers power and --no-estimate rules out the modelled sensor.
    """
    settings = settings_here({"sensors": sensors, "estimate": estimate}, quiet=output.quiet)
    request = Request(
        devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        estimate=settings.estimate,
        options=settings.options,
        sensors=settings.sensors,
    )
    reports = probe_all(known(), request, settings.sensors)
    power = any(report.usable and report.power for report in reports)
    output.json("sensors", {"sensors": [report_row(report) for report in reports], "power": power})
    if output.json_to is None:
        show(reports, output)
    if power or settings.estimate:
        return 0
    output.error("No sensor on this machine delivers power, and estimates are disabled.")
    return NoSensor.exit_code


def probe_all(targets: Mapping[str, str], request: Request, wanted: Sequence[str] | None = None) -> list[Report]:
    """What each sensor says of itself. `wanted` limits them by name. Replay has no hardware to probe."""
    must_be_known(wanted or (), targets)
    names = wanted or [name for name in targets if name != "replay"]
    return [probe(name, targets[name], request)[1] for name in names]


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


def show(reports: Sequence[Report], output: Output) -> None:
    """Tables for a person: the sensors, the cards, then the channels of those that work."""
    rows = [[r.sensor, r.state, len(r.samples) or None, r.why or None, r.cure] for r in reports]
    output.table(Table.of("SENSOR", "STATE", "CHANNELS", "REASON", "FIX", rows=rows, right=[2]))
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
        for report in reports
        if report.usable
        for channel, value in _channels(report).items()
    ]
    if values:
        output.text()
        output.table(Table.of("SENSOR", "CHANNEL", "VALUE", "REASON", rows=values, right=[2]))


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


def shown(channel: str, value: float | None) -> str | None:
    """A value with the unit of its channel, which a channel's last word tells; None where there is no value."""
    if value is None:
        return None
    word = channel.rpartition(".")[2]
    if word == "memory":
        return format_bytes(value)
    unit = next((unit for ending, unit in UNITS if word.endswith(ending)), "")
    return format_quantity(value, unit)


def _channels(report: Report) -> dict[str, float | None]:
    return {**dict.fromkeys(report.missing), **report.samples}
