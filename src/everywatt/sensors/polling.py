"""Meters that take their time (a command, a BMC, a plug on the network): read by a thread, so that no other sensor
waits.

The recorder reads all sensors in turn. A meter that answers after a second, or never, must not hold up the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import EverywattError, SensorError

Ask = Callable[[], tuple[float, ...]]


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
        self._ask, self._clock, self._end = ask, clock, end
        self._age_ns = round(age_s * NS)
        self._patience_s = max(patience_s, 3 * period_s)
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._failure: str | None = None
        self._heard_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

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
        """Ask once, now."""
        start_ns = self._clock.monotonic_ns()
        row: Row | None = None
        failure: str | None = None
        try:
            values = self._ask()
        except (EverywattError, OSError) as error:
            failure = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - a driver may do anything, and the thread must live
            failure = f"{type(error).__name__}: {error}"
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
