"""RAPL by the kernel's powercap tree: energy counters of CPU packages, dies, cores, uncore, DRAM and the platform.

The tree is the same for Intel and AMD. A zone is used only where its counter really counts: virtual machines and some
boards show zones that stay at zero.

Devices are `cpu.0` for a package, `cpu.0-1` for die 1 of package 0, `dram.0` (`dram.0-1`) for the memory behind it, and
`psys`. Channels are `cpu.0.package.energy`, `cpu.0.core.energy`, `cpu.0.uncore.energy`, `cpu.0.dram.energy` and
`psys.energy`. A second path to the same counter has its path in the name: `cpu.0.package.mmio.energy`. Names, accuracy
and power limits are the same for RAPL by perf_events (`perf`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Request
from everywatt.sensors.procfs import file_text, parse_cpuinfo
from everywatt.sensors.simple import Absent, SimpleSensor
from everywatt.sensors.sysfs import (
    Candidate,
    NumberFile,
    ValueGroup,
    alive,
    entries,
    read_count,
    value_groups,
)

PERIOD_S = 1e-3
# The usual energy status unit, 2^-14 J. Some parts count finer (AMD and server DRAM: 2^-16 J); this is the coarser one.
QUANTUM_J = 2.0**-14

# 95 % half-widths of gain (percent) and offset (watts) by domain and processor, each row with its source; the first row
# that fits is the one. Where microcode filters the counters against side channels (SGX enabled) they may be far worse
# for short windows.
_ACCURACY: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("rapl_accuracy.json").read_text(encoding="utf-8")
)["accuracy"]
RAPL_DOMAINS = (Domain.PACKAGE, Domain.CORE, Domain.UNCORE, Domain.DRAM, Domain.NODE)
_UNLIMITED_W = 4000.0
_AMD_FAMILY = 21


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as /proc/cpuinfo names it; empty where that cannot be read."""

    vendor: str = ""
    family: int = 0
    model: int = 0
    hypervisor: bool = False

    @classmethod
    def read(cls, proc: Path) -> Cpu:
        """The first processor of /proc/cpuinfo."""
        fields = next(iter(parse_cpuinfo(file_text(proc / "cpuinfo", 4096))), {})
        return cls(
            fields.get("vendor_id", ""),
            _whole(fields.get("cpu family", "")),
            _whole(fields.get("model", "")),
            "hypervisor" in fields.get("flags", "").split(),
        )

    @classmethod
    def parse(cls, text: str) -> Cpu:
        """A processor from `FAMILY/MODEL`, e.g. `6/106`; ValueError where it is not of this form."""
        family, slash, model = text.partition("/")
        if not (slash and family.strip().isdecimal() and model.strip().isdecimal()):
            raise ValueError(f"a processor is FAMILY/MODEL as in /proc/cpuinfo, such as 6/106, not '{text}'")
        # Intel stayed with family 6; AMD's processors that have RAPL are of family 23 and later.
        return cls("GenuineIntel" if int(family) < _AMD_FAMILY else "AuthenticAMD", int(family), int(model))

    def fits(self, row: Mapping[str, Any]) -> bool:
        return (
            self.vendor in row.get("vendors", (self.vendor,))
            and self.family == row.get("family", self.family)
            and self.model in row.get("models", (self.model,))
        )


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def socket_name(package: int, die: int | None) -> str:
    """`0` for package 0, `0-1` for its die 1."""
    return f"{package}" if die is None else f"{package}-{die}"


def device_of(domain: Domain, socket: str) -> str:
    """The device whose joules a domain of a socket are."""
    if domain is Domain.NODE:
        return "psys" if socket in ("", "0") else f"psys.{socket}"
    return f"dram.{socket}" if domain is Domain.DRAM else f"cpu.{socket}"


def name_of(domain: Domain, socket: str, path: str = "") -> str:
    """The channel's name; `path` marks a second way to the same counter."""
    stem = device_of(domain, socket) if domain is Domain.NODE else f"cpu.{socket}.{domain.value}"
    return f"{stem}.{path}.energy" if path else f"{stem}.energy"


def counter_facts(domain: Domain, cpu: Cpu) -> Facts:
    """What is known of a RAPL counter of a domain of this processor."""
    row = next(row for row in _ACCURACY if domain.value in row["domains"] and cpu.fits(row))
    return Facts(
        period_s=PERIOD_S,
        quantum=QUANTUM_J,
        gain_pct=row["gain_pct"],
        offset_w=row["offset_w"],
        # Parts of one design share the errors of that design, so two sockets do not average them away.
        cards=f"{cpu.vendor}/{cpu.family}/{cpu.model}/{domain.value}" if cpu.vendor else None,
    )


def energy_channel(
    domain: Domain,
    socket: str,
    *,
    cpu: Cpu,
    scale: float,
    wrap: float | None,
    max_w: float | None,
    path: str = "",
    mirror_of: str | None = None,
) -> Channel:
    facts = replace(counter_facts(domain, cpu), wrap=wrap, max_w=max_w)
    device = device_of(domain, socket)
    return Channel(
        name_of(domain, socket, path), "J", Kind.COUNTER, device, domain, scale, mirror_of=mirror_of, facts=facts
    )


def most_power_w(tdp_w: Iterable[float], limits_w: Iterable[float]) -> float | None:
    """The most a zone can be thought to draw, None where the kernel says nothing.

    `tdp_w` are the zone's rated powers (constraint_*_max_power_uw), `limits_w` its set limits
    (constraint_*_power_limit_uw). Rated power is exceeded in turbo: twice the rating covers desktops and servers, and
    the set short-term limit covers laptops, which go to four times theirs. Boards that lift the limit write about
    4095 W; then four times the rating stands in for it. Without a rating it is twice the highest limit.
    """
    rated = [watts for watts in tdp_w if 0 < watts < _UNLIMITED_W]
    limits = [watts for watts in limits_w if watts > 0]
    lifted = any(watts >= _UNLIMITED_W for watts in limits)
    if rated:
        return max([(4.0 if lifted else 2.0) * max(rated), *(watts for watts in limits if watts < _UNLIMITED_W)])
    return None if lifted or not limits else 2.0 * max(limits)


MICRO = 1e-6
CURE = "everywatt doctor --fix"
_ZONE = re.compile(r"(?P<control>[a-z][\w-]*):(?P<index>\d+(?::\d+)*)")
_CONTROL = re.compile(r"[a-z][\w-]*rapl[\w-]*")
_PACKAGE = re.compile(r"package-(\d+)(?:-die-(\d+))?")
_PARTS = {"core": Domain.CORE, "uncore": Domain.UNCORE, "dram": Domain.DRAM}
_ORDER = (Domain.PACKAGE, Domain.NODE, Domain.CORE, Domain.UNCORE, Domain.DRAM)


def group_rule(group: str) -> str:
    """The udev rule that makes RAPL counters readable for one group only (readable for all is CVE-2020-8694)."""
    return (
        'SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="*rapl*:*", '
        f'RUN+="/bin/chgrp {group} /sys%p/energy_uj", RUN+="/bin/chmod 0440 /sys%p/energy_uj"'
    )


@dataclass(frozen=True, slots=True)
class Zone:
    """One powercap zone with a counter that we know by name."""

    id: str
    folder: Path
    name: str
    domain: Domain
    package: int
    die: int | None

    @property
    def mmio(self) -> bool:
        """True for the memory-mapped twin of a zone."""
        return "mmio" in self.id.partition(":")[0]


def find_zones(root: Path) -> tuple[list[Zone], dict[str, str]]:
    """The zones below `class/powercap`, and those that were left out with the reason.

    Zones of a package lie inside its folder, beside it, or (through the class's links) both; each counts once.
    """
    folders = dict(_folders(root))
    names = {zone: file_text(folder / "name") for zone, folder in folders.items()}
    zones, left_out = [], {}
    for zone, folder in folders.items():
        place = _place(zone, names)
        if place is None:
            left_out[zone] = f"unknown zone '{names[zone]}'"
        else:
            zones.append(Zone(zone, folder, names[zone], *place))
    return zones, left_out


def _folders(folder: Path, depth: int = 0) -> Iterator[tuple[str, Path]]:
    for entry in entries(folder):
        zone = _ZONE.fullmatch(entry.name)
        if zone and "rapl" in zone["control"] and entry.is_dir():
            yield entry.name, entry
        if depth < 3 and (zone or _CONTROL.fullmatch(entry.name)) and entry.is_dir():
            yield from _folders(entry, depth + 1)


def _place(zone: str, names: dict[str, str]) -> tuple[Domain, int, int | None] | None:
    """Domain, package and die of a zone, from its own name and its parents'."""
    name = names[zone]
    package = _PACKAGE.fullmatch(name)
    if package:
        return Domain.PACKAGE, int(package[1]), int(package[2]) if package[2] else None
    if name == "psys":
        return Domain.NODE, 0, None
    if name not in _PARTS:
        return None
    parent = _PACKAGE.fullmatch(names.get(zone.rpartition(":")[0], ""))
    if parent:
        return _PARTS[name], int(parent[1]), int(parent[2]) if parent[2] else None
    return _PARTS[name], int(zone.split(":")[1]), None


class Rapl(SimpleSensor):
    """The sensor. Its groups are one for each package or die with all that is read beside it, and one for psys."""

    name = "rapl"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._cpu = Cpu.read(request.machine.proc)

    def find(self) -> list[ValueGroup]:
        root = self.machine.sys / "class" / "powercap"
        zones, left_out = find_zones(root)
        self.missing |= left_out
        if not zones:
            raise self._absent(root)
        files = [self._file(zone) for zone in zones]
        # A package or a platform always draws power, so its counter must move; an idle graphics unit may rest.
        parts = [zone.domain not in (Domain.PACKAGE, Domain.NODE) for zone in zones]
        tried = [Candidate(z.id, file, MICRO, part) for z, file, part in zip(zones, files, parts, strict=True)]
        counting = alive(zip(zones, files, strict=True), tried, self.missing, self.machine.clock)
        if not counting:
            raise self._unusable(zones, files)
        found = sorted(self._channels(counting), key=_reading_order)
        self.devices = [
            {"device": c.device, "zone": z.id, "name": z.name, "max_w": c.facts.max_w, "mirror_of": c.mirror_of}
            for z, c, _ in found
        ]
        return value_groups([(self._info(zone, c), c, file) for zone, c, file in found], self.machine.clock)

    def _info(self, zone: Zone, channel: Channel) -> GroupInfo:
        device = channel.device.replace("dram.", "cpu.")
        return GroupInfo(f"rapl.{device}", self.name, device, (), inline=True, label=zone.name)

    def _file(self, zone: Zone) -> NumberFile:
        top = read_count(zone.folder / "max_energy_range_uj")
        if not top:
            self.missing[f"{zone.id}/max_energy_range_uj"] = (
                "the range of the counter is unknown, so a wrap looks like a reset"
            )
        return NumberFile(zone.folder / "energy_uj", most=top or None)

    def _channels(self, counting: list[tuple[Zone, NumberFile]]) -> Iterator[tuple[Zone, Channel, NumberFile]]:
        """A channel for each zone; zones that count the same joules as an earlier one are its mirrors."""
        limits = _limits(counting)
        taken: dict[str, tuple[Zone, NumberFile]] = {}
        for zone, file in sorted(counting, key=lambda pair: pair[0].mmio):
            socket, path, mirror_of = _identity(zone, file, taken)
            if mirror_of is None:
                taken[name_of(zone.domain, socket)] = (zone, file)
            else:
                self.missing[zone.id] = f"{zone.name}: counts the same joules as {mirror_of}"
            channel = energy_channel(
                zone.domain,
                socket,
                cpu=self._cpu,
                scale=MICRO,
                wrap=read_count(zone.folder / "max_energy_range_uj") or None,
                max_w=limits[zone.id],
                path=path,
                mirror_of=mirror_of,
            )
            yield zone, channel, file

    def _absent(self, root: Path) -> Absent:
        why = f"{root} contains no RAPL zone." if root.is_dir() else f"There is no powercap directory at {root}."
        x86 = self._cpu.vendor in ("GenuineIntel", "AuthenticAMD", "HygonGenuine")
        if self._cpu.hypervisor:
            why += " This is a virtual machine; hosts rarely expose the counters to guests."
        return Absent(why, cure="sudo modprobe intel_rapl_msr" if x86 and not self._cpu.hypervisor else None)

    def _unusable(self, zones: list[Zone], files: list[NumberFile]) -> SensorError:
        if any(file.denied for file in files):
            why = (
                "RAPL counters exist but are readable by root only, because they leak secrets (CVE-2020-8694). The fix "
                f"makes them readable for one group, not for everyone, with the udev rule: {group_rule('everywatt')}"
            )
            return SensorError(why, cure=CURE)
        reasons = "; ".join(f"{zone.name}: {self.missing[zone.id]}" for zone in zones)
        why = f"RAPL zones exist but none of them counts: {reasons}."
        if self._cpu.hypervisor:
            why += " This is a virtual machine; its counters are not connected to anything."
        return SensorError(why)


def _reading_order(entry: tuple[Zone, Channel, NumberFile]) -> tuple[bool, int]:
    zone, channel, _ = entry
    return channel.mirror_of is not None, _ORDER.index(zone.domain)


def _identity(zone: Zone, file: NumberFile, taken: dict[str, tuple[Zone, NumberFile]]) -> tuple[str, str, str | None]:
    """Socket, path and the channel that this zone mirrors.

    AMD's counter is one for a package, and older kernels show it once for each die; some boards list a zone twice.
    Only zones of one package are compared: two sockets are two sockets, however alike they count.
    """
    socket = socket_name(zone.package, zone.die)
    name = name_of(zone.domain, socket)
    if zone.mmio and name in taken:
        return socket, "mmio", name
    for other_name, (other, other_file) in taken.items():
        same_place = other.domain is zone.domain and other.package == zone.package
        if same_place and _same_counter(other_file.read, file.read):
            path = "" if name not in taken else f"zone{zone.id.partition(':')[2].replace(':', '-')}"
            return socket, path, other_name
    extra = 1
    while name_of(zone.domain, socket) in taken:
        socket = f"{extra}" if zone.domain is Domain.NODE else socket_name(zone.package, extra)
        extra += 1
    return socket, "", None


def _same_counter(one: Callable[[], float], other: Callable[[], float]) -> bool:
    """True where readings of one lie between two readings of the other, both ways round."""
    a, b, c, d = one(), other(), one(), other()
    return a <= b <= c <= d


def _limits(counting: list[tuple[Zone, NumberFile]]) -> dict[str, float | None]:
    """The most power of each zone; core and uncore cannot draw more than their package."""
    own = {zone.id: _most_power_w(zone.folder) for zone, _ in counting}
    whole = {zone.package: own[zone.id] for zone, _ in counting if zone.domain is Domain.PACKAGE and own[zone.id]}
    inside = (Domain.CORE, Domain.UNCORE)
    return {z.id: own[z.id] or (whole.get(z.package) if z.domain in inside else None) for z, _ in counting}


def _most_power_w(folder: Path) -> float | None:
    def watts(ending: str) -> list[float]:
        counts = (read_count(folder / f"constraint_{n}_{ending}") for n in range(3))
        return [count * MICRO for count in counts if count is not None]

    return most_power_w(watts("max_power_uw"), watts("power_limit_uw"))
