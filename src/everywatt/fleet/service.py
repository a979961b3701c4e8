"""An agent as a service: signals, what systemd is told (a datagram on a socket), and a run of some seconds."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everywatt.fleet.agent import Agent
    from everywatt.fleet.options import AgentOptions

LOOK_S = 3.5


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


def serve(agent: Agent, reload: Callable[[], AgentOptions] | None = None, http: Any = None) -> int:
    """Run an agent in this process until SIGTERM or SIGINT; SIGHUP reads the configuration again."""
    os.umask(0o077)
    agent.start()
    # What is loaded by now stays; little of what comes is cyclic.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    if reload is not None:
        agent.on_reload(reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, agent.stop)
    signal.signal(signal.SIGHUP, agent.ask_reload)
    try:
        if http is not None:
            http.start(agent)
            agent.say(http.url)
        agent.run()
    finally:
        if http is not None:
            http.close()
        agent.finish()
    return 0


def look(agent: Agent, seconds: float = LOOK_S, *, open_metrics: bool = False) -> str:
    """Run an agent for so long in this thread; gives its text. NoSensor where nothing gives power."""
    agent.start()
    timer = threading.Timer(seconds, agent.stop)
    timer.start()
    try:
        agent.run()
    finally:
        timer.cancel()
        agent.finish()
    return agent.text(open_metrics=open_metrics)
