"""Cray and HPE EX nodes: /sys/cray/pm_counters, joules counted by the blade's controller ten times a second."""

from __future__ import annotations

import re

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.procfs import file_text
from everywatt.sensors.simple import SimpleGroup, SimpleSensor
from everywatt.sensors.sysfs import entries

PERIOD_S = 0.1
_ENERGY = re.compile(r"(?:(\w+)_)?energy")
_VALUE = re.compile(r"(\d{1,18}) J(?: (\d{1,18}) us)?")


def parse_counter(text: str) -> float | None:
    """Joules of `100 J 1734094386462336 us`, None for anything else."""
    match = _VALUE.fullmatch(text)
    return float(match[1]) if match else None


class Cray(SimpleSensor):
    """The sensor. The node's own counter is its total; those of its parts are recorded beside and never added."""

    name = "cray"
    absent = "There is no /sys/cray/pm_counters."

    def find(self) -> list[SimpleGroup]:
        folder = self.machine.sys / "cray" / "pm_counters"
        names = sorted(
            (p.name for p in entries(folder) if _ENERGY.fullmatch(p.name)), key=lambda name: name != "energy"
        )

        def values() -> tuple[float, ...]:
            found = [parse_counter(file_text(folder / name)) for name in names]
            if names[0] != "energy" or found[0] is None:
                raise SensorError("pm_counters exist, but energy cannot be read.")
            return tuple(NAN if value is None else value for value in found)

        info = GroupInfo("cray", self.name, "node", tuple(map(_channel, names)), label="pm_counters")
        return [SimpleGroup(info, values, self.machine.clock, round(PERIOD_S * NS))] if names else []


def _channel(name: str) -> Channel:
    part = name.removesuffix("energy").strip("_")
    domain = None if part else Domain.NODE
    full = f"node.{part}.energy" if part else "node.energy"
    return Channel(full, "J", Kind.COUNTER, "node", domain, facts=Facts(period_s=PERIOD_S, quantum=1.0))
