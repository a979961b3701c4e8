"""A thread that does nothing but read a meter's port: what lands is written to the disk by another."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from everywatt.meters.port import FIRST_WAIT_S, LAST_WAIT_S, Port
from everywatt.meters.ring_buffer import Landing

QUIET_S: Final = 0.5
DRAIN_S: Final = 5.0  # a port that never falls silent must not keep a capture from ending


class Reader:
    """Reads a port into a landing until `stop`, or until the source ends; opens it again where it was unplugged."""

    def __init__(self, name: str, baud: int, landing: Landing, utc_ns: Callable[[], int]) -> None:
        self._name, self._baud, self._landing, self._utc_ns = name, baud, landing, utc_ns
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everywatt-port", daemon=True)
        self.outages = self._landed = 0
        self.told: deque[str] = deque()

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Take what the port has now, and end. Returns at once."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until it has ended after `stop`."""
        if self._thread.ident is not None:
            self._thread.join(DRAIN_S + 2 * QUIET_S)

    @property
    def reading(self) -> bool:
        """False when nothing more will land."""
        return self._thread.is_alive()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        since: float | None = None
        while not self._stopping.is_set():
            try:
                port = Port(self._name, self._baud)
            except OSError as error:
                if since is None:
                    since = time.monotonic()
                    self.told.append(f"{self._name} cannot be opened: {error.strerror}. Waiting for it.")
                self._stopping.wait(wait_s)
                wait_s = min(wait_s * 2, LAST_WAIT_S)
                continue
            if since is not None:
                self.told.append(f"{self._name} is back after {time.monotonic() - since:.1f} s.")
            before, since = self._landed, None
            try:
                ended = self._read(port)
            finally:
                port.close()
            if ended:
                break
            if self._landed > before:
                wait_s = FIRST_WAIT_S
            else:  # what opens and gives nothing is not asked all the time
                self._stopping.wait(wait_s)
                wait_s = min(wait_s * 2, LAST_WAIT_S)
            since = time.monotonic()
            self.outages += 1
            self.told.append(f"{self._name} was unplugged. Waiting for it.")
        self._landing.wake()

    def _read(self, port: Port) -> bool:
        """Until the port is gone (False) or nothing more is to come or wanted (True)."""
        until: float | None = None
        while True:
            if until is None and self._stopping.is_set():
                until = time.monotonic() + DRAIN_S
            if until is not None and time.monotonic() > until:
                return True
            if self._landing.full:
                time.sleep(0.01)  # the disk is slow: the kernel holds what comes
                continue
            got = port.land(self._landing, QUIET_S if until is None else 0.0, self._utc_ns)
            self._landed += got or 0
            if got is None:
                return port.ends or self._stopping.is_set()
            if not got and until is not None:
                return True
