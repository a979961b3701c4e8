"""Reading small kernel files: once for facts, over and over with `pread` for values that move.

Nothing here raises for what a file says or fails to say. A value that is not there is NaN or None, and `trouble` says
why, so that one broken file never takes its neighbours with it.

A graphics card is its PCI address: AMD's and Intel's have one device name each, whichever sensor reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from everywatt.core.channels import NAN, Channel, GroupInfo, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.device import natural
from everywatt.core.errors import SensorError
from everywatt.core.platforms import O_CLOEXEC
from everywatt.sensors.procfs import file_text

_LONGEST = 64
_WATCH_NS = 25_000_000  # how long values are watched: several periods of RAPL, which counts every millisecond
_WATCH_STEP_NS = 2_000_000
_U64_DIGITS = 20
_SIGNED = re.compile(rb"-?\d{1,19}")


def open_readonly(path: str) -> int:
    """A descriptor to read `path`, closed in children that are executed."""
    return os.open(path, os.O_RDONLY | O_CLOEXEC)


def read_count(path: Path) -> int | None:
    """A whole number ≥ 0 from a small file, or None if it has no such number."""
    text = file_text(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _U64_DIGITS else None


def entries(folder: Path) -> list[Path]:
    """What a folder holds, in natural order; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir(), key=lambda path: natural(path.name))
    except OSError:
        return []


def parse_cpus(text: str) -> list[int]:
    """The CPUs in a kernel list such as `0,18` or `0-3,8`; empty where it is no such list."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if match is None:
            return []
        cpus += range(int(match[1]), int(match[2] or match[1]) + 1)
    return cpus


class NumberFile:
    """A file with one whole number ≥ 0 that is read again and again; the descriptor stays open.

    `most` is the largest value that makes sense (a counter's range). After a failure the file is reopened at the
    next read, so that a device that comes back works again.
    """

    def __init__(self, path: Path, *, most: float | None = None) -> None:
        self.path = path
        self.trouble: str | None = None
        self.denied = False
        self._most = most
        self._handle: int | None = None
        self._last: bytes | None = None

    def read(self) -> float:
        """The number, or NaN with the reason in `trouble`."""
        try:
            data = self._bytes()
        except OSError as error:
            self.close()
            self.denied = isinstance(error, PermissionError)
            return self._fail(error.strerror or type(error).__name__)
        return self.number(data)

    def number(self, data: bytes) -> float:
        """The number that bytes of this file say, or NaN with the reason in `trouble`."""
        text = data.strip()
        if not text:
            return self._fail("empty")
        if not text.isdigit() or len(text) > _U64_DIGITS:
            return self._fail(f"not a count: {text[:24].decode('ascii', 'replace')!r}")
        value = float(text)
        if self._most is not None and value > self._most:
            return self._fail(f"{value:.0f} is outside its range of {self._most:.0f}")
        self.trouble, self.denied = None, False
        return value

    def _bytes(self) -> bytes:
        if self._handle is None:
            self._handle = open_readonly(str(self.path))
        data = os.pread(self._handle, _LONGEST, 0)
        # A descriptor of a file that was removed or replaced repeats its last value indefinitely. Counters seldom stand
        # still, so that looking only then costs nothing.
        if data == self._last and os.fstat(self._handle).st_nlink == 0:
            self.close()
            self._handle = open_readonly(str(self.path))
            data = os.pread(self._handle, _LONGEST, 0)
        self._last = data
        return data

    def _fail(self, why: str) -> float:
        self.trouble = why
        return NAN

    def close(self) -> None:
        """Let go of the descriptor; the next read opens the file again."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)


class SignedFile(NumberFile):
    """A file with one whole number that may be negative: a shunt near zero is off by a step or two."""

    def number(self, data: bytes) -> float:
        text = data.strip()
        if text.startswith(b"-") and _SIGNED.fullmatch(text):
            self.trouble, self.denied = None, False
            return float(text)
        return super().number(data)


class Reading(Protocol):
    """One value that is read again and again."""

    @property
    def trouble(self) -> str | None:
        """Why there is no value, after a NaN."""
        ...

    def read(self) -> float: ...
    def close(self) -> None: ...


class ValueGroup:
    """A sensor group whose channels are one value each, read in one go. One that fails is NaN."""

    def __init__(self, info: GroupInfo, values: Sequence[Reading], clock: Clock, *, age_s: float = 0.0) -> None:
        self.info = info
        self._values = tuple(values)
        self._clock = clock
        self._age_ns = round(age_s * NS)

    def read(self) -> list[Row]:
        """One row. Each value was published after (start of the read − age) and before the end of the read.

        Raises SensorError where no value can be read.
        """
        start_ns = self._clock.monotonic_ns()
        values = tuple([value.read() for value in self._values])
        end_ns = self._clock.monotonic_ns()
        if all(value != value for value in values):
            named = zip(self.info.channels[:2], self._values, strict=False)
            reasons = "; ".join(f"{channel.name}: {value.trouble}" for channel, value in named)
            raise SensorError(f"{self.info.name} delivers nothing: {reasons}.")
        return [Row(end_ns, start_ns - self._age_ns, end_ns, values)]

    def sample(self) -> tuple[float, ...]:
        try:
            return self.read()[0].values
        finally:
            self.close()

    def close(self) -> None:
        """Let go of all of them; the next read opens them again."""
        for value in self._values:
            value.close()


def value_groups(found: Iterable[tuple[GroupInfo, Channel, Reading]], clock: Clock) -> list[ValueGroup]:
    """Values by the name of their group, whose info (that of its first value) gets the channels."""
    groups: dict[str, list[tuple[GroupInfo, Channel, Reading]]] = {}
    for one in found:
        groups.setdefault(one[0].name, []).append(one)
    made = []
    for members in groups.values():
        channels = tuple(channel for _, channel, _ in members)
        age_s = max(channel.facts.period_s or channel.facts.window_s or 0.0 for channel in channels)
        info = replace(members[0][0], channels=channels)
        made.append(ValueGroup(info, [value for _, _, value in members], clock, age_s=age_s))
    return made


def in_unit(channel: Channel, raw: float) -> float | None:
    """A raw value in the channel's unit, or None if it is NaN."""
    return None if raw != raw else raw * channel.scale


Which = TypeVar("Which")
Count = TypeVar("Count")
Thing = TypeVar("Thing")


def unmoved(
    first: Mapping[Which, Count], read: Callable[[Which], Count | None], clock: Clock, most_ns: int, step_ns: int
) -> list[Which]:
    """The counters whose value is still `first` after so long; a failed read counts as no movement."""
    still = list(first)
    deadline_ns = clock.monotonic_ns() + most_ns
    while still := [one for one in still if read(one) in (first[one], None)]:
        now_ns = clock.monotonic_ns()
        if now_ns >= deadline_ns:
            break
        clock.sleep_until(min(now_ns + step_ns, deadline_ns))
    return still


class Candidate(NamedTuple):
    """A value that may be one of a sensor's: its name in `missing`, and of a counter the joules of one count.

    A counter must move. One that `may_rest` (a part of a processor) must only have counted something since boot.
    """

    name: str
    reading: Reading
    joules: float | None = None
    may_rest: bool = False


def alive(
    things: Iterable[Thing], candidates: Sequence[Candidate], missing: dict[str, str], clock: Clock
) -> list[Thing]:
    """Those things whose candidate delivers; `missing` gets the reason for each other one, which is closed.

    A counter that does not move is read again for 25 ms, a gauge once: it may be on a slow bus.
    """
    last = [one.reading.read() for one in candidates]
    counters = {
        n: value
        for n, (one, value) in enumerate(zip(candidates, last, strict=True))
        if one.joules is not None and value == value and (value == 0 or not one.may_rest)
    }

    def read(n: int) -> float:
        last[n] = candidates[n].reading.read()
        return last[n]

    for n in unmoved(counters, read, clock, _WATCH_NS, _WATCH_STEP_NS):
        missing[candidates[n].name] = f"the counter is stuck at {last[n] * (candidates[n].joules or 0.0):.6g} J"
    for one, value in zip(candidates, last, strict=True):
        if value != value:
            missing[one.name] = str(one.reading.trouble)
    for one in candidates:
        if one.name in missing:
            one.reading.close()
    return [thing for thing, one in zip(things, candidates, strict=True) if one.name not in missing]


def deliver_nothing(what: str, files: Iterable[NumberFile], missing: Mapping[str, str]) -> SensorError:
    """Why none of the values that exist can be used."""
    reasons = "; ".join(f"{name}: {why}" for name, why in list(missing.items())[:4])
    cure = "run as root, or make the files readable for one group" if any(file.denied for file in files) else None
    return SensorError(f"{what} exist but deliver nothing: {reasons}.", cure=cure)


def threads_per_core(sys: Path) -> int | None:
    """How many CPUs the system shows for each core (2 with hyper-threading); None where it does not say."""
    listed = file_text(sys / "devices" / "system" / "cpu" / "cpu0" / "topology" / "thread_siblings_list")
    return len(parse_cpus(listed)) or None


def packages_of(sys: Path) -> list[int] | None:
    """The package of each CPU, in their order; None where the system does not say, or there is one."""
    cpus = sys / "devices" / "system" / "cpu"
    try:
        found = [
            int((cpus / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
            for cpu in range(os.cpu_count() or 0)
        ]
    except (OSError, ValueError):
        return None
    return found if len(set(found)) > 1 else None


PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE)


def short_pci(text: str) -> str | None:
    """`0000:04:00.0` from a text, or None if it has no PCI address."""
    match = PCI.search(text)
    return f"{match[1][-4:]}:{match[2]}:{match[3]}.{match[4]}".lower() if match else None


def socket_of(pci: str | None) -> str | None:
    """The address without its function: the partitions of an MI300 are functions of one socket, and share its power."""
    return pci.rpartition(".")[0] if pci else None


def address_of(folder: Path) -> str | None:
    """The PCI address of the card that a folder of /sys belongs to."""
    for place in (folder / "device", folder):
        for part in reversed(place.resolve().parts):
            if PCI.fullmatch(part):
                return short_pci(part)
    return None


def numbered(sys: Path, sockets: Iterable[str]) -> dict[str, str]:
    """`gpu.N` for each card, in the order of their addresses; NVML's cards have the first numbers."""
    nvidia = [path for path in entries(sys / "bus" / "pci" / "drivers" / "nvidia") if PCI.fullmatch(path.name)]
    return {socket: f"gpu.{number}" for number, socket in enumerate(sorted(set(sockets)), len(nvidia))}
