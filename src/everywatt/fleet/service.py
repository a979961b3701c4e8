"""An agent as a service: signals, notices to systemd, runs of limited length; `/metrics` and `/healthz` by HTTP."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.fleet.metrics import OPEN_TYPE, TEXT_TYPE, wants_open

if TYPE_CHECKING:
    from everywatt.fleet.agent import Agent
    from everywatt.fleet.options import AgentOptions
    from everywatt.net.guard import Access, Message, Receive, Send
    from everywatt.net.server import HttpServer

LOOK_S = 3.5
SILENT_S = 30.0  # an agent that has recorded nothing for longer is unhealthy


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
        """Send lines such as READY=1; whether they were delivered."""
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
    agent.reload = reload
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
    """Run an agent for that long in this thread; returns its text. NoSensor without a power source."""
    agent.start()
    agent.watcher.lines.patient = False  # two readings are wanted of every device, however vague their times
    timer = threading.Timer(seconds, agent.stop)
    timer.start()
    try:
        agent.run()
    finally:
        timer.cancel()
        agent.finish()
    return agent.text(open_metrics=open_metrics)


class MetricsApp:
    """ASGI: the text that `text(open_metrics)` gives, by what the client accepts; `healthy` gives None or why not."""

    def __init__(self, text: Callable[[bool], str], healthy: Callable[[], str | None]) -> None:
        self._text, self._healthy = text, healthy

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/metrics":
            accept = ",".join(v.decode("latin-1") for k, v in scope["headers"] if k == b"accept")
            open_metrics = wants_open(accept)
            status, kind, body = 200, OPEN_TYPE if open_metrics else TEXT_TYPE, self._text(open_metrics)
        elif scope["path"] == "/healthz":
            why = self._healthy()
            status, kind, body = (503 if why else 200), "text/plain; charset=utf-8", f"{why or 'ok'}\n"
        else:
            status, kind, body = 404, "text/plain; charset=utf-8", "Available paths: /metrics and /healthz.\n"
        data = body.encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


class Http:
    """The server's thread. Its libraries are loaded where it is used: the small profile has none."""

    def __init__(
        self,
        sock: socket.socket,
        access: Access,
        *,
        cert: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
        url: str = "",
    ) -> None:
        from everywatt.net.tls import server_context

        self.url = url
        self._sock, self._access = sock, access
        self._tls = None if cert is None or key is None else server_context(cert, key, client_ca)
        self._server: HttpServer | None = None

    def start(self, agent: Agent) -> None:
        from everywatt.net.guard import Guard
        from everywatt.net.server import HttpServer

        app = MetricsApp(lambda open_metrics: agent.text(open_metrics=open_metrics), lambda: agent.trouble(SILENT_S))
        self._server = HttpServer(Guard(app, self._access), self._sock, tls=self._tls)
        self._server.start()

    def close(self) -> None:
        """Answer what was asked and end."""
        if self._server is not None:
            self._server.close()
        self._sock.close()
