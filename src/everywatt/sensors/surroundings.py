"""What kind of place this is: bare metal, guest, container, Jetson, with an NVIDIA driver or not, and how much memory a
process can still get. Only this knows.

Read-only, from trees. A question that files cannot answer is answered by None, never by a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from everywatt.sensors import procfs
from everywatt.sensors.procfs import file_text
from everywatt.sensors.usage.cgroups import parse_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everywatt.core.machine import Machine

_GUEST_MAKERS = (
    "qemu",
    "kvm",
    "vmware",
    "virtualbox",
    "innotek",
    "xen",
    "bochs",
    "parallels",
    "bhyve",
    "openstack",
    "amazon ec2",
    "google compute engine",
    "digitalocean",
    "alibaba cloud",
    "virtual machine",
    "hvm domu",
)
_CONTAINERS = ("docker", "kubepods", "containerd", "libpod", "lxc", "crio", "garden", "buildkit")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts that decide which sensors there can be. None means: no sign of it.

    guest          how it shows that this is a virtual machine or a share of one
    container      the name of the container system
    jetson         the model of the NVIDIA Jetson board
    nvidia_driver  the version of the NVIDIA kernel driver ("unknown" where it does not say)
    nvidia_card    where an NVIDIA GPU shows in /dev or on the PCI bus, whether or not a driver runs
    """

    guest: str | None = None
    container: str | None = None
    jetson: str | None = None
    nvidia_driver: str | None = None
    nvidia_card: str | None = None


def look(machine: Machine) -> Surroundings:
    return Surroundings(
        guest=find_guest(machine, procfs.parse_cpuinfo(file_text(machine.proc / "cpuinfo"))),
        container=find_container(machine),
        jetson=_jetson(machine),
        nvidia_driver=_nvidia_driver(machine),
        nvidia_card=_nvidia_card(machine),
    )


def find_guest(machine: Machine, cpus: Sequence[Mapping[str, str]]) -> str | None:
    """How it shows that this is a virtual machine; None on bare metal. `cpus` is the parsed /proc/cpuinfo."""
    first = cpus[0] if cpus else {}
    if "hypervisor" in first.get("flags", "").split():
        return "the CPU has the hypervisor flag"
    dmi = machine.sys / "class" / "dmi" / "id"
    maker = f"{file_text(dmi / 'sys_vendor')} {file_text(dmi / 'product_name')}".lower()
    bare = maker.split()[-1:] and maker.split()[-1].endswith((".metal", "-metal"))  # rented whole
    if not bare and any(word in maker for word in _GUEST_MAKERS):
        return f"DMI reports {' '.join(maker.split())}"
    kind = file_text(machine.sys / "hypervisor" / "type")
    if kind and "control_d" not in file_text(machine.proc / "xen" / "capabilities"):
        return f"/sys/hypervisor reports {kind}"
    if file_text(machine.proc / "device-tree" / "hypervisor" / "compatible"):
        return "the device tree names a hypervisor"
    # A container whose /proc is filtered (lxcfs) sees its share of the CPUs, but each still reports its socket's size.
    siblings = first.get("siblings", "")
    if siblings.isdecimal() and len(cpus) < int(siblings):
        return f"only {len(cpus)} of {siblings} CPUs of a socket are visible"
    return None


def find_container(machine: Machine) -> str | None:
    """The name of the container system we are in, None outside."""
    root = machine.proc.parent
    if machine.environ.get("container"):
        return machine.environ["container"]
    if machine.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run" / ".containerenv").exists():
        return "podman"
    groups = file_text(machine.proc / "1" / "cgroup")
    return next((word for word in _CONTAINERS if word in groups), None)


def _jetson(machine: Machine) -> str | None:
    for tree in (machine.proc / "device-tree", machine.sys / "firmware" / "devicetree" / "base"):
        model, family = file_text(tree / "model"), file_text(tree / "compatible")
        if "jetson" in model.lower() or "nvidia,tegra" in family:
            return model or "a Tegra board"
    return None


def _nvidia_driver(machine: Machine) -> str | None:
    text = file_text(machine.proc / "driver" / "nvidia" / "version")
    words = text.partition("\n")[0].split() if text else []
    numbers = [word for word in words if word[:1].isdecimal() and "." in word]
    return numbers[0] if numbers else ("unknown" if text else None)


def _nvidia_card(machine: Machine) -> str | None:
    node = machine.dev / "nvidia0"
    if node.exists():
        return str(node)
    for vendor in sorted(machine.sys.glob("bus/pci/devices/*/vendor")):
        # Class 03 is display controllers: NVIDIA also makes audio functions and network cards.
        if file_text(vendor) == "0x10de" and file_text(vendor.with_name("class")).startswith("0x03"):
            return f"PCI {vendor.parent.name}"
    return None


def memory_bytes(machine: Machine) -> tuple[int | None, int | None]:
    """Bytes that are available, and all there are, to this process: the machine's, or its cgroup's where that is less.

    None where the kernel does not say.
    """
    try:
        sizes = procfs.parse_meminfo((machine.proc / "meminfo").read_bytes())
        available, total = sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError):
        return None, None
    for limit, used in _cgroup_limits(machine):
        if limit < total:
            available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def _cgroup_limits(machine: Machine) -> list[tuple[int, int]]:
    """Limit and use of this process's memory cgroup and of those above it."""
    root = machine.sys / "fs" / "cgroup"
    try:
        place = parse_place((machine.proc / "self" / "cgroup").read_bytes()).memory
    except OSError:
        return []
    folder = root / (place or "").strip("/")
    found = []
    for place_above in (folder, *folder.parents):
        if not place_above.is_relative_to(root):
            break
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                found.append((int((place_above / limit).read_text()), int((place_above / used).read_text())))
            except (OSError, ValueError):
                continue
    return found
