"""Power of the whole machine from its BMC by Redfish: old schemas (Power) and new (EnvironmentMetrics, PowerSubsystem).

The BMC is asked over verified TLS with a session, which is ended again. Credentials are sent to no other host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from everywatt.core.channels import Domain
from everywatt.core.errors import SensorError
from everywatt.core.jsonio import number
from everywatt.net.url import Login
from everywatt.sensors.json_device import JsonDevice, good
from everywatt.sensors.meters import PolledGroup, SlowMeters, power_channel

ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
MOST_MEMBERS = 64
_TOTAL_WORDS = ("total", "system", "consum", "chassis", "input power", "pwr consumption")
_PARTS = (
    "cpu",
    "memory",
    "gpu",
    "accelerator",
    "processor",
    "fan",
    "storagedevice",
    "networkingdevice",
    "dimm",
    "pcie",
)
# Chassis that are parts of a machine: boards of accelerators list dozens, each with a power of its own.
_PART_TYPES = ("Component", "Module", "Card", "Cartridge", "StorageEnclosure", "Zone", "Expansion")
Get = Callable[[str], Any]


class BmcSession:
    """A BMC that is logged in to as soon as it asks for it, and once more where the session has run out."""

    def __init__(self, site: JsonDevice, login: Login | None) -> None:
        if login is not None and not site.url.tls:
            raise SensorError("Credentials are only sent over https.", cure="url = https://…")
        self.site = site
        self._login = login
        self._token: str | None = None
        self._place: str | None = None

    def get(self, path: str) -> Any:
        answer = self.site.request("GET", path, headers=self._headers())
        if answer.status == 401 and self._login is not None:
            self._enter()
            answer = self.site.request("GET", path, headers=self._headers())
        return good(answer, self.site.host)

    def _headers(self) -> dict[str, str]:
        return {"X-Auth-Token": self._token} if self._token else {}

    def _enter(self) -> None:
        assert self._login is not None
        body = json.dumps({"UserName": self._login.user, "Password": self._login.password}).encode()
        answer = self.site.request("POST", SESSIONS, body)
        token = answer.headers.get("x-auth-token")
        if answer.status not in (200, 201) or not token:
            raise SensorError(f"{self.site.host} refuses access: status {answer.status}.")
        self._token = token
        self._place = urlsplit(answer.headers.get("location", "")).path or None

    def close(self) -> None:
        """Log out; a BMC has few sessions."""
        if self._token and self._place:
            try:
                self.site.request("DELETE", self._place, headers=self._headers())
            except SensorError:
                pass  # a BMC that does not answer now ends the session by its own timeout
        self._token = self._place = None
        self.site.close()


def power_w(data: Any) -> float | None:
    """Watts of a Power object: what its first control of the whole consumes, else what goes into all its supplies.

    Averages and limits are something else, and so is what supplies give out.
    """
    controls = _table(data).get("PowerControl")
    for control in map(_table, controls if isinstance(controls, list) else [controls]):
        watts = number(control.get("PowerConsumedWatts"))
        if watts is not None and not _of_a_part(control):
            return watts
    supplies = _table(data).get("PowerSupplies")
    present = [one for one in map(_table, supplies if isinstance(supplies, list) else []) if not _absent(one)]
    return _whole([number(one.get("PowerInputWatts")) for one in present])


def _of_a_part(control: Mapping[str, Any]) -> bool:
    """True for a control of processors, memory and the like, which some vendors list beside that of the machine."""
    context = str(control.get("PhysicalContext") or "").lower()
    name = f"{control.get('Name', '')} {control.get('MemberId', '')}".lower()
    return context in _PARTS or any(re.search(rf"\b{part}\b", name) for part in _PARTS)


def _absent(thing: Mapping[str, Any]) -> bool:
    return _table(thing.get("Status")).get("State") == "Absent"


def sensor_w(data: Any) -> float | None:
    """Watts of a Sensor object that is about the whole machine."""
    table = _table(data)
    words = f"{table.get('Id', '')} {table.get('Name', '')}".lower()
    whole = table.get("PhysicalContext") == "Chassis" or any(word in words for word in _TOTAL_WORDS)
    power = table.get("ReadingType") == "Power" and table.get("ReadingUnits") in ("W", "Watts", None)
    return number(table.get("Reading")) if whole and power else None


def reading_w(data: Any, name: str) -> float | None:
    """A number, or the reading of a sensor, that an object has under a name."""
    value = _table(data).get(name)
    return number(value.get("Reading") if isinstance(value, Mapping) else value)


def _whole(watts: Sequence[float | None]) -> float | None:
    """The sum, where all of them are known: a part is no total."""
    known = [value for value in watts if value is not None]
    return sum(known) if known and len(known) == len(watts) else None


def _table(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {}


def _link(data: Any, name: str) -> str | None:
    found = _table(_table(data).get(name)).get("@odata.id")
    return found if isinstance(found, str) and found.startswith("/") else None


def _members(get: Get, path: str | None) -> list[str]:
    """What a collection lists, over all its pages."""
    found: list[str] = []
    pages = 0
    while path is not None and len(found) < MOST_MEMBERS and pages < MOST_MEMBERS:
        page, pages = _table(get(path)), pages + 1
        entries = page.get("Members")
        places = [_table(entry).get("@odata.id") for entry in (entries if isinstance(entries, list) else ())]
        found += [place for place in places if isinstance(place, str) and place.startswith("/")]
        following = page.get("Members@odata.nextLink")
        path = following if isinstance(following, str) and following.startswith("/") else None
    return found[:MOST_MEMBERS]


def find_power(get: Get, chassis: str | None = None) -> tuple[str, Callable[[], float | None]] | None:
    """Where a BMC reports the power of its machine, and a function that reads it: the first that gives a number.

    A chassis that is a part of the machine counts only where it is asked for by its id.
    """
    trouble: SensorError | None = None
    for place in _members(get, f"{ROOT}/Chassis"):
        if chassis is not None and place.rstrip("/").rpartition("/")[2] != chassis:
            continue
        try:
            about = get(place)
        except SensorError as error:
            trouble = error  # one that is listed and does not answer; another may
            continue
        if chassis is None and _table(about).get("ChassisType") in _PART_TYPES:
            continue
        for where, ask in _ways(get, about):
            try:
                watts = ask()
            except SensorError:
                continue  # a schema that is listed and not there
            if watts is not None and watts > 0:
                return where, ask
    if trouble is not None:
        raise trouble
    return None


def _ways(get: Get, chassis: Any) -> Iterator[tuple[str, Callable[[], float | None]]]:
    metrics = _link(chassis, "EnvironmentMetrics")
    if metrics:
        yield metrics, lambda: reading_w(get(metrics), "PowerWatts")
    power = _link(chassis, "Power")
    if power:
        yield power, lambda: power_w(get(power))
    supplies = _supplies(get, _link(chassis, "PowerSubsystem"))
    if supplies:
        yield (
            f"{len(supplies)} power supplies",
            lambda: _whole([reading_w(get(place), "InputPowerWatts") for place in supplies]),
        )
    try:
        sensors = _members(get, _link(chassis, "Sensors"))
    except SensorError:
        sensors = []
    for place in sensors:
        yield place, lambda place=place: sensor_w(get(place))  # type: ignore[misc]


def _supplies(get: Get, subsystem: str | None) -> list[str]:
    """The metrics of every supply of a subsystem; none where one of them has none."""
    if subsystem is None:
        return []
    try:
        links = [_link(get(place), "Metrics") for place in _members(get, _link(get(subsystem), "PowerSupplies"))]
    except SensorError:
        return []
    found = [link for link in links if link is not None]
    return found if len(found) == len(links) else []


class Redfish(SlowMeters):
    """The sensor. Options: url, user, password_file, ca_file (to trust), chassis (its id, where there are several)."""

    name = "redfish"
    period_s = 2.0

    def meters(self) -> list[PolledGroup]:
        login = self.login()
        ca_file = self.options.get("ca_file")
        site = JsonDevice(
            str(self.options["url"]), ca_file=str(ca_file) if ca_file else None, timeout_s=self.timeout_s, keep=True
        )
        session = BmcSession(site, login)
        try:
            found = find_power(session.get, self.options.get("chassis"))
        except BaseException:
            session.close()
            raise
        if found is None:
            session.close()
            raise SensorError(f"{site.host} reports no power for any chassis.")
        where, ask_watts = found

        def ask() -> tuple[float, ...]:
            watts = ask_watts()
            return (float("nan") if watts is None else watts,)

        channel = power_channel("bmc", Domain.PSU, self.facts(quantum=1.0))
        return [self.meter([channel], ask, f"{site.host} {where}", session.close)]
