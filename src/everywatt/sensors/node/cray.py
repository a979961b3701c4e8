"""Cray and HPE EX nodes: /sys/cray/pm_counters, joules counted by the blade's controller ten times a second."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.sysfs import entries, read_text

PERIOD_S = 0.1
_ENERGY = re.compile(r"(?:(\w+)_)?energy")
_VALUE = re.compile(r"(\d{1,18}) J(?: (\d{1,18}) us)?")


def parse_counter(text: str | None) -> float | None:
    """Joules of `100 J 1734094386462336 us`, None for anything else."""
    match = _VALUE.fullmatch((text or "").strip())
    return float(match[1]) if match else None


class CrayGroup:
    """All counters of the node, read in one go."""

    def __init__(self, info: GroupInfo, names: Sequence[str], request: Request) -> None:
        self.info = info
        self._files = [request.machine.sys / "cray" / "pm_counters" / name for name in names]
        self._clock = request.machine.clock

    def read(self) -> list[Row]:
        start_ns = self._clock.monotonic_ns()
        found = [parse_counter(read_text(file)) for file in self._files]
        end_ns = self._clock.monotonic_ns()
        if found[0] is None:
            raise SensorError(f"{self._files[0].name} of pm_counters cannot be read.")
        values = tuple(NAN if value is None else value for value in found)
        return [Row(end_ns, start_ns - round(PERIOD_S * NS), end_ns, values)]

    def close(self) -> None:
        pass


class Cray:
    """The sensor. The node's own counter is its total; those of its parts are recorded beside and never added."""

    name = "cray"
    after: Sequence[str] = ()

    def __init__(self, request: Request) -> None:
        self._request = request
        self._names: list[str] = []

    def probe(self) -> Report:
        """One value of each counter."""
        folder = self._request.machine.sys / "cray" / "pm_counters"
        found = {p.name: parse_counter(read_text(p)) for p in entries(folder) if _ENERGY.fullmatch(p.name)}
        if not found:
            return Report(self.name, State.ABSENT, "There is no /sys/cray/pm_counters.")
        if found.get("energy") is None:
            return Report(self.name, State.UNUSABLE, "pm_counters exist, but energy cannot be read.")
        self._names = sorted((name for name, value in found.items() if value is not None), key=lambda n: n != "energy")
        samples = {_channel(name).name: found[name] for name in self._names}
        missing = {_channel(name).name: "cannot be read" for name, value in found.items() if value is None}
        return Report(self.name, State.USABLE, "", None, samples, missing, [{"device": "node"}])

    def groups(self) -> list[CrayGroup]:
        """One group."""
        if not self._names and not self.probe().usable:
            return []
        channels = tuple(_channel(name) for name in self._names)
        return [
            CrayGroup(GroupInfo("cray", self.name, "node", channels, label="pm_counters"), self._names, self._request)
        ]


def _channel(name: str) -> Channel:
    part = name.removesuffix("energy").strip("_")
    domain = None if part else Domain.NODE
    full = f"node.{part}.energy" if part else "node.energy"
    return Channel(full, "J", Kind.COUNTER, "node", domain, facts=Facts(period_s=PERIOD_S, quantum=1.0))
