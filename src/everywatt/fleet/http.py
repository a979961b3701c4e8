"""The agent's HTTP: uvicorn in a thread, on a socket that is open already. `/metrics`, `/healthz`, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from everywatt.fleet.metrics import OPEN_TYPE, TEXT_TYPE, wants_open
from everywatt.net.guard import MOST_HEAD_BYTES, Access, Guard, Message, Receive, Send

if TYPE_CHECKING:
    from everywatt.fleet.agent import Agent

HEAD_S = 5.0
MOST_CONNECTIONS = 32
KEEP_ALIVE_S = 75  # a scraper comes every 15 s or every minute
TICK_S = 5.0  # how old the date in a header may be
START_S = 5.0
STOP_S = 3.0
SILENT_S = 30.0


class PromptProtocol(H11Protocol):
    """A client that does not say what it wants in time is sent away, so that it takes nobody's place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience: asyncio.TimerHandle | None = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._calm()
        elif self._patience is None:  # the beginning of another request
            self._patience = self.loop.call_later(HEAD_S, self.transport.close)

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


PLAIN: Final[dict[str, Any]] = {
    "http": PromptProtocol,
    "loop": "asyncio",
    "ws": "none",
    "lifespan": "off",
    "log_config": None,
    "access_log": False,
    "proxy_headers": False,
    "server_header": False,
    "h11_max_incomplete_event_size": MOST_HEAD_BYTES,
}
"""What every server of ours tells uvicorn: no more than HTTP, no word of itself, no header without end."""


class Server(uvicorn.Server):
    """uvicorn that wakes up every five seconds, not ten times in each; and when it is to end."""

    async def main_loop(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        counter = 0
        while not await self.on_tick(counter):
            counter += 10
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), TICK_S)

    def end(self) -> None:
        """End soon. From any thread."""
        self.should_exit = True
        with contextlib.suppress(AttributeError, RuntimeError):  # it has not begun yet, or has ended already
            self._loop.call_soon_threadsafe(self._over.set)


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
            status, kind, body = 404, "text/plain; charset=utf-8", "There is /metrics and /healthz.\n"
        data = body.encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


class Http:
    """The server's thread. `start` raises nothing that the socket did not raise before."""

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
        self.url = url
        self._sock, self._access = sock, access
        self._tls: dict[str, Any] = {"ssl_certfile": cert, "ssl_keyfile": key}
        if client_ca is not None:
            self._tls |= {"ssl_ca_certs": str(client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, agent: Agent) -> None:
        """Serve what an agent tells, from now on."""
        app = MetricsApp(lambda open_metrics: agent.text(open_metrics=open_metrics), lambda: agent.trouble(SILENT_S))
        config = uvicorn.Config(
            Guard(app, self._access),
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            **PLAIN,
            **self._tls,
        )
        self._server = Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._sock],), name="http", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Answer what was asked and end."""
        if self._server is not None:
            self._server.end()
        if self._thread is not None:
            self._thread.join(STOP_S)
        self._sock.close()
