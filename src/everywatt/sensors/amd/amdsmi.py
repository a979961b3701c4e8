"""AMD GPUs by AMD's own library, amdsmi, where it is installed: an energy counter, and power."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.core.jsonio import number
from everywatt.core.machine import Machine
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.node.hwmon import card_devices
from everywatt.sensors.sysfs import short_pci, socket_of

# No published comparison of AMD's own readings with a meter is known to us: their gain and offset are unknown.
FACTS = Facts(quantum=1.0)
POWER = ("current_socket_power", "average_socket_power", "socket_power")
MOVES_NS = NS // 5  # drivers refresh their metrics at least every 100 ms, and an idle card draws several watts
COUNT = ("energy_accumulator", "power")  # the second by early versions


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
        sockets = self._sockets(handles)
        for index, (pci, parts) in enumerate(sockets):
            device = device_of(pci, index, known)
            if not any(self._add(handle, device, samples, missing) for handle in parts):
                missing[f"{device}.power"] = f"card {index}: amdsmi reports neither energy nor power"
        if not samples:
            self._shut()
            state = State.UNUSABLE if handles else State.ABSENT
            return Report(self.name, state, "; ".join(missing.values()) or "amdsmi finds no card.", missing=missing)
        split = len(handles) > len(sockets)
        why = f"{len(handles)} partitions of {len(sockets)} socket(s), each socket counted once" if split else ""
        devices = [{"device": info.device} for info, _ in self._cards]
        return Report(self.name, State.USABLE, why, None, samples, missing, devices)

    def _sockets(self, handles: Sequence[Any]) -> list[tuple[str | None, list[Any]]]:
        """PCI address and handles of each socket: partitions repeat its power, so they belong together."""
        found: dict[Any, tuple[str | None, list[Any]]] = {}
        for place, handle in enumerate(handles):
            try:
                pci = short_pci(str(self._library.amdsmi_get_gpu_device_bdf(handle)))
            except Exception:  # noqa: BLE001 - the library raises its own kinds
                pci = None
            found.setdefault(socket_of(pci) or place, (pci, []))[1].append(handle)
        return list(found.values())

    def _add(self, handle: Any, device: str, samples: dict[str, float | None], missing: dict[str, str]) -> bool:
        """Record a socket by one of its handles; False where that gives nothing."""
        library = self._library
        channels: list[Channel] = []
        asks: list[Callable[[], float | None]] = []
        energy: Any = _quiet(lambda: counted(library.amdsmi_get_energy_count(handle)))  # type: ignore[return-value,arg-type]

        def count() -> float | None:
            return (counted(library.amdsmi_get_energy_count(handle)) or (None,))[0]

        if energy is not None and not self._moves(count, energy[0]):
            missing[f"{device}.energy"] = f"the counter did not move in {MOVES_NS / NS:g} s"
        elif energy is not None:
            facts = Facts(quantum=energy[1] * 1e-6)
            channels.append(
                Channel(
                    f"{device}.energy",
                    "J",
                    Kind.COUNTER,
                    device,
                    Domain.GPU,
                    energy[1] * 1e-6,
                    facts=facts,
                    in_slot=True,
                )
            )
            asks.append(count)
            samples[channels[0].name] = energy[0] * energy[1] * 1e-6
        watts = _quiet(lambda: socket_w(library.amdsmi_get_power_info(handle)))
        if watts is not None:
            name, pedigree = f"{device}.power", Pedigree.INTEGRATED
            channels.append(
                Channel(name, "W", Kind.GAUGE, device, Domain.GPU, 1.0, pedigree, facts=FACTS, in_slot=True)
            )
            asks.append(lambda: socket_w(library.amdsmi_get_power_info(handle)))
            samples[name] = watts
        if channels:
            self._cards.append((GroupInfo(f"amdsmi.{device}", self.name, device, tuple(channels)), asks))
        return bool(channels)

    def _moves(self, count: Callable[[], float | None], first: float) -> bool:
        """Whether a counter moves: some cards have one that never does."""
        clock = self._request.machine.clock
        deadline_ns = clock.monotonic_ns() + MOVES_NS
        while _quiet(count) == first:
            now_ns = clock.monotonic_ns()
            if now_ns >= deadline_ns:
                return False
            clock.sleep_until(min(now_ns + 5_000_000, deadline_ns))
        return True

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
