"""A load for one GPU that can be switched on and off quickly, to see how its power sensor follows."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from everywatt.core.clocks import Clock
from everywatt.core.errors import UsageError

# Stretches of uneven length meet a sensor's window at every phase, and excite short windows and long averages alike.
SHORTEST_S, LONGEST_S = 0.03, 0.25


class Load(Protocol):
    """Something that keeps a GPU busy between `on()` and `off()`."""

    def on(self) -> None: ...
    def off(self) -> None: ...
    def close(self) -> None: ...


def find_load(cure: str = "leave --load out") -> Callable[[int], Load]:
    """What makes a load here: the simulated machine's own, or torch with CUDA. UsageError where there is neither."""
    if os.environ.get("EVERYWATT_SIM"):
        return SimulatedLoad
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available():
        return TorchLoad
    why = "torch finds no CUDA device" if torch is not None else "torch is not installed"
    raise UsageError(f"No GPU load can be generated: {why}.", cure=cure)


class SimulatedLoad:
    """Declares use of a simulated card, whose power follows it where its curve is `load:`."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._use: AbstractContextManager[None] | None = None

    def on(self) -> None:
        from everywatt.sim.loads import use_gpu

        self._use = use_gpu(1.0, gpu=self._index)
        self._use.__enter__()

    def off(self) -> None:
        if self._use is not None:
            self._use.__exit__(None, None, None)
            self._use = None

    def close(self) -> None:
        self.off()


class TorchLoad:
    """Matrix products on one CUDA device, in a thread of its own, at most a few milliseconds deep in the queue."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._busy, self._idle, self._ended = threading.Event(), threading.Event(), False
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name="everywatt-load", daemon=True)
        self._thread.start()

    def on(self) -> None:
        self._idle.clear()
        self._busy.set()

    def off(self) -> None:
        """Stop, and wait until the GPU has finished what was queued."""
        self._busy.clear()
        self._idle.wait(1.0)

    def close(self) -> None:
        self._ended = True
        self._busy.set()
        self._thread.join(2.0)

    def _work(self) -> None:
        import torch

        device = torch.device("cuda", self._index)
        matrix: Any = torch.randn(2048, 2048, device=device)
        while True:
            self._idle.set()
            self._busy.wait()
            while self._busy.is_set() and not self._ended:
                matrix @ matrix
                torch.cuda.synchronize(device)
            if self._ended:
                return


@contextmanager
def toggled(load: Load, clock: Clock) -> Iterator[list[int]]:
    """Switch a load on and off at uneven intervals while the block runs. Gives the list of switches (monotonic ns)."""
    marks: list[int] = []
    ended = clock.event()

    def switch() -> None:
        chance = random.Random(20)  # the same pattern every time
        busy = False
        while not ended.wait(chance.uniform(SHORTEST_S, LONGEST_S)):
            (load.off if busy else load.on)()
            busy = not busy
            marks.append(clock.monotonic_ns())
        if busy:
            load.off()
            marks.append(clock.monotonic_ns())

    switching = clock.spawn(switch, "everywatt-toggle")
    try:
        yield marks
    finally:
        ended.set()
        switching.join(2.0)
        load.close()
