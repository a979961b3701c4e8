"""What systemd is told: ready, reloading, alive, stopping. A datagram on a socket, nothing where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Speaks to NOTIFY_SOCKET; `alive` as often as WATCHDOG_USEC asks, and no more."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        address = env.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = env.get("WATCHDOG_USEC", "")
        mine = env.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.every_s = int(usec) / 2e6 if usec.isdecimal() and mine and self._address else None
        self._next_s = 0.0

    def tell(self, *lines: str) -> bool:
        """Send lines such as READY=1; whether somebody took them."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)  # whoever does not read must not hold us up
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

    def alive(self, now_s: float) -> None:
        """Called in every round of the loop: a round that never comes is what the watchdog is for."""
        if self.every_s is not None and now_s >= self._next_s:
            self._next_s = now_s + self.every_s * 0.8
            self.tell("WATCHDOG=1")

    def reloading(self, now_ns: int) -> None:
        """The configuration is being read again; READY=1 ends it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={now_ns // 1000}")
