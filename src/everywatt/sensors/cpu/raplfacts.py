"""What is known of RAPL, however it is read: names, domains, accuracy, the power limit.

Devices are `cpu.0` for a package, `cpu.0-1` for die 1 of package 0, `dram.0` (`dram.0-1`) for the memory behind it, and
`psys`. Channels are `cpu.0.package.energy`, `cpu.0.core.energy`, `cpu.0.uncore.energy`, `cpu.0.dram.energy` and
`psys.energy`. A second path to the same counter has its path in the name: `cpu.0.package.mmio.energy`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, Kind
from everywatt.sensors.sysfs import read_text

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
        fields: dict[str, str] = {}
        for line in (read_text(proc / "cpuinfo") or "").split("\n"):
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
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
        if not (slash and family.strip().isdigit() and model.strip().isdigit()):
            raise ValueError(f"a processor is FAMILY/MODEL as in /proc/cpuinfo, such as 6/106, not '{text}'")
        # Intel stayed with family 6; AMD's processors that have RAPL are of family 23 and later.
        return cls("GenuineIntel" if int(family) < _AMD_FAMILY else "AuthenticAMD", int(family), int(model))

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of facts is about this processor."""
        return (
            self.vendor in row.get("vendors", (self.vendor,))
            and self.family == row.get("family", self.family)
            and self.model in row.get("models", (self.model,))
        )


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


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
    """An energy counter of RAPL in joules, with what is known of it."""
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
