"""A clock for tests of one part alone; `virtual_time` is the one for programs that wait for each other."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from everywatt.core.clocks import NS, Event, Task


@dataclass
class FakeClock:
    """A clock that moves only when it is set, or when its only user waits on it."""

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

    def select(
        self, readers: Iterable[Any], writers: Iterable[Any], exceptional: Iterable[Any], timeout_s: float | None, /
    ) -> tuple[list[Any], list[Any], list[Any]]:
        ready = select.select(readers, writers, exceptional, 0)
        if not any(ready):
            self.advance(timeout_s or 0.0)
        return ready

    def poll(self, fd: int, *, write: bool, timeout_s: float) -> bool:
        return any(self.select((fd,), (fd,) if write else (), (), timeout_s))

    def spawn(self, function: Callable[[], object], name: str) -> Task:
        task = threading.Thread(target=function, name=name)
        task.start()
        task.join()
        return task

    def event(self) -> Event:
        return threading.Event()

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)
