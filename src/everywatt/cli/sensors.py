"""`everywatt sensors`: what exists, what works, one real value of each channel, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from everywatt.cli.options import Verb, estimate_option, output_options, sensors_option
from everywatt.cli.output import Output
from everywatt.core.config import resolve
from everywatt.core.errors import NoSensor, UsageError
from everywatt.sensors.base import Report, Request
from everywatt.sensors.registry import known, probe


@click.command(cls=Verb)
@sensors_option
@estimate_option
@output_options
def command(sensors: str | None, estimate: bool | None, output: Output) -> int:
    """List the sensors of this machine: which work, a real value of each channel, and why the others do not.

    Ends with 4 where nothing delivers power and --no-estimate rules the modelled sensor out.
    """
    settings = resolve({"sensors": sensors, "estimate": estimate})
    for warning in settings.warnings:
        output.warn(warning)
    reports = probe_all(
        known(),
        Request(estimate=settings.estimate, options=settings.options, sensors=settings.sensors),
        settings.sensors,
    )
    power = any(report.usable and report.power for report in reports)
    output.json("sensors", {"sensors": [report_row(report) for report in reports], "power": power})
    if output.json_to is None:
        show(reports, output)
    if power or settings.estimate:
        return 0
    output.error("Nothing on this machine delivers power, and estimates are turned off.")
    return NoSensor.exit_code


def probe_all(targets: Mapping[str, str], request: Request, wanted: Sequence[str] | None = None) -> list[Report]:
    """What each sensor says of itself. `wanted` limits them by name. Replay has no hardware to probe."""
    unknown = [name for name in wanted or () if name not in targets]
    if unknown:
        raise UsageError(f"There is no sensor '{unknown[0]}'.", cure=f"one of: {', '.join(targets)}")
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
    """Tables for a person: the sensors, then the channels of those that work."""
    rows = [[r.sensor, r.state, len(r.samples) or None, r.why or None, r.cure] for r in reports]
    output.table(["SENSOR", "STATE", "CHANNELS", "WHY", "TRY"], rows, right=[2])
    values = [
        [report.sensor, channel, None if value is None else f"{value:.6g}", report.missing.get(channel)]
        for report in reports
        if report.usable
        for channel, value in _channels(report).items()
    ]
    if values:
        output.text()
        output.table(["SENSOR", "CHANNEL", "VALUE", "MISSING BECAUSE"], values, right=[2])


def _channels(report: Report) -> dict[str, float | None]:
    return {**dict.fromkeys(report.missing), **report.samples}
