"""Other indicators of power: CPU time by mode, frequency, disk and network bytes, instructions and cache misses.

    [sensor.use]
    features = true
    cpus = true

Off unless asked for: only a power model needs `features` (`everywatt model collect` asks for them), and the utilisation
and clock of every CPU (`cpus`) costs more the more CPUs there are. A channel whose source is missing or closed on this
machine is not there; `missing` of the report says why.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.channels import NAN, Cadence, Channel, Facts, GroupInfo, Kind, Row, fresh
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError
from everywatt.sensors.procfs import TICKS_PER_S, KeptFile, file_text, parse_cpu_times, slurp
from everywatt.sensors.sysfs import NumberFile, in_unit, parse_cpus

if TYPE_CHECKING:
    from everywatt.core.machine import Machine

STAT_LINE_BYTES = 160  # the longest line of one CPU in /proc/stat: ten numbers of up to 15 digits
MOST_FREQUENCIES = 16  # CPUs whose frequency is read: each read interrupts that CPU
SECTOR_BYTES = 512
HARDWARE = 0  # PERF_TYPE_HARDWARE
COUNTS = {"instructions": (HARDWARE, 1), "cycles": (HARDWARE, 0), "cache_misses": (HARDWARE, 3)}
NOT_DISKS = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d*")  # on top of disks, or none
MODES = ("user_time", "system_time", "iowait_time", "irq_time")
DISK = ("disk_read", "disk_written")
NETWORK = ("network_received", "network_sent", "loopback")
_TICK = Facts(period_s=1.0 / TICKS_PER_S, quantum=1.0 / TICKS_PER_S)

Part = tuple[tuple[Channel, ...], Callable[[], Sequence[float]], Callable[[], None]]


def parse_modes(data: bytes) -> tuple[float, float, float, float]:
    """Seconds of all CPUs from the first line of /proc/stat: user and nice, system, waiting for disks, interrupts."""
    user, nice, system, _, wait, irq, soft = (int(word) for word in data.split(b"\n", 1)[0].split()[1:8])
    return (user + nice) / TICKS_PER_S, system / TICKS_PER_S, wait / TICKS_PER_S, (irq + soft) / TICKS_PER_S


def parse_disks(data: bytes, whole: Callable[[str], bool]) -> tuple[float, float]:
    """Bytes read and written of /proc/diskstats, over the disks that are `whole`: a partition's are in its disk's."""
    read = written = 0
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) >= 10 and whole(words[2].decode("ascii", "replace")):
            read += int(words[5])
            written += int(words[9])
    return float(read * SECTOR_BYTES), float(written * SECTOR_BYTES)


def parse_network(data: bytes) -> tuple[float, float, float]:
    """Bytes of /proc/net/dev: received and sent over all interfaces but `lo`, and those sent to itself."""
    received = sent = itself = 0
    for line in data.split(b"\n")[2:]:
        name, _, rest = line.partition(b":")
        words = rest.split()
        if len(words) < 9:
            continue
        if name.strip() == b"lo":
            itself += int(words[8])
        else:
            received += int(words[0])
            sent += int(words[8])
    return float(received), float(sent), float(itself)


def parse_frequency(cpuinfo: bytes) -> float:
    """The mean of the `cpu MHz` lines of /proc/cpuinfo, in hertz; NaN without any."""
    found = [float(value) for value in re.findall(rb"^cpu MHz\s*: ([0-9.]+)", cpuinfo, re.MULTILINE)]
    return 1e6 * sum(found) / len(found) if found else NAN


def close_all(*files: KeptFile | NumberFile) -> Callable[[], None]:
    """What closes these."""

    def close() -> None:
        for file in files:
            file.close()

    return close


def _kept(path: Path, parse: Callable[[bytes], Sequence[float]], limit: int, channels: Sequence[Channel]) -> Part:
    file = KeptFile(path)
    try:
        parse(file.read(limit))
    except BaseException:
        file.close()
        raise
    return tuple(channels), lambda: parse(file.read(limit)), file.close


def _channels(names: Sequence[str], unit: str, facts: Facts | None = None) -> list[Channel]:
    return [Channel(f"host.{name}", unit, Kind.COUNTER, "host", facts=facts or Facts()) for name in names]


def modes_part(machine: Machine) -> Part:
    return _kept(machine.proc / "stat", parse_modes, 512, _channels(MODES, "s", _TICK))


def disk_part(machine: Machine) -> Part:
    block = machine.sys / "block"
    disks = {path.name for path in block.iterdir() if not NOT_DISKS.fullmatch(path.name)}
    if not disks:
        raise OSError(errno.ENOENT, "no disk of its own")
    channels = _channels(DISK, "B", Facts(quantum=float(SECTOR_BYTES)))
    return _kept(machine.proc / "diskstats", lambda data: parse_disks(data, disks.__contains__), 65536, channels)


def network_part(machine: Machine) -> Part:
    return _kept(machine.proc / "net" / "dev", parse_network, 65536, _channels(NETWORK, "B"))


def frequency_part(machine: Machine) -> Part:
    """The mean frequency: of cpufreq, else of /proc/cpuinfo."""
    channel = Channel("host.cpu_frequency", "Hz", Kind.GAUGE, "host", facts=Facts(window_s=0.0))
    paths = sorted((machine.sys / "devices" / "system" / "cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if not paths:
        path = machine.proc / "cpuinfo"
        if parse_frequency(slurp(path)) != parse_frequency(slurp(path)):
            raise OSError(errno.ENOENT, "neither cpufreq nor /proc/cpuinfo reports a frequency")
        return (channel,), lambda: (parse_frequency(slurp(path)),), lambda: None
    files = [KeptFile(path) for path in paths[:: -(-len(paths) // MOST_FREQUENCIES)]]

    return (channel,), lambda: (1e3 * sum(int(file.read(32)) for file in files) / len(files),), close_all(*files)


def counts_part(machine: Machine, events: Mapping[str, tuple[int, int]] = COUNTS) -> Part:
    """Events of all CPUs by perf_event_open. OSError where the kernel or the machine has none for us."""
    from everywatt.sensors.cpu.perf import open_event, read_event  # loads ctypes

    cpus = parse_cpus(file_text(machine.sys / "devices" / "system" / "cpu" / "online")) or [0]
    handles: list[list[int]] = []

    def close() -> None:
        for one in handles:
            while one:
                os.close(one.pop())

    def read() -> Sequence[float]:
        return [float(sum(read_event(handle) for handle in one)) for one in handles]

    try:
        for kind, config in events.values():
            handles.append([])
            for cpu in cpus:
                handles[-1].append(open_event(kind, config, cpu))
        read()
    except OSError:
        close()
        raise
    return tuple(_channels(tuple(events), "")), read, close


def cpus_part(machine: Machine, device: str = "host") -> Part:
    """Of every CPU the utilisation since the last read (%) and its clock (MHz) where cpufreq has one; NaN while off."""
    folder = machine.sys / "devices" / "system" / "cpu"
    present = parse_cpus(file_text(folder / "present"))
    last = parse_cpu_times(slurp(machine.proc / "stat"))
    cpus = present or sorted(last)
    size = STAT_LINE_BYTES * (len(cpus) + 1)
    stat = KeptFile(machine.proc / "stat")
    paths = {cpu: folder / f"cpu{cpu}" / "cpufreq" / "scaling_cur_freq" for cpu in cpus}
    clocks = {cpu: NumberFile(path) for cpu, path in paths.items() if path.exists()}
    channels = [Channel(f"{device}.cpu{cpu}.utilisation", "%", Kind.GAUGE, device) for cpu in cpus]
    channels += [Channel(f"{device}.cpu{cpu}.clock", "MHz", Kind.GAUGE, device, scale=1e-3) for cpu in clocks]
    shares = dict.fromkeys(cpus, NAN)

    def read() -> Sequence[float]:
        now = parse_cpu_times(stat.read(size))
        for cpu in cpus:
            if cpu not in now:
                shares[cpu] = NAN
            elif cpu in last:
                busy_s, idle_s = now[cpu].busy_s - last[cpu].busy_s, now[cpu].idle_s - last[cpu].idle_s
                if busy_s + idle_s > 0:  # else no tick of the kernel has passed, and the last share holds
                    shares[cpu] = max(0.0, min(100.0 * busy_s / (busy_s + idle_s), 100.0))
        last.clear()
        last.update(now)
        return [*shares.values(), *(file.read() for file in clocks.values())]

    return tuple(channels), read, close_all(stat, *clocks.values())


PARTS: Mapping[str, Callable[[Machine], Part]] = {
    "CPU time by mode": modes_part,
    "CPU frequency": frequency_part,
    "disk bytes": disk_part,
    "network bytes": network_part,
    "instructions, cycles, cache misses": counts_part,
}
CPUS: Mapping[str, Callable[[Machine], Part]] = {"use of each CPU": cpus_part}


class StateGroup:
    """A group of every part that this machine has, read once a second. `missing` says which it lacks, and why."""

    def __init__(
        self,
        machine: Machine,
        parts: Mapping[str, Callable[[Machine], Part]],
        name: str,
        *,
        device: str = "host",
        label: str = "other indicators of power",
    ) -> None:
        self._clock = machine.clock
        self._parts: list[Part] = []
        self.missing: dict[str, str] = {}
        for part, make in parts.items():
            try:
                self._parts.append(make(machine))
            except (OSError, ValueError) as error:
                self.missing[part] = (error.strerror if isinstance(error, OSError) else None) or str(error)
        channels = tuple(channel for part in self._parts for channel in part[0])
        self.info = GroupInfo(name, name.partition(".")[0], device, channels, Cadence.SLOW, label=label)

    def read(self) -> Sequence[Row]:
        """One row; NaN for a part that cannot be read now."""
        values: list[float] = []
        failures = 0
        for channels, read, _ in self._parts:
            try:
                values += read()
            except (OSError, ValueError):
                values += [NAN] * len(channels)
                failures += 1
        if failures == len(self._parts):
            raise SensorError(f"Nothing of {self.info.name} can be read.")
        return (fresh(self._clock.monotonic_ns(), tuple(values), round(NS / TICKS_PER_S)),)

    def sample(self) -> dict[str, float | None]:
        """The first value of each channel, or None with the reason in `missing`; closes the source."""
        values = self.read()[0].values if self.info.channels else ()
        self.close()
        found = {c.name: in_unit(c, raw) for c, raw in zip(self.info.channels, values, strict=True)}
        self.missing |= {name: "no value in the first reading" for name, value in found.items() if value is None}
        return found

    def close(self) -> None:
        for _, _, close in self._parts:
            close()
