"""An Omegawatt box whose frames are known: the bytes of its serial line, and a pty that plays them at their pace."""

from __future__ import annotations

import math
import os
import struct
import threading
import time
import tty
from collections.abc import Callable, Sequence

MAGIC = b"\xfe\xfd\xfc\xfb"
MODULE = 6
SAMPLES = 512


def frame_bytes(
    number: int, volts: Sequence[float], amps: Sequence[float], watts: Sequence[float], delta_s: float = 0.01
) -> bytes:
    """One frame: start mark, length, number, duration in 1/2³² s, sample count, sums of squares and of power, XOR."""
    if len(amps) != len(watts) or len(watts) % MODULE or len(volts) != 3:
        raise ValueError("a frame has three voltages and whole modules of six plugs")
    body = struct.pack("<HII", number & 0xFFFF, min(round(delta_s * 2**32), 2**32 - 1), SAMPLES)
    body += struct.pack("<3f", *(v * v * SAMPLES for v in volts))
    for first in range(0, len(watts), MODULE):
        part = slice(first, first + MODULE)
        body += struct.pack("<6f", *(i * i * SAMPLES for i in amps[part]))
        body += struct.pack("<6f", *(p * SAMPLES for p in watts[part]))
    counted = struct.pack("<H", len(body)) + body
    check = 0
    for byte in counted:
        check ^= byte
    return MAGIC + counted + bytes((check,))


def numbered(number: int, plugs: int = MODULE) -> bytes:
    """A frame that carries its number three times: as its own, and as watts of plug 1 (whole part) and plug 2."""
    watts = [float(number % 65536), float(number // 65536), *(100.0 + plug for plug in range(2, plugs))]
    amps = [watt / 230 for watt in watts]
    return frame_bytes(number, (230.0, 0.0, 0.0), amps, watts)


class OmegawattBox:
    """A pty that speaks like the box. `path` is the port; `sent` how many frames were written to it, whole.

    Frames come from `make(number)`, one every `period_s`, on a schedule that does not drift.
    """

    def __init__(
        self, make: Callable[[int], bytes] = numbered, *, period_s: float = 0.01, count: int | None = None
    ) -> None:
        self._make, self._period_s, self._count = make, period_s, math.inf if count is None else count
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self.path = os.ttyname(self._slave)
        self.sent = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._play, name="omegawatt", daemon=True)

    def start(self) -> OmegawattBox:
        self._thread.start()
        return self

    def _play(self) -> None:
        began = time.monotonic()
        while self.sent < self._count and not self._ending.is_set():
            data = self._make(self.sent)
            try:
                while data:
                    data = data[os.write(self._master, data) :]
            except OSError:
                return
            self.sent += 1
            ahead_s = began + self.sent * self._period_s - time.monotonic()
            if ahead_s > 0:
                self._ending.wait(ahead_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all frames are sent; False where that takes longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def unplug(self) -> None:
        """Stop, and take the port away."""
        self._ending.set()
        self._thread.join(5)
        for fd in (self._master, self._slave):
            os.close(fd)
