"""NVIDIA GPUs by the nvidia-smi command, where NVML is not to be had: one looping child feeds every GPU's group."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from everywatt.core.channels import NAN, Cadence, Channel, Domain, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.calibrations import calibrated
from everywatt.sensors.nvidia.gpu_known import Reading, facts_for, in_slot
from everywatt.sensors.nvidia.gpu_select import Gpu, Mig, select
from everywatt.sensors.nvidia.smi_csv import Parser, SmiRow, canonical, lost_bus_id, rejected_field, short_bus_id
from everywatt.sensors.nvidia.smi_feed import Feed, Plan
from everywatt.sensors.smi_child import run_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IDENTITY = ("index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "power.max_limit")
GAUGES = {
    "utilization.gpu": ("utilisation", "%"),
    "utilization.memory": ("memory_utilisation", "%"),
    "memory.used": ("memory", "B"),
    "temperature.gpu": ("temperature", "°C"),
    "clocks.current.sm": ("clock_sm", "MHz"),
    "clocks.current.memory": ("clock_memory", "MHz"),
    "clocks_throttle_reasons.active": ("throttle", "mask"),
    "enforced.power.limit": ("power_limit", "W"),
}
POWERS = ("power.draw.instant", "power.draw", "power.draw.average")
NEWER = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}
CURES = {
    "version mismatch": "restart the machine, or reload the nvidia kernel modules",
    "insufficient permissions": "check ls -l /dev/nvidia*, and join the owning group",
    "couldn't communicate": "modprobe nvidia",
    "failed because": "modprobe nvidia",
    "did not respond": (
        "dmesg | grep -i -e nvrm -e xid; if the driver is only slow: [sensor.nvidia-smi] patience_s = 15"
    ),
}
PERIOD_S = 0.1
PROBE_TIMEOUT_S = 15.0  # without persistence mode the driver first wakes every GPU
LEAST_TIMEOUT_S = 0.2


@dataclass(frozen=True, slots=True)
class _Card:
    """One GPU as probed: its channels, and the field behind each."""

    gpu: Gpu
    channels: tuple[Channel, ...]
    fields: tuple[str, ...]
    samples: dict[str, float | None]
    missing: dict[str, str]


class SmiGroup:
    """One GPU's readings out of the common child. `trouble` is a sentence about the source, or None."""

    def __init__(self, feed: Feed, card: _Card, closed: Callable[[], None]) -> None:
        self._feed = feed
        self._card = card
        self._closed = closed
        device = f"gpu.{card.gpu.index}"
        self.info = GroupInfo(
            f"nvidia-smi.{device}", "nvidia-smi", device, card.channels, Cadence.FAST, label=card.gpu.name
        )

    @property
    def trouble(self) -> str | None:
        """What is wrong with the rate or the way of reading, in a sentence."""
        return self._feed.trouble

    def read(self) -> list[Row]:
        """The lines that have arrived since the last read. Raises SensorError where the GPU gives no power."""
        readings = self._feed.take(self._card.gpu.index)
        first = self._card.fields[0]
        rows = [
            Row(reading.read_ns, reading.early_ns, reading.read_ns, self._values(reading.row))
            for reading in readings
            if reading.row.numbers.get(first) is not None
        ]
        if readings and not rows:
            reason = readings[-1].row.reasons.get(first, "nothing")
            raise SensorError(f"GPU {self._card.gpu.index}: nvidia-smi reports '{reason}' for {first}.")
        return rows

    def close(self) -> None:
        """End the child once every group has."""
        self._closed()

    def _values(self, row: SmiRow) -> tuple[float, ...]:
        found = (row.numbers.get(name) for name in self._card.fields)
        return tuple(NAN if value is None else value for value in found)


class NvidiaSmi:
    """The sensor. Options: `period_s`, how often a line is asked for (0.1 s); `patience_s`, how long the first answer
    may take (2 s where a run waits for it, else 15 s)."""

    name = "nvidia-smi"
    after: Sequence[str] = ("nvml",)

    def __init__(self, request: Request) -> None:
        self._request = request
        self._environ = request.machine.environ
        self._clock = request.machine.clock
        self._period_s = float(request.options.get(self.name, {}).get("period_s", PERIOD_S))
        self._wait_s = float(
            request.options.get(self.name, {}).get("patience_s", request.patience_s or PROBE_TIMEOUT_S)
        )
        self._binary: str | None = None
        self._fields: list[str] = []
        self._cards: list[_Card] = []
        self._report: Report | None = None
        self._patience_s = 0.0
        self._all = 0
        self._open = 0
        self._feed: Feed | None = None

    def probe(self) -> Report:
        """What nvidia-smi really prints here, from one short run of it."""
        if self._report is None:
            self._report = self._probe()
        return self._report

    def groups(self) -> Sequence[SmiGroup]:
        """One group for each selected GPU, all fed by one child."""
        if not self.probe().usable or self._binary is None:
            return ()
        wanted = {name for card in self._cards for name in card.fields}
        fields = ["timestamp", "index", *(name for name in self._fields if canonical(name) in wanted)]
        gpus, everyone = [card.gpu for card in self._cards], len(self._cards) == self._all
        plan = Plan(self._binary, self._environ, fields, self._period_s, gpus, everyone, self._patience_s)
        feed = self._feed = Feed(plan, self._clock)
        self._open = len(self._cards)
        return [SmiGroup(feed, card, self._one_closed) for card in self._cards]

    def _one_closed(self) -> None:
        self._open -= 1
        if self._open == 0 and self._feed is not None:
            self._feed.close()
            self._feed = None

    def _probe(self) -> Report:
        self._binary = shutil.which("nvidia-smi", path=self._environ.get("PATH", ""))
        if self._binary is None:
            return Report(self.name, State.ABSENT, "nvidia-smi was not found on the PATH.")
        started_ns = self._clock.monotonic_ns()
        rows, why = self._ask()
        self._patience_s = (self._clock.monotonic_ns() - started_ns) / NS
        if why and not rows:
            return self._refuse(why)
        gpus = {int(row.numbers.get("index") or 0): row for row in rows}
        self._all = len(gpus)
        chosen = select(self._request.devices, self._with_migs(gpus), self._environ.get("CUDA_DEVICE_ORDER"))
        cards = [_card(gpus[index], index) for index in chosen.gpus]
        self._cards = [card for card in cards if card.fields and card.fields[0] in POWERS]
        devices = [_describe(row, index, index in chosen.gpus) for index, row in gpus.items()]
        missing = {"CUDA_VISIBLE_DEVICES": chosen.note} if chosen.note else {}
        if why:
            missing["gpu"] = why
        for card in cards:
            missing |= card.missing
        if not cards:
            why = missing.get("CUDA_VISIBLE_DEVICES") or f"CUDA_VISIBLE_DEVICES selects none of {len(gpus)} GPUs."
            return Report(self.name, State.ABSENT, why, None, {}, missing, devices)
        if not self._cards:
            word = cards[0].missing.get(f"gpu.{cards[0].gpu.index}.power", "no value")
            why = f"nvidia-smi runs, but no GPU reports power: {word}."
            return Report(self.name, State.UNUSABLE, why, None, {}, missing, devices)
        samples = {name: value for card in self._cards for name, value in card.samples.items()}
        how = f"{len(self._cards)} GPU(s), one looping nvidia-smi, power integrated"
        return Report(self.name, State.USABLE, how, None, samples, missing, devices)

    def _ask(self) -> tuple[list[SmiRow], str | None]:
        """One run: rows, and what went wrong. Fields that this driver does not know are left out."""
        fields = [*IDENTITY, *POWERS, *GAUGES]
        limits: list[str] = []
        trouble: str | None = None
        deadline_ns = self._clock.monotonic_ns() + round(self._wait_s * NS)
        while True:
            assert self._binary is not None
            command = [self._binary, f"--query-gpu={','.join(fields)}", "--format=csv,nounits", *limits]
            try:
                left_s = (deadline_ns - self._clock.monotonic_ns()) / NS
                lines, code = run_once(command, self._environ, max(left_s, LEAST_TIMEOUT_S))
            except OSError as error:
                return [], f"nvidia-smi cannot be run: {error.strerror}."
            if code is None:
                return [], f"nvidia-smi did not respond within {self._wait_s:g} s."
            unknown = rejected_field("\n".join(lines))
            if unknown in fields:
                other = [NEWER[unknown]] if unknown in NEWER else []
                place = fields.index(unknown)
                fields[place : place + 1] = other
                continue
            parser = Parser()
            rows = [row for row in map(parser.feed, lines) if row is not None]
            self._fields = fields
            said = parser.failures[0] if parser.failures else None
            lost = lost_bus_id(said) if said and not rows else None
            if lost and not limits and (others := self._other_gpus(lost)):
                limits, trouble = ["--id=" + ",".join(others)], said
                continue
            if rows:
                return rows, trouble or said
            return [], said or (lines[0] if lines else f"nvidia-smi printed nothing and exited with {code}.")

    def _other_gpus(self, lost: str) -> list[str]:
        """Bus ids of the GPUs that the driver lists, without the one that is lost."""
        folder = self._request.machine.proc / "driver/nvidia/gpus"
        try:
            return sorted(entry.name for entry in folder.iterdir() if short_bus_id(entry.name) != lost)
        except OSError:
            return []

    def _with_migs(self, rows: dict[int, SmiRow]) -> list[Gpu]:
        gpus = [_gpu(row, index) for index, row in rows.items()]
        if "MIG-" not in (self._request.devices or "").upper() or self._binary is None:
            return gpus
        lines, _ = run_once([self._binary, "-L"], self._environ, self._wait_s)
        listed = mig_uuids(lines)
        return [replace(gpu, migs=tuple(Mig(uuid, -1, -1) for uuid in listed.get(gpu.uuid, ()))) for gpu in gpus]

    def _refuse(self, why: str) -> Report:
        low = why.lower()
        if "no devices" in low:
            return Report(self.name, State.ABSENT, "nvidia-smi runs but finds no GPU.")
        return Report(self.name, State.UNUSABLE, why, next((cure for word, cure in CURES.items() if word in low), None))


def mig_uuids(lines: Sequence[str]) -> dict[str, list[str]]:
    """MIG UUIDs by their GPU's, out of `nvidia-smi -L`."""
    found: dict[str, list[str]] = {}
    board = ""
    for line in lines:
        uuid = line.rpartition("UUID: ")[2].strip().rstrip(")")
        if line.lstrip().startswith("MIG"):
            found.setdefault(board, []).append(uuid)
        elif uuid.startswith("GPU-"):
            board = uuid
    return found


def _gpu(row: SmiRow, index: int) -> Gpu:
    return Gpu(index, row.texts.get("uuid", ""), row.texts.get("name", ""), row.texts.get("pci.bus_id", ""))


def _describe(row: SmiRow, index: int, selected: bool) -> dict[str, object]:
    gpu = _gpu(row, index)
    return {
        "device": f"gpu.{index}",
        "index": index,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "memory_bytes": row.numbers.get("memory.total"),
        "driver": row.texts.get("driver_version", ""),
        "max_w": row.numbers.get("power.max_limit"),
        "selected": selected,
    }


def _card(row: SmiRow, index: int) -> _Card:
    """The channels of one GPU: the fields that had a value in the probe."""
    gpu = _gpu(row, index)
    channels: list[Channel] = []
    fields: list[str] = []
    missing: dict[str, str] = {}
    powers = [name for name in POWERS[:2] if row.numbers.get(name) is not None][:1]
    if not powers:
        missing[f"gpu.{index}.power"] = row.reasons.get("power.draw", "not printed")
    if row.numbers.get(POWERS[2]) is not None:
        powers.append(POWERS[2])
    elif powers:
        missing[f"gpu.{index}.power_average"] = row.reasons.get(POWERS[2], "this nvidia-smi has no such field")
    for place, name in enumerate(powers):
        channels.append(_power_channel(row, gpu, name, channels[0].name if place else None))
        fields.append(name)
    for name, (what, unit) in GAUGES.items():
        if row.numbers.get(name) is None:
            missing[f"gpu.{index}.{what}"] = row.reasons.get(name, "this nvidia-smi has no such field")
            continue
        channels.append(Channel(f"gpu.{index}.{what}", unit, Kind.GAUGE, f"gpu.{index}"))
        fields.append(name)
    samples = {channel.name: row.numbers.get(name) for channel, name in zip(channels, fields, strict=True)}
    return _Card(gpu, tuple(channels), tuple(fields), samples, missing)


def _power_channel(row: SmiRow, gpu: Gpu, name: str, mirror_of: str | None) -> Channel:
    readings: dict[str, Reading] = {POWERS[0]: "instant", POWERS[1]: "draw", POWERS[2]: "average"}
    facts = facts_for(gpu.name, row.texts.get("driver_version", ""), row.numbers.get("power.max_limit"), readings[name])
    facts, _ = calibrated(facts, gpu.uuid, slot=gpu.pci_bus_id)
    return Channel(
        name=f"gpu.{gpu.index}.{'power_average' if name == POWERS[2] else 'power'}",
        unit="W",
        kind=Kind.GAUGE,
        device=f"gpu.{gpu.index}",
        domain=Domain.GPU,
        pedigree=Pedigree.INTEGRATED,
        mirror_of=mirror_of,
        facts=replace(facts, quantum=0.01),
        in_slot=in_slot(gpu.name),
    )
