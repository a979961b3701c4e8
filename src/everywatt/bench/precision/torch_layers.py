"""Where the time of a forward pass goes, module by module. Only a worker imports this.

Hooks slow a model down, so they are only here, in passes of their own, and gone when they end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from everywatt.core.stats import median

Times = tuple[list[dict[str, Any]], float]
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks(model: Any) -> int:
    """How many hooks all modules have together."""
    return sum(len(getattr(module, table, ())) for module in model.modules() for table in HOOK_TABLES)


def times(model: Any, run: Callable[[], Any], passes: int, synchronise: Callable[[], None]) -> Times:
    """For each module that ran, the seconds a pass spends in it and not in modules inside it; and those of a pass.

    So a leaf of any class has a row, and what an attention module does itself between its projections has one too.
    """
    clock = _Stopwatch(synchronise)
    handles = []
    kinds = {}
    try:
        for name, module in model.named_modules():
            if module is model:
                continue
            kinds[name] = type(module).__name__
            handles.append(module.register_forward_pre_hook(clock.enter(name)))
            handles.append(module.register_forward_hook(clock.leave(name), always_call=True))
        for _ in range(passes):
            clock.begin()
            run()
            clock.end()
    finally:
        for handle in handles:
            handle.remove()
    found = [
        {"layer": name, "type": kinds[name], "seconds": seconds, "calls": clock.calls[name] / passes}
        for name, seconds in clock.medians().items()
    ]
    return found, clock.whole_s()


class _Stopwatch:
    """Own time of nested modules: entering one pauses the one around it."""

    def __init__(self, synchronise: Callable[[], None]) -> None:
        self._synchronise = synchronise
        self._stack: list[str] = []
        self._last = 0
        self._now: dict[str, int] = {}
        self._passes: list[dict[str, int]] = []
        self._began = 0
        self._wholes: list[int] = []
        self.calls: dict[str, int] = {}

    def begin(self) -> None:
        self._stack, self._now, self._last = [], {}, self._tick()
        self._began = self._last

    def end(self) -> None:
        self._passes.append(self._now)
        self._wholes.append(self._tick() - self._began)

    def whole_s(self) -> float:
        """Seconds of a whole pass, the median."""
        return median(self._wholes) / 1e9

    def enter(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._charge()
            self._stack.append(name)
            self.calls[name] = self.calls.get(name, 0) + 1
            self._last = self._tick()

        return hook

    def leave(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._charge()
            if self._stack and self._stack[-1] == name:
                self._stack.pop()
            self._last = self._tick()

        return hook

    def medians(self) -> dict[str, float]:
        """Seconds of each module, the median over passes, in the order in which they first ran."""
        return {name: median([one.get(name, 0) for one in self._passes]) / 1e9 for name in self.calls}

    def _charge(self) -> None:
        now = self._tick()
        if self._stack:
            top = self._stack[-1]
            self._now[top] = self._now.get(top, 0) + now - self._last

    def _tick(self) -> int:
        self._synchronise()
        return time.perf_counter_ns()
