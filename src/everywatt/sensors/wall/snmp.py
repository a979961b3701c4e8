"""Power distribution units by SNMP: APC and Raritan, or any object that holds watts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.core.channels import Domain
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Request
from everywatt.sensors.json_device import secret
from everywatt.sensors.meters import Meter, SlowMeters, power_channel
from everywatt.sensors.wall.snmp_v3 import get_v3, user_of
from everywatt.sensors.wall.snmp_wire import get, parse_oid

Get = Callable[..., dict[str, int | None]]
_APC, _RARITAN = "1.3.6.1.4.1.318.1.1.26", "1.3.6.1.4.1.13742.6"
_ACTIVE_POWER = 5


@dataclass(frozen=True, slots=True)
class Watts:
    """An object that holds power: one count is `scale_w` watts, divided by 10 to the digits that another one tells."""

    name: str
    oid: str
    scale_w: float = 1.0
    digits_oid: str | None = None


def objects(options: Mapping[str, Any]) -> list[Watts]:
    """The objects that options name: `oid` with `scale_w`, or a kind with `outlets` (all of the unit, without them)."""
    outlets = options.get("outlets") or []
    outlets = [outlets] if isinstance(outlets, int) else list(outlets)
    if not all(isinstance(outlet, int) and not isinstance(outlet, bool) and outlet > 0 for outlet in outlets):
        raise SensorError("[sensor.snmp] outlets must be numbers from 1 up.")
    if options.get("oid"):
        scale = options.get("scale_w", 1.0)
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise SensorError("[sensor.snmp] scale_w must be the watts of one count.")
        return [Watts("object", str(options["oid"]), float(scale))]
    kind, unit = options.get("kind"), options.get("unit", 1)
    if not isinstance(unit, int) or unit < 1:
        raise SensorError("[sensor.snmp] unit must be a number from 1 up.")
    if kind == "apc":
        whole = [Watts("unit", f"{_APC}.4.3.1.5.{unit}", 10.0)]  # hundredths of a kilowatt
        return [Watts(f"outlet{n}", f"{_APC}.9.4.3.1.7.{n}") for n in outlets] or whole
    if kind == "raritan":
        return [_raritan(f"outlet{n}", 5, 4, unit, n) for n in outlets] or [_raritan("inlet", 3, 2, unit, 1)]
    raise SensorError("[sensor.snmp] kind must be apc or raritan, or oid must name an object.")


def _raritan(name: str, about: int, measured: int, unit: int, index: int) -> Watts:
    place = f"{unit}.{index}.{_ACTIVE_POWER}"
    return Watts(name, f"{_RARITAN}.5.{measured}.3.1.4.{place}", 1.0, f"{_RARITAN}.3.{about}.4.1.7.{place}")


def watts_of(wanted: Watts, values: Mapping[str, int | None]) -> float:
    """The watts of an answer. SensorError where the unit does not measure that (it says −1, or nothing)."""
    raw = values.get(wanted.oid)
    if raw is None or raw < 0:
        raise SensorError(f"{wanted.name}: the PDU does not measure its power.")
    digits = 0 if wanted.digits_oid is None else values.get(wanted.digits_oid)
    if digits is None or not 0 <= digits <= 9:
        raise SensorError(f"{wanted.name}: the PDU does not report its decimal digits.")
    return float(raw * wanted.scale_w / 10**digits)


class Snmp(SlowMeters):
    """The sensor. Options: host, port, kind (apc, raritan) and outlets, or oid and scale_w; version; community_file,
    or user with auth_file and privacy_file.
    """

    name = "snmp"
    needs = "host"

    def __init__(self, request: Request, *, get: Get = get) -> None:
        super().__init__(request)
        self._get = get

    def meters(self) -> list[Meter]:
        """One meter for each outlet."""
        return [self._meter(wanted) for wanted in objects(self.options)]

    def _meter(self, wanted: Watts) -> Meter:
        host, port = str(self.options["host"]), self.options.get("port", 161)
        if not isinstance(port, int) or not 0 < port < 65536:
            raise SensorError("[sensor.snmp] port must be a number from 1 to 65535.")
        oids: Sequence[str] = [oid for oid in (wanted.oid, wanted.digits_oid) if oid]
        for oid in oids:
            try:
                parse_oid(oid)
            except ValueError as error:
                raise SensorError(f"[sensor.snmp] {error}.") from None

        asking = self._asking(host, port)

        def ask() -> tuple[float, ...]:
            return (watts_of(wanted, asking(oids)),)

        device = f"wall.{wanted.name}"
        return Meter(device, (power_channel(device, Domain.WALL, self.facts(quantum=wanted.scale_w)),), ask, host)

    def _asking(self, host: str, port: int) -> Callable[[Sequence[str]], dict[str, int | None]]:
        """How the PDU is asked for objects: by a community (versions 1, 2c) or as a user (version 3)."""
        version, timeout_s, environ = str(self.options.get("version", "2c")), self.timeout_s / 2, self.machine.environ
        if version == "3":
            user = user_of(self.options, environ)
            return lambda oids: get_v3(host, port, user, oids, timeout_s=timeout_s)
        number = {"1": 0, "2c": 1}.get(version)
        if number is None:
            raise SensorError("[sensor.snmp] version must be 1, 2c or 3.")
        word = secret(self.options.get("community_file"), environ.get("EVERYWATT_SNMP_COMMUNITY")) or "public"
        return lambda oids: self._get(host, port, word, oids, timeout_s=timeout_s, version=number)
