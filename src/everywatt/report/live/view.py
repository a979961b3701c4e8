"""What a person has chosen to see: sort, filter, unit, scroll. Pure: keys make new views, a view orders rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from everywatt.report.live.format import UNITS
from everywatt.report.live.snapshot import DeviceNow, OwnerNow, Snapshot

OWNER_SORTS: tuple[str, ...] = ("power", "energy", "cpu", "gpu", "memory", "owner")
DEVICE_SORTS: tuple[str, ...] = ("device", "power", "energy", "use", "memory")
SPECIAL = ("other", "idle", "meter", "unattributed")

_OWNER_KEYS: dict[str, Callable[[OwnerNow], Any]] = {
    "power": lambda owner: owner.power_w,
    "energy": lambda owner: owner.joules,
    "cpu": lambda owner: _or_least(owner.cpu_pct),
    "gpu": lambda owner: _or_least(owner.gpu_pct),
    "memory": lambda owner: _or_least(owner.memory_bytes),
    "owner": lambda owner: owner.label.lower(),
}
_DEVICE_KEYS: dict[str, Callable[[DeviceNow], Any]] = {
    "power": lambda device: _or_least(device.power_w),
    "energy": lambda device: _or_least(device.energy.joules),
    "use": lambda device: _or_least(device.utilisation_pct),
    "memory": lambda device: _or_least(device.memory_bytes),
}


def _or_least(value: float | None) -> float:
    return -1.0 if value is None else value


@dataclass(frozen=True, slots=True)
class View:
    """`typing` is True while a filter is typed; `scroll` is how many owners are above the screen."""

    sort: str = "power"
    device_sort: str = "device"
    reverse: bool = False
    filter: str = ""
    unit: str = "J"
    scroll: int = 0
    frozen: bool = False
    typing: bool = False
    help: bool = False
    ascii: bool = False

    def next_sort(self) -> View:
        """Owners by the next column."""
        return replace(self, sort=_after(self.sort, OWNER_SORTS), scroll=0)

    def next_device_sort(self) -> View:
        """Devices by the next column."""
        return replace(self, device_sort=_after(self.device_sort, DEVICE_SORTS))

    def next_unit(self) -> View:
        """Energies in the next unit."""
        return replace(self, unit=_after(self.unit, UNITS))

    def scrolled(self, rows: int, most: int) -> View:
        """Moved by so many rows, within the list."""
        return replace(self, scroll=max(0, min(self.scroll + rows, most)))

    def owners(self, snapshot: Snapshot) -> list[OwnerNow]:
        """The owners that the filter lets through, in order; the first letters or numbers come first by name."""
        if snapshot.owners is None:
            return []
        found = [o for o in snapshot.owners.entries if self.matches(o.label, o.kind, o.id)]
        return sorted(found, key=_OWNER_KEYS[self.sort], reverse=(self.sort != "owner") != self.reverse)

    def devices(self, snapshot: Snapshot) -> list[DeviceNow]:
        """The devices that the filter lets through, in order. A filter that fits no device hides none."""
        found = [d for d in snapshot.devices if self.matches(d.name, d.label)]
        found = found or list(snapshot.devices)
        if self.device_sort == "device":
            return found
        return sorted(found, key=_DEVICE_KEYS[self.device_sort], reverse=True)

    def matches(self, *texts: str) -> bool:
        """Whether every word of the filter is in one of the texts."""
        words = self.filter.lower().split()
        return all(any(word in text.lower() for text in texts) for word in words)


def _after(value: str, values: tuple[str, ...]) -> str:
    return values[(values.index(value) + 1) % len(values)]
