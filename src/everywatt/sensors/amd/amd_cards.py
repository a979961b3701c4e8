"""Which AMD card is which: the cards that hwmon reads, by PCI address, so that one card has one name everywhere."""

from __future__ import annotations

from everywatt.core.channels import Facts
from everywatt.core.machine import Machine
from everywatt.sensors.node.hwmon import card_devices
from everywatt.sensors.pci_cards import socket_of

# No published comparison of AMD's own readings with a meter is known to us: their gain and offset are unknown.
FACTS = Facts(quantum=1.0)


def hwmon_cards(machine: Machine) -> dict[str, str]:
    """Socket (PCI address without function) → the device under which the hwmon sensor records that AMD card's power."""
    return {socket: device for socket, (device, chip) in card_devices(machine.sys).items() if chip == "amdgpu"}


def device_of(pci: str | None, index: int, known: dict[str, str]) -> str:
    """The name of a card: hwmon's where it has one, so that the same joules are never added twice."""
    return known.get(socket_of(pci) or "", f"amdgpu.{index}")
