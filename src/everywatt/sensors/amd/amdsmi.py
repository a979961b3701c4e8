"""AMD GPUs by AMD's own library, amdsmi, where it is installed: an energy counter, and power."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.errors import SensorError
from everywatt.sensors.amd.amd_cards import FACTS, device_of, hwmon_cards, short_pci
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.json_device import number

POWER = ("current_socket_power", "average_socket_power", "socket_power")
COUNT = ("energy_accumulator", "power")  # the second by early versions


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


class AmdGroup:
    """One card."""

    def __init__(self, info: GroupInfo, asks: Sequence[Callable[[], float | None]], request: Request, end: Any) -> None:
        self.info = info
        self._asks = tuple(asks)
        self._clock = request.machine.clock
        self._end = end

    def read(self) -> list[Row]:
        start_ns = self._clock.monotonic_ns()
        found = [_quiet(ask) for ask in self._asks]
        end_ns = self._clock.monotonic_ns()
        if found[0] is None:
            raise SensorError(f"{self.info.device} delivers no {self.info.channels[0].name.rpartition('.')[2]}.")
        return [Row(end_ns, start_ns, end_ns, tuple(NAN if value is None else value for value in found))]

    def close(self) -> None:
        self._end()


def _quiet(ask: Callable[[], float | None]) -> float | None:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - the library raises its own kinds, and a card may be lost
        return None


class AmdSmi:
    """The sensor. `load` gives the library's module."""

    name = "amdsmi"
    after: Sequence[str] = ()

    def __init__(
        self, request: Request, *, load: Callable[[], Any] = lambda: importlib.import_module("amdsmi")
    ) -> None:
        self._request = request
        self._load = load
        self._library: Any = None
        self._cards: list[tuple[GroupInfo, list[Callable[[], float | None]]]] = []
        self._open = 0

    def probe(self) -> Report:
        """What the library says of each card."""
        self._cards = []
        try:
            self._library = self._load()
        except ImportError:
            return Report(self.name, State.ABSENT, "The amdsmi library is not installed.")
        except Exception as error:  # noqa: BLE001 - it loads a driver's library, which may say anything
            return Report(self.name, State.UNUSABLE, f"amdsmi cannot be loaded: {error}")
        try:
            self._library.amdsmi_init()
            handles = list(self._library.amdsmi_get_processor_handles())
        except Exception as error:  # noqa: BLE001 - its own kinds of errors
            return Report(self.name, State.UNUSABLE, f"amdsmi finds no driver: {error}", "modprobe amdgpu")
        samples: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        known = hwmon_cards(self._request.machine)
        for index, handle in enumerate(handles):
            self._add(handle, index, known, samples, missing)
        if not samples:
            self._shut()
            state = State.UNUSABLE if handles else State.ABSENT
            return Report(self.name, state, "; ".join(missing.values()) or "amdsmi finds no card.", missing=missing)
        devices = [{"device": info.device} for info, _ in self._cards]
        return Report(self.name, State.USABLE, "", None, samples, missing, devices)

    def _add(
        self, handle: Any, index: int, known: dict[str, str], samples: dict[str, float | None], missing: dict[str, str]
    ) -> None:
        library = self._library
        pci = _quiet(lambda: library.amdsmi_get_gpu_device_bdf(handle))
        device = device_of(short_pci(str(pci)), index, known)
        channels: list[Channel] = []
        asks: list[Callable[[], float | None]] = []
        energy: Any = _quiet(lambda: counted(library.amdsmi_get_energy_count(handle)))  # type: ignore[return-value,arg-type]
        if energy is not None:
            facts = Facts(quantum=energy[1] * 1e-6)
            channels.append(
                Channel(f"{device}.energy", "J", Kind.COUNTER, device, Domain.GPU, energy[1] * 1e-6, facts=facts)
            )
            asks.append(lambda: (counted(library.amdsmi_get_energy_count(handle)) or (None,))[0])
            samples[channels[0].name] = energy[0] * energy[1] * 1e-6
        watts = _quiet(lambda: socket_w(library.amdsmi_get_power_info(handle)))
        if watts is not None:
            name, pedigree = f"{device}.power", Pedigree.INTEGRATED
            channels.append(Channel(name, "W", Kind.GAUGE, device, Domain.GPU, 1.0, pedigree, facts=FACTS))
            asks.append(lambda: socket_w(library.amdsmi_get_power_info(handle)))
            samples[name] = watts
        if channels:
            self._cards.append((GroupInfo(f"amdsmi.{device}", self.name, device, tuple(channels)), asks))
        else:
            missing[f"{device}.power"] = f"card {index}: amdsmi reports neither energy nor power"

    def groups(self) -> list[AmdGroup]:
        """One group for each card; the library is let go with the last of them."""
        if not self._cards and not self.probe().usable:
            return []
        self._open = len(self._cards)
        return [AmdGroup(info, asks, self._request, self._one_closed) for info, asks in self._cards]

    def _one_closed(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._shut()

    def _shut(self) -> None:
        if self._library is not None:
            _quiet(self._library.amdsmi_shut_down)
