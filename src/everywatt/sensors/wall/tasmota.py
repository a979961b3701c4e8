"""Plugs with Tasmota firmware, by HTTP: watts at the wall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.errors import SensorError
from everywatt.net.url import Login
from everywatt.sensors.json_device import JsonDevice, login_of, number
from everywatt.sensors.meters import Meter, SlowMeters, power_channel

KWH_J = 3.6e6


def energy_of(status: Any) -> tuple[list[float], float | None]:
    """Watts of each channel and the joules counted so far, from the answer to `Status 8` (`StatusPWR` before 2019)."""
    found: Any = {}
    if isinstance(status, Mapping):
        sensors = status.get("StatusSNS")
        found = sensors.get("ENERGY") if isinstance(sensors, Mapping) else status.get("StatusPWR")
    if not isinstance(found, Mapping):
        return [], None
    power = found.get("Power")
    watts = [number(entry) for entry in power] if isinstance(power, list) else [number(power)]
    total = number(found.get("Total"))
    good_ones = [value for value in watts if value is not None]
    if len(good_ones) != len(watts):
        return [], None
    return good_ones, None if total is None else total * KWH_J


class Tasmota(SlowMeters):
    """The sensor. Options: url (one or several), channel (a number from 0, where a plug has more than one)."""

    name = "tasmota"

    def meters(self) -> list[Meter]:
        """One meter for each address."""
        login = login_of(self.name, self.options, self.machine.environ)
        urls = self.several("url")
        return [self._meter(url, f"wall.tasmota{f'-{n}' if n else ''}", login) for n, url in enumerate(urls)]

    def _meter(self, url: str, device: str, login: Login | None) -> Meter:
        site = JsonDevice(url, timeout_s=self.timeout_s)
        # The device takes credentials as arguments only. Messages name its host, never the whole address.
        who = {"user": login.user, "password": login.password} if login else {}
        path = "/cm?" + urlencode({**who, "cmnd": "Status 8"})
        channel = self.options.get("channel")

        def ask() -> tuple[float, ...]:
            watts, joules = energy_of(site.get(path))
            if not watts:
                raise SensorError(f"{site.host} reports no power.")
            if channel is None and len(watts) > 1:
                raise SensorError(f"{site.host} has {len(watts)} channels.", cure="[sensor.tasmota] channel")
            if channel is not None and (not isinstance(channel, int) or not 0 <= channel < len(watts)):
                raise SensorError(f"{site.host} has no channel {channel!r}; it has {len(watts)}.")
            return (watts[channel or 0], float("nan") if joules is None else joules)

        power = power_channel(device, Domain.WALL, self.facts(quantum=1.0))
        energy = Channel(f"{device}.energy", "J", Kind.COUNTER, device)
        return Meter(device, (power, energy), ask, "Tasmota")
