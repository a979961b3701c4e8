"""The agent's HTTP: `/metrics`, `/healthz`, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.fleet.metrics import OPEN_TYPE, TEXT_TYPE, wants_open
from everywatt.net.guard import Access, Guard, Message, Receive, Send
from everywatt.net.server import HttpServer
from everywatt.net.tls import server_context

if TYPE_CHECKING:
    from everywatt.fleet.agent import Agent

SILENT_S = 30.0


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
    """The server's thread."""

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
        self._tls = None if cert is None or key is None else server_context(cert, key, client_ca)
        self._server: HttpServer | None = None

    def start(self, agent: Agent) -> None:
        """Serve what an agent reports, from now on."""
        app = MetricsApp(lambda open_metrics: agent.text(open_metrics=open_metrics), lambda: agent.trouble(SILENT_S))
        self._server = HttpServer(Guard(app, self._access), self._sock, tls=self._tls)
        self._server.start()

    def close(self) -> None:
        """Answer what was asked and end."""
        if self._server is not None:
            self._server.close()
        self._sock.close()
