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
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.cpu.rapl import Cpu, Rapl, energy_channel, name_of, socket_name
from everywatt.sensors.sysfs import ValueGroup, in_unit, parse_cpus, read_count, read_text, value_groups, watch

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
    """The count so far."""
    data = os.read(handle, 8)
    if len(data) != 8:
        raise OSError(errno.EIO, "the counter returned no value")
    return int.from_bytes(data, "little" if struct.pack("=H", 1)[0] else "big")


@dataclass(frozen=True, slots=True)
class Event:
    """One energy event on one CPU, which stands for its socket."""

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
    cpus = parse_cpus(read_text(root / "cpumask") or "")
    if kind is None or not cpus:
        return [], {pmu: "the PMU has no type or no cpumask"} if root.is_dir() else {}
    sockets = _sockets(sys, cpus)
    events = []
    for name, domain in known.items():
        text = read_text(root / "events" / name)
        if text is None:
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
        scale = float(read_text(folder / f"{name}.scale") or "")
    except ValueError:
        return None
    return scale if read_text(folder / f"{name}.unit") == "Joules" and 0 < scale < 1 else None


def _sockets(sys: Path, cpus: Sequence[int]) -> dict[int, str]:
    """The socket of each CPU, with the die where several CPUs stand for one package."""
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
    def why(self) -> str:
        """Why there is no value."""
        return str(self.error)

    def close(self) -> None:
        """Let go of the event."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.close(handle)
            except OSError:
                pass  # already gone: there is nothing left to let go of


class PerfRapl:
    """The sensor; it stands behind `rapl`. Named together with it, its channels are mirrors, for a cross-check."""

    name = "perf"
    after: Sequence[str] = ("rapl",)

    def __init__(
        self, request: Request, *, opener: EventOpener | None = None, reader: EventReader = read_event
    ) -> None:
        self._request = request
        self._machine = request.machine
        self._opener = opener
        self._reader = reader
        self._found: list[tuple[Channel, Event]] | None = None

    def probe(self) -> Report:
        """Which events count, with the joules that each counted while it was looked at. Takes at most 30 ms."""
        self._found = []
        asked = self._request.options.get(self.name, {})
        events, missing = find_events(self._machine.sys, cores=bool(asked.get("cores")))
        if not events:
            return self._absent(missing)
        if self._opener is None and self._machine.sys != Path("/sys"):
            why = f"The power PMU at {self._machine.sys} is not that of this kernel, so its events cannot be opened."
            return Report(self.name, State.UNUSABLE, why=why, missing=missing)
        counters = self._counters(events)
        try:
            must_move = [not event.single for event in events]  # a single core may sleep
            first, last = watch(lambda: [c.read() for c in counters], must_move, self._machine.clock)
        finally:
            for counter in counters:
                counter.close()
        alive = []
        for event, counter, a, b in zip(events, counters, first, last, strict=True):
            if b != b:
                missing[f"{event.name}@{event.cpu}"] = str(counter.error)
            elif a == b and not event.single:
                missing[f"{event.name}@{event.cpu}"] = "the counter did not move: idle, or not connected"
            else:
                alive.append((event, b))
        if not any(event.domain in (Domain.PACKAGE, Domain.NODE) for event, _ in alive):
            return self._unusable(counters, missing)
        self._found = [(channel, event) for channel, event in self._channels([event for event, _ in alive])]
        samples = {c.name: in_unit(c, value) for (c, _), (_, value) in zip(self._found, alive, strict=True)}
        devices = [{"device": c.device, "event": e.name, "cpu": e.cpu} for c, e in self._found]
        return Report(self.name, State.USABLE, samples=samples, missing=missing, devices=devices)

    def groups(self) -> list[ValueGroup[Counter]]:
        """One group for each socket, one for psys, and one for all single cores."""
        if self._found is None:
            self.probe()
        counters = self._counters([event for _, event in self._found or ()])
        found = [(self._info(*one), one[0], counter) for one, counter in zip(self._found or (), counters, strict=True)]
        return value_groups(found, self._machine.clock)

    def _info(self, channel: Channel, event: Event) -> GroupInfo:
        device = "cores" if event.single else channel.device.replace("dram.", "cpu.")
        info = GroupInfo(f"perf.{device}", self.name, device, (), inline=True, label="RAPL by perf_events")
        return replace(info, device="host", cadence=Cadence.SLOW, inline=False) if event.single else info

    def _counters(self, events: Sequence[Event]) -> list[Counter]:
        opener = self._opener or open_event
        return [Counter(event, opener, self._reader) for event in events]

    def _channels(self, events: Sequence[Event]) -> Iterator[tuple[Channel, Event]]:
        cpu = Cpu.read(self._machine.proc)
        beside: set[str] = set()
        if self._request.sensors and "rapl" in self._request.sensors:
            beside = set(Rapl(self._request).probe().samples)
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
            yield channel, event

    def _absent(self, missing: dict[str, str]) -> Report:
        if missing:
            why = f"The power PMU exists but cannot be used: {'; '.join(missing.values())}."
            return Report(self.name, State.UNUSABLE, why=why, missing=missing)
        why = "The kernel has no power PMU with energy events."
        return Report(self.name, State.ABSENT, why=why, missing=missing)

    def _unusable(self, counters: Sequence[Counter], missing: dict[str, str]) -> Report:
        if any(isinstance(counter.error, PermissionError) for counter in counters):
            level = read_text(self._machine.proc / "sys" / "kernel" / "perf_event_paranoid")
            why = (
                "The power PMU exists but perf_events are not allowed (kernel.perf_event_paranoid is "
                f"{level or 'not readable'}; CAP_PERFMON or a value of 0 is needed; container runtimes often block the "
                "call)."
            )
            return Report(self.name, State.UNUSABLE, why=why, cure=CURE, missing=missing)
        why = f"The power PMU exists but its counters do not move: {'; '.join(dict.fromkeys(missing.values()))}."
        return Report(self.name, State.UNUSABLE, why=why, missing=missing)
