"""Which AMD card is which: the cards that hwmon reads, by PCI address, so that one card has one name everywhere."""

from __future__ import annotations

import re
from pathlib import Path

from everywatt.core.channels import Facts
from everywatt.core.machine import Machine
from everywatt.sensors.node.hwmon import find_values

PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE)
# No published comparison of AMD's own readings with a meter is known to us: their gain and offset are unknown.
FACTS = Facts(quantum=1.0)


def short_pci(text: str) -> str | None:
    """`0000:04:00.0` out of a text, None where there is none."""
    match = PCI.search(text)
    return f"{match[1][-4:]}:{match[2]}:{match[3]}.{match[4]}".lower() if match else None


def socket_of(pci: str | None) -> str | None:
    """The address without its function: the partitions of an MI300 are functions of one socket, and share its power."""
    return pci.rpartition(".")[0] if pci else None


def hwmon_cards(machine: Machine) -> dict[str, str]:
    """Socket (PCI address without function) → the device under which the hwmon sensor records that card's power."""
    found: dict[str, str] = {}
    for value in find_values(machine.sys)[0]:
        socket = socket_of(_address(value.folder)) if value.chip == "amdgpu" else None
        if socket:
            found.setdefault(socket, value.device)
    return found


def _address(folder: Path) -> str | None:
    for place in (folder / "device", folder):
        for part in reversed(place.resolve().parts):
            if PCI.fullmatch(part):
                return short_pci(part)
    return None


def device_of(pci: str | None, index: int, known: dict[str, str]) -> str:
    """The name of a card: hwmon's where it has one, so that the same joules are never added twice."""
    return known.get(socket_of(pci) or "", f"amdgpu.{index}")
