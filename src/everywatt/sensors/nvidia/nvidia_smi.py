"""NVIDIA GPUs by the nvidia-smi command, where NVML cannot be used: one looping child feeds every GPU's group.

Nothing blocks: a read takes the lines that have arrived. A child that prints nothing, or does not know `--loop-ms`, is
replaced by one short nvidia-smi after another; that the rate is then lower, the recorder notes as of every sensor.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from everywatt.core.channels import NAN, Cadence, Channel, GroupInfo, Kind, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.child import Child, run_once
from everywatt.sensors.nvidia.gpu_select import Gpu, Mig, select
from everywatt.sensors.nvidia.nvml_device import Identity
from everywatt.sensors.nvidia.nvml_groups import power_channel
from everywatt.sensors.nvidia.smi_csv import Parser, SmiRow, canonical, rejected_field
from everywatt.sensors.sysfs import entries, short_pci

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everywatt.sensors.nvidia.gpu_known import Reading

IDENTITY = ("index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "power.max_limit")
# Channel, unit, and the fields it may come from, the one to prefer first.
CHANNELS = (
    ("power", "W", ("power.draw.instant", "power.draw")),
    ("power_average", "W", ("power.draw.average",)),
    ("utilisation", "%", ("utilization.gpu",)),
    ("memory_utilisation", "%", ("utilization.memory",)),
    ("memory", "B", ("memory.used",)),
    ("temperature", "°C", ("temperature.gpu",)),
    ("clock_sm", "MHz", ("clocks.current.sm",)),
    ("clock_memory", "MHz", ("clocks.current.memory",)),
    ("throttle", "mask", ("clocks_throttle_reasons.active",)),
    ("power_limit", "W", ("enforced.power.limit",)),
)
READINGS: dict[str, Reading] = {
    "power.draw.instant": "instant",
    "power.draw": "draw",
    "power.draw.average": "average",
}
NEWER = {"clocks_throttle_reasons.active": ["clocks_event_reasons.active"]}
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
WATCHDOG_S = 2.0  # how long a looping child may be silent, if five periods are not longer
POLL_TIMEOUT_S = 5.0
LOST_RETRY_S = 30.0  # a GPU that fell off the bus makes every call fail, so that it is left out for so long
BACKOFF_S = 1.0
AHEAD_NS = 5_000_000  # nvidia-smi prints whole milliseconds, and clocks are read one after the other
BEHIND_NS = 250_000_000  # from the time it prints to the line's arrival: reading eight GPUs takes a while


class SmiGroup:
    """One GPU's readings out of the common child.

    `fields` has the field behind each channel, `failure` why it has no value now. A lost GPU is left out until
    `retry_ns`, which is 0 otherwise.
    """

    def __init__(self, sensor: NvidiaSmi, who: Identity, row: SmiRow) -> None:
        self.gpu = who.gpu
        self._sensor = sensor
        self.fields: list[str] = []
        self.samples: dict[str, float | None] = {}
        self.missing: dict[str, str] = {}
        self.failure: str | None = None
        self.retry_ns = 0
        self._rows: list[Row] = []
        self._last_ns = 0  # when the last line was printed
        device, channels = f"gpu.{who.gpu.index}", self._channels(who, row)
        self.info = GroupInfo(f"nvidia-smi.{device}", "nvidia-smi", device, channels, Cadence.FAST, label=who.gpu.name)

    def _channels(self, who: Identity, row: SmiRow) -> tuple[Channel, ...]:
        """The channels whose fields had a value in the probe's row; none where power is not among them."""
        channels: list[Channel] = []
        device = f"gpu.{who.gpu.index}"
        for what, unit, fields in CHANNELS:
            field = next((name for name in fields if row.numbers.get(name) is not None), None)
            if field is None:
                self.missing[f"{device}.{what}"] = row.reasons.get(fields[-1], "this nvidia-smi has no such field")
                if what == "power":
                    return ()
                continue
            channel = Channel(f"{device}.{what}", unit, Kind.GAUGE, device)
            if field in READINGS:
                mirror_of = channels[0].name if channels else None
                channel = power_channel(who, what, READINGS[field], mirror_of, self.missing)
                channel = replace(channel, scale=1.0, facts=replace(channel.facts, quantum=0.01))
            channels.append(channel)
            self.fields.append(field)
            self.samples[channel.name] = row.numbers[field]
        return tuple(channels)

    @property
    def trouble(self) -> str | None:
        """Why single polls have replaced the looping child; None where it loops."""
        return self._sensor.trouble

    def read(self) -> list[Row]:
        """The lines that have arrived since the last read. Raises SensorError while the GPU gives no power."""
        self._sensor.pump()
        rows, self._rows = self._rows, []
        why = f"GPU {self.gpu.index}: {self.failure}" if self.failure else self._sensor.failure
        if why and not rows:
            raise SensorError(why)
        return rows

    def arrived(self, lines: Sequence[SmiRow], since_ns: int, now_ns: int, clock: Clock) -> None:
        """Keep lines that came between two instants, with the times they are of, for the next read."""
        period_ns = self._sensor.period_ns
        for line, read_ns in zip(lines, self._times_ns(lines, since_ns, now_ns, clock), strict=True):
            read_ns = max(read_ns, self._last_ns + 1)
            near = read_ns - self._last_ns < 3 * period_ns
            early_ns, self._last_ns = self._last_ns if near else read_ns - period_ns, read_ns
            values = [line.numbers.get(field) for field in self.fields]
            if values[0] is None:
                word = line.reasons.get(self.fields[0], "nothing")
                self.failure = f"nvidia-smi reports '{word}' for {self.fields[0]}."
            else:
                self.failure = None
                found = tuple(NAN if value is None else value for value in values)
                self._rows.append(Row(read_ns, early_ns, read_ns, found))

    def _times_ns(self, lines: Sequence[SmiRow], since_ns: int, now_ns: int, clock: Clock) -> list[int]:
        """When lines were printed. Where the times in them cannot be right (none, another zone, a clock that was set),
        they are a period apart until now."""
        ahead_ns = clock.utc_ns() - clock.monotonic_ns()
        times_ns = [round(line.time.timestamp() * 1e6) * 1000 - ahead_ns for line in lines if line.time is not None]
        rising = all(before < after for before, after in pairwise([self._last_ns, *times_ns]))
        if len(times_ns) == len(lines) and rising and since_ns - BEHIND_NS <= times_ns[-1] < now_ns + AHEAD_NS:
            return [min(at_ns, now_ns) for at_ns in times_ns]
        return [now_ns - self._sensor.period_ns * back for back in reversed(range(len(lines)))]

    def close(self) -> None:
        """End the child once every group has."""
        self._sensor.leave()


class NvidiaSmi:
    """The sensor, with the one child that feeds all its groups. Options: `period_s`, how often a line is asked for
    (0.1 s); `patience_s`, how long the first answer may take (2 s where a run waits for it, else 15 s).

    `failure` says why no line can come now. `trouble` says why single polls have replaced the looping child.
    """

    name = "nvidia-smi"
    after: Sequence[str] = ("nvml",)

    def __init__(self, request: Request) -> None:
        self._request = request
        self._environ = request.machine.environ
        self._clock = request.machine.clock
        options = request.options.get(self.name, {})
        self.period_ns = round(float(options.get("period_s", PERIOD_S)) * NS)
        self._wait_s = float(options.get("patience_s", request.patience_s or PROBE_TIMEOUT_S))
        self._binary = ""
        self._fields: list[str] = []  # that this driver knows
        self._count = 0  # of all GPUs, also those that are not selected
        self._groups: list[SmiGroup] = []
        self._report: Report | None = None
        self._first_s = 0.0  # how long the first answer took
        self.failure: str | None = None
        self.trouble: str | None = None
        self._open = 0  # groups that are not closed
        self._child: Child | None = None
        self._parser = Parser()
        self._start_ns = 0  # no child is started before
        self._line_ns = 0  # when the last line came
        self._pump_ns = 0  # when lines were last looked for

    def probe(self) -> Report:
        """What nvidia-smi really prints here, from one short run of it."""
        if self._report is None:
            self._report = self._probe()
        return self._report

    def groups(self) -> Sequence[SmiGroup]:
        """One group for each selected GPU, all fed by one child."""
        if not self.probe().usable:
            return ()
        self._open = len(self._groups)
        return list(self._groups)

    def _query(self, fields: Sequence[str]) -> list[str]:
        return [self._binary, f"--query-gpu={','.join(fields)}", "--format=csv,nounits"]

    def _probe(self) -> Report:
        self._binary = shutil.which("nvidia-smi", path=self._environ.get("PATH", "")) or ""
        if not self._binary:
            return Report(self.name, State.ABSENT, "nvidia-smi was not found on the PATH.")
        started_ns = self._clock.monotonic_ns()
        rows, why = self._ask()
        self._first_s = (self._clock.monotonic_ns() - started_ns) / NS
        if why and not rows:
            return self._refuse(why)
        known = {who.gpu.index: (who, row) for who, row in zip(map(_identity, rows), rows, strict=True)}
        self._count = len(known)
        gpus = self._with_migs([who.gpu for who, _ in known.values()])
        selection = select(self._request.devices, gpus, self._environ.get("CUDA_DEVICE_ORDER"))
        devices = [who.to_dict() | {"selected": index in selection.gpus} for index, (who, _) in known.items()]
        missing = {"CUDA_VISIBLE_DEVICES": selection.note} if selection.note else {}
        if why:
            missing["gpu"] = why
        if not selection.gpus:
            why = selection.note or f"CUDA_VISIBLE_DEVICES selects none of {len(gpus)} GPUs."
            return Report(self.name, State.ABSENT, why, None, {}, missing, devices)
        groups = [SmiGroup(self, *known[index]) for index in selection.gpus]
        for group in groups:
            missing |= group.missing
        self._groups = [group for group in groups if group.fields]
        if not self._groups:
            why = f"nvidia-smi runs, but no GPU reports power: {missing[f'{groups[0].info.device}.power']}."
            return Report(self.name, State.UNUSABLE, why, None, {}, missing, devices)
        samples = {name: value for group in self._groups for name, value in group.samples.items()}
        cards = f"{len(self._groups)} GPU{'s' if len(self._groups) > 1 else ''}"
        how = f"{cards}, one looping nvidia-smi, power integrated"
        return Report(self.name, State.USABLE, how, None, samples, missing, devices)

    def _ask(self) -> tuple[list[SmiRow], str | None]:
        """One run: rows, and what went wrong. Fields that this driver does not know, and a lost GPU, are left out."""
        self._fields = [*IDENTITY, *(field for _, _, fields in CHANNELS for field in fields)]
        only: list[str] = []
        trouble: str | None = None
        deadline_ns = self._clock.monotonic_ns() + round(self._wait_s * NS)
        while True:
            left_s = (deadline_ns - self._clock.monotonic_ns()) / NS
            try:
                lines, code = run_once([*self._query(self._fields), *only], self._environ, max(left_s, LEAST_TIMEOUT_S))
            except OSError as error:
                return [], f"nvidia-smi cannot be run: {error.strerror}."
            if code is None:
                return [], f"nvidia-smi did not respond within {self._wait_s:g} s."
            unknown = rejected_field("\n".join(lines))
            if unknown in self._fields:
                place = self._fields.index(unknown)
                self._fields[place : place + 1] = NEWER.get(unknown, [])
                continue
            parser = Parser()
            rows = [row for row in map(parser.feed, lines) if row is not None]
            said = parser.failures[0] if parser.failures else None
            if said and not rows and not only and (others := self._without(short_pci(said))):
                only, trouble = ["--id=" + ",".join(others)], said
                continue
            if rows:
                return rows, trouble or said
            return [], said or (lines[0] if lines else f"nvidia-smi printed nothing and exited with {code}.")

    def _without(self, lost: str | None) -> list[str]:
        """Bus ids of the GPUs that the driver lists, without the one that is lost; none where no GPU was named."""
        folder = self._request.machine.proc / "driver/nvidia/gpus"
        return [path.name for path in entries(folder) if short_pci(path.name) != lost] if lost else []

    def _with_migs(self, gpus: list[Gpu]) -> list[Gpu]:
        if "MIG-" not in (self._request.devices or "").upper():
            return gpus
        lines, _ = run_once([self._binary, "-L"], self._environ, self._wait_s)
        listed = mig_uuids(lines)
        return [replace(gpu, migs=tuple(Mig(uuid, -1, -1) for uuid in listed.get(gpu.uuid, ()))) for gpu in gpus]

    def _refuse(self, why: str) -> Report:
        low = why.lower()
        if "no devices" in low:
            return Report(self.name, State.ABSENT, "nvidia-smi runs but finds no GPU.")
        return Report(self.name, State.UNUSABLE, why, next((cure for word, cure in CURES.items() if word in low), None))

    # The child of the groups.

    @property
    def pid(self) -> int | None:
        """The child that is running now."""
        return self._child.pid if self._child else None

    def leave(self) -> None:
        """One group is closed; the child ends with the last of them."""
        self._open -= 1
        if self._open <= 0:
            self.close()

    def close(self, again_ns: int = 0) -> None:
        """End the child; another one is not started before `again_ns`."""
        if self._child is not None:
            self._child.end()
            self._child = None
        self._start_ns = again_ns

    def pump(self) -> None:
        """Hand the lines that have arrived to their groups, and keep a child running."""
        now_ns = self._clock.monotonic_ns()
        back = [group for group in self._groups if 0 < group.retry_ns <= now_ns]
        for group in back:
            group.retry_ns = 0
        if back:
            self.close()
        if self._child is None and now_ns >= self._start_ns:
            self._launch(now_ns)
        child = self._child
        if child is not None and not self._take(child, now_ns) and self._child is child:
            self._watch(child, now_ns)
        self._pump_ns = now_ns

    def _launch(self, now_ns: int) -> None:
        groups = [group for group in self._groups if not group.retry_ns]
        if not groups:
            return
        wanted = {field for group in groups for field in group.fields}
        command = self._query(["timestamp", "index", *(name for name in self._fields if canonical(name) in wanted)])
        if self.trouble is None:
            command.append(f"--loop-ms={max(1, self.period_ns // 1_000_000)}")
        if len(groups) < self._count:
            command.append("--id=" + ",".join(group.gpu.uuid or str(group.gpu.index) for group in groups))
        self._parser = Parser()
        try:
            self._child = Child(command, self._environ, now_ns)
        except OSError as error:
            self.failure, self._start_ns = f"nvidia-smi: {error.strerror}.", now_ns + round(BACKOFF_S * NS)

    def _take(self, child: Child, now_ns: int) -> bool:
        """Take what the child has printed; False where that is nothing, or only what it complains of."""
        rows = [row for row in map(self._parser.feed, child.lines()) if row is not None]
        for group in self._groups:
            own = [row for row in rows if row.numbers.get("index") == group.gpu.index]
            if own:
                group.arrived(own, self._pump_ns, now_ns, self._clock)
                self._line_ns, self.failure = now_ns, None
        if self._line_ns != now_ns and self._parser.failures:
            self._failed(self._parser.failures.pop(), now_ns)
        return self._line_ns == now_ns

    def _failed(self, text: str, now_ns: int) -> None:
        """Leave out the GPU that a failure names: a lost one makes every query of all GPUs fail."""
        address = short_pci(text)
        gone = [group for group in self._groups if address and short_pci(group.gpu.pci_bus_id) == address]
        for group in gone:
            group.failure, group.retry_ns = text, now_ns + round(LOST_RETRY_S * NS)
        if gone:
            self.close()
        else:
            self.failure = f"nvidia-smi: {text}"

    def _watch(self, child: Child, now_ns: int) -> None:
        """Replace a child that has ended, or one that prints nothing; the latter by single polls."""
        polling, period_s = self.trouble is not None, self.period_ns / NS
        spoke = self._line_ns > child.started_ns
        silent_s = (now_ns - max(self._line_ns, child.started_ns)) / NS
        limit_s = max(POLL_TIMEOUT_S if polling else WATCHDOG_S, 5 * period_s)
        if polling or not spoke:  # the first line may take as long as that of the probe
            limit_s = max(limit_s, 3 * self._first_s)
        if not child.finished and silent_s <= limit_s:
            return
        if child.finished and spoke:
            self.close(max(now_ns, child.started_ns + self.period_ns))
            return
        why = "exited" if child.finished else f"printed no line for {silent_s:.1f} s"
        self.close(now_ns + round(BACKOFF_S * NS) if polling else now_ns)
        self.failure = self.failure or f"nvidia-smi {why}."
        if not polling:
            self.trouble = (
                f"nvidia-smi --loop-ms={self.period_ns // 1_000_000}, requested to print every {period_s:g} s, {why}; "
                "single polls are used instead."
            )


def mig_uuids(lines: Sequence[str]) -> dict[str, list[str]]:
    """MIG UUIDs by their GPU's, out of `nvidia-smi -L`."""
    found: dict[str, list[str]] = {}
    board = ""
    for uuid in re.findall(r"UUID: ([^)\s]+)", "\n".join(lines)):
        if uuid.startswith("GPU-"):
            board = uuid
        else:
            found.setdefault(board, []).append(uuid)
    return found


def _identity(row: SmiRow) -> Identity:
    index, texts = int(row.numbers.get("index") or 0), row.texts
    gpu = Gpu(index, texts.get("uuid", ""), texts.get("name", ""), texts.get("pci.bus_id", ""))
    driver = texts.get("driver_version", "")
    return Identity(gpu, driver, row.numbers.get("power.max_limit"), row.numbers.get("memory.total"))
