"""An event loop of asyncio in virtual time: its sleeps and timeouts take a moment, its sockets are real."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from virtual_time import VirtualTime

from everywatt.core.clocks import NS


class _Selector(selectors.DefaultSelector):
    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        self._time.wait(lambda: bool(super(_Selector, self).select(0)), timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`asyncio.Runner(loop_factory=lambda: VirtualLoop(time))`"""

    def __init__(self, time: VirtualTime) -> None:
        self._virtual = time
        super().__init__(_Selector(time))

    def time(self) -> float:
        return self._virtual.now_ns / NS
