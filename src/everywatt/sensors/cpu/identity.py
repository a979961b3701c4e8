"""What machine this is, as far as it says: CPU, cores, sockets, memory, guest or not, server or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from everywatt.sensors import procfs
from everywatt.sensors.surroundings import file_text, find_container, find_guest, parse_cpuinfo

if TYPE_CHECKING:
    from pathlib import Path

    from everywatt.core.machine import Machine

LAPTOP_CHASSIS = {"8", "9", "10", "11", "14", "30", "31", "32"}
SERVER_CHASSIS = {"17", "23", "25", "28", "29"}
_SERVER_CPUS = ("xeon", "epyc", "opteron")

# CPUID family and model to the generation's name as in the SPECpower table; a later stepping may be another generation.
# Models: Linux, arch/x86/include/asm/intel-family.h and arch/x86/kernel/cpu/amd.c. Generations after the table's last
# have names of their own; the model takes them for the newest that it knows, with the wider interval of such CPUs.
_INTEL_6 = {
    **dict.fromkeys((15, 22, 23, 29), "core"),
    **dict.fromkeys((26, 30, 31, 37, 44, 46, 47), "nehalem"),
    **dict.fromkeys((42, 45), "sandybridge"),
    **dict.fromkeys((58, 62), "ivybridge"),
    **dict.fromkeys((60, 63, 69, 70), "haswell"),
    **dict.fromkeys((61, 71, 79, 86), "broadwell"),
    **dict.fromkeys((78, 94), "skylake"),
    **dict.fromkeys((106, 108), "icelake"),
    167: "rocketlake",
    **dict.fromkeys((125, 126), "icelake"),
    **dict.fromkeys((140, 141), "tigerlake"),
    **dict.fromkeys((165, 166), "cometlake"),
    **dict.fromkeys((151, 154), "alderlake"),
    **dict.fromkeys((183, 186, 191), "raptorlake"),
    143: "sapphirerapids",
    207: "emeraldrapids",
    **dict.fromkeys((173, 174), "graniterapids"),
    175: "sierraforest",
}
# Zen 3, Zen 4 and Zen 4c share family 25 (0x19): ranges of models, first to last.
_AMD_25 = (
    (0x00, 0x0F, "epyc-gen3"),
    (0x10, 0x1F, "epyc-gen4"),
    (0x20, 0x5F, "epyc-gen3"),
    (0x60, 0x7F, "epyc-gen4"),
    (0xA0, 0xAF, "epyc-gen4"),
)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a power model can know of a machine. None means that the machine does not say.

    threads     CPUs that the kernel sees (in a guest: its vCPUs)
    generation  of the CPU, by the names of the SPECpower table; None for one that is newer, older or not x86
    guest       how it shows that this is a virtual machine or a share of one; None on bare metal
    kind        server, laptop, desktop, board or unknown
    container   the name of the container system we are in, None outside
    """

    threads: int
    cores: int
    sockets: int
    memory_bytes: int | None
    cpu: str
    amd: bool = False
    generation: str | None = None
    tdp_w: float | None = None
    guest: str | None = None
    kind: str = "server"
    container: str | None = None


def generation_of(cpu: dict[str, str]) -> str | None:
    """The generation of an x86 CPU by family, model and stepping."""
    try:
        family, model, stepping = (int(cpu[key]) for key in ("cpu family", "model", "stepping"))
    except (KeyError, ValueError):
        return None
    if cpu.get("vendor_id") == "GenuineIntel" and family == 6:
        if model == 85:
            return "skylake" if stepping <= 4 else "cascadelake" if stepping <= 7 else "cooperlake"
        if model in (142, 158):
            return "kabylake" if stepping <= 9 else "coffeelake"
        return _INTEL_6.get(model)
    if cpu.get("vendor_id") == "AuthenticAMD":
        if family in (15, 16, 21):
            return "opteron"
        if family == 23:
            return "epyc-gen1" if model < 0x30 else "epyc-gen2"
        if family == 25:
            return next((name for first, last, name in _AMD_25 if first <= model <= last), None)
        if family == 26:
            return "epyc-gen5"
    return None


def identify(machine: Machine) -> MachineFacts:
    """Read /proc/cpuinfo, /proc/meminfo, DMI and the power limits. ValueError where not even a CPU count is there."""
    cpus = parse_cpuinfo(file_text(machine.proc / "cpuinfo"))
    if not cpus:
        raise ValueError(f"{machine.proc}/cpuinfo names no CPU")
    first = cpus[0]
    packages = {cpu.get("physical id", "0") for cpu in cpus}
    cores = {(cpu.get("physical id", "0"), cpu.get("core id", number)) for number, cpu in enumerate(cpus)}
    dmi = machine.sys / "class" / "dmi" / "id"
    name = first.get("model name") or cpus[-1].get("Model") or cpus[-1].get("Hardware") or _arm_name(first)
    return MachineFacts(
        threads=len(cpus),
        cores=len(cores),
        sockets=len(packages),
        memory_bytes=_memory(machine.proc),
        cpu=" ".join(name.split()),
        amd=first.get("vendor_id") == "AuthenticAMD",
        generation=generation_of(first),
        tdp_w=_package_limit_w(machine.sys),
        guest=find_guest(machine, cpus),
        kind=_kind(machine, name, dmi),
        container=find_container(machine),
    )


def _memory(proc: Path) -> int | None:
    return procfs.parse_meminfo(file_text(proc / "meminfo").encode()).get("MemTotal")


def _arm_name(cpu: dict[str, str]) -> str:
    parts = (cpu.get("CPU implementer"), cpu.get("CPU part"))
    return f"ARM CPU {parts[0]}/{parts[1]}" if all(parts) else "an unknown CPU"


def _kind(machine: Machine, name: str, dmi: Path) -> str:
    chassis = file_text(dmi / "chassis_type").strip()
    if chassis in SERVER_CHASSIS or any(word in name.lower() for word in _SERVER_CPUS):
        return "server"
    if chassis in LAPTOP_CHASSIS or _battery(machine.sys):
        return "laptop"
    if file_text(machine.proc / "device-tree" / "model"):
        return "board"
    return "desktop" if chassis in {"3", "4", "5", "6", "7", "13", "15", "16", "24", "35", "36"} else "unknown"


def _battery(sys: Path) -> bool:
    return any(file_text(path).strip() == "Battery" for path in sys.glob("class/power_supply/*/type"))


def _package_limit_w(sys: Path) -> float | None:
    """The TDP that the first package's long-term limit was made for; readable by everyone, also where energy is not."""
    for zone in sorted(sys.glob("class/powercap/intel-rapl:*")):
        if (
            file_text(zone / "name").startswith("package")
            and file_text(zone / "constraint_0_name").strip() == "long_term"
        ):
            text = file_text(zone / "constraint_0_max_power_uw").strip()
            if text.isdigit() and int(text) > 0:
                return int(text) / 1e6
    return None
