"""RAPL by perf_events: the kernel's `power` PMU, for where powercap is missing or closed and perf is allowed.

The kernel extends the hardware's 32 bits to 64 and scales them, so that these counters never wrap; they start at zero
when they are opened. A PMU that exists is no meter that works (some kernels list events that always read zero): an
event is used only where it moved.

AMD's processors count each core too (PMU `power_core`, Linux 6.14 and later). These counters are many, so that they
are read only if they are asked for, and once a second:

    [sensor.perf]
    cores = true
"""

from __future__ import annotations

import errno
import os
import platform
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everywatt.core.channels import NAN, Cadence, Channel, Domain, GroupInfo
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Request
from everywatt.sensors.cpu.rapl import Cpu, Rapl, energy_channel, name_of, socket_name
from everywatt.sensors.procfs import file_text
from everywatt.sensors.simple import Absent, SimpleSensor
from everywatt.sensors.sysfs import Candidate, ValueGroup, alive, parse_cpus, read_count, value_groups

EventOpener = Callable[[int, int, int], int]
EventReader = Callable[[int], int]

CURE = (
    "everywatt doctor --fix, or for one command: sudo setpriv --reuid $USER --init-groups --inh-caps +perfmon "
    "--ambient-caps +perfmon everywatt run …"
)
_SYSCALL = {
    "x86_64": 298,
    "i386": 336,
    "i686": 336,
    "aarch64": 241,
    "riscv64": 241,
    "ppc64le": 319,
    "s390x": 331,
    "armv7l": 364,
}
_CLOSE_ON_EXEC = 8
_USER_ONLY = 1 << 5 | 1 << 6  # without kernel, without hypervisor
_ATTRIBUTES = 64  # the first published size of perf_event_attr: all that a plain counter needs
_EVENTS = {
    "energy-pkg": Domain.PACKAGE,
    "energy-psys": Domain.NODE,
    "energy-cores": Domain.CORE,
    "energy-gpu": Domain.UNCORE,
    "energy-ram": Domain.DRAM,
}


def open_event(kind: int, config: int, cpu: int, *, pid: int = -1, user_only: bool = False) -> int:
    """A descriptor of one counter of PMU `kind` on `cpu`, by the system call. OSError where the kernel refuses.

    `user_only` leaves out what the kernel does, which an ordinary user may count of his own processes.
    """
    import ctypes  # here, so that a recorder without perf events does not carry it

    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open is not supported on {platform.machine()}")
    packed = struct.pack("=IIQ24xQ", kind, _ATTRIBUTES, config, _USER_ONLY if user_only else 0)
    attributes = ctypes.create_string_buffer(packed, _ATTRIBUTES)
    libc = ctypes.CDLL(None, use_errno=True)
    handle: int = libc.syscall(
        ctypes.c_long(number),
        attributes,
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if handle < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return handle


def read_event(handle: int) -> int:
    data = os.read(handle, 8)
    if len(data) != 8:
        raise OSError(errno.EIO, "the counter returned no value")
    return int.from_bytes(data, "little" if struct.pack("=H", 1)[0] else "big")


@dataclass(frozen=True, slots=True)
class Event:
    """One energy event on one CPU, which represents its socket."""

    name: str
    domain: Domain
    kind: int
    config: int
    scale: float
    cpu: int
    socket: str
    single: bool = False  # of the one core that this CPU is on


def find_events(sys: Path, *, cores: bool = False) -> tuple[list[Event], dict[str, str]]:
    """The energy events of the power PMU, one for each socket or die, and those left out with the reason.

    With `cores` also those of the PMU of single cores.
    """
    events, left_out = _pmu_events(sys, "power", _EVENTS)
    if events and cores:
        single, more = _pmu_events(sys, "power_core", {"energy-core": Domain.CORE})
        missing = {} if single else {"power_core": "this kernel has no counters of single cores"}
        return events + [replace(event, single=True) for event in single], left_out | missing | more
    return events, left_out


def _pmu_events(sys: Path, pmu: str, known: Mapping[str, Domain]) -> tuple[list[Event], dict[str, str]]:
    root = sys / "bus" / "event_source" / "devices" / pmu
    left_out: dict[str, str] = {}
    kind = read_count(root / "type")
    cpus = parse_cpus(file_text(root / "cpumask"))
    if kind is None or not cpus:
        return [], {pmu: "the PMU has no type or no cpumask"} if root.is_dir() else {}
    sockets = _sockets(sys, cpus)
    events = []
    for name, domain in known.items():
        text = file_text(root / "events" / name)
        if not text:
            continue
        config, scale = _config(text), _scale(root / "events", name)
        if config is None or scale is None:
            left_out[name] = f"'{text}' or its scale and unit are not understood"
            continue
        events += [Event(name, domain, kind, config, scale, cpu, sockets[cpu]) for cpu in cpus]
    return events, left_out


def _config(text: str) -> int | None:
    match = re.fullmatch(r"event=(0x[0-9a-fA-F]{1,4}|\d{1,5})", text)
    return int(match[1], 0) if match else None


def _scale(folder: Path, name: str) -> float | None:
    """Joules of one count."""
    try:
        scale = float(file_text(folder / f"{name}.scale"))
    except ValueError:
        return None
    return scale if file_text(folder / f"{name}.unit") == "Joules" and 0 < scale < 1 else None


def _sockets(sys: Path, cpus: Sequence[int]) -> dict[int, str]:
    """The socket of each CPU, with the die if several CPUs represent one package."""
    places = {}
    for place, cpu in enumerate(cpus):
        topology = sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        package = read_count(topology / "physical_package_id")
        places[cpu] = (place if package is None else package, read_count(topology / "die_id") or 0)
    packages = [package for package, _ in places.values()]
    return {cpu: socket_name(p, die if packages.count(p) > 1 else None) for cpu, (p, die) in places.items()}


class Counter:
    """One open event; opened again after a failure."""

    def __init__(self, event: Event, opener: EventOpener, reader: EventReader) -> None:
        self.event = event
        self.error: OSError | None = None
        self._opener = opener
        self._reader = reader
        self._handle: int | None = None

    def read(self) -> float:
        """The count, or NaN with the reason in `error`."""
        try:
            if self._handle is None:
                self._handle = self._opener(self.event.kind, self.event.config, self.event.cpu)
            count = self._reader(self._handle)
        except OSError as error:
            self.close()
            self.error = error
            return NAN
        self.error = None
        return float(count)

    @property
    def trouble(self) -> str:
        return str(self.error)

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.close(handle)
            except OSError:
                pass  # already gone: there is nothing left to let go of


class PerfRapl(SimpleSensor):
    """The sensor; a fallback for `rapl`. Named together with it, its channels are mirrors, for a cross-check."""

    name = "perf"
    after: Sequence[str] = ("rapl",)

    def __init__(
        self, request: Request, *, opener: EventOpener | None = None, reader: EventReader = read_event
    ) -> None:
        super().__init__(request)
        self._opener = opener
        self._reader = reader

    def find(self) -> list[ValueGroup]:
        """The events that count: one group for each socket, one for psys, and one for all single cores."""
        machine, asked = self.machine, self.request.options.get(self.name, {})
        events, left_out = find_events(machine.sys, cores=bool(asked.get("cores")))
        self.missing |= left_out
        if not events and left_out:
            raise SensorError(f"The power PMU exists but cannot be used: {'; '.join(left_out.values())}.")
        if not events:
            raise Absent("The kernel has no power PMU with energy events.")
        if self._opener is None and machine.sys != Path("/sys"):
            raise SensorError(
                f"The power PMU at {machine.sys} is not that of this kernel, so its events cannot be opened."
            )
        counters = [Counter(event, self._opener or open_event, self._reader) for event in events]
        # A single core may sleep. The others count from zero when they are opened, so that they must move.
        tried = [
            Candidate(f"{event.name}@{event.cpu}", counter, None if event.single else event.scale)
            for event, counter in zip(events, counters, strict=True)
        ]
        counting = alive(counters, tried, self.missing, machine.clock)
        if not any(counter.event.domain in (Domain.PACKAGE, Domain.NODE) for counter in counting):
            raise self._unusable(counters)
        found = list(zip(self._channels([counter.event for counter in counting]), counting, strict=True))
        self.devices = [{"device": c.device, "event": one.event.name, "cpu": one.event.cpu} for c, one in found]
        return value_groups([(self._info(c, one.event), c, one) for c, one in found], machine.clock)

    def _info(self, channel: Channel, event: Event) -> GroupInfo:
        device = "cores" if event.single else channel.device.replace("dram.", "cpu.")
        info = GroupInfo(f"perf.{device}", self.name, device, (), inline=True, label="RAPL by perf_events")
        return replace(info, device="host", cadence=Cadence.SLOW, inline=False) if event.single else info

    def _channels(self, events: Sequence[Event]) -> Iterator[Channel]:
        cpu = Cpu.read(self.machine.proc)
        beside: set[str] = set()
        if self.request.sensors and "rapl" in self.request.sensors:
            beside = set(Rapl(self.request).probe().samples)
        platforms = 0
        for event in events:
            socket = event.socket
            if event.domain is Domain.NODE:
                socket, platforms = str(platforms), platforms + 1
            name = name_of(event.domain, socket)
            twin = name if name in beside else None
            # wrap is None: 64 bits of 2^-32 J hold 4 GJ, so that a step back can only be a counter that was reopened.
            channel = energy_channel(
                event.domain,
                socket,
                cpu=cpu,
                scale=event.scale,
                wrap=None,
                max_w=None,
                path="perf" if twin else "",
                mirror_of=twin,
            )
            if event.single:
                device = f"core.{event.cpu}"
                channel = replace(channel, name=f"{device}.energy", device=device, mirror_of=None)
            yield channel

    def _unusable(self, counters: Sequence[Counter]) -> SensorError:
        if any(isinstance(counter.error, PermissionError) for counter in counters):
            level = file_text(self.machine.proc / "sys" / "kernel" / "perf_event_paranoid")
            why = (
                "The power PMU exists but perf_events are not allowed (kernel.perf_event_paranoid is "
                f"{level or 'not readable'}; CAP_PERFMON or a value of 0 is needed; container runtimes often block the "
                "call)."
            )
            return SensorError(why, cure=CURE)
        reasons = "; ".join(dict.fromkeys(self.missing.values()))
        return SensorError(f"The power PMU exists but its counters do not move: {reasons}.")
