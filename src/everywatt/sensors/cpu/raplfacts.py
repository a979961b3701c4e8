"""What is known of RAPL, however it is read: names, domains, accuracy, the power limit.

Devices are `cpu.0` for a package, `cpu.0-1` for die 1 of package 0, `dram.0` (`dram.0-1`) for the memory behind it, and
`psys`. Channels are `cpu.0.package.energy`, `cpu.0.core.energy`, `cpu.0.uncore.energy`, `cpu.0.dram.energy` and
`psys.energy`. A second path to the same counter has its path in the name: `cpu.0.package.mmio.energy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from everywatt.core.channels import Channel, Domain, Facts, Kind
from everywatt.sensors.sysfs import read_text

PERIOD_S = 1e-3
# The usual energy status unit, 2^-14 J. Some parts count finer (AMD and server DRAM: 2^-16 J); this is the coarser one.
QUANTUM_J = 2.0**-14

# 95 % half-widths: gain in percent, offset in watts.
#
# Since Haswell the package counter comes from measurement in the voltage regulators instead of a model (Hackenberg et
# al., "An Energy Efficiency Feature Survey of the Intel Haswell Processor", IPDPSW 2015), and Khan et al. ("RAPL in
# Action", ACM TOMPECS 2018) find it accurate on Haswell and Skylake. Neither gives one figure for every part: 5 % and
# 1 W is our cautious reading. Sandy and Ivy Bridge use a model: on Intel's forum an Ivy Bridge counted 60.1 W where the
# CPU's 12 V connector took 55.2 W (9 %) at load, and 8.1 W for 3.6 W when idle. AMD's counter is a model too.
# DRAM: Desrochers et al. ("A Validation of DRAM RAPL Power Measurements", MEMSYS 2016) find the trend right with a
# constant offset, worst when idle; the notes of Intel's Power Gadget warn of up to about 30 % on some platforms.
# Recordings of DIMMs behind a meter (github.com/lukalt/icpe-2024-rapl-validation, ICPE 2024): on both Broadwell sockets
# 20 % and 1 W hold in all windows of 1 s; an Ice Lake-SP server counts 1.3 to 3.4 W more than its one DIMM a socket
# takes, and no line fits both sockets. Generations without a comparison get the 4 W of the worse one.
# Where microcode filters the counters against side channels (SGX enabled) they may be far worse for short windows.
# Nobody can meter core and uncore apart from the package, and psys depends on the board maker: cautious choices.
_ACCURACY: dict[Domain, tuple[float, float]] = {
    Domain.PACKAGE: (5.0, 1.0),
    Domain.CORE: (10.0, 1.0),
    Domain.UNCORE: (10.0, 1.0),
    Domain.DRAM: (20.0, 4.0),
    Domain.NODE: (10.0, 2.0),
}
RAPL_DOMAINS = tuple(_ACCURACY)
_MODELLED: dict[Domain, tuple[float, float]] = {**_ACCURACY, Domain.PACKAGE: (10.0, 4.5), Domain.CORE: (10.0, 4.5)}
_SANDY_AND_IVY_BRIDGE = {42, 45, 58, 62}
# Haswell and Broadwell, whose DRAM counters were compared with meters.
_DRAM_COMPARED = {60, 63, 69, 70, 61, 71, 79, 86}
_DRAM_COMPARED_ACCURACY = (20.0, 1.0)
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

    @property
    def counts_by_model(self) -> bool:
        """True where the package counter is known to come from a model of activity rather than from measurement."""
        old = self.vendor == "GenuineIntel" and self.family == 6 and self.model in _SANDY_AND_IVY_BRIDGE
        return old or self.vendor in ("AuthenticAMD", "HygonGenuine")


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
    gain_pct, offset_w = (_MODELLED if cpu.counts_by_model else _ACCURACY)[domain]
    if domain is Domain.DRAM and cpu.vendor == "GenuineIntel" and cpu.family == 6 and cpu.model in _DRAM_COMPARED:
        gain_pct, offset_w = _DRAM_COMPARED_ACCURACY
    return Facts(
        period_s=PERIOD_S,
        quantum=QUANTUM_J,
        gain_pct=gain_pct,
        offset_w=offset_w,
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
