"""Graphics cards by PCI address: AMD's and Intel's have one device name each, whichever sensor reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from everywatt.sensors.sysfs import entries

PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE)


def short_pci(text: str) -> str | None:
    """`0000:04:00.0` out of a text, None where there is none."""
    match = PCI.search(text)
    return f"{match[1][-4:]}:{match[2]}:{match[3]}.{match[4]}".lower() if match else None


def socket_of(pci: str | None) -> str | None:
    """The address without its function: the partitions of an MI300 are functions of one socket, and share its power."""
    return pci.rpartition(".")[0] if pci else None


def address_of(folder: Path) -> str | None:
    """The PCI address of the card that a folder of /sys belongs to."""
    for place in (folder / "device", folder):
        for part in reversed(place.resolve().parts):
            if PCI.fullmatch(part):
                return short_pci(part)
    return None


def numbered(sys: Path, sockets: Iterable[str]) -> dict[str, str]:
    """`gpu.N` for each card, in the order of their addresses; NVML's cards have the first numbers."""
    nvidia = [path for path in entries(sys / "bus" / "pci" / "drivers" / "nvidia") if PCI.fullmatch(path.name)]
    return {socket: f"gpu.{number}" for number, socket in enumerate(sorted(set(sockets)), len(nvidia))}
