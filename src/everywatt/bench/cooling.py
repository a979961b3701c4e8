"""Waiting until a machine is back at its idle power, so that a trial does not pay for the one before."""

from __future__ import annotations

from collections.abc import Callable

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_watts

COOL_WITHIN = 0.10
COOL_MOST_S = 300.0
LOOK_S = 0.25
RECENT_S = 0.5


class Cooling:
    """Looks at the recording while it is written."""

    def __init__(self, meter: Meter, clock: Clock | None = None) -> None:
        self._meter = meter
        self._clock = clock or SystemClock()
        self._tape: Run | None = None

    def live(self) -> Run | None:
        """The run as it is on the disk now; None where there is none."""
        recording = self._meter.recording
        if recording is None:
            return None
        try:
            if self._tape is None:
                self._tape = load(recording.path.parent)
            for tape in self._tape.tapes:
                tape.refresh()
        except (EverywattError, OSError):
            return None
        return self._tape

    def wait(self, show: Callable[[str], None]) -> None:
        """Until the machine draws no more than a tenth above idle, five minutes at most; not where nothing measures."""
        idle_w = None
        began_ns = self._clock.monotonic_ns()
        while (waited_s := (self._clock.monotonic_ns() - began_ns) / NS) < COOL_MOST_S:
            run = self.live()
            idle_w = idle_w or (None if run is None else _idle_w(run))
            if run is None or idle_w is None:
                return
            now_w = _recent_w(run, waited_s, self._clock.monotonic_ns())
            if now_w is not None and now_w <= idle_w * (1 + COOL_WITHIN):
                return
            show(
                "cooling down" if now_w is None else f"cooling down: {format_watts(now_w)}, idle {format_watts(idle_w)}"
            )
            self._clock.sleep_until(self._clock.monotonic_ns() + round(LOOK_S * NS))


def _idle_w(run: Run) -> float | None:
    """The upper end of the measured idle power; None where none was accepted, or where it is only modelled."""
    idle = run.baseline
    if idle is None or idle.method != "measured" or "modelled" in run.energy().pedigree:
        return None
    return idle.watts + idle.spread_w


def _recent_w(run: Run, waited_s: float, now_ns: int) -> float | None:
    """Mean power of the newest half second on the tape; None where that is older than our waiting."""
    if waited_s < RECENT_S:
        return None
    tape = run.tapes[-1]
    end_ns = tape.extent_ns()[1]
    if now_ns - end_ns > (waited_s - RECENT_S) * NS:
        return None
    end_s = (tape.to_utc_ns(end_ns) - run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0])) / 1e9
    energy = run.energy(between=(end_s - RECENT_S, end_s))
    return None if energy.joules is None else energy.joules / RECENT_S
