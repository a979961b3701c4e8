"""Reading small kernel files: once for facts, over and over with `pread` for values that move.

Nothing here raises for what a file says or fails to say. A value that is not there is NaN or None, and `trouble` tells
why, so that one broken file never takes its neighbours with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from everywatt.core.channels import NAN, Channel, GroupInfo, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.device import natural
from everywatt.core.errors import SensorError

Opener = Callable[[str], int]
_LONGEST = 64
_U64_DIGITS = 20


def open_readonly(path: str) -> int:
    """A descriptor to read `path`, closed in children that are executed."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_text(path: Path, opener: Opener = open_readonly) -> str | None:
    """The stripped text of a small file, None where it cannot be read or is no text."""
    try:
        handle = opener(str(path))
    except OSError:
        return None
    try:
        return os.pread(handle, 4096, 0).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(handle)


def read_count(path: Path, opener: Opener = open_readonly) -> int | None:
    """A whole number ≥ 0 from a small file, None where there is none."""
    text = read_text(path, opener)
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _U64_DIGITS else None


def entries(folder: Path) -> list[Path]:
    """What a folder holds, in natural order; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir(), key=lambda path: natural(path.name))
    except OSError:
        return []


class NumberFile:
    """A file with one whole number ≥ 0 that is read again and again; the descriptor stays open.

    `most` is the largest value that makes sense (a counter's range). After a failure the file is reopened at the
    next read, so that a device that comes back works again.
    """

    def __init__(self, path: Path, *, most: float | None = None, opener: Opener = open_readonly) -> None:
        self.path = path
        self.trouble: str | None = None
        self.denied = False
        self._most = most
        self._opener = opener
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

    def glance(self) -> bytes | None:
        """The bytes for `number`; None where a careful `read` has to find out what is wrong, or whether anything is."""
        if self._handle is None:
            return None
        try:
            data = os.pread(self._handle, _LONGEST, 0)
            if data == self._last and os.fstat(self._handle).st_nlink == 0:
                return None
        except OSError:
            return None
        self._last = data
        return data

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
            self._handle = self._opener(str(self.path))
        data = os.pread(self._handle, _LONGEST, 0)
        # A descriptor of a file that was removed or replaced repeats its last value indefinitely. Counters seldom stand
        # still, so that looking only then costs nothing.
        if data == self._last and os.fstat(self._handle).st_nlink == 0:
            self.close()
            self._handle = self._opener(str(self.path))
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


class FileGroup:
    """A sensor group whose channels are one number file each, read in one go."""

    def __init__(self, info: GroupInfo, files: Sequence[NumberFile], clock: Clock, *, age_s: float = 0.0) -> None:
        self._info = info
        self._files = tuple(files)
        self._clock = clock
        self._age_ns = round(age_s * NS)

    @property
    def info(self) -> GroupInfo:
        return self._info

    def read(self) -> list[Row]:
        """One row. Each value was published after (start of the read − age) and before the end of the read."""
        start_ns = self._clock.monotonic_ns()
        values = tuple([file.read() for file in self._files])
        end_ns = self._clock.monotonic_ns()
        self._refuse_empty(values)
        return [Row(end_ns, start_ns - self._age_ns, end_ns, values)]

    def read_raw(self) -> list[bytes] | None:
        """The files as they are now, for `to_rows`; None where one of them has to be looked at with care."""
        found = []
        for file in self._files:
            data = file.glance()
            if data is None:
                return None
            found.append(data)
        return found

    def to_rows(self, taken: Sequence[tuple[int, int, list[bytes]]]) -> list[Row]:
        """The rows of what was read, each with when its read began and ended."""
        rows = []
        for start_ns, end_ns, found in taken:
            values = tuple([file.number(data) for file, data in zip(self._files, found, strict=True)])
            self._refuse_empty(values)
            rows.append(Row(end_ns, start_ns - self._age_ns, end_ns, values))
        return rows

    def _refuse_empty(self, values: tuple[float, ...]) -> None:
        if all(value != value for value in values):
            reasons = "; ".join(
                f"{file.path.name} of {file.path.parent.name}: {file.trouble}" for file in self._files[:2]
            )
            raise SensorError(f"{self._info.name} delivers nothing: {reasons}.")

    def close(self) -> None:
        for file in self._files:
            file.close()


def in_unit(channel: Channel, raw: float) -> float | None:
    """A raw value in the channel's unit, None where there is none."""
    return None if raw != raw else raw * channel.scale


def watch(
    read: Callable[[], Sequence[float]], impatient: Sequence[bool], clock: Clock, *, wait_s: float = 0.025
) -> tuple[list[float], list[float]]:
    """The first and the last values of `read`, repeated until every impatient or zero value has moved or time is up."""
    first = list(read())
    last = list(first)
    deadline_ns = clock.monotonic_ns() + round(wait_s * NS)
    step_ns = 2_000_000
    for _ in range(round(wait_s * NS) // step_ns):
        if all(a != b or (a != 0 and not wants) for wants, a, b in zip(impatient, first, last, strict=True)):
            break  # NaN never equals itself, so that what cannot be read is not waited for
        clock.sleep_until(min(clock.monotonic_ns() + step_ns, deadline_ns))
        last = list(read())
        if clock.monotonic_ns() >= deadline_ns:
            break
    return first, last


def threads_per_core(sys: Path) -> int | None:
    """How many CPUs the system shows for each core (2 with hyper-threading); None where it does not say."""
    try:
        listed = (sys / "devices" / "system" / "cpu" / "cpu0" / "topology" / "thread_siblings_list").read_text()
        siblings = [part.partition("-") for part in listed.strip().split(",")]
        return sum(int(last or first) - int(first) + 1 for first, _, last in siblings)
    except (OSError, ValueError):
        return None


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
