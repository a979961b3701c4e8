"""Where a meter's bytes come from: a serial port, a pty, a named pipe, standard input or a file."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import termios
import tty
from collections.abc import Callable
from pathlib import Path

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
