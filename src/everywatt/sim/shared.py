"""Cards and packages of a simulated machine, as a file of `everywatt doctor --share` describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everywatt.core.device import Device
from everywatt.sim.curves import parse_curve
from everywatt.sim.options import Gpu, Package

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELDS = {"energy": "83", "power_average": "185", "power": "186"}


def gpus_of(document: Mapping[str, Any]) -> list[Gpu]:
    """NVML's cards, in the order of their numbers."""
    found: list[Gpu] = []
    for device in _devices(document, "gpu", "nvml"):
        group = next(group for group in _groups(document) if group.get("device") == device and _carries(group))
        names = {channel["name"] for channel in group["channels"]}
        power, counter = _measured(document, f"{device}.power"), _measured(document, f"{device}.energy")
        watts = power.get("mean_w") or counter.get("mean_w") or 100.0
        module = next((c["device"] for c in group["channels"] if c.get("domain") == "module"), None)
        of_module = 0.0
        if module is not None:
            counter = counter or _measured(document, f"{module}.energy")
            of_module = _measured(document, f"{module}.power").get("mean_w") or counter.get("mean_w") or watts
        absent = [number for what, number in _FIELDS.items() if f"{device}.{what}" not in names]
        counts_module = f"{module}.energy" in names
        absent = [number for number in absent if number != "83" or not counts_module]
        calls = ["nvmlDeviceGetTotalEnergyConsumption"] if "83" in absent else []
        period_s = power.get("period_s") or 0.1
        found.append(
            Gpu(
                parse_curve(f"constant:{watts:.6g}W"),
                name=group.get("label") or None,
                period_s=period_s,
                window_s=power.get("window_s"),
                jitter_s=min(power.get("jitter_s") or 0.0, period_s / 2),
                counter_period_s=counter.get("period_s"),
                quantum_j=counter.get("quantum") or 0.001,
                power_quantum_w=power.get("quantum") or 0.001,
                module_w=max(of_module - watts, 0.0) if module is not None else None,
                counter_module=counts_module,
                unsupported=(*(f"field:{number}" for number in absent), *calls),
                seed=len(found),
            )
        )
    return found


def packages_of(document: Mapping[str, Any]) -> list[Package]:
    """Packages with RAPL counters, with the parts that were counted."""
    found = []
    for device in _devices(document, "cpu", "rapl", "perf"):
        counter = _measured(document, f"{device}.package.energy")
        watts = counter.get("mean_w") or 50.0
        shares = {
            part: (_measured(document, f"{device}.{part}.energy").get("mean_w") or 0.0) / watts
            for part in ("core", "uncore", "dram")
            if any(c["name"] == f"{device}.{part}.energy" for group in _groups(document) for c in group["channels"])
        }
        found.append(
            Package(
                parse_curve(f"constant:{watts:.6g}W"),
                period_s=counter.get("period_s") or 0.001,
                core=shares.get("core"),
                uncore=shares.get("uncore"),
                dram=shares.get("dram"),
            )
        )
    return found


def _groups(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [group for group in document.get("groups", []) if isinstance(group, dict)]


def _carries(group: Mapping[str, Any]) -> bool:
    return any(channel.get("domain") for channel in group["channels"])


def _devices(document: Mapping[str, Any], kind: str, *sensors: str) -> list[str]:
    """Numbered devices of a kind that carry energy in groups of these sensors."""
    names = {
        channel["device"]
        for group in _groups(document)
        if group.get("sensor") in sensors
        for channel in group["channels"]
        if channel.get("domain")
    }
    found = [Device.parse(str(name)) for name in names]
    return [str(device) for device in sorted(found) if device.kind == kind and device.index is not None]


def _measured(document: Mapping[str, Any], channel: str) -> dict[str, Any]:
    found = document.get("measured", {}).get(channel)
    return found if isinstance(found, dict) else {}
