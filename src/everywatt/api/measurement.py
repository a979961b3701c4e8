"""measure(): one block, one figure. Context manager, decorator (sync, async, generators) and start/stop.

What records is loaded when something is measured, so that a library that only may be measured starts as fast without.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from everywatt.core.errors import UsageError

if TYPE_CHECKING:
    from everywatt.api.meter import Meter, SpanHandle
    from everywatt.api.run import Run
    from everywatt.core.energy import Energy

F = TypeVar("F", bound=Callable[..., Any])


def _now_ns() -> int:
    from everywatt.core.clocks import SystemClock  # with the meter, not with the import of this module

    return SystemClock().monotonic_ns()


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that ended."""
    try:
        import resource
    except ImportError:  # Windows, which does not count children
        return time.process_time()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Measurement:
    """What `measure()` gives: after the block, `energy`, `duration_s`, `cpu_s` and the `run`.

    Inside another measurement or Meter of the same program it is a span of that recording, and its energy is known when
    the outer one has ended.
    """

    def __init__(self, name: str = "", **options: Any) -> None:
        self.name = name
        self._options = options
        self._meter: Meter | None = None
        self._span: SpanHandle | None = None
        self._outer: Meter | None = None
        self._started_ns: int | None = None
        self._ended_ns: int | None = None
        self._started_cpu_s = 0.0
        self._ended_cpu_s: float | None = None
        self.error: BaseException | None = None

    def start(self) -> Measurement:
        """Begin to measure."""
        from everywatt.api.meter import Meter, current

        if self._started_ns is not None and self._ended_ns is None:
            raise UsageError("This measurement is already running.")
        self._meter, self._span, self._outer, self.error = None, None, None, None
        here = current()
        if here is not None and here[0].recording is not None:
            self._outer = here[0]
            self._span = self._outer.open_span(self.name or "measure")
        else:
            self._meter = Meter(self.name, **self._options).start()
        self._started_ns, self._ended_ns = _now_ns(), None
        self._started_cpu_s, self._ended_cpu_s = _cpu_s(), None
        return self

    def stop(self) -> Energy:
        """End the measurement and return its energy."""
        if self._started_ns is None:
            raise UsageError("This measurement was not started.")
        if self._ended_ns is not None:
            return self.energy
        self._ended_ns, self._ended_cpu_s = _now_ns(), _cpu_s()
        if self._span is not None:
            self._span.close()
        elif self._meter is not None:
            self._meter.stop()
        return self.energy

    @property
    def energy(self) -> Energy:
        """Joules of the block with their interval; refused, with the reason, where there is no figure."""
        from everywatt.core.energy import Energy

        if self._outer is not None and self._span is not None:
            if self._outer.recording is not None:
                return Energy.refuse("known once the enclosing measurement has ended")
            if self._span.id is None:
                return self._outer.energy
            return self._outer.run.energy(span=self._span.id)
        if self._meter is None:
            return Energy.refuse("not started")
        return self._meter.energy

    @property
    def energy_net(self) -> Energy:
        """Joules above idle."""
        span = self._span.id if self._span is not None else None
        return self.run.energy_net(span=span)

    @property
    def duration_s(self) -> float:
        """Seconds between start and stop (until now, while it runs)."""
        if self._started_ns is None:
            return 0.0
        return ((self._ended_ns or _now_ns()) - self._started_ns) / 1e9

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process, all its threads, and the children that it waited for, between start and stop.

        A count of the kernel, which is exact also where no sensor measures power.
        """
        if self._started_ns is None:
            return 0.0
        return (_cpu_s() if self._ended_cpu_s is None else self._ended_cpu_s) - self._started_cpu_s

    @property
    def run(self) -> Run:
        """The recording it is part of."""
        meter = self._outer or self._meter
        if meter is None:
            raise UsageError("This measurement was not started.")
        return meter.run

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "duration_s": self.duration_s,
            "cpu_s": self.cpu_s,
            "energy": self.energy.to_dict(),
        }

    def __enter__(self) -> Measurement:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.error = error
        recording = self._meter.recording if self._meter is not None else None
        if recording is not None and kind is not None:
            recording.note("error", f"the measured block raised {kind.__name__}")
        self.stop()

    async def __aenter__(self) -> Measurement:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Use as a decorator: each call is measured; the newest result is `function.measurement`."""
        return _decorate(function, self.name or getattr(function, "__name__", ""), self._options)

    def __str__(self) -> str:
        from everywatt.core.format import format_duration

        name, energy, lasted = self.name or "measure", self.energy, format_duration(self.duration_s)
        if energy.measured:
            return f"{name}: {energy} in {lasted}"
        return f"{name}: {format_duration(self.cpu_s)} of CPU time in {lasted}, {energy}"

    def __repr__(self) -> str:
        return f"<Measurement {self}>"

    def _repr_html_(self) -> str:
        import html

        from everywatt.core.format import format_duration

        head = f"<b>{html.escape(self.name or 'measure')}</b> in {format_duration(self.duration_s)}"
        return f"<div>{head}, {format_duration(self.cpu_s)} of CPU time</div>{self.energy._repr_html_()}"


@overload
def measure(name: F) -> F: ...
@overload
def measure(name: str = "", **options: Any) -> Measurement: ...
def measure(name: Any = "", **options: Any) -> Any:
    """Measure a block, a function, or the code between start() and stop().

    >>> with everywatt.measure("train") as m:                # doctest: +SKIP
    ...     train()
    >>> print(m.energy)                                      # doctest: +SKIP
    412.3 J ± 6.1 (95 %) · cpu+gpu · counter · coverage 100 %

    As a decorator, `@everywatt.measure` or `@everywatt.measure("name")`, for functions, coroutines and generators. An
    exception in the block is re-raised after the energy has been recorded. Options are those of `Meter`.
    """
    if callable(name):
        return _decorate(cast("Callable[..., Any]", name), getattr(name, "__name__", ""), options)
    return Measurement(name, **options)


def _decorate(function: F, name: str, options: dict[str, Any]) -> F:
    import inspect

    def begin() -> Measurement:
        wrapper.measurement = Measurement(name, **options)  # type: ignore[attr-defined]
        return cast("Measurement", wrapper.measurement)  # type: ignore[attr-defined]

    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with begin():
                async for item in function(*args, **kwargs):
                    yield item

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with begin():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with begin():
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with begin():
                return function(*args, **kwargs)

    return cast("F", wrapper)
