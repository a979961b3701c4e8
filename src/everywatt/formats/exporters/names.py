"""The names of other exporters, so that dashboards made for them go on working: Kepler, DCGM-exporter, jetson-exporter.

The figures are everywatt's. What one of them tells and everywatt does not know is left out.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everywatt.fleet.device_counters import Line
from everywatt.fleet.exporting import MetricSource
from everywatt.fleet.metrics import Family, Registry
from everywatt.fleet.watch import Watcher
from everywatt.formats.exporters.jetson import metrics_text
from everywatt.ledger.counters import IDLE
from everywatt.ledger.split.amounts import UJ
from everywatt.sensors.base import Report
from everywatt.sensors.jetson.tegrastats import Engine, Memory, RailPower, TegraLine

MIB = 2**20
Row = tuple[str, float | None, tuple[tuple[str, str], ...]]
_KEPLER = {
    "kepler_node_cpu_joules_total": ("counter", "Energy of a zone at node level in joules."),
    "kepler_node_cpu_watts": ("gauge", "Power of a zone at node level in watts."),
    "kepler_node_cpu_active_joules_total": ("counter", "Active energy of a zone, in joules."),
    "kepler_node_cpu_idle_joules_total": ("counter", "Energy of a zone at idle, in joules."),
    "kepler_node_cpu_usage_ratio": ("gauge", "CPU usage of the node, from 0 to 1."),
    "kepler_container_cpu_joules_total": ("counter", "Energy of a zone by container in joules."),
    "kepler_process_cpu_joules_total": ("counter", "Energy of a zone by program in joules."),
}
_DCGM = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz)."),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "Total energy consumption (in mJ)."),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %)."),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %)."),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB)."),
}
_DCGM_STATES = {
    "DCGM_FI_DEV_SM_CLOCK": ("clock_sm", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("clock_memory", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("utilisation", 1.0),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_utilisation", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory", 1 / MIB),
}


def kepler_text(source: MetricSource, *, open_metrics: bool) -> str:
    """Kepler's names, without an end mark."""
    return _written(_KEPLER, _kepler(source.watcher, source.now_ns), open_metrics)


def dcgm_text(source: MetricSource, *, open_metrics: bool) -> str:
    """DCGM-exporter's names, without an end mark."""
    return _written(_DCGM, _dcgm(source.watcher, source.reports, source.now_ns), open_metrics)


def jetson_text(source: MetricSource, *, open_metrics: bool) -> str:
    """jetson-exporter's names, without an end mark."""
    line = tegra_line(source.watcher, source.now_ns)
    return metrics_text(line, source.utc.ms(source.now_ns) // 1000) if line is not None else ""


def _written(families: dict[str, tuple[str, str]], rows: Iterable[Row], open_metrics: bool) -> str:
    known = {name: Family(name, kind, "", help_) for name, (kind, help_) in families.items()}
    if open_metrics:  # a counter's name ends in _total there, and DCGM's does not
        known = {
            n: f if f.type != "counter" or n.endswith("_total") else f._replace(type="unknown")
            for n, f in known.items()
        }
    registry = Registry(known)
    for name, value, labels in rows:
        registry.set(name, value, *labels)
    return registry.text(open_metrics=open_metrics).removesuffix("# EOF\n")


def _kepler(watcher: Watcher, now_ns: int) -> Iterable[Row]:
    for line in watcher.lines.all:
        if line.kind == "gpu":
            continue
        zone = (("zone", line.domain), ("path", line.device))
        yield "kepler_node_cpu_joules_total", line.settled_uj / UJ, zone
        yield "kepler_node_cpu_watts", None if line.stale(now_ns) else line.power_w, zone
        if line.in_total:
            yield from _kepler_owners(watcher, line, zone)
    yield "kepler_node_cpu_usage_ratio", watcher.busy_share, ()


def _kepler_owners(watcher: Watcher, line: Line, zone: tuple[tuple[str, str], ...]) -> Iterable[Row]:
    idle_uj = watcher.counters.uj.get(IDLE, {}).get(line.device, 0)
    yield "kepler_node_cpu_idle_joules_total", idle_uj / UJ, zone
    yield "kepler_node_cpu_active_joules_total", (line.settled_uj - idle_uj) / UJ, zone
    for owner, amounts in list(watcher.counters.uj.items()):
        if line.device not in amounts:
            continue
        joules = amounts[line.device] / UJ
        if owner.kind == "container":
            who = (("container_id", owner.id), ("container_name", owner.id), ("state", "running"), zone[0], zone[1])
            yield "kepler_container_cpu_joules_total", joules, who
        elif owner.kind == "process":
            yield "kepler_process_cpu_joules_total", joules, (("comm", owner.id), ("state", "running"), *zone)


def _dcgm(watcher: Watcher, reports: Sequence[Report], now_ns: int) -> Iterable[Row]:
    cards: dict[str, Any] = {str(card.get("device")): card for report in reports for card in report.devices}
    for line in watcher.lines.all:
        if line.kind != "gpu":
            continue
        card, number = cards.get(line.device, {}), line.device.rpartition(".")[2]
        labels = (
            ("gpu", number), ("UUID", str(card.get("uuid") or "")), ("device", f"nvidia{number}"),
            ("modelName", str(card.get("name") or "")), ("Hostname", socket.gethostname()),
        )  # fmt: skip
        yield "DCGM_FI_DEV_POWER_USAGE", None if line.stale(now_ns) else line.power_w, labels
        yield "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", line.settled_uj // 1000, labels
        for name, (suffix, factor) in _DCGM_STATES.items():
            found = watcher.states.value(f"{line.device}.{suffix}", now_ns)
            yield name, None if found is None else found[0] * factor, labels
        used = watcher.states.value(f"{line.device}.memory", now_ns)
        total = card.get("memory_bytes")
        yield "DCGM_FI_DEV_FB_FREE", None if used is None or not total else (total - used[0]) / MIB, labels


def tegra_line(watcher: Watcher, now_ns: int) -> TegraLine | None:
    """What a Jetson tells now, in the shape of a line of tegrastats; None on another machine."""
    rails = [line for line in watcher.lines.all if line.channel.device == "jetson"]
    if not rails:
        return None
    told = {
        name.removeprefix("jetson."): found[0]
        for name, channel in watcher.states.channels.items()
        if channel.device == "jetson" and (found := watcher.states.value(name, now_ns)) is not None
    }
    warm = {name.removesuffix(".temperature"): value for name, value in told.items() if name.endswith(".temperature")}
    numbers = [int(match[1]) for name in told if (match := re.fullmatch(r"cpu(\d+)\.utilisation", name))]
    stems = [f"cpu{number}" for number in range(max(numbers, default=-1) + 1)]
    mts = told.get("mts_foreground"), told.get("mts_background")
    return TegraLine(
        rails=tuple(_rail(line, told) for line in rails if line.power_w is not None and not line.stale(now_ns)),
        temperatures_c=warm,
        cores=tuple(_engine(told, f"{stem}.utilisation", f"{stem}.clock") for stem in stems),
        gpu=_engine(told, "gpu.utilisation", "gpu.clock"),
        emc=_engine(told, "memory_utilisation", "emc.clock"),
        ram=_memory(told, "memory"),
        swap=_memory(told, "swap"),
        mts_percent=None if mts[0] is None or mts[1] is None else (mts[0], mts[1]),
    )


def _engine(told: Mapping[str, float], use: str, clock: str) -> Engine | None:
    if use not in told and clock not in told:
        return None
    return Engine(told.get(use), (round(told[clock]),) if clock in told else ())


def _memory(told: Mapping[str, float], name: str) -> Memory | None:
    if name not in told or f"{name}_total" not in told:
        return None
    more = [told.get(key) for key in ("free_blocks", "free_block", "swap_cached")]
    return Memory(int(told[name]), int(told[f"{name}_total"]), *(None if one is None else int(one) for one in more))


def _rail(line: Line, told: Mapping[str, float]) -> RailPower:
    """Its average is tegrastats' own where that is what is read, else the mean power since the agent was started."""
    label = line.channel.name.removeprefix("jetson.").removesuffix(".power")
    mean_w = told.get(f"{label}.average_power")
    if mean_w is None and line.observed_ns:
        mean_w = line.joules / (line.observed_ns / 1e9)
    return RailPower(label, round((line.power_w or 0.0) * 1000), None if mean_w is None else round(mean_w * 1000))
