"""A line of tegrastats in the metric text of the Waggle jetson-exporter, byte for byte.

Its names, help texts and the 32-bit temperatures are kept as they are, so that dashboards made for it go on working.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from math import isfinite

from everywatt.sensors.jetson.tegrastats import TegraLine

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
Sample = tuple[str, str, float]


def metrics_text(line: TegraLine, updated_unix_s: float) -> str:
    """The text of `/metrics`, sorted by name and label. What the line does not tell is left out."""
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
            yield from _engine("cpu", core.percent, core.clocks_mhz, f'{{cpu="{number}"}}')
    for word, engine in (("emc", line.emc), ("gpu", line.gpu)):
        if engine is not None:
            yield from _engine(word, engine.percent, engine.clocks_mhz, "")
    yield from _memory(line)
    if line.mts_percent is not None:
        yield "tegra_mts_fg_percentage", "", line.mts_percent[0]
        yield "tegra_mts_bg_percentage", "", line.mts_percent[1]
    for sensor, celsius in line.temperatures_c.items():
        yield "tegra_temperature_celcius", _sensor(sensor), _single(celsius)
    for rail in line.rails:
        yield "tegra_wattage_current_milliwatts", _sensor(rail.label), rail.current_mw
        if rail.average_mw is not None:
            yield "tegra_wattage_average_milliwatts", _sensor(rail.label), rail.average_mw


def _engine(word: str, percent: float | None, clocks_mhz: Iterable[int], label: str) -> Iterator[Sample]:
    if percent is not None:
        yield f"tegra_{word}_util_percentage", label, percent
    for clock in list(clocks_mhz)[:1]:
        yield f"tegra_{word}_frequency_hz", label, clock * MHZ


def _memory(line: TegraLine) -> Iterator[Sample]:
    if line.ram is not None:
        yield "tegra_ram_used_bytes", "", line.ram.used_bytes
        yield "tegra_ram_total_bytes", "", line.ram.total_bytes
        if line.ram.blocks is not None and line.ram.block_bytes is not None:
            yield "tegra_lfb_nblock_count", "", line.ram.blocks
            yield "tegra_lfb_size_bytes", "", line.ram.block_bytes
    if line.swap is not None:
        yield "tegra_swap_used_bytes", "", line.swap.used_bytes
        yield "tegra_swap_total_bytes", "", line.swap.total_bytes
        if line.swap.cached_bytes is not None:
            yield "tegra_swap_cached_bytes", "", line.swap.cached_bytes


def _sensor(name: str) -> str:
    return f'{{sensor="{name.lower()}"}}'


def _single(value: float) -> float:
    """A number as a 32-bit float holds it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _number(value: float) -> str:
    """The shortest digits, with an exponent below 10⁻⁴ and from 10⁶ on: how Go writes a number."""
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "NaN"
    if 1e-4 <= abs(value) < 1e6:
        return repr(float(value)).removesuffix(".0")
    shortest = next(text for places in range(18) if float(text := f"{value:.{places}e}") == value or places == 17)
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0').rjust(2, '0')}"
