"""`everywatt sensors`: what exists, what works, one real value of each channel, and why the others do not."""

from __future__ import annotations

import os

import click

from everywatt.cli.common.options import Verb, estimate_option, output_options, sensors_option, settings_here
from everywatt.cli.common.output import Output
from everywatt.core.errors import NoSensor
from everywatt.doctor.coverage import SensorList, probe_all
from everywatt.sensors.base import Request
from everywatt.sensors.registry import known


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
    found = SensorList(reports, covered, everything or settings.sensors is not None)
    output.result("sensors", found)
    if found.power or settings.estimate:
        return 0
    output.error("No sensor on this machine delivers power, and estimates are disabled.")
    return NoSensor.exit_code
