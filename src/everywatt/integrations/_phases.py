"""A training as a run: what begins and ends becomes spans, what is logged becomes points; nothing here can break it.

Every framework has the same events under other names: something begins, something in it begins, something ends.
Adapters translate their words into `begin`, `end` and `log`; all that can go wrong is caught here and said once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from everywatt.api.meter import Meter, SpanHandle
from everywatt.api.run import Run
from everywatt.core.energy import Energy
from everywatt.core.errors import MeasurementRefused


@dataclass(frozen=True, slots=True)
class _Open:
    kind: str
    context: AbstractContextManager[SpanHandle]
    handle: SpanHandle


class Phases:
    """One recording at a time, with the phases that are open in it.

    `options` are those of `Meter`. After the first failure nothing is tried again until the next `start`, and training
    goes on as if everywatt were not there. Runs are kept open only between `start` and `stop`; a `start` without a
    `stop` before it (the training raised) ends the old one first.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._meter: Meter | None = None
        self._open: list[_Open] = []
        self._ids: dict[str, list[str]] = {}
        self._refused: str | None = "nothing has been measured yet"
        self.run: Run | None = None
        Meter("", **options)  # a wrong option is an error where the callback is made, not a warning in the training

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state["_options"])  # type: ignore[misc] # a copy starts with nothing open

    @property
    def active(self) -> bool:
        return self._meter is not None

    @property
    def energy(self) -> Energy:
        """Joules of the last finished run; refused with the reason where there is no figure."""
        if self.run is None:
            return Energy.refuse(self._refused or "the run has not ended yet")
        return self.run.energy()

    def start(self, name: str) -> None:
        if self._meter is not None:
            self.stop()
        self.run, self._refused = None, None
        self._open, self._ids = [], {}
        self.guarded(lambda: self._start(name))

    def _start(self, name: str) -> None:
        meter = Meter(name, **self._options).start()
        if meter.recording is None:
            raise MeasurementRefused(meter.energy.refused or "nothing could be recorded")
        self._meter = meter

    def stop(self) -> Run | None:
        """End open phases and the recording; returns the finished run, or None if nothing was recorded."""
        meter = self._meter
        if meter is None:
            return None
        while self._open:
            self._leave()
        self._meter = None
        self.guarded(lambda: self._stop(meter))
        return self.run

    def _stop(self, meter: Meter) -> None:
        if meter.stop() is None:
            raise MeasurementRefused(meter.energy.refused or "the recording could not be closed")
        self.run = meter.run

    def begin(self, kind: str, *, at_ns: int | None = None, **attributes: Any) -> None:
        """A phase begins inside the phases that are open. One of the same kind that was left open ends here."""
        if self.inside(kind):
            self.end(kind)
        self.guarded(lambda: self._begin(kind, at_ns, attributes))

    def _begin(self, kind: str, at_ns: int | None, attributes: Mapping[str, Any]) -> None:
        if self._meter is None:
            return
        context = self._meter.span(kind, at_ns=at_ns, **attributes)
        handle = context.__enter__()
        self._open.append(_Open(kind, context, handle))
        if handle.id is not None:
            self._ids.setdefault(kind, []).append(handle.id)

    def end(self, kind: str, **attributes: Any) -> None:
        """The innermost phase of that kind ends, and with it what is open inside. Without one nothing happens."""
        if not self.inside(kind):
            return
        while self._open[-1].kind != kind:
            self._leave()
        self._open[-1].handle.attributes.update(attributes)
        self._leave()

    def _leave(self) -> None:
        phase = self._open.pop()
        self.guarded(lambda: phase.context.__exit__(None, None, None))

    def inside(self, kind: str) -> bool:
        """True while a phase of that kind is open."""
        return any(phase.kind == kind for phase in self._open)

    def log(self, values: Mapping[str, Any]) -> None:
        """Store the numbers among `values` at this instant."""
        self.guarded(lambda: self._log(numbers(values)))

    def _log(self, values: Mapping[str, float]) -> None:
        if self._meter is not None and values:
            self._meter.log(**values)

    def energies(self, kind: str) -> list[float | None]:
        """Joules of each phase of that kind in the last run, in order; None where there is no figure."""
        run, found = self.run, list[float | None]()
        if run is not None:
            self.guarded(lambda: found.extend([run.energy(span=uid).joules for uid in self._ids.get(kind, ())]))
        return found

    def figures(self) -> dict[str, float]:
        """`energy_joules`, `energy_low` and `energy_high` of the last run; empty where there is no figure."""
        found: dict[str, float] = {}
        self.guarded(lambda: found.update(figures(self.energy)))
        return found

    def guarded(self, action: Callable[[], Any]) -> None:
        """Do something that must not break the training; nothing, after a failure."""
        if self._refused is not None:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever happens to the measurement, the training goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Say it once, let go of the recording, and be quiet until the next start."""
        self._refused = str(error) or type(error).__name__
        meter, self._meter = self._meter, None
        self._open = []
        if meter is not None:
            try:
                meter.stop()
            except Exception:  # noqa: BLE001 - only the first error is reported
                pass
        warnings.warn(
            f"everywatt cannot measure this run, which continues without it: {self._refused}",
            RuntimeWarning,
            stacklevel=2,
        )


def figures(energy: Energy) -> dict[str, float]:
    """An energy as the three numbers that experiment trackers can keep; empty where it was refused."""
    if energy.joules is None or energy.low is None or energy.high is None:
        return {}
    return {"energy_joules": energy.joules, "energy_low": energy.low, "energy_high": energy.high}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among logged values; one-element tensors and numpy scalars count as numbers."""
    found = {}
    for name, value in values.items():
        if isinstance(value, str | bytes):
            continue
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            continue
        if math.isfinite(number):
            found[str(name)] = number
    return found


class Measured:
    """What the callback of every library takes and offers of its measurement; a library's own base comes after it.

    name     name of the runs; steps=True makes a span of each training step too; other options are those of Meter
    """

    def __init__(self, name: str = "", *, steps: bool = False, **options: Any) -> None:
        super().__init__()
        self._name, self._steps, self._phases = name, steps, Phases(**options)

    @property
    def run(self) -> Run | None:
        """The finished run, or None if no run has finished."""
        return self._phases.run

    @property
    def energy(self) -> Energy:
        """Joules of the last run; refused with the reason where there is no figure."""
        return self._phases.energy

    def close(self) -> None:
        """End a run that an exception or an interrupt left open. The next training does so too."""
        self._phases.stop()
