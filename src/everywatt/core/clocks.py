"""Time. Everything on a tape is CLOCK_MONOTONIC nanoseconds; anchors tie it to UTC and show a suspend."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

NS = 1_000_000_000


class Clock(Protocol):
    """What sensors, recorder and tape ask for the time. Tests pass a FakeClock."""

    def monotonic_ns(self) -> int: ...
    def boottime_ns(self) -> int: ...
    def utc_ns(self) -> int: ...
    def sleep_until(self, deadline_ns: int) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    utc_ns = staticmethod(time.time_ns)

    def boottime_ns(self) -> int:
        """Monotonic time that goes on during a suspend; plain monotonic where the kernel has no such clock."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)

    def sleep_until(self, deadline_ns: int) -> None:
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / NS)


@dataclass
class FakeClock:
    """A clock that moves only when told to, or when somebody sleeps on it."""

    now_ns: int = 1_000 * NS
    utc_offset_ns: int = 1_700_000_000 * NS
    suspended_ns: int = 0
    sleeps: list[int] = field(default_factory=list)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def boottime_ns(self) -> int:
        return self.now_ns + self.suspended_ns

    def utc_ns(self) -> int:
        return self.now_ns + self.utc_offset_ns

    def sleep_until(self, deadline_ns: int) -> None:
        self.sleeps.append(deadline_ns)
        self.now_ns = max(self.now_ns, deadline_ns)

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)


@dataclass(frozen=True, slots=True)
class Anchor:
    """One instant on three clocks. `error_ns` is how long the three reads took."""

    monotonic_ns: int
    utc_ns: int
    boottime_ns: int
    error_ns: int


def take_anchor(clock: Clock) -> Anchor:
    """Read the three clocks as closely together as five tries allow."""
    best: Anchor | None = None
    for _ in range(5):
        before = clock.monotonic_ns()
        utc, boot = clock.utc_ns(), clock.boottime_ns()
        after = clock.monotonic_ns()
        if best is None or after - before < best.error_ns:
            best = Anchor((before + after) // 2, utc, boot, after - before)
    assert best is not None
    return best
