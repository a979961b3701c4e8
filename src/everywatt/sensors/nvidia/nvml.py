"""NVIDIA GPUs by NVML: energy counter, power, use, state and processes.

Every metric is tried on its own: on a Jetson NVML loads and each call says Not Supported, so a library that starts
proves nothing. A GPU that is lost is a gap of its own groups; it is sought again once a second, and others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from everywatt.core.channels import Domain, Kind
from everywatt.core.clocks import NS
from everywatt.sensors.base import Group, Report, Request, State, TableGroup
from everywatt.sensors.nvidia.gpu_select import Selection, select
from everywatt.sensors.nvidia.nvml_api import Fields, guarded, refusal, text, words_for
from everywatt.sensors.nvidia.nvml_device import Device, Identity, identify
from everywatt.sensors.nvidia.nvml_gpm import Gpm, probe_gpm
from everywatt.sensors.nvidia.nvml_groups import (
    FIELD_AVERAGE,
    FIELD_ENERGY,
    FIELD_INSTANT,
    Found,
    PowerGroup,
    StateGroup,
    probe_power,
    probe_state,
    probe_utilisation,
    without_counter,
)
from everywatt.sensors.nvidia.nvml_processes import ProcessTable, probe_processes
from everywatt.sensors.nvidia.nvml_samples import UtilisationSamples
from everywatt.sensors.nvidia.nvml_scopes import (
    LOOK_NS,
    SCOPE_MODULE,
    CounterScope,
    counts_module,
    has_module,
    is_beside,
    modules_of,
    probe_scopes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

STUCK_NS = 1_200_000_000  # longer than the slowest counter known takes to move
PROBE_STEP_NS = 20_000_000
# Counters (J) by library and UUID as this process last found them: one that differs now has moved, and the program that
# waits for a recorder need not wait for the card's next publication.
_last_counters: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()
POWER_FIELDS = (FIELD_INSTANT, FIELD_AVERAGE, (FIELD_INSTANT, SCOPE_MODULE), (FIELD_AVERAGE, SCOPE_MODULE))


@dataclass(slots=True)
class _Card:
    """One GPU as probed."""

    device: Device
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
            try:
                fields.read(card.handle)
                told = {key: words_for(code) for key, code in fields.errors.items()}
            except Exception as error:  # noqa: BLE001 - a driver's border
                told = dict.fromkeys(asked, words_for(error))
            found[f"gpu.{card.device.index}"] = {f"{f}/{s}": told.get((f, s), "ok") for f, s in asked}
        self.close()
        return found

    def close(self) -> None:
        """Shut NVML down; `groups` do it by themselves when the last of them is closed."""
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except Exception:  # noqa: BLE001 - it fails where NVML never started, which the probe has reported
                pass

    def _one_closed(self) -> None:
        self._open -= 1
        if self._open == 0:
            self.close()
            self._report = None
            self._cards = []

    def _probe(self) -> Report:
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            count = int(self._nvml.nvmlDeviceGetCount())
        except Exception as error:  # noqa: BLE001 - a driver's border
            state, why, cure = refusal(error, self._device_files())
            return Report(self.name, state, why, cure)
        if count == 0:
            return Report(self.name, State.ABSENT, "The NVIDIA driver is running, but no GPU is available to it.")
        known, handles, lost = self._inventory(count)
        selection = self._select(known)
        self._cards = self._probe_cards([known[i] for i in selection.gpus if i in known], handles, lost)
        return self._sum_up(known, selection, lost)

    def _inventory(self, count: int) -> tuple[dict[int, Identity], dict[int, Any], dict[int, str]]:
        nvml = self._nvml
        try:
            driver = text(nvml.nvmlSystemGetDriverVersion())
        except Exception:  # noqa: BLE001 - a driver's border; a card whose driver is not known has fewer facts
            driver = ""
        known: dict[int, Identity] = {}
        handles: dict[int, Any] = {}
        lost: dict[int, str] = {}
        for index in range(count):
            try:
                handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
                known[index] = identify(nvml, index, handles[index], driver)
            except Exception as error:  # noqa: BLE001 - a driver's border
                lost[index] = words_for(error)
        return known, handles, lost

    def _select(self, known: dict[int, Identity]) -> Selection:
        order = self._request.machine.environ.get("CUDA_DEVICE_ORDER")
        return select(self._request.devices, [identity.gpu for identity in known.values()], order)

    def _probe_cards(self, chosen: list[Identity], handles: dict[int, Any], lost: dict[int, str]) -> list[_Card]:
        cards = []
        for identity in chosen:
            index = identity.gpu.index
            try:
                cards.append(self._probe_card(identity, handles[index]))
            except Exception as error:  # noqa: BLE001 - a driver's border
                lost[index] = words_for(error)
        self._check_counters(cards)
        self._add_scopes(cards)
        self._name_counters([card for card in cards if _counts(card.power) and has_module(card.power)])
        for card in cards:
            self._add_utilisation(card)
        return cards

    def _add_scopes(self, cards: list[_Card]) -> None:
        modules = modules_of({card.device.index: card.device.identity for card in cards}, self._request.machine.sys)
        seen: set[int] = set()
        inside: dict[int, bool] = {}  # whether the driver reports a module that a GPU is part of
        for card in cards:
            index = card.device.index
            module = modules.get(index)
            try:
                inside[index] = probe_scopes(card.power, card.device, card.handle, module, first=module not in seen)
            except Exception as error:  # noqa: BLE001 - a driver's border
                card.missing[f"gpu.{index}.module"] = words_for(error)
            if module is not None and has_module(card.power):
                seen.add(module)
        for card in cards:
            if any(inside.values()) and inside.get(card.device.index) is False:
                is_beside(card.power)

    def _name_counters(self, cards: list[_Card]) -> None:
        """Find out whether counters of superchips count the GPU or the module; one that fits neither is left out."""
        if not cards:
            return
        scopes = {card.device.index: CounterScope() for card in cards}
        deadline_ns = self._clock.monotonic_ns() + LOOK_NS
        while (now_ns := self._clock.monotonic_ns()) < deadline_ns:
            for card in cards:
                joules, power = self._counter_j(card), self._scoped_w(card)
                if joules is not None and power is not None:
                    scopes[card.device.index].look(now_ns, joules, *power)
            self._clock.sleep_until(now_ns + PROBE_STEP_NS)
        for card in cards:
            domain = scopes[card.device.index].domain()
            if domain is None:
                why = "the counter fits neither the GPU's power nor the module's"
                card.power = without_counter(card.power, card.device, why)
            elif domain is Domain.MODULE:
                counts_module(card.power)

    def _scoped_w(self, card: _Card) -> tuple[float, float] | None:
        """Watts of GPU and module; None where one of them fails."""
        try:
            instant, average, module, module_average = Fields(self._nvml, POWER_FIELDS).read(card.handle)
        except Exception:  # noqa: BLE001 - a driver's border; without power its counter stays out
            return None
        gpu_mw = instant if instant == instant else average
        module_mw = module if module == module else module_average
        return (gpu_mw / 1e3, module_mw / 1e3) if gpu_mw + module_mw == gpu_mw + module_mw else None

    def _probe_card(self, identity: Identity, handle: Any) -> _Card:
        device = Device(self._nvml, identity, handle, self._clock)
        power = probe_power(device, handle)
        state = probe_state(device, handle)
        gpm, missing = probe_gpm(self._nvml, identity.gpu.index, handle)
        why = probe_processes(self._nvml, device, handle)
        if why:
            missing[f"gpu.{identity.gpu.index}.processes"] = why
        return _Card(device, handle, power, state, gpm, why is None, missing=missing)

    def _add_utilisation(self, card: _Card) -> None:
        if not card.power.sources:
            return
        try:
            if probe_utilisation(card.power, card.device, card.handle):
                samples = UtilisationSamples(self._nvml, self._clock)
                if samples.works(card.handle, self._nvml.nvmlDeviceGetUtilizationRates):
                    card.samples = samples
        except Exception as error:  # noqa: BLE001 - a driver's border
            card.missing[f"gpu.{card.device.index}.utilisation"] = words_for(error)

    def _check_counters(self, cards: list[_Card]) -> None:
        """A counter is one when it moves. Those that stand still although the card draws power are left out."""
        waiting = {card.device.index: card for card in cards if _counts(card.power)}
        last = _last_counters.setdefault(self._nvml, {})
        for index, card in list(waiting.items()):
            uuid, first = card.device.identity.gpu.uuid, card.power.samples[f"gpu.{index}.energy"]
            if first is not None and last.get(uuid, first) != first:
                del waiting[index]
            if first is not None and uuid:
                last[uuid] = first
        deadline_ns = self._clock.monotonic_ns() + STUCK_NS
        while waiting:
            for index, card in list(waiting.items()):
                first = card.power.samples[f"gpu.{index}.energy"]
                if first is None or self._counter_j(card) != first:
                    del waiting[index]
            now_ns = self._clock.monotonic_ns()
            if now_ns >= deadline_ns:
                break
            if waiting:
                self._clock.sleep_until(now_ns + PROBE_STEP_NS)
        for index, card in waiting.items():
            watts = card.power.samples.get(f"gpu.{index}.power") or 0.0
            if watts >= 1.0:
                why = f"the counter did not move in {STUCK_NS / NS:.1f} s while the card drew {watts:.0f} W"
                card.power = without_counter(card.power, card.device, why)

    def _counter_j(self, card: _Card) -> float | None:
        source = card.power.sources[0]
        try:
            if source.call is not None:
                return float(guarded(source.call, card.handle)) * source.channel.scale
            entries = guarded(self._nvml.nvmlDeviceGetFieldValues, card.handle, [FIELD_ENERGY])
            return float(entries[0].value.ullVal) * source.channel.scale
        except Exception:  # noqa: BLE001 - it moved away altogether; the first read will say how
            return None

    def _sum_up(self, known: dict[int, Identity], selection: Selection, lost: dict[int, str]) -> Report:
        samples: dict[str, float | None] = {}
        missing = {f"gpu.{index}": why for index, why in lost.items()}
        if selection.note:
            missing["CUDA_VISIBLE_DEVICES"] = selection.note
        for card in self._cards:
            samples |= card.power.samples | card.state.samples
            missing |= card.power.missing | card.state.missing | card.missing
        useless = [card for card in self._cards if not _measures(card.power)]
        self._cards = [card for card in self._cards if _measures(card.power)]
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

    def _device_files(self) -> bool:
        machine = self._request.machine
        return (machine.dev / "nvidiactl").exists() or (machine.proc / "driver/nvidia/version").exists()


def _nothing() -> None:
    """What a group does at its end that others keep NVML open for."""


def _counts(power: Found) -> bool:
    return bool(power.sources) and power.sources[0].channel.name.endswith(".energy")


def _measures(power: Found) -> bool:
    return any(source.channel.carries_energy for source in power.sources)


def _method(card: _Card) -> str:
    """Which way a GPU's energy comes about: "gpu.0: energy counter"."""
    ways = {
        source.channel.device: "energy counter" if source.channel.kind is Kind.COUNTER else "power, integrated"
        for source in reversed(card.power.sources)
        if source.channel.domain in (Domain.GPU, Domain.MODULE)
    }
    return ", ".join(f"{device}: {ways[device]}" for device in sorted(ways))
