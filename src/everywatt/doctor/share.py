"""What a machine's sensors are, as one small file without names: a user can send it, and the simulator can replay it.

It holds devices, domains, what was measured of each channel (period, jitter, window, step, cost of a read), how counter
and power of one device agree, and which readings a driver supports. It holds no host, user, path, serial number, UUID
or address, and nothing of sensors that are configured, because their settings name other machines.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from everywatt.core.channels import GroupInfo, Kind
from everywatt.core.machine import Machine
from everywatt.doctor.characterise import characterise_live
from everywatt.doctor.coverage import coverage
from everywatt.sensors.base import Report, Request
from everywatt.sensors.cpu.rapl import Cpu
from everywatt.sensors.nvidia.nvml import Nvml
from everywatt.sensors.registry import NEEDS, choose, known
from everywatt.sensors.sysfs import packages_of, threads_per_core

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PCI = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE)
_PATH = re.compile(r"(?<!\w)/(?!sys/|proc/|dev/)[^\s:'\"]+")
_MEASURED = (
    *("period_s", "jitter_s", "window_s", "window_low_s", "window_high_s", "lag_s", "quantum"),
    *("polls", "poll_s", "read_s", "mean_w", "confidence", "notes"),
)
_CARD = ("device", "name", "driver", "compute_capability", "memory_bytes", "max_w")


def share(time_s: float = 5.0, *, machine: Machine | None = None) -> dict[str, Any]:
    """The file's content; each device is polled for `time_s`."""
    from everywatt import __version__

    machine = machine or Machine.here()
    ours = {name: target for name, target in known(machine.environ).items() if NEEDS.get(name) != "settings"}
    with closing(choose(ours, Request(machine=machine, estimate=False))) as choice:
        infos = [group.info for group in choice.groups]
        fields = Nvml(Request(machine=machine)).field_support() if any(i.sensor == "nvml" for i in infos) else {}
    measured = {one.sensor: _chosen(one.to_dict(), _MEASURED) for one in characterise_live(time_s, machine=machine)}
    cpu = Cpu.read(machine.proc)
    document = {
        "schema": "everywatt/1",
        "kind": "shared-sensors",
        "everywatt": __version__,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": {
            "vendor": cpu.vendor,
            "family": cpu.family,
            "model": cpu.model,
            "hypervisor": cpu.hypervisor,
            "cpus": os.cpu_count(),
            "threads_per_core": threads_per_core(machine.sys),
            "packages": len(set(packages_of(machine.sys) or [0])),
        },
        "total": coverage(infos).scope,
        "sensors": {report.sensor: _report(report) for report in choice.reports},
        "groups": [_group(info) for info in infos],
        "measured": measured,
        "agreement": agreement(infos, measured),
        "nvml_fields": fields,
    }
    clean: dict[str, Any] = anonymised(document, (platform.node(), machine.environ.get("USER", "")))
    return clean


def _chosen(facts: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    return {name: facts[name] for name in names if facts.get(name) is not None}


def _report(report: Report) -> dict[str, Any]:
    cards = [_chosen(card, _CARD) for card in report.devices]
    found = {"state": str(report.state), "why": report.why, "missing": dict(report.missing), "cards": cards}
    return {key: value for key, value in found.items() if value}


def _group(info: GroupInfo) -> Any:
    """What a group says of itself, without its device's own number and without what is not known."""
    return _known({key: value for key, value in info.to_dict().items() if key != "uuid"})


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(inner) for key, inner in value.items() if inner is not None}
    return [_known(inner) for inner in value] if isinstance(value, list | tuple) else value


def agreement(infos: Sequence[GroupInfo], measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each device and domain with a counter and a power reading: the watts of both, read at the same time."""
    found = []
    for info in infos:
        for counter in info.channels:
            if counter.kind is not Kind.COUNTER or not counter.carries_energy:
                continue
            for power in info.channels:
                same = (power.device, power.domain, power.unit) == (counter.device, counter.domain, "W")
                by_counter, by_power = (measured.get(c.name, {}).get("mean_w") for c in (counter, power))
                if same and by_counter and by_power:
                    names = {"device": counter.device, "counter": counter.name, "power": power.name}
                    watts = {"counter_w": by_counter, "power_w": by_power, "ratio": round(by_counter / by_power, 4)}
                    found.append({**names, **watts})
    return found


def anonymised(value: Any, names: Sequence[str]) -> Any:
    """The same data with UUIDs, PCI addresses, paths outside of /sys, /proc and /dev, and these names left out."""
    if isinstance(value, Mapping):
        return {anonymised(key, names): anonymised(inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [anonymised(inner, names) for inner in value]
    if not isinstance(value, str):
        return value
    for pattern, word in ((_UUID, "UUID"), (_PCI, "PCI"), (_PATH, "PATH")):
        value = pattern.sub(word, value)
    for name in names:
        if len(name) > 2:
            value = re.sub(rf"\b{re.escape(name)}\b", "NAME", value)
    return value
