"""NVIDIA GPUs by the nvidia-smi command, where NVML cannot be used: one looping child feeds every GPU's group."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from everywatt.core.channels import NAN, Cadence, Channel, GroupInfo, Kind, Row
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Request
from everywatt.sensors.child import LoopingChild, run_once
from everywatt.sensors.nvidia.gpu_select import Gpu, parse_listing, select
from everywatt.sensors.nvidia.nvml_device import Identity
from everywatt.sensors.nvidia.nvml_groups import power_channel
from everywatt.sensors.nvidia.smi_csv import Parser, SmiRow
from everywatt.sensors.simple import Absent, SimpleSensor
from everywatt.sensors.sysfs import entries, short_pci

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everywatt.sensors.nvidia.gpu_known import Reading

IDENTITY = ("index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "power.max_limit")
# Channel, unit, and the fields it may come from, the one to prefer first, each with the kind of its power reading.
CHANNELS: tuple[tuple[str, str, dict[str, Reading | None]], ...] = (
    ("power", "W", {"power.draw.instant": "instant", "power.draw": "draw"}),
    ("power_average", "W", {"power.draw.average": "average"}),
    ("utilisation", "%", {"utilization.gpu": None}),
    ("memory_utilisation", "%", {"utilization.memory": None}),
    ("memory", "B", {"memory.used": None}),
    ("temperature", "°C", {"temperature.gpu": None}),
    ("clock_sm", "MHz", {"clocks.current.sm": None}),
    ("clock_memory", "MHz", {"clocks.current.memory": None}),
    ("throttle", "mask", {"clocks_event_reasons.active": None, "clocks_throttle_reasons.active": None}),
    ("power_limit", "W", {"enforced.power.limit": None}),
)
# Other failures are the driver's, which NVML has met before and given a cure for.
SLOW_CURE = "dmesg | grep -i -e nvrm -e xid; if the driver is only slow: [sensor.nvidia-smi] patience_s = 15"
PERIOD_S = 0.1
PROBE_TIMEOUT_S = 15.0  # without persistence mode the driver first wakes every GPU
LEAST_TIMEOUT_S = 0.2
SILENCE_S = 2.0  # how long a looping child may be silent, if five periods are not longer
LOST_RETRY_S = 30.0  # a GPU that fell off the bus makes every call fail, so it is left out for so long
AHEAD_NS = 5_000_000  # nvidia-smi prints whole milliseconds, and clocks are read one after the other
HELD_NS = 60 * NS  # longer than a child holds lines back, shorter than any two time zones differ


class SmiGroup:
    """One GPU's readings out of the common child.

    `fields` has the field behind each channel, `failure` why it has no value now; a `lost` GPU is not asked for.
    """

    def __init__(self, sensor: NvidiaSmi, who: Identity, row: SmiRow) -> None:
        self.gpu = who.gpu
        self._sensor = sensor
        self.fields: list[str] = []
        self.failure: str | None = None
        self.lost = False
        self._rows: list[Row] = []
        self._last_ns = 0  # when the last line was printed
        device, channels = f"gpu.{who.gpu.index}", self._channels(who, row)
        self.info = GroupInfo(f"nvidia-smi.{device}", "nvidia-smi", device, channels, Cadence.FAST, label=who.gpu.name)
        self.sample = partial(self._values, row)

    def _channels(self, who: Identity, row: SmiRow) -> tuple[Channel, ...]:
        """The channels whose fields had a value in the probe's row."""
        channels: list[Channel] = []
        device, missing = f"gpu.{who.gpu.index}", self._sensor.missing
        for what, unit, fields in CHANNELS:
            field = next((name for name in fields if row.numbers.get(name) is not None), None)
            if field is None:
                missing[f"{device}.{what}"] = row.reasons.get([*fields][-1], "this nvidia-smi has no such field")
                continue
            channel = Channel(f"{device}.{what}", unit, Kind.GAUGE, device)
            if reading := fields[field]:
                mirror_of = channels[0].name if channels else None
                channel = power_channel(who, what, reading, mirror_of, missing)
                channel = replace(channel, scale=1.0, facts=replace(channel.facts, quantum=0.01))
            channels.append(channel)
            self.fields.append(field)
        return tuple(channels)

    def _values(self, row: SmiRow) -> tuple[float, ...]:
        values = (row.numbers.get(field) for field in self.fields)
        return tuple(NAN if value is None else value for value in values)

    @property
    def trouble(self) -> str | None:
        """Why single polls have replaced the looping child; None where it loops."""
        return self._sensor.child.trouble

    def read(self) -> list[Row]:
        """The lines that have arrived since the last read. Raises SensorError while the GPU gives no power."""
        self._sensor.distribute()
        rows, self._rows = self._rows, []
        why = f"GPU {self.gpu.index}: {self.failure}" if self.failure else self._sensor.child.failure
        if why and not rows:
            raise SensorError(why)
        return rows

    def add(self, lines: Sequence[SmiRow], now_ns: int) -> None:
        """Keep lines that have just come, at the times that they say, for the next read.

        Where these cannot be right (none, another zone, a clock that was set) lines are a period apart until now.
        """
        clock, period_ns = self._sensor.machine.clock, self._sensor.period_ns
        ahead_ns = clock.utc_ns() - clock.monotonic_ns()
        for back, line in zip(reversed(range(len(lines))), lines, strict=True):
            read_ns = max(now_ns - back * period_ns, self._last_ns + 1)
            said_ns = round(line.time.timestamp() * 1e6) * 1000 - ahead_ns if line.time else 0
            if max(self._last_ns, now_ns - HELD_NS) < said_ns < now_ns + AHEAD_NS:
                read_ns = min(said_ns, now_ns)
            near = read_ns - self._last_ns < 3 * period_ns
            early_ns, self._last_ns = self._last_ns if near else read_ns - period_ns, read_ns
            values = self._values(line)
            if values[0] == values[0]:
                self.failure = None
                self._rows.append(Row(read_ns, early_ns, read_ns, values))
            else:
                word = line.reasons.get(self.fields[0], "nothing")
                self.failure = f"nvidia-smi reports '{word}' for {self.fields[0]}."

    def close(self) -> None:
        self._sensor.one_closed()


class NvidiaSmi(SimpleSensor):
    """The sensor, with the one child that feeds all its groups. Options: `period_s`, how often a line is asked for
    (0.1 s); `patience_s`, how long the first answer may take (2 s where a run waits for it, else 15 s).
    """

    name = "nvidia-smi"
    after: Sequence[str] = ("nvml",)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        options = request.options.get(self.name, {})
        period_s = float(options.get("period_s", PERIOD_S))
        self.period_ns = round(period_s * NS)
        self._wait_s = float(options.get("patience_s", request.patience_s or PROBE_TIMEOUT_S))
        self._binary = shutil.which("nvidia-smi", path=self.machine.environ.get("PATH", "")) or ""
        self._fields = [*IDENTITY, *(field for _, _, fields in CHANNELS for field in fields)]  # that this driver knows
        self._groups: list[SmiGroup] = []
        self._parser = Parser()
        self._retry_ns = 0  # when lost GPUs are asked for again
        machine, loop = self.machine, f"--loop-ms={max(1, self.period_ns // 1_000_000)}"
        silence_s = max(SILENCE_S, 5 * period_s)
        self.child = LoopingChild(self.name, self._command, machine.environ, machine.clock, period_s, silence_s, loop)

    def find(self) -> list[SmiGroup]:
        """One group for each selected GPU, all fed by one child."""
        if not self._binary:
            raise Absent("nvidia-smi was not found on the PATH.")
        start_ns = self.machine.clock.monotonic_ns()
        rows, complaint = self._ask(start_ns + round(self._wait_s * NS))
        took_s = (self.machine.clock.monotonic_ns() - start_ns) / NS
        self.child.silence_s = max(self.child.silence_s, 3 * took_s)
        if not rows:
            raise Absent("nvidia-smi runs but finds no GPU.")
        known = {who.gpu.index: (who, row) for who, row in zip(map(_identity, rows), rows, strict=True)}
        gpus = self._with_migs([who.gpu for who, _ in known.values()])
        selection = select(self.request.devices, gpus, self.machine.environ.get("CUDA_DEVICE_ORDER"))
        self.devices = [who.to_dict() | {"selected": index in selection.gpus} for index, (who, _) in known.items()]
        if not selection.gpus:
            raise Absent(selection.note or f"CUDA_VISIBLE_DEVICES selects none of {len(gpus)} GPUs.")
        notes = {"CUDA_VISIBLE_DEVICES": selection.note, "gpu": complaint}
        self.missing |= {what: note for what, note in notes.items() if note}
        groups = [SmiGroup(self, *known[index]) for index in selection.gpus]
        self._groups = [group for group in groups if f"{group.info.device}.power" not in self.missing]
        if not self._groups:
            why = self.missing[f"{groups[0].info.device}.power"]
            raise SensorError(f"nvidia-smi runs, but no GPU reports power: {why}.")
        count = len(self._groups)
        self.how = f"{count} GPU{'s' if count > 1 else ''}, one looping nvidia-smi, power integrated"
        return list(self._groups)

    def _query(self, fields: Sequence[str], ids: Sequence[str]) -> list[str]:
        command = [self._binary, f"--query-gpu={','.join(fields)}", "--format=csv,nounits"]
        return [*command, "--id=" + ",".join(ids)] if ids else command

    def _ask(self, deadline_ns: int, ids: Sequence[str] = (), lost: str = "") -> tuple[list[SmiRow], str]:
        """The rows of one run, none where there is no GPU, and what went wrong.

        It is asked again without fields that this driver does not know, and without a GPU that is lost.
        """
        left_s = max((deadline_ns - self.machine.clock.monotonic_ns()) / NS, LEAST_TIMEOUT_S)
        lines, code = run_once(self._query(self._fields, ids), self.machine.environ, left_s)
        unknown = re.search(r'[Ff]ield "?([\w.]+)"? is not a valid field', "\n".join(lines))
        if unknown and unknown[1] in self._fields:
            self._fields.remove(unknown[1])
            return self._ask(deadline_ns, ids, lost)
        parser = Parser()
        rows = [row for row in map(parser.feed, lines) if row is not None]
        said = next(iter(parser.failures), "")
        if rows or "no devices" in said.lower():
            return rows, lost or said
        if not ids and (others := self._without(short_pci(said))):
            return self._ask(deadline_ns, others, said)
        if code is None:
            raise SensorError(f"nvidia-smi did not respond within {self._wait_s:g} s.", cure=SLOW_CURE)
        raise SensorError(lost or [*parser.failures, *lines, f"nvidia-smi printed nothing and exited with {code}."][0])

    def _without(self, lost: str | None) -> list[str]:
        """Bus ids of the GPUs that the driver lists, without the one that is lost; none where no GPU was named."""
        folder = self.machine.proc / "driver/nvidia/gpus"
        return [path.name for path in entries(folder) if short_pci(path.name) != lost] if lost else []

    def _with_migs(self, gpus: list[Gpu]) -> list[Gpu]:
        if "MIG-" not in (self.request.devices or "").upper():
            return gpus
        lines, _ = run_once([self._binary, "-L"], self.machine.environ, self._wait_s)
        listed = {gpu.uuid: gpu.migs for gpu in parse_listing(lines)}
        return [replace(gpu, migs=listed.get(gpu.uuid, ())) for gpu in gpus]

    def close(self) -> None:
        self.child.end()

    def distribute(self) -> None:
        """Hand the lines that have arrived to their groups."""
        now_ns = self.machine.clock.monotonic_ns()
        if 0 < self._retry_ns <= now_ns:
            self._retry_ns = 0
            for group in self._groups:
                group.lost = False
            self.child.end()
        rows = self.child.rows(self._parse)
        for group in self._groups:
            if own := [row for row in rows if row.numbers.get("index") == group.gpu.index]:
                group.add(own, now_ns)

    def _command(self) -> list[str]:
        groups = [group for group in self._groups if not group.lost]
        wanted = {field for group in groups for field in group.fields}
        fields = ["timestamp", "index", *(name for name in self._fields if name in wanted)]
        return self._query(fields, [group.gpu.uuid or str(group.gpu.index) for group in groups])

    def _parse(self, line: str) -> SmiRow | None:
        """The row of a line. A failure that names a GPU leaves it out: a lost one makes the query of all GPUs fail."""
        row = self._parser.feed(line)
        for text in self._parser.failures:
            address = short_pci(text)
            gone = [group for group in self._groups if address and short_pci(group.gpu.pci_bus_id) == address]
            for group in gone:
                group.failure, group.lost = text, True
                self._retry_ns = self.machine.clock.monotonic_ns() + round(LOST_RETRY_S * NS)
                self.child.end(self._retry_ns if all(other.lost for other in self._groups) else 0)
            if not gone:
                self.child.failure = f"nvidia-smi: {text}"
        self._parser.failures.clear()
        return row


def _identity(row: SmiRow) -> Identity:
    index, texts = int(row.numbers.get("index") or 0), row.texts
    gpu = Gpu(index, texts.get("uuid", ""), texts.get("name", ""), texts.get("pci.bus_id", ""))
    driver = texts.get("driver_version", "")
    return Identity(gpu, driver, row.numbers.get("power.max_limit"), row.numbers.get("memory.total"))
