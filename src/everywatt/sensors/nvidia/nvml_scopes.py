"""What readings of a GPU cover: the GPU, its memory, or the module with GPU and CPU that both are part of.

NVML reads power by field and scope. The energy counter has no such choice on every driver: on GH200 the plain counter
is that of the whole module. So it is compared with the power of both scopes before its joules get a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.sensors.nvidia.nvml_api import Fields, metric
from everywatt.sensors.nvidia.nvml_groups import FIELD_AVERAGE, FIELD_INSTANT, Found, Source, with_mirrors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from everywatt.sensors.nvidia.nvml_device import Device, Identity

SCOPE_MODULE, SCOPE_MEMORY = 1, 2
LOOK_NS = NS // 2  # long enough to tell two powers apart by a counter that publishes every 100 ms
NEAR = 0.25  # of the distance between the two powers: closer to one of them than this decides


def modules_of(cards: Mapping[int, Identity], sys: Path) -> dict[int, int]:
    """The module of each GPU by index: the NUMA node of its processor, or 0 where there is only one GPU."""
    found: dict[int, int] = {}
    for index, identity in cards.items():
        address = identity.gpu.pci_bus_id.lower()[-12:]
        try:
            node = int((sys / "bus" / "pci" / "devices" / address / "numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        if node >= 0 or len(cards) == 1:
            found[index] = max(node, 0)
    return found


def probe_scopes(found: Found, device: Device, handle: Any, module: int | None, *, first: bool) -> bool:
    """Add power of module and memory where the driver gives it; True where it gives that of a module.

    `module` is the number of the GPU's module, None where it is not known; `first` says whether no earlier GPU is on
    it. GPUs of one module all report it, so it is recorded once.
    """
    asked = [(FIELD_INSTANT, SCOPE_MODULE), (FIELD_AVERAGE, SCOPE_MODULE), (FIELD_AVERAGE, SCOPE_MEMORY)]
    read = metric(Fields(device.nvml, asked).read, handle)
    if read is None:
        return False
    values = dict(zip(asked, read, strict=True))
    given = [key for key in asked if values[key] == values[key]]
    memory = [key for key in given if key[1] == SCOPE_MEMORY]
    whole = [key for key in given if key[1] == SCOPE_MODULE][:1]
    if whole and module is None:
        found.missing[f"gpu.{device.index}.module"] = "which GPUs share a module cannot be determined (no NUMA node)"
    elif whole and first:
        channel = _gauge(f"module.{module}.power", f"module.{module}", Domain.MODULE)
        found.add(Source(channel, field_id=whole[0]), values[whole[0]])
    for key in memory:
        channel = _gauge(f"gpu.{device.index}.memory.power", f"gpu.{device.index}", Domain.GPU_MEMORY)
        found.add(Source(channel, field_id=key), values[key])
    return bool(whole)


def is_beside(found: Found) -> None:
    """Mark what was found as a card in a slot: it is in none of the machine's modules."""
    found.sources = [replace(source, channel=replace(source.channel, in_slot=True)) for source in found.sources]


def _gauge(name: str, device: str, domain: Domain) -> Channel:
    return Channel(name, "W", Kind.GAUGE, device, domain, 1e-3, Pedigree.INTEGRATED, facts=Facts())


def has_module(found: Found) -> bool:
    """Whether the module's power is among the readings."""
    return any(source.channel.domain is Domain.MODULE for source in found.sources)


@dataclass(slots=True)
class CounterScope:
    """Looks at a counter and the power of both scopes, to find out whose joules it counts."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    gpu_w: list[float] = field(default_factory=list)
    module_w: list[float] = field(default_factory=list)

    def look(self, now_ns: int, joules: float, gpu_w: float, module_w: float) -> None:
        """Note what was read at a time; a counter's value counts where it has just changed."""
        if not self.steps or joules != self.steps[-1][1]:
            self.steps.append((now_ns, joules))
        self.gpu_w.append(gpu_w)
        self.module_w.append(module_w)

    def domain(self) -> Domain | None:
        """GPU or MODULE; None where its slope fits neither, or both."""
        if len(self.steps) < 3:
            return None
        (start_ns, start_j), (end_ns, end_j) = self.steps[1], self.steps[-1]  # the first value may be old
        slope_w = (end_j - start_j) / ((end_ns - start_ns) / NS)
        gpu_w = sum(self.gpu_w) / len(self.gpu_w)
        module_w = sum(self.module_w) / len(self.module_w)
        near_w = NEAR * abs(module_w - gpu_w)
        if abs(slope_w - gpu_w) < near_w:
            return Domain.GPU
        return Domain.MODULE if abs(slope_w - module_w) < near_w else None


def counts_module(found: Found) -> None:
    """Give the counter, the first reading, to the module; the GPU's own energy is then its power, integrated."""
    counter, *others = found.sources
    module = next(source.channel.device for source in others if source.channel.domain is Domain.MODULE)
    found.samples[f"{module}.energy"] = found.samples.pop(counter.channel.name)
    found.missing[counter.channel.name] = f"the driver's counter is that of the whole module ({module})"
    channel = replace(
        counter.channel, name=f"{module}.energy", device=module, domain=Domain.MODULE, facts=_of_module(counter)
    )
    found.sources = with_mirrors([replace(counter, channel=channel), *others])


def _of_module(counter: Source) -> Facts:
    """What is known of the counter's publication holds for the module; gain, offset and limit are the GPU's."""
    known = counter.channel.facts
    return Facts(period_s=known.period_s, quantum=known.quantum)
