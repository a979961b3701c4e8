"""From the name and labels of a series to a channel: everywatt's own metrics, and those of other exporters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.fleet.exporting import CLOCKS, STATES
from everywatt.fleet.metrics import labels_text
from everywatt.fleet.query import Series
from everywatt.fleet.tables import is_counter
from everywatt.sensors.cpu.raplfacts import Cpu, energy_channel
from everywatt.sensors.jetson import jetson
from everywatt.sensors.nvidia import gpu_known

OWN: Final = frozenset(
    {"device", "domain", "pedigree", "name", "uuid", "total", "kind", "owner", "user", "account", "partition", "sensor"}
    | {
        "exported_job",
        "exported_instance",
        "version",
        "python",
        "machine",
        "outcome",
        "mode",
        "clock",
        "covers",
        "reason",
    }
)
MODELLED_PCT: Final = 100.0  # of a machine whose model is not known: from nothing to twice
NODE_LABELS: Final = ("instance", "job", "__name__")
UNITS: Final = (
    ("_joules_total", "J", 1.0),
    ("_joules", "J", 1.0),
    ("_watts", "W", 1.0),
    ("_milliwatts", "W", 1e-3),
    ("_bytes", "B", 1.0),
    ("_bytes_total", "B", 1.0),
    ("_seconds_total", "s", 1.0),
    ("_seconds", "s", 1.0),
    ("_ratio", "%", 100.0),
    ("_celsius", "°C", 1.0),
    ("_celcius", "°C", 1.0),
    ("_percentage", "%", 1.0),
    ("_hertz", "Hz", 1.0),
    ("_hz", "Hz", 1.0),
)
STATE_UNITS: Final = {
    "utilisation": ("%", 100.0),
    "memory": ("B", 1.0),
    "temperature": ("°C", 1.0),
    "power_limit": ("W", 1.0),
}
# Counters and gauges of other exporters that are joules and watts of a device.
DCGM: Final = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("J", 1e-3), "DCGM_FI_DEV_POWER_USAGE": ("W", 1.0)}


@dataclass(frozen=True, slots=True)
class Told:
    """A series and the channel that it becomes."""

    channel: Channel
    series: Series

    def named(self, name: str) -> Channel:
        """The channel under a name that is free."""
        return replace(self.channel, name=name)


def own_labels(metric: str) -> frozenset[str] | None:
    """Labels that are the metric's own and not its node's; None for a metric of somebody else."""
    return OWN if metric.startswith("everywatt_") else None


def translate(series: Series, card: str = "") -> Told | None:
    """The channel of a series; `card` is the name of the device behind it, where that is known."""
    labels = series.labels
    device = labels.get("device", "")
    if series.name == "everywatt_energy_joules_total":
        return Told(energy(device, labels.get("domain", ""), labels.get("pedigree", ""), card), series)
    if series.name == "everywatt_power_watts":
        counted = energy(device, labels.get("domain", ""), labels.get("pedigree", ""), card)
        name = counted.name.removesuffix(".energy") + ".power"
        facts = replace(counted.facts, quantum=None)
        gauge = replace(counted, name=name, unit="W", kind=Kind.GAUGE, mirror_of=counted.name, facts=facts)
        return Told(gauge, series)
    for word, (metric, _) in STATES.items():
        if series.name == metric:
            unit, scale = STATE_UNITS[word]
            return Told(Channel(f"{device}.{word}", unit, Kind.GAUGE, _chip(device), None, scale), series)
    if series.name == "everywatt_clock_hertz":
        word = {value: key for key, value in CLOCKS.items()}.get(labels.get("clock", ""), "clock")
        return Told(Channel(f"{device}.{word}", "MHz", Kind.GAUGE, device, None, 1e-6), series)
    if series.name == "everywatt_host_memory_bytes":
        return Told(Channel("host.memory", "B", Kind.GAUGE, "host"), series)
    if series.name == "everywatt_host_cpu_seconds_total":
        word = {"busy": "cpu_time", "idle": "idle_time"}.get(labels.get("mode", ""), "other_time")
        return Told(Channel(f"host.{word}", "s", Kind.COUNTER, "host"), series)
    return _foreign(series)


def _chip(device: str) -> str:
    """`cpu.0` of `cpu.0.core.3`: the device that a temperature belongs to."""
    return ".".join(device.split(".")[:2])


def energy(device: str, domain: str, pedigree: str, card: str = "") -> Channel:
    """The counter of a device's joules, with what can be known of its sensor from afar.

    A processor is taken for one whose counter comes from a model, a modelled machine for one that is no server: the
    wider of what is known, since neither is told by labels.
    """
    try:
        what = Domain(domain)
    except ValueError:
        what = None
    base, _, middle = device.partition(" ")
    if middle:
        stem = f"{base}.{middle}"
    elif what in (Domain.PACKAGE, Domain.CORE, Domain.UNCORE):
        stem = f"{base}.{domain}"
    elif what is Domain.DRAM:
        stem = f"cpu.{base.removeprefix('dram.')}.dram"
    else:
        stem = base
    kind = Pedigree(pedigree) if pedigree in set(Pedigree) else Pedigree.COUNTER
    facts = _facts(what, base, kind, card)
    return Channel(f"{stem}.energy", "J", Kind.COUNTER, base, what, 1.0, kind, facts=facts)


def _facts(domain: Domain | None, device: str, pedigree: Pedigree, card: str) -> Facts:
    if pedigree is Pedigree.MODELLED:
        return Facts(gain_pct=MODELLED_PCT)
    if domain is Domain.GPU:
        known = gpu_known.facts_for(card, "", None, "counter")
        return replace(known, quantum=1e-6, period_s=None, window_s=None)
    if domain in (Domain.SOC, Domain.RAIL):
        return Facts(gain_pct=jetson.GAIN_PCT)
    if domain in (Domain.PACKAGE, Domain.CORE, Domain.UNCORE, Domain.DRAM) or device.startswith("psys"):
        assert domain is not None
        wide = energy_channel(domain, "0", cpu=Cpu("AuthenticAMD"), scale=1.0, wrap=None, max_w=None).facts
        return Facts(gain_pct=wide.gain_pct, offset_w=wide.offset_w, cards=f"unknown/{domain.value}")
    return Facts()


def _foreign(series: Series) -> Told:
    """A metric of an exporter: watts or joules of a device where that is known, else a state of the host."""
    name, labels = series.name, series.labels
    if name in DCGM and "gpu" in labels and not labels.get("GPU_I_ID"):
        unit, scale = DCGM[name]
        channel = energy(f"gpu.{labels['gpu']}", "gpu", "counter", labels.get("modelName", ""))
        if unit == "W":
            counted = channel.name
            channel = replace(channel, name=f"gpu.{labels['gpu']}.power", unit="W", kind=Kind.GAUGE, mirror_of=counted)
            channel = replace(channel, pedigree=Pedigree.INTEGRATED)
        return Told(replace(channel, scale=scale), series)
    if name == "node_rapl_package_joules_total" and "index" in labels:
        return Told(energy(f"cpu.{labels['index']}", "package", "counter"), series)
    if name == "node_rapl_dram_joules_total" and "index" in labels:
        return Told(energy(f"dram.{labels['index']}", "dram", "counter"), series)
    if name == "tegra_wattage_current_milliwatts":
        return Told(jetson.series_channel(name, labels.get("sensor", ""), name), series)
    kind = Kind.COUNTER if is_counter(name) else Kind.GAUGE
    unit, scale = next(((unit, scale) for end, unit, scale in UNITS if name.endswith(end)), ("", 1.0))
    return Told(Channel(_key(name, labels), unit, kind, labels.get("device") or "host", None, scale), series)


def _key(name: str, labels: dict[str, str]) -> str:
    pairs: Sequence[tuple[str, str]] = [p for p in sorted(labels.items()) if p[0] not in NODE_LABELS]
    return name + labels_text(tuple(pairs))
