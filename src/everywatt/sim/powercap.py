"""The powercap tree of a simulated machine, laid out as the kernel lays it out, and the zones behind its counters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everywatt.sim.options import Package

CLASS = Path("sys/class/powercap")
DEVICES = Path("sys/devices/virtual/powercap")


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter: where it is, what it is called, and its joules as a sum of devices times factors plus a constant.

    `truth` is the name under which the machine knows its joules, None for one of several dies.
    """

    control: str
    folder: str
    name: str
    terms: Mapping[str, float]
    package: Package
    truth: str | None = None
    constant_w: float = 0.0

    @property
    def path(self) -> Path:
        """The zone's folder inside the machine's folder; a zone with two colons is inside its parent."""
        parent = self.folder.rpartition(":")[0] if self.folder.count(":") == 2 else ""
        return DEVICES / self.control / parent / self.folder

    def line(self) -> str:
        """The line that describes it to powercap.c."""
        p = self.package
        terms = ",".join(f"{device}:{factor!r}" for device, factor in self.terms.items())
        numbers = (p.period_s, p.phase_s, p.quantum_j, p.wrap_j, p.start_j, p.reset_at_s)
        words = " ".join(repr(float(n)) for n in numbers)
        return f"zone {self.path}/energy_uj {words} {p.fault} {p.fault_at_s!r} {self.constant_w!r} {terms}"


def zones(packages: Sequence[Package], psys_w: float | None) -> list[Zone]:
    """Every counter of these packages, numbered as the kernel does."""
    found: list[Zone] = []
    number = 0
    for index, package in enumerate(packages):
        device = f"cpu.{index}"
        for die in range(package.dies):
            share = 1 / package.dies
            name = f"package-{index}" + (f"-die-{die}" if package.dies > 1 else "")
            whole = package.dies == 1
            folder = f"intel-rapl:{number}"
            top = Zone("intel-rapl", folder, name, {device: share}, package, truth=device if whole else None)
            found.append(top)
            for sub, (part, factor) in enumerate(_parts(package)):
                truth = (f"dram.{index}" if part == "dram" else f"{device}.{part}") if whole else None
                where = f"{folder}:{sub}"
                found.append(Zone("intel-rapl", where, part, {device: share * factor}, package, truth=truth))
            if package.mmio:
                mirror = f"intel-rapl-mmio:{number}"
                found.append(Zone("intel-rapl-mmio", mirror, name, {device: share}, package))
            number += 1
    if psys_w is not None and packages:
        terms = {f"cpu.{i}": 1.0 + (package.dram or 0.0) for i, package in enumerate(packages)}
        found.append(Zone("intel-rapl", f"intel-rapl:{number}", "psys", terms, packages[0], "psys", psys_w))
    return found


def _parts(package: Package) -> list[tuple[str, float]]:
    named = (("core", package.core), ("uncore", package.uncore), ("dram", package.dram))
    return [(name, share) for name, share in named if share is not None]


def write_tree(root: Path, found: Sequence[Zone]) -> None:
    """The files. Without the preload library a counter holds what it held at the start."""
    (root / CLASS).mkdir(parents=True, exist_ok=True)
    for control in dict.fromkeys(zone.control for zone in found):
        folder = root / DEVICES / control
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "enabled").write_text("1\n")
        _link_subsystem(root, folder)
        (root / CLASS / control).symlink_to(Path("../../devices/virtual/powercap") / control)
    for zone in found:
        _write_zone(root, zone)


def _write_zone(root: Path, zone: Zone) -> None:
    folder = root / zone.path
    folder.mkdir(parents=True, exist_ok=True)
    package = zone.package
    files = {
        "name": zone.name,
        "enabled": "1",
        "energy_uj": str(int(package.start_j % package.wrap_j * 1e6)),
        "max_energy_range_uj": str(round(package.wrap_j * 1e6)),
    }
    if zone.name.startswith("package"):
        tdp_w = package.tdp_w or max(package.curve.high_w, 1.0)
        files |= {
            "constraint_0_name": "long_term",
            "constraint_0_max_power_uw": str(round(tdp_w * 1e6)),
            "constraint_0_power_limit_uw": str(round(tdp_w * 1e6)),
            "constraint_0_time_window_us": "999424",
        }
    _link_subsystem(root, folder)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    if package.range_unreadable:
        (folder / "max_energy_range_uj").write_text("")
        (folder / "max_energy_range_uj").chmod(0)
    if package.fault == "unreadable" and package.fault_at_s == 0:
        (folder / "energy_uj").chmod(0o400)
    (root / CLASS / zone.folder).symlink_to(Path("../../devices/virtual/powercap") / zone.path.relative_to(DEVICES))


def _link_subsystem(root: Path, folder: Path) -> None:
    """The kernel's way back to the class; CodeCarbon looks through it."""
    up = "../" * len(folder.relative_to(root / "sys").parts)
    (folder / "subsystem").symlink_to(up + "class/powercap")
