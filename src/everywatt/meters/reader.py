"""Where a meter's bytes come from (a serial port, a pty, a named pipe, standard input, a file), and a thread that does
nothing but read them: what lands is written to the disk by another."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from everywatt.meters.omegawatt_serial import BAUD
from everywatt.meters.ring_buffer import Landing

FIRST_WAIT_S = 0.2
LAST_WAIT_S = 5.0


class Port:
    """An opened source. `land` gives 0 where nothing came in time, and None where it ended or was unplugged."""

    def __init__(self, name: str, baud: int = BAUD) -> None:
        self.name = name
        self.standard_input = name == "-"
        self._fd = sys.stdin.fileno() if self.standard_input else os.open(name, _flags(name))
        self.tty = os.isatty(self._fd)
        if self.tty:
            _raw(self._fd, baud)

    @property
    def ends(self) -> bool:
        """True where an end is the end: a file, or a pipe whose writer left."""
        return self.standard_input or stat.S_ISREG(os.fstat(self._fd).st_mode)

    def land(self, landing: Landing, timeout_s: float, utc_ns: Callable[[], int]) -> int | None:
        """Let land what has come, waiting for some of it; how many bytes."""
        try:
            ready, _, _ = select.select([self._fd], [], [], timeout_s)
            if not ready:
                return 0 if self._there() else None
            return landing.land(self._fd, utc_ns()) or None
        except BlockingIOError:
            return 0
        except OSError:  # EIO: the adapter, or the other side of a pty, is gone
            return None

    def _there(self) -> bool:
        """False where the device's file has gone: some drivers say nothing when they are unplugged."""
        return self.standard_input or Path(self.name).exists()

    def close(self) -> None:
        """Let go of it."""
        if not self.standard_input:
            with contextlib.suppress(OSError):
                os.close(self._fd)


def _flags(name: str) -> int:
    mode = Path(name).stat().st_mode
    # A named pipe that is open for writing too has no end where its writer leaves: another may come.
    both = stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
    return (os.O_RDWR if both else os.O_RDONLY) | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC


def _raw(fd: int, baud: int) -> None:
    speed = getattr(termios, f"B{baud}", None)
    tty.setraw(fd, termios.TCSANOW)  # not after a flush: what came already is data
    if speed is not None:
        settings = termios.tcgetattr(fd)
        settings[4] = settings[5] = speed
        settings[2] |= termios.CLOCAL | termios.CREAD
        termios.tcsetattr(fd, termios.TCSANOW, settings)


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
