"""Raspberry Pi 5: volts and amps of the rails behind its power chip, by `vcgencmd pmic_read_adc`."""

from __future__ import annotations

import re

from everywatt.core.channels import Facts
from everywatt.core.errors import SensorError
from everywatt.sensors.jetson.jetson import rail_channel
from everywatt.sensors.meters import CommandMeters, PolledGroup
from everywatt.sensors.procfs import file_text
from everywatt.sensors.simple import Absent

NOTE = (
    "the sum of the rails behind the power chip, without what the 5 V input feeds directly (USB, the fan, HATs) and "
    "the chip's own losses"
)
_LINE = re.compile(r"\s*(\w+?)_([AV])(?:\s+\w+\(\d{1,3}\))?\s*=\s*(-?\d{1,6}(?:\.\d{1,12})?)([AV])\s*")


def parse_pmic(text: str) -> dict[str, float]:
    """Watts of each rail that has both volts and amps (the input has volts only)."""
    read: dict[str, dict[str, float]] = {}
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match and match[2] == match[4]:
            read.setdefault(match[1], {})[match[2]] = float(match[3])
    return {rail: found["A"] * found["V"] for rail, found in read.items() if len(found) == 2}


class Raspberry(CommandMeters):
    name = "raspberry"
    program = "vcgencmd"
    period_s = 0.5
    age_s = 0.1

    def find(self) -> list[PolledGroup]:
        if "Raspberry Pi" not in file_text(self.machine.proc / "device-tree" / "model"):
            raise Absent("This is not a Raspberry Pi.")
        if not self.binary:
            raise SensorError("vcgencmd was not found on the PATH.", cure="apt install raspi-utils")
        self.devices = [{"device": "pi", "note": NOTE}]
        return super().find()

    def meters(self) -> list[PolledGroup]:
        """All rails, which come in one answer."""
        rails = list(self._ask())
        if not rails:
            raise SensorError("vcgencmd reports no current: only a Raspberry Pi 5 measures it.")
        taken: set[str] = set()
        channels = [rail_channel("pi", rail, Facts(), taken) for rail in rails]

        def ask() -> tuple[float, ...]:
            found = self._ask()
            return tuple(found.get(rail, float("nan")) for rail in rails)

        return [self.meter(channels, ask, "Raspberry Pi")]

    def _ask(self) -> dict[str, float]:
        return parse_pmic(self.output([self.binary, "pmic_read_adc"]))
