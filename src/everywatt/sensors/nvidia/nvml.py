"""NVIDIA GPUs by NVML: energy counter, power, use, state and processes.

Every metric is tried on its own: on a Jetson NVML loads and each call says Not Supported, so a library that starts
proves nothing. A GPU that is lost is a gap of its own groups; it is sought again once a second, and others go on.

Scopes: a reading covers the GPU, its memory, or the module with GPU and CPU that both are part of. NVML reads power by
field and scope. The energy counter has no such choice on every driver: on GH200 the plain counter is that of the whole
module. So it is compared with the power of both scopes before its joules get a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.sensors.base import Group, Report, Request, State, TableGroup
from everywatt.sensors.nvidia.gpu_select import Selection, select
from everywatt.sensors.nvidia.nvml_api import Fields, metric, refusal, started, text, tried, words_for
from everywatt.sensors.nvidia.nvml_device import GpuHandle, Identity, UtilisationSamples, identify
from everywatt.sensors.nvidia.nvml_groups import (
    FIELD_AVERAGE,
    FIELD_ENERGY,
    FIELD_INSTANT,
    Found,
    Gpm,
    PowerGroup,
    Source,
    StateGroup,
    probe_gpm,
    probe_power,
    probe_state,
    probe_utilisation,
)
from everywatt.sensors.nvidia.nvml_processes import ProcessTable, probe_processes
from everywatt.sensors.sysfs import unmoved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STUCK_NS = 1_200_000_000  # longer than the slowest counter known takes to move
PROBE_STEP_NS = 20_000_000
# Counters (J) by library and UUID as this process last found them: one that differs now has moved, and the program that
# waits for a recorder need not wait for the card's next publication.
_last_counters: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()
SCOPE_MODULE, SCOPE_MEMORY = 1, 2
LOOK_NS = NS // 2  # long enough to tell two powers apart by a counter that publishes every 100 ms
MOST_LOOK_NS = 3 * NS  # where reads come late, or its slope fits no power
NEAR = 0.25  # of the distance between the two powers: closer to one of them than this decides
POWER_FIELDS = (FIELD_INSTANT, FIELD_AVERAGE, (FIELD_INSTANT, SCOPE_MODULE), (FIELD_AVERAGE, SCOPE_MODULE))


@dataclass(slots=True)
class _Card:
    """One GPU as probed."""

    device: GpuHandle
    handle: Any
    power: Found
    state: Found
    gpm: Gpm | None
    processes: bool
    samples: UtilisationSamples | None = None
    missing: dict[str, str] = field(default_factory=dict)


class Nvml:
    """The sensor. `nvml` is the pynvml module unless a test brings its own."""

    name = "nvml"
    after: Sequence[str] = ()

    def __init__(self, request: Request, *, nvml: Any = None) -> None:
        self._request = request
        self._clock = request.machine.clock
        self._nvml = nvml
        self._cards: list[_Card] = []
        self._report: Report | None = None
        self._open = 0

    def probe(self) -> Report:
        """What NVML really gives here: one value of each channel, and the reason for each that is missing."""
        if self._report is None:
            self._report = self._probe()
            if not self._report.usable:
                self.close()
        return self._report

    def groups(self) -> Sequence[Group | TableGroup]:
        """Power and state of each GPU that was selected, and one table of processes."""
        if not self.probe().usable:
            return ()
        groups: list[Group | TableGroup] = []
        for card in self._cards:
            groups.append(PowerGroup(card.device, card.power.sources, self._one_closed, card.samples))
            if card.state.sources or card.gpm:
                groups.append(StateGroup(card.device, card.state.sources, card.gpm, self._one_closed))
        listed = [card.device for card in self._cards if card.processes]
        if listed:
            groups.append(ProcessTable(self._nvml, listed, self._one_closed))
        self._open = len(groups)
        return groups

    def apart(self) -> list[PowerGroup]:
        """Each energy and power channel as a group of its own, really read every time: to find out how it works.

        They live as long as the groups that `groups` gave, and need no closing.
        """
        alone = [(card.device, source) for card in self._cards for source in card.power.sources]
        return [PowerGroup(device, [source], _nothing) for device, source in alone if source.channel.carries_energy]

    def field_support(self) -> dict[str, dict[str, str]]:
        """Which fields of energy and power a driver gives in which scope, by GPU: `{"gpu.0": {"186/1": "ok"}}`."""
        found: dict[str, dict[str, str]] = {}
        if not self.probe().usable:
            return found
        asked = [(field, scope) for field in (FIELD_ENERGY, FIELD_AVERAGE, FIELD_INSTANT) for scope in range(3)]
        for card in self._cards:
            fields = Fields(self._nvml, asked)
            why = tried(fields.read, card.handle)[1]
            errors = {key: why or words_for(fields.errors[key]) for key in (asked if why else fields.errors)}
            found[f"gpu.{card.device.index}"] = {f"{f}/{s}": errors.get((f, s), "ok") for f, s in asked}
        self.close()
        return found

    def close(self) -> None:
        """Shut NVML down; `groups` do it by themselves when the last of them is closed."""
        if self._nvml is not None:
            tried(self._nvml.nvmlShutdown)  # it fails where NVML never started, which the probe has reported

    def _one_closed(self) -> None:
        self._open -= 1
        if self._open == 0:
            self.close()
            self._report = None
            self._cards = []

    def _probe(self) -> Report:
        try:
            self._nvml = started(self._nvml)
            count = int(self._nvml.nvmlDeviceGetCount())
        except Exception as error:  # noqa: BLE001 - a driver's border
            machine = self._request.machine
            files = (machine.dev / "nvidiactl", machine.proc / "driver/nvidia/version")
            state, why, cure = refusal(error, any(file.exists() for file in files))
            return Report(self.name, state, why, cure)
        if count == 0:
            return Report(self.name, State.ABSENT, "The NVIDIA driver is running, but no GPU is available to it.")
        known, handles, lost = self._inventory(count)
        selection = self._select(known)
        self._cards = self._probe_cards([known[i] for i in selection.gpus if i in known], handles, lost)
        return self._sum_up(known, selection, lost)

    def _inventory(self, count: int) -> tuple[dict[int, Identity], dict[int, Any], dict[int, str]]:
        nvml = self._nvml
        driver = text(tried(nvml.nvmlSystemGetDriverVersion)[0] or "")  # without it a card has fewer facts
        known: dict[int, Identity] = {}
        handles: dict[int, Any] = {}
        lost: dict[int, str] = {}
        for index in range(count):
            handles[index], why = tried(nvml.nvmlDeviceGetHandleByIndex, index)
            if not why:
                known[index], why = tried(identify, nvml, index, handles[index], driver)
            if why:
                lost[index] = why
                known.pop(index, None)
        return known, handles, lost

    def _select(self, known: dict[int, Identity]) -> Selection:
        order = self._request.machine.environ.get("CUDA_DEVICE_ORDER")
        return select(self._request.devices, [identity.gpu for identity in known.values()], order)

    def _probe_cards(self, chosen: list[Identity], handles: dict[int, Any], lost: dict[int, str]) -> list[_Card]:
        cards = []
        for identity in chosen:
            card, why = tried(self._probe_card, identity, handles[identity.gpu.index])
            if why:
                lost[identity.gpu.index] = why
            else:
                cards.append(card)
        self._check_counters(cards)
        self._add_scopes(cards)
        self._name_counters([card for card in cards if card.power.counts and card.power.module])
        for card in cards:
            self._add_utilisation(card)
        return cards

    def _add_scopes(self, cards: list[_Card]) -> None:
        modules = modules_of({card.device.index: card.device.identity for card in cards}, self._request.machine.sys)
        seen: set[int] = set()
        inside: dict[int, bool | None] = {}  # whether the driver reports a module that a GPU is part of
        for card in cards:
            index = card.device.index
            module = modules.get(index)
            inside[index], why = tried(probe_scopes, card.power, card.device, card.handle, module, module not in seen)
            if why:
                card.missing[f"gpu.{index}.module"] = why
            if module is not None and card.power.module:
                seen.add(module)
        for card in cards:
            if any(inside.values()) and inside[card.device.index] is False:
                # A card in a slot is in none of the machine's modules.
                card.power.sources = [replace(s, channel=replace(s.channel, in_slot=True)) for s in card.power.sources]

    def _name_counters(self, cards: list[_Card]) -> None:
        """Find out whether counters of superchips count the GPU or the module; one that fits neither is left out."""
        if not cards:
            return
        scopes = {card.device.index: CounterScope() for card in cards}
        began_ns = self._clock.monotonic_ns()
        while (now_ns := self._clock.monotonic_ns()) < began_ns + LOOK_NS or (
            now_ns < began_ns + MOST_LOOK_NS and any(scope.domain() is None for scope in scopes.values())
        ):
            for card in cards:
                joules, power = self._counter_j(card), self._scoped_w(card)
                if joules is not None and power is not None:
                    scopes[card.device.index].look(now_ns, joules, *power)
            self._clock.sleep_until(now_ns + PROBE_STEP_NS)
        for card in cards:
            domain = scopes[card.device.index].domain()
            if domain is None:
                card.power.drop_counter("the counter fits neither the GPU's power nor the module's")
            elif domain is Domain.MODULE:
                counts_module(card.power)

    def _scoped_w(self, card: _Card) -> tuple[float, float] | None:
        """Watts of GPU and module; None where one of them fails."""
        read, _ = tried(Fields(self._nvml, POWER_FIELDS).read, card.handle)
        if read is None:
            return None
        instant, average, module, module_average = read
        gpu_mw = instant if instant == instant else average
        module_mw = module if module == module else module_average
        return (gpu_mw / 1e3, module_mw / 1e3) if gpu_mw + module_mw == gpu_mw + module_mw else None

    def _probe_card(self, identity: Identity, handle: Any) -> _Card:
        device = GpuHandle(self._nvml, identity, handle, self._clock)
        power = probe_power(device, handle)
        state = probe_state(device, handle)
        gpm, missing = probe_gpm(self._nvml, identity.gpu.index, handle)
        why = probe_processes(self._nvml, handle)
        if why:
            missing[f"gpu.{identity.gpu.index}.processes"] = why
        return _Card(device, handle, power, state, gpm, why is None, missing=missing)

    def _add_utilisation(self, card: _Card) -> None:
        if not card.power.sources:
            return
        found, why = tried(probe_utilisation, card.power, card.device, card.handle)
        if why:
            card.missing[f"gpu.{card.device.index}.utilisation"] = why
        if found:
            samples = UtilisationSamples(self._nvml, self._clock)
            if samples.works(card.handle, self._nvml.nvmlDeviceGetUtilizationRates):
                card.samples = samples

    def _check_counters(self, cards: list[_Card]) -> None:
        """A counter is one when it moves. Those that do not move although the card draws power are left out."""
        by_index = {card.device.index: card for card in cards if card.power.counts}
        waiting: dict[int, float | None] = {}
        last = _last_counters.setdefault(self._nvml, {})
        for index, card in by_index.items():
            uuid, first = card.device.identity.gpu.uuid, card.power.samples[f"gpu.{index}.energy"]
            if first is None or last.get(uuid, first) == first:
                waiting[index] = first
            if first is not None and uuid:
                last[uuid] = first

        def read(index: int) -> float | None:
            return self._counter_j(by_index[index])

        for index in unmoved(waiting, read, self._clock, STUCK_NS, PROBE_STEP_NS):
            card = by_index[index]
            watts = card.power.samples.get(f"gpu.{index}.power") or 0.0
            if watts >= 1.0:
                why = f"the counter did not move in {STUCK_NS / NS:.1f} s while the card drew {watts:.0f} W"
                card.power.drop_counter(why)

    def _counter_j(self, card: _Card) -> float | None:
        source = card.power.sources[0]
        if source.call is not None:
            raw, _ = tried(source.call, card.handle)
        else:
            read, _ = tried(Fields(self._nvml, (FIELD_ENERGY,)).read, card.handle)
            raw = read and read[0]
        return None if raw is None or raw != raw else float(raw) * source.channel.scale

    def _sum_up(self, known: dict[int, Identity], selection: Selection, lost: dict[int, str]) -> Report:
        samples: dict[str, float | None] = {}
        missing = {f"gpu.{index}": why for index, why in lost.items()}
        if selection.note:
            missing["CUDA_VISIBLE_DEVICES"] = selection.note
        for card in self._cards:
            samples |= card.power.samples | card.state.samples
            missing |= card.power.missing | card.state.missing | card.missing
        useless = [card for card in self._cards if not card.power.measures]
        self._cards = [card for card in self._cards if card.power.measures]
        devices = [identity.to_dict() | {"selected": i in selection.gpus} for i, identity in known.items()]
        devices += [{"device": f"gpu.{index}", "index": index, "error": why} for index, why in lost.items()]
        if self._cards:
            how = ", ".join(_method(card) for card in self._cards)
            return Report(self.name, State.USABLE, how, None, samples, missing, devices)
        state, why, cure = self._why_not(known, selection, lost, useless)
        return Report(self.name, state, why, cure, {}, missing, devices)

    def _why_not(
        self, known: dict[int, Identity], selection: Selection, lost: dict[int, str], useless: list[_Card]
    ) -> tuple[State, str, str | None]:
        if useless:
            index = useless[0].device.index
            why = useless[0].power.missing.get(f"gpu.{index}.power", "no value")
            return State.UNUSABLE, f"NVML starts, but no GPU reports energy or power: {why}.", None
        if not selection.gpus and known:
            mask = self._request.devices or ""
            why = selection.note or f"CUDA_VISIBLE_DEVICES='{mask}' selects none of {len(known)} GPUs."
            return State.ABSENT, why, None
        index, why = next(iter(lost.items()))
        denied = "no permission" in why
        cure = "check ls -l /dev/nvidia*, and join the owning group" if denied else "nvidia-smi -q, dmesg | grep Xid"
        return State.UNUSABLE, f"GPU {index}: {why}.", cure


def _nothing() -> None:
    """What a group does at its end that others keep NVML open for."""


def _method(card: _Card) -> str:
    """Which way a GPU's energy comes about: "gpu.0: energy counter"."""
    ways = {
        source.channel.device: "energy counter" if source.channel.kind is Kind.COUNTER else "power, integrated"
        for source in reversed(card.power.sources)
        if source.channel.domain in (Domain.GPU, Domain.MODULE)
    }
    return ", ".join(f"{device}: {ways[device]}" for device in sorted(ways))


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


def probe_scopes(found: Found, device: GpuHandle, handle: Any, module: int | None, first: bool) -> bool:
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


def _gauge(name: str, device: str, domain: Domain) -> Channel:
    return Channel(name, "W", Kind.GAUGE, device, domain, 1e-3, Pedigree.INTEGRATED, facts=Facts())


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
    """Give the counter, the first reading, to the module; the GPU's own energy is then its power, integrated.

    What is known of the counter's publication holds for the module; gain, offset and limit are the GPU's.
    """
    counter, module = found.sources[0], found.module
    assert module is not None
    name, known = f"{module}.energy", counter.channel.facts
    found.samples[name] = found.samples.pop(counter.channel.name)
    found.missing[counter.channel.name] = f"the driver's counter is that of the whole module ({module})"
    facts = Facts(period_s=known.period_s, quantum=known.quantum)
    channel = replace(counter.channel, name=name, device=module, domain=Domain.MODULE, facts=facts)
    found.sources[0] = replace(counter, channel=channel)
    found.set_mirrors()
