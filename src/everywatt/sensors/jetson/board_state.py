"""What a Jetson does beside drawing power, from the kernel's files: CPUs, GPU, memory controller, memory, temperatures.

They are what `tegrastats` prints, under the same channel names. Root is needed for the clock of the memory controller
(EMC) on most boards, because it is in debugfs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence

from everywatt.core.channels import NAN, Channel, Kind
from everywatt.core.machine import Machine
from everywatt.sensors.procfs import PAGE_BYTES, file_text, memory_used_bytes, parse_meminfo, slurp
from everywatt.sensors.sysfs import NumberFile, SignedFile, entries
from everywatt.sensors.usage.activity import Part, StateGroup, close_all, cpus_part

GPU_NODES = ("gv11b", "gp10b", "ga10b", "gpu")  # names of the GPU in the device tree; Nano and TX1 say "gpu"
# Where kernels of JetPack 4 to 7 show the memory controller's rate, in Hz.
EMC_RATES = (
    "kernel/debug/bpmp/debug/clk/emc/rate",
    "class/devfreq/bwmgr/cur_freq",
    "kernel/debug/clk/override.emc/clk_rate",
    "kernel/debug/clk/emc/clk_rate",
)
# How busy it is, as percent times kHz.
EMC_ACTIVITY = (
    "kernel/debug/cactmon/mc_all",
    "kernel/debug/bpmp/debug/actmon/mc_all_avg_activity",
    "kernel/actmon_avg_activity/mc_all",
)
OFF_MILLICELSIUS = -200_000  # a sensor that is switched off says -256 degrees


def gauge(what: str, unit: str, scale: float = 1.0) -> Channel:
    return Channel(f"jetson.{what}", unit, Kind.GAUGE, "jetson", scale=scale)


def _files(found: Sequence[tuple[Channel, NumberFile]], why: str) -> Part:
    """Channels that are a number in a file each; OSError if there are no such files."""
    if not found:
        raise OSError(errno.ENOENT, why)
    channels, files = zip(*found, strict=True)
    return channels, lambda: [file.read() for file in files], close_all(*files)


def gpu_part(machine: Machine) -> Part:
    """Utilisation (the kernel counts per mille) and clock of the integrated GPU."""
    for folder in entries(machine.sys / "class" / "devfreq"):
        node = file_text(folder / "device" / "of_node" / "name")
        if node not in GPU_NODES and not any(folder.name.endswith(name) for name in GPU_NODES):
            continue
        clock, load = folder / "cur_freq", folder / "device" / "load"
        found = [(gauge("gpu.utilisation", "%", 0.1), NumberFile(load))] if load.exists() else []
        found += [(gauge("gpu.clock", "MHz", 1e-6), NumberFile(clock))] if clock.exists() else []
        return _files(found, f"{folder.name} has neither a load nor a clock")
    raise OSError(errno.ENOENT, "no GPU in /sys/class/devfreq")


def emc_part(machine: Machine) -> Part:
    rate = next((machine.sys / path for path in EMC_RATES if (machine.sys / path).exists()), None)
    if rate is None:
        raise OSError(errno.ENOENT, "no clock of the memory controller can be seen (it is in debugfs, for root)")
    files = [NumberFile(rate)]
    files += [NumberFile(machine.sys / path) for path in EMC_ACTIVITY if (machine.sys / path).exists()][:1]
    channels = (gauge("emc.clock", "MHz", 1e-6), gauge("memory_utilisation", "%"))[: len(files)]

    def read() -> Sequence[float]:
        hertz, *active = [file.read() for file in files]
        return [hertz, *(NAN if hertz <= 0 else min(one / (hertz / 1e3), 100.0) for one in active)]

    return channels, read, close_all(*files)


def memory_part(machine: Machine) -> Part:
    """Memory and swap in use and in all, what swap has cached, and the largest free blocks of memory."""
    names = ("memory", "memory_total", "swap", "swap_total", "swap_cached", "free_block")
    channels = (*(gauge(name, "B") for name in names), gauge("free_blocks", ""))

    def read() -> Sequence[float]:
        sizes = parse_meminfo(slurp(machine.proc / "meminfo"))
        total, free = sizes.get("SwapTotal", NAN), sizes.get("SwapFree", NAN)
        used = memory_used_bytes(sizes)
        block_bytes, blocks = largest_blocks(slurp(machine.proc / "buddyinfo"))
        cached = sizes.get("SwapCached", NAN)
        return (NAN if used is None else used, sizes["MemTotal"], total - free, total, cached, block_bytes, blocks)

    read()
    return channels, read, lambda: None


def largest_blocks(buddyinfo: bytes) -> tuple[float, float]:
    """Size of the largest free blocks of pages in /proc/buddyinfo, and how many of them there are; NaN without any."""
    counts: dict[int, int] = {}
    for line in buddyinfo.split(b"\n"):
        for order, word in enumerate(line.partition(b"zone")[2].split()[1:]):
            counts[order] = counts.get(order, 0) + int(word)
    largest = max((order for order, count in counts.items() if count), default=None)
    return (NAN, NAN) if largest is None else (float(PAGE_BYTES << largest), float(counts[largest]))


def temperature_part(machine: Machine) -> Part:
    """Every thermal zone that is on, by its type without the ending that all of them have: `cpu-thermal` is `cpu`."""
    found = []
    for zone in entries(machine.sys / "class" / "thermal"):
        name = file_text(zone / "type").removesuffix("-thermal").removesuffix("-therm")
        file = SignedFile(zone / "temp")
        if zone.name.startswith("thermal_zone") and name and file.read() > OFF_MILLICELSIUS:
            found.append((gauge(f"{name}.temperature", "°C", 1e-3), file))
        else:
            file.close()
    return _files(found, "no thermal zone")


PARTS: Mapping[str, Callable[[Machine], Part]] = {
    "use of each CPU": lambda machine: cpus_part(machine, "jetson"),
    "GPU": gpu_part,
    "memory controller": emc_part,
    "memory": memory_part,
    "temperatures": temperature_part,
}


def board_state(machine: Machine) -> StateGroup:
    """The group `jetson.state`, read once a second."""
    return StateGroup(machine, PARTS, "jetson.state", device="jetson", label="state of the board")
