"""AMD GPUs by AMD's own library, amdsmi, where it is installed: an energy counter, and power."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.core.jsonio import number
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request
from everywatt.sensors.meters import power_channel
from everywatt.sensors.node.hwmon import card_devices
from everywatt.sensors.simple import Absent, SimpleGroup, SimpleSensor
from everywatt.sensors.sysfs import short_pci, socket_of, unmoved

# No published comparison of AMD's own readings with a meter is known to us: their gain and offset are unknown.
FACTS = Facts(quantum=1.0)
POWER = ("current_socket_power", "average_socket_power", "socket_power")
# Some counters never move. Drivers refresh them at least every 100 ms, and an idle card draws several watts.
MOVES_NS, STEP_NS = NS // 5, 5_000_000
COUNT = ("energy_accumulator", "power")  # the second by early versions
Value = TypeVar("Value")


def hwmon_cards(machine: Machine) -> dict[str, str]:
    """Socket (PCI address without function) → the device under which the hwmon sensor records that AMD card's power."""
    return {socket: device for socket, (device, chip) in card_devices(machine.sys).items() if chip == "amdgpu"}


def device_of(pci: str | None, index: int, known: dict[str, str]) -> str:
    """The name of a card: hwmon's where it has one, so that the same joules are never added twice."""
    return known.get(socket_of(pci) or "", f"amdgpu.{index}")


def socket_w(info: Any) -> float | None:
    """Watts of `amdsmi_get_power_info`; 0 and 65535 are what cards say that do not have that reading."""
    for key in POWER:
        value = number(info.get(key)) if isinstance(info, Mapping) else None
        if value is not None and 0 < value < 65535:
            return value
    return None


def counted(info: Any) -> tuple[float, float] | None:
    """Count and microjoules of one count of `amdsmi_get_energy_count`."""
    if not isinstance(info, Mapping):
        return None
    count = next((value for key in COUNT if (value := number(info.get(key))) is not None), None)
    step_uj = number(info.get("counter_resolution"))
    return (count, step_uj) if count is not None and step_uj and step_uj > 0 and count > 0 else None


def _tried(ask: Callable[[], Value | None]) -> tuple[Value | None, str]:
    """What `ask` gives, and why it gives nothing."""
    try:
        found = ask()
    except Exception as error:  # noqa: BLE001 - the library raises its own kinds, and a card may be lost
        return None, f"{type(error).__name__}: {error}"
    return found, "" if found is not None else "no value"


class AmdSmi(SimpleSensor):
    """The sensor. `load` gives the library's module."""

    name = "amdsmi"
    absent = "amdsmi finds no card."

    def __init__(
        self, request: Request, *, load: Callable[[], Any] = lambda: importlib.import_module("amdsmi")
    ) -> None:
        super().__init__(request)
        self._load = load
        self._library: Any = None
        self._handles: list[Any] = []

    def find(self) -> Iterator[SimpleGroup]:
        """One group for each socket, by the first of its partitions that gives something."""
        self._open_library()
        known, sockets, some = hwmon_cards(self.machine), self._sockets(), False
        if len(self._handles) > len(sockets):
            self.how = f"{len(self._handles)} partitions of {len(sockets)} socket(s), each socket counted once"
        for index, (pci, parts) in enumerate(sockets):
            device = device_of(pci, index, known)
            found = next(filter(None, (self._card(handle, device) for handle in parts)), None)
            if found is None:
                self.missing[f"{device}.power"] = f"card {index}: amdsmi reports neither energy nor power"
            else:
                some = True
                yield found
        if sockets and not some:
            raise SensorError("; ".join(self.missing.values()))

    def _open_library(self) -> None:
        try:
            self._library = self._load()
        except ImportError:
            raise Absent("The amdsmi library is not installed.") from None
        except Exception as error:
            raise SensorError(f"amdsmi cannot be loaded: {error}") from error
        try:
            self._library.amdsmi_init()
            self._handles = list(self._library.amdsmi_get_processor_handles())
        except Exception as error:
            raise SensorError(f"amdsmi finds no driver: {error}", cure="modprobe amdgpu") from error

    def _sockets(self) -> list[tuple[str | None, list[Any]]]:
        """PCI address and handles of each socket: partitions repeat its power, so they belong together."""
        found: dict[Any, tuple[str | None, list[Any]]] = {}
        for place, handle in enumerate(self._handles):
            address, why = _tried(partial(self._library.amdsmi_get_gpu_device_bdf, handle))
            pci = short_pci(str(address))
            if why:
                self.missing[f"PCI address of card {place}"] = why
            found.setdefault(socket_of(pci) or place, (pci, []))[1].append(handle)
        return list(found.values())

    def _card(self, handle: Any, device: str) -> SimpleGroup | None:
        """A socket by one of its handles; None where that gives nothing."""
        library = self._library
        channels: list[Channel] = []
        asks: list[Callable[[], float | None]] = []

        def count() -> tuple[float, float] | None:
            return counted(library.amdsmi_get_energy_count(handle))

        def watts() -> float | None:
            return socket_w(library.amdsmi_get_power_info(handle))

        def values() -> tuple[float, ...]:
            found = [_tried(ask) for ask in asks]
            if found[0][0] is None:
                raise SensorError(f"{device} delivers no {channels[0].name.rpartition('.')[2]}: {found[0][1]}.")
            return tuple(NAN if value is None else value for value, _ in found)

        energy, why = _tried(count)
        clock = self.machine.clock
        if energy is not None and unmoved({"": energy}, lambda _: _tried(count)[0], clock, MOVES_NS, STEP_NS):
            why = f"the counter did not move in {MOVES_NS / NS:g} s"
        if why:
            self.missing[f"{device}.energy"] = why
        elif energy is not None:
            scale = energy[1] * 1e-6
            facts = Facts(quantum=scale)
            channels.append(
                Channel(f"{device}.energy", "J", Kind.COUNTER, device, Domain.GPU, scale, facts=facts, in_slot=True)
            )
            asks.append(lambda: (count() or (None,))[0])
            self.missing.pop(f"{device}.energy", None)  # of another partition
        if _tried(watts)[0] is not None:
            channels.append(replace(power_channel(device, Domain.GPU, FACTS), in_slot=True))
            asks.append(watts)
        info = GroupInfo(f"amdsmi.{device}", self.name, device, tuple(channels))
        return SimpleGroup(info, values, clock, end=self.one_closed) if channels else None

    def close(self) -> None:
        if self._library is not None:
            _tried(lambda: self._library.amdsmi_shut_down())  # it fails where there is no driver, which was reported
