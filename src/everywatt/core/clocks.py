"""Time. Everything on a tape is CLOCK_MONOTONIC nanoseconds; anchors tie it to UTC and show a suspend."""

from __future__ import annotations

import select
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, Final, Protocol

from everywatt.core.lazy_dataclass import dataclass

NS = 1_000_000_000
# Between two anchors NTP slews a wall clock by at most this much, and reading both clocks takes up to this long.
_SLEW_PPM: Final = 1000
_READ_NS: Final = 2_000_000


class Task(Protocol):
    """What was started beside the caller."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Event(Protocol):
    """As `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    """Time, waiting and what runs beside: all by which a program depends on when things happen.

    The recorder, its client, the agent and the Slurm node ask nothing else, so a test that passes another clock runs
    them in virtual time, one at a time.
    """

    def monotonic_ns(self) -> int: ...
    def boottime_ns(self) -> int: ...
    def utc_ns(self) -> int: ...
    def sleep_until(self, deadline_ns: int) -> None: ...

    def select(
        self, readers: Iterable[Any], writers: Iterable[Any], exceptional: Iterable[Any], timeout_s: float | None, /
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As `select.select`, with any number of open files."""
        ...

    def poll(self, fd: int, *, write: bool, timeout_s: float) -> bool:
        """Wait until `fd` can be read, or written where `write` is set; False where the time is over before that."""
        ...

    def spawn(self, function: Callable[[], object], name: str) -> Task:
        """Run a function beside the caller."""
        ...

    def event(self) -> Event:
        """A flag that others can wait for."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    utc_ns = staticmethod(time.time_ns)
    event = staticmethod(threading.Event)

    def boottime_ns(self) -> int:
        """Monotonic time that goes on during a suspend; plain monotonic where the kernel has no such clock."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)

    def sleep_until(self, deadline_ns: int) -> None:
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / NS)

    @staticmethod
    def select(
        readers: Iterable[Any], writers: Iterable[Any], exceptional: Iterable[Any], timeout_s: float | None, /
    ) -> tuple[list[Any], list[Any], list[Any]]:
        try:
            return select.select(readers, writers, exceptional, timeout_s)
        except ValueError:  # more than 1,024 open files: poll() takes any, but ends on whole milliseconds only
            asked = ((select.POLLIN, readers), (select.POLLOUT, writers), (select.POLLPRI, exceptional))
            wanted = [[(item, _number(item), mask) for item in items] for mask, items in asked]
            poll = select.poll()
            for _, fd, _ in chain(*wanted):
                poll.register(fd, sum(mask for _, other, mask in chain(*wanted) if other == fd))
            came = dict(poll.poll(None if timeout_s is None else timeout_s * 1000))
            ended = select.POLLERR | select.POLLHUP
            first, second, third = (
                [item for item, fd, mask in items if came.get(fd, 0) & (mask | ended)] for items in wanted
            )
            return first, second, third

    def poll(self, fd: int, *, write: bool, timeout_s: float) -> bool:
        poll = select.poll()  # select() fails in programs with more than 1,024 files open
        poll.register(fd, select.POLLIN | (select.POLLOUT if write else 0))
        return bool(poll.poll(timeout_s * 1000))

    def spawn(self, function: Callable[[], object], name: str) -> Task:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread


def _number(item: Any) -> int:
    return item if isinstance(item, int) else int(item.fileno())


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


def length_s(windows: Iterable[tuple[int, int]]) -> float:
    """Seconds of all windows (start and end in nanoseconds) together."""
    return sum(end - start for start, end in windows) / NS


def union(windows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint windows that cover the same time, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def without(windows: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of windows when disjoint others, in order, are taken away."""
    left = list(windows)
    for low, high in taken:
        left = [
            (start, end)
            for first, last in left
            for start, end in ((first, min(last, low)), (max(first, high), last))
            if end > start
        ]
    return left


def _steady(a: Anchor, b: Anchor) -> bool:
    """True where UTC went on evenly from one anchor to the next: no step of the wall clock, no suspend."""
    monotonic, utc = b.monotonic_ns - a.monotonic_ns, b.utc_ns - a.utc_ns
    return monotonic > 0 and utc > 0 and abs(utc - monotonic) <= monotonic * _SLEW_PPM // 1_000_000 + _READ_NS


class UtcMap:
    """Between a tape's clock and UTC in both directions, by at least one anchor."""

    def __init__(self, anchors: Sequence[Anchor]) -> None:
        self.anchors = tuple(anchors)
        self._times = [anchor.monotonic_ns for anchor in anchors]
        self._steady = [_steady(a, b) for a, b in pairwise(anchors)]

    def to_utc_ns(self, monotonic_ns: int) -> int:
        """UTC of an instant: interpolated between steady anchors, else counted on from the anchor before it."""
        at = bisect_right(self._times, monotonic_ns) - 1
        anchor = self.anchors[max(0, at)]
        since = monotonic_ns - anchor.monotonic_ns
        if 0 <= at < len(self._steady) and self._steady[at]:
            after = self.anchors[at + 1]
            return anchor.utc_ns + since * (after.utc_ns - anchor.utc_ns) // (after.monotonic_ns - anchor.monotonic_ns)
        return anchor.utc_ns + since

    def from_utc_ns(self, utc_ns: int) -> int:
        """An instant at which the wall clock showed this time, the first there was."""
        for at, (anchor, after) in enumerate(pairwise(self.anchors)):
            if utc_ns < anchor.utc_ns:
                break
            since = utc_ns - anchor.utc_ns
            if utc_ns <= self.to_utc_ns(after.monotonic_ns - 1):
                if self._steady[at]:
                    span, utc_span = after.monotonic_ns - anchor.monotonic_ns, after.utc_ns - anchor.utc_ns
                    return anchor.monotonic_ns - (-since * span // utc_span)
                return anchor.monotonic_ns + since
            if utc_ns < after.utc_ns:
                return after.monotonic_ns  # a time that was stepped over
        anchor = self.anchors[0] if utc_ns < self.anchors[0].utc_ns else self.anchors[-1]
        return anchor.monotonic_ns + utc_ns - anchor.utc_ns
