"""A device: what a channel belongs to, e.g. `gpu.0`, `cpu.1`, `host`, `hwmon.acpitz`, `node1/gpu.0`."""

from __future__ import annotations

import re

from everywatt.core.lazy_dataclass import dataclass

_PARTS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its kind (`gpu`), its name within the kind (`0`; empty where there is only one), and its host.

    The host is empty within one tape. Devices sort by host, kind and name, numbers by size: `gpu.10` follows `gpu.9`.

    >>> Device.parse("gpu.10").index
    10
    >>> str(Device("gpu", "0", host="node1"))
    'node1/gpu.0'
    """

    kind: str
    name: str = ""
    host: str = ""

    @classmethod
    def parse(cls, text: str) -> Device:
        """The device of a name; any text is one, so that names in old tapes and other tools' files can be asked."""
        host, _, rest = text.rpartition("/")
        kind, _, name = rest.partition(".")
        return cls(kind, name, host)

    @property
    def index(self) -> int | None:
        """The number of a numbered device (`gpu.0`); None where its name is not a number."""
        return int(self.name) if self.name.isascii() and self.name.isdigit() else None

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu" and bool(self.name)

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu" and bool(self.name)

    def __str__(self) -> str:
        own = f"{self.kind}.{self.name}" if self.name else self.kind
        return f"{self.host}/{own}" if self.host else own

    def __lt__(self, other: Device) -> bool:
        return self.sort_key() < other.sort_key()

    def sort_key(self) -> tuple[tuple[tuple[int, int, str], ...], ...]:
        return natural(self.host), natural(self.kind), natural(self.name)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key by which `hwmon10` comes after `hwmon2`."""
    parts = (part for part in _PARTS.split(text) if part)
    return tuple((0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts)


def is_gpu(device: str) -> bool:
    """Whether a device's name is that of a GPU: `gpu.0`, `node1/gpu.0`."""
    return Device.parse(device).is_gpu
