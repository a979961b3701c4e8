"""Intel Gaudi accelerators by `hl-smi`, whose query prints CSV: every answer is a process."""

from __future__ import annotations

import csv
from typing import NamedTuple

from everywatt.core.channels import NAN, Channel, Domain, Facts, Kind
from everywatt.core.errors import SensorError
from everywatt.sensors.meters import CommandMeters, PolledGroup, first_line, power_channel
from everywatt.sensors.sysfs import numbered, short_pci

# What is asked for, and the channel of each number with its unit and scale. Memory is printed in MiB.
IDENTITY = ("index", "name", "uuid", "bus_id")
NUMBERS = {
    "power.draw": ("power", "W", 1.0),
    "utilization.aip": ("utilisation", "%", 1.0),
    "memory.used": ("memory", "B", 2.0**20),
    "temperature.aip": ("temperature", "°C", 1.0),
}
QUERY = ("-Q", ",".join((*IDENTITY, *NUMBERS)), "-f", "csv,noheader,nounits")
_FACTS = Facts(quantum=1.0)  # whole watts; no comparison with a meter is known


class Gaudi(NamedTuple):
    """One accelerator as hl-smi prints it; a number that it does not give is NaN."""

    number: int
    name: str
    pci: str | None
    values: tuple[float, ...]


def parse_hl_smi(text: str) -> list[Gaudi]:
    """The accelerators in the answer to QUERY. SensorError where no line of it is one."""
    found = []
    for row in csv.reader(text.split("\n"), skipinitialspace=True):
        words = [word.strip() for word in row]
        if len(words) == len(IDENTITY) + len(NUMBERS) and words[0].isdecimal():
            index, name, _, bus = words[: len(IDENTITY)]
            values = tuple(_number(word) for word in words[len(IDENTITY) :])
            found.append(Gaudi(int(index), name, short_pci(bus), values))
    if not found:
        raise SensorError(f"hl-smi lists no accelerator: {first_line(text)}.")
    return sorted(found)


def _number(word: str) -> float:
    """`93`, or `93 W` of a version that prints units anyway; NaN for `N/A`."""
    digits = word.split(" ")[0]
    try:
        value = float(digits)
    except ValueError:
        return NAN
    return value if 0 <= value < 1e7 else NAN


class HlSmi(CommandMeters):
    name = program = "hl-smi"

    def meters(self) -> list[PolledGroup]:
        cards = self._ask()
        sockets = {card.number: card.pci or f"gaudi-{card.number:04d}" for card in cards}
        names = numbered(self.machine.sys, sockets.values())
        channels: list[Channel] = []
        for card in cards:
            device = names[sockets[card.number]]
            channels.append(power_channel(device, Domain.GPU, _FACTS))
            for what, unit, scale in list(NUMBERS.values())[1:]:
                channels.append(Channel(f"{device}.{what}", unit, Kind.GAUGE, device, scale=scale))

        def ask() -> tuple[float, ...]:
            latest = {card.number: card.values for card in self._ask()}
            nothing = (NAN,) * len(NUMBERS)
            return tuple(value for card in cards for value in latest.get(card.number, nothing))

        return [self.meter(channels, ask, cards[0].name)]

    def _ask(self) -> list[Gaudi]:
        return parse_hl_smi(self.output([self.binary, *QUERY]))
