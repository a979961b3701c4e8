"""What kind of machine this is: bare metal, guest, container, Jetson. Read-only, from trees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from everywatt.core.machine import Machine

_CONTAINER_WORDS = ("docker", "containerd", "kubepods", "libpod", "lxc", "podman", "garden")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts that decide which sensors there can be. Empty text means no."""

    hypervisor: str
    container: str
    jetson: str
    nvidia_driver: str


def look(machine: Machine) -> Surroundings:
    """Look around."""
    return Surroundings(
        hypervisor=_hypervisor(machine),
        container=_container(machine),
        jetson=_jetson(machine),
        nvidia_driver=_nvidia_driver(machine),
    )


def read_text(path: Path, default: str = "") -> str:
    """A small file's text without its end, or the default where it cannot be read."""
    try:
        return path.read_bytes().replace(b"\0", b"").decode(errors="replace").strip()
    except OSError:
        return default


def _hypervisor(machine: Machine) -> str:
    if " hypervisor" in read_text(machine.proc / "cpuinfo"):
        vendor = read_text(machine.sys / "class/dmi/id/sys_vendor")
        product = read_text(machine.sys / "class/dmi/id/product_name")
        return " ".join(filter(None, (vendor, product))) or "a virtual machine"
    return read_text(machine.sys / "hypervisor/type")


def _container(machine: Machine) -> str:
    root = machine.proc.parent
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    name = next((n for n in _CONTAINER_WORDS if n in read_text(machine.proc / "1/cgroup")), "")
    return name or machine.environ.get("container", "")


def _jetson(machine: Machine) -> str:
    model = read_text(machine.proc / "device-tree/model") or read_text(machine.sys / "firmware/devicetree/base/model")
    return model if "jetson" in model.lower() or "nvidia orin" in model.lower() else ""


def _nvidia_driver(machine: Machine) -> str:
    text = read_text(machine.proc / "driver/nvidia/version")
    words = text.splitlines()[0].split() if text else []
    numbers = [word for word in words if word[:1].isdigit() and "." in word]
    return numbers[0] if numbers else ("present" if text else "")
