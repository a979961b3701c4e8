"""Meters that take their time: a command, a BMC, a plug on the network.

The recorder reads all sensors in turn, and a meter that answers after a second, or never, must not hold up the others:
each is asked by a thread of its own. Those on a network exist only where they are configured.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import EverywattError, SensorError
from everywatt.net.url import Login
from everywatt.sensors.base import Request
from everywatt.sensors.child import run_once
from everywatt.sensors.simple import Absent, SimpleSensor

Ask = Callable[[], tuple[float, ...]]
KNOWN = ("gain_pct", "offset_w", "max_w", "quantum", "window_s")


def power_channel(device: str, domain: Domain, facts: Facts) -> Channel:
    """`DEVICE.power` in watts."""
    return Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=Pedigree.INTEGRATED, facts=facts)


def first_line(text: str) -> str:
    """The first non-blank line, for a message; "nothing" if all are blank."""
    return next((line.strip() for line in text.split("\n") if line.strip()), "nothing")[:120]


def secret(file: Any, otherwise: str | None) -> str | None:
    """The first line of a file, or what the environment says. SensorError where the file cannot be read."""
    if not file:
        return otherwise
    try:
        text = Path(str(file)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SensorError(f"{file} cannot be read: {reason}.") from None
    if not text:
        raise SensorError(f"{file} is empty.")
    return text.partition("\n")[0].removesuffix("\r")


class PolledGroup:
    """A group whose values come from `ask`, called every `period_s` by a thread that starts with the first read.

    A value can have been published at most `age_s` before it was asked for. `ask` raises SensorError (or OSError) where
    the meter does not answer; where it hangs for longer than `patience_s`, the group is lost until it comes back.
    """

    def __init__(
        self,
        info: GroupInfo,
        ask: Ask,
        clock: Clock,
        *,
        period_s: float = 1.0,
        age_s: float = 0.0,
        patience_s: float = 10.0,
        end: Callable[[], Any] = lambda: None,
    ) -> None:
        self.info = info
        self.rows_every_s = period_s
        self.ask, self._clock, self._end = ask, clock, end
        self._age_ns = round(age_s * NS)
        self._patience_s = max(patience_s, 3 * period_s)
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._failure: str | None = None
        self._heard_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def sample(self) -> tuple[float, ...]:
        """The meter's values, asked for here. SensorError where it has none, or not the first."""
        values = self.ask()
        if values[0] != values[0]:
            raise SensorError(f"{self.info.label or self.info.device} responds without a value")
        return values

    def read(self) -> list[Row]:
        """What has come since the last read. Raises SensorError while the meter does not answer."""
        if self._thread is None:
            self._heard_ns = self._clock.monotonic_ns()
            self._thread = threading.Thread(target=self._go, name=f"everywatt-{self.info.name}", daemon=True)
            self._thread.start()
        with self._lock:
            rows, self._rows = self._rows, []
            failure, heard_ns = self._failure, self._heard_ns
        silent_s = (self._clock.monotonic_ns() - heard_ns) / NS
        if not rows and failure is not None:
            raise SensorError(failure)
        if not rows and silent_s > self._patience_s:
            raise SensorError(f"{self.info.name} has not responded for {silent_s:.0f} s.")
        return rows

    def poll(self) -> None:
        start_ns = self._clock.monotonic_ns()
        row: Row | None = None
        failure: str | None = None
        try:
            values = self.ask()
        except Exception as error:  # noqa: BLE001 - a driver may do anything, and the thread must live
            plain = isinstance(error, EverywattError | OSError) and str(error)
            failure = plain or f"{type(error).__name__}: {error}".rstrip(": ")
        else:
            end_ns = self._clock.monotonic_ns()
            if any(value == value for value in values):
                row = Row(end_ns, start_ns - self._age_ns, end_ns, values)
            else:
                failure = f"{self.info.name} responds without a value."
        with self._lock:
            self._failure = failure
            self._heard_ns = self._clock.monotonic_ns()
            if row is not None:
                self._rows.append(row)

    def _go(self) -> None:
        while not self._stop.is_set():
            start_ns = self._clock.monotonic_ns()
            self.poll()
            self._stop.wait(max(self.rows_every_s - (self._clock.monotonic_ns() - start_ns) / NS, 0.01))

    def close(self) -> None:
        """Ask no more. A call that hangs is left to itself; its thread ends with it."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=0.2)
        self._end()


class SlowMeters(SimpleSensor):
    """A sensor of meters. A subclass names itself, and gives the meters that its options describe.

    Options of every one: period_s, timeout_s, gain_pct, offset_w, max_w, quantum, window_s.
    """

    needs = "url"
    period_s = 1.0
    age_s = 1.0

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.options: Mapping[str, Any] = request.options.get(self.name) or {}

    def configured(self) -> bool:
        """True where the options say what to ask. Nothing on a network is asked otherwise."""
        return bool(self.options.get(self.needs))

    def meters(self) -> list[PolledGroup]:
        """The meters to read; SensorError if there is no meter, as for a family that does not list its meters."""
        raise SensorError(f"{self.name} does not list its meters.")

    def find(self) -> list[PolledGroup]:
        if not self.configured():
            raise Absent(f"not configured: [sensor.{self.name}] {self.needs}")
        self._timing = self.every_s, self.timeout_s  # an invalid number is reported before a meter is asked
        return self.meters()

    def meter(
        self, channels: Sequence[Channel], ask: Ask, label: str = "", end: Callable[[], None] = lambda: None
    ) -> PolledGroup:
        """One source of power readings. `ask` gives the values of `channels`, NaN where one is missing, or raises."""
        device, (every_s, timeout_s) = channels[0].device, self._timing
        info = GroupInfo(f"{self.name}.{device}", self.name, device, tuple(channels), label=label)
        times = {"period_s": every_s, "age_s": self.age_s, "patience_s": 2 * timeout_s + every_s}
        return PolledGroup(info, ask, self.machine.clock, **times, end=end)

    @property
    def every_s(self) -> float:
        return self.positive("period_s", self.period_s)

    @property
    def timeout_s(self) -> float:
        return self.positive("timeout_s", 5.0)

    def positive(self, key: str, default: float) -> float:
        value = self.options.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise SensorError(f"[sensor.{self.name}] {key} = {value!r} is not a number above 0.")
        return float(value)

    def facts(self, **known: Any) -> Facts:
        """What is known of the meter: what the options say over what the caller knows."""
        given = {key: self.options[key] for key in KNOWN if key in self.options}
        odd = next((key for key, value in given.items() if not isinstance(value, int | float)), None)
        if odd:
            raise SensorError(f"[sensor.{self.name}] {odd} = {given[odd]!r} is not a number.")
        return Facts(**{**known, **{key: float(value) for key, value in given.items()}})

    def login(self) -> Login | None:
        """Credentials: `user` and `password_file` of the options, else two variables of the environment."""
        environ, prefix = self.machine.environ, f"EVERYWATT_{self.name.upper()}_"
        user = self.options.get("user") or environ.get(prefix + "USER")
        password = secret(self.options.get("password_file"), environ.get(prefix + "PASSWORD"))
        return Login(str(user), password) if user and password is not None else None

    def several(self, key: str) -> list[str]:
        value = self.options.get(key) or ()
        found = [value] if isinstance(value, str) else list(value)
        if not all(isinstance(entry, str) and entry for entry in found):
            raise SensorError(f"[sensor.{self.name}] {key} must be a string or a list of strings.")
        return found


class CommandMeters(SlowMeters):
    """Meters of this machine that a command prints. Every answer is a process.

    `program` is the required command; `binary` is where it was found.
    """

    program = ""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.binary = shutil.which(self.program, path=self.machine.environ.get("PATH", "")) or ""

    def find(self) -> list[PolledGroup]:
        if self.program and not self.binary:
            raise Absent(f"{self.program} was not found on the PATH.")
        return super().find()

    def configured(self) -> bool:
        """Always: it is of this machine."""
        return True

    def output(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, *, must_succeed: bool = False
    ) -> str:
        """What the command prints; SensorError where it cannot be run, hangs, or fails though it `must_succeed`."""
        name = command[0].rpartition("/")[2]
        try:
            lines, code = run_once(command, self.machine.environ if environ is None else environ, self.timeout_s)
        except OSError as error:
            raise SensorError(f"{name} cannot be run: {error.strerror}.") from None
        if code is None:
            raise SensorError(f"{name} did not respond within {self.timeout_s:g} s.")
        if code and must_succeed:
            raise SensorError(f"{name} ended with {code}: {(lines or [''])[0][:80]}")
        return "\n".join(lines)
