"""Plugs and meters on the network by HTTP, watts at the wall: Shelly (generation 1 and later) and Tasmota firmware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from everywatt.core.channels import NAN, Channel, Domain, Kind
from everywatt.core.errors import SensorError
from everywatt.core.jsonio import number
from everywatt.core.units import J_PER_KWH
from everywatt.net.url import Login
from everywatt.sensors.json_device import JsonDevice
from everywatt.sensors.meters import PolledGroup, SlowMeters, power_channel

WH_J = 3600.0
_POWER = ("apower", "act_power", "total_act_power")


def channels_of(status: Any) -> dict[str, tuple[float, float | None]]:
    """Watts, and the joules counted so far, of each channel of a status: `switch:0`, or `meter:0` of the first ones.

    Generation 1 counts watt-minutes for relays and watt-hours for clamps, later ones watt-hours.
    """
    found: dict[str, tuple[float, float | None]] = {}
    if not isinstance(status, Mapping):
        return found
    for kind, unit_j in (("meters", 60.0), ("emeters", WH_J)):
        entries = status.get(kind)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, Mapping) and entry.get("is_valid", True) is True:
                _add(found, f"{kind[:-1]}:{index}", number(entry.get("power")), number(entry.get("total")), unit_j)
    for key, entry in status.items():
        if not isinstance(entry, Mapping) or key.partition(":")[0] not in (
            "switch",
            "pm1",
            "em1",
            "em",
            "cover",
            "light",
        ):
            continue
        watts = next((number(entry[word]) for word in _POWER if word in entry), None)
        energy = entry.get("aenergy")
        _add(found, key, watts, number(energy.get("total")) if isinstance(energy, Mapping) else None, WH_J)
    return found


def _add(
    found: dict[str, tuple[float, float | None]], key: str, watts: Any, total: float | None, unit_j: float
) -> None:
    if watts is not None:
        found[key] = (watts, None if total is None else total * unit_j)


class Plugs(SlowMeters):
    """Plugs of one maker, one or several addresses in `url`."""

    def meters(self) -> list[PolledGroup]:
        urls, login = self.several("url"), self.login()
        return [self.plug(url, f"wall.{self.name}{f'-{n}' if n else ''}", login) for n, url in enumerate(urls)]

    def plug(self, url: str, device: str, login: Login | None) -> PolledGroup:
        raise NotImplementedError

    def plug_meter(
        self, device: str, label: str, quantum_w: float, read: Callable[[], tuple[float, float | None]]
    ) -> PolledGroup:
        """A meter of watts and of the joules counted so far, which `read` gives."""

        def ask() -> tuple[float, ...]:
            watts, joules = read()
            return (watts, NAN if joules is None else joules)

        power = power_channel(device, Domain.WALL, self.facts(quantum=quantum_w))
        # Its own count moves once a minute: kept as a witness, too coarse for a window.
        energy = Channel(f"{device}.energy", "J", Kind.COUNTER, device)
        return self.meter([power, energy], ask, label)


class Shelly(Plugs):
    """The sensor. Options: url (one or several), channel (`switch:0`, `em1:1`, `meter:0`, … where there are more)."""

    name = "shelly"

    def plug(self, url: str, device: str, login: Login | None) -> PolledGroup:
        site = JsonDevice(url, timeout_s=self.timeout_s, login=login)
        about = site.get("/shelly")
        if not isinstance(about, Mapping):
            raise SensorError(f"{site.host} is not a Shelly.")
        path, quantum_w = ("/rpc/Shelly.GetStatus", 0.1) if "gen" in about else ("/status", 0.01)
        wanted = self.options.get("channel")
        label = str(about.get("name") or about.get("model") or about.get("type") or "Shelly")
        return self.plug_meter(device, label, quantum_w, lambda: _one(channels_of(site.get(path)), wanted, site.host))


def _one(found: Mapping[str, tuple[float, float | None]], wanted: Any, host: str) -> tuple[float, float | None]:
    if wanted is not None and wanted in found:
        return found[wanted]
    if wanted is None and len(found) == 1:
        return next(iter(found.values()))
    listed = ", ".join(found) or "none"
    if wanted is not None:
        raise SensorError(f"{host} has no channel '{wanted}'; it has: {listed}.")
    if not found:
        raise SensorError(f"{host} reports no power.")
    raise SensorError(f"{host} has several channels: {listed}.", cure="[sensor.shelly] channel")


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
    return good_ones, None if total is None else total * J_PER_KWH


class Tasmota(Plugs):
    """The sensor. Options: url (one or several), channel (a number from 0, where a plug has more than one)."""

    name = "tasmota"

    def plug(self, url: str, device: str, login: Login | None) -> PolledGroup:
        """One plug. It takes credentials as arguments only; messages name its host, never the whole address."""
        site = JsonDevice(url, timeout_s=self.timeout_s)
        who = {"user": login.user, "password": login.password} if login else {}
        path = "/cm?" + urlencode({**who, "cmnd": "Status 8"})
        channel = self.options.get("channel")

        def read() -> tuple[float, float | None]:
            watts, joules = energy_of(site.get(path))
            if not watts:
                raise SensorError(f"{site.host} reports no power.")
            if channel is None and len(watts) > 1:
                raise SensorError(f"{site.host} has {len(watts)} channels.", cure="[sensor.tasmota] channel")
            if channel is not None and (not isinstance(channel, int) or not 0 <= channel < len(watts)):
                raise SensorError(f"{site.host} has no channel {channel!r}; it has {len(watts)}.")
            return watts[channel or 0], joules

        return self.plug_meter(device, "Tasmota", 1.0, read)
