"""The names of other exporters, so that dashboards made for them go on working: Kepler, DCGM-exporter, jetson-exporter.

The figures are everywatt's. What one of them reports and everywatt does not know is left out.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from everywatt.core.jsonio import declared
from everywatt.fleet.device_counters import Line
from everywatt.fleet.exporting import MetricSource
from everywatt.fleet.metrics import Family, Registry
from everywatt.fleet.watch import Watcher
from everywatt.ledger.counters import IDLE
from everywatt.ledger.engine import UJ
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
    """Current readings of a Jetson, as a parsed line of tegrastats; None on another machine."""
    rails = [line for line in watcher.lines.all if line.channel.device == "jetson"]
    if not rails:
        return None
    states = {
        name.removeprefix("jetson."): found[0]
        for name, channel in watcher.states.channels.items()
        if channel.device == "jetson" and (found := watcher.states.value(name, now_ns)) is not None
    }
    warm = {name.removesuffix(".temperature"): value for name, value in states.items() if name.endswith(".temperature")}
    numbers = [int(match[1]) for name in states if (match := re.fullmatch(r"cpu(\d+)\.utilisation", name))]
    stems = [f"cpu{number}" for number in range(max(numbers, default=-1) + 1)]
    mts = states.get("mts_foreground"), states.get("mts_background")
    return TegraLine(
        rails=tuple(_rail(line, states) for line in rails if line.power_w is not None and not line.stale(now_ns)),
        temperatures_c=warm,
        cores=tuple(_engine(states, f"{stem}.utilisation", f"{stem}.clock") for stem in stems),
        gpu=_engine(states, "gpu.utilisation", "gpu.clock"),
        emc=_engine(states, "memory_utilisation", "emc.clock"),
        ram=_memory(states, "memory"),
        swap=_memory(states, "swap"),
        mts_percent=None if mts[0] is None or mts[1] is None else (mts[0], mts[1]),
    )


def _engine(states: Mapping[str, float], use: str, clock: str) -> Engine | None:
    if use not in states and clock not in states:
        return None
    return Engine(states.get(use), (round(states[clock]),) if clock in states else ())


def _memory(states: Mapping[str, float], name: str) -> Memory | None:
    if name not in states or f"{name}_total" not in states:
        return None
    more = [states.get(key) for key in ("free_blocks", "free_block", "swap_cached")]
    return Memory(int(states[name]), int(states[f"{name}_total"]), *(None if one is None else int(one) for one in more))


def _rail(line: Line, states: Mapping[str, float]) -> RailPower:
    """Its average is tegrastats' own where that is what is read, else the mean power since the agent was started."""
    label = line.channel.name.removeprefix("jetson.").removesuffix(".power")
    mean_w = states.get(f"{label}.average_power")
    if mean_w is None and line.observed_ns:
        mean_w = line.joules / (line.observed_ns / 1e9)
    return RailPower(label, round((line.power_w or 0.0) * 1000), None if mean_w is None else round(mean_w * 1000))


MHZ = 1e6
_HELP = {
    "tegra_cpu_frequency_hz": "CPU Clock frequency",
    "tegra_cpu_util_percentage": "Utilization of CPU in percentage",
    "tegra_emc_frequency_hz": "External memory controller clock frequency",
    "tegra_emc_util_percentage": "Utilization of external memory controller in percentage",
    "tegra_gpu_frequency_hz": "GPU clock frequency",
    "tegra_gpu_util_percentage": "Utilization of GPU in percentage",
    "tegra_last_updated_timestamp_epoch": "An epoch time of when the stats were collected from the system",
    "tegra_lfb_nblock_count": "Count of largest free block",
    "tegra_lfb_size_bytes": "Size of largest free block",
    "tegra_mts_bg_percentage": "Time spent in foreground tasks",
    "tegra_mts_fg_percentage": "Time spent in background tasks",
    "tegra_ram_total_bytes": "Total memory",
    "tegra_ram_used_bytes": "Current used memory",
    "tegra_swap_cached_bytes": "Current swap cache memory",
    "tegra_swap_total_bytes": "Total swap memory",
    "tegra_swap_used_bytes": "Current swap used memory",
    "tegra_temperature_celcius": "Temperature reading in Celcius",
    "tegra_wattage_average_milliwatts": "Averaged Watts of the hardware",
    "tegra_wattage_current_milliwatts": "Current Watts of the hardware",
}
_MEMORY = (
    "tegra_ram_used_bytes=ram.used_bytes tegra_ram_total_bytes=ram.total_bytes tegra_lfb_nblock_count=ram.blocks "
    "tegra_lfb_size_bytes=ram.block_bytes tegra_swap_used_bytes=swap.used_bytes "
    "tegra_swap_total_bytes=swap.total_bytes tegra_swap_cached_bytes=swap.cached_bytes"
)
Sample = tuple[str, str, float]


def metrics_text(line: TegraLine, updated_unix_s: float) -> str:
    """A line of tegrastats in the metric text of the Waggle jetson-exporter, byte for byte, sorted by name and label.

    Its names, help texts and 32-bit temperatures are kept. What the line does not contain is left out.
    """
    samples = sorted(_samples(line, updated_unix_s), key=lambda sample: sample[:2])
    out: list[str] = []
    last = ""
    for name, label, value in samples:
        if name != last:
            out += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
            last = name
        out.append(f"{name}{label} {_number(value)}")
    return "\n".join(out) + "\n"


def _samples(line: TegraLine, updated_unix_s: float) -> Iterator[Sample]:
    yield "tegra_last_updated_timestamp_epoch", "", float(updated_unix_s)
    for number, core in enumerate(line.cores, 1):
        if core is not None:
            yield from _engine_samples("cpu", core.percent, core.clocks_mhz, f'{{cpu="{number}"}}')
    for word, engine in (("emc", line.emc), ("gpu", line.gpu)):
        if engine is not None:
            yield from _engine_samples(word, engine.percent, engine.clocks_mhz, "")
    yield from ((name, "", value) for name, value in declared(line, _MEMORY).items() if value is not None)
    if line.mts_percent is not None:
        yield "tegra_mts_fg_percentage", "", line.mts_percent[0]
        yield "tegra_mts_bg_percentage", "", line.mts_percent[1]
    for sensor, celsius in line.temperatures_c.items():
        yield (
            "tegra_temperature_celcius",
            _sensor(sensor),
            struct.unpack("f", struct.pack("f", celsius))[0],
        )  # a 32-bit float
    for rail in line.rails:
        yield "tegra_wattage_current_milliwatts", _sensor(rail.label), rail.current_mw
        if rail.average_mw is not None:
            yield "tegra_wattage_average_milliwatts", _sensor(rail.label), rail.average_mw


def _engine_samples(word: str, percent: float | None, clocks_mhz: Iterable[int], label: str) -> Iterator[Sample]:
    if percent is not None:
        yield f"tegra_{word}_util_percentage", label, percent
    for clock in list(clocks_mhz)[:1]:
        yield f"tegra_{word}_frequency_hz", label, clock * MHZ


def _sensor(name: str) -> str:
    return f'{{sensor="{name.lower()}"}}'


def _number(value: float) -> str:
    """The shortest digits, with an exponent below 10⁻⁴ and from 10⁶ on: how Go writes a number."""
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "NaN"
    if 1e-4 <= abs(value) < 1e6:
        return repr(float(value)).removesuffix(".0")
    shortest = next(text for places in range(18) if float(text := f"{value:.{places}e}") == value or places == 17)
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0').rjust(2, '0')}"
