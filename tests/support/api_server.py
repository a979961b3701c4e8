"""A server that answers as it is told to: for clients of APIs, and what can go wrong with them."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Asked:
    """One request."""

    def __init__(self, path: str, headers, body: bytes) -> None:
        parts = urlsplit(path)
        self.path, self.headers, self.body = parts.path, headers, body
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}


class ApiServer:
    """`answer(asked)` gives status, headers and bytes; `cut` of the headers ends the connection after so many bytes."""

    def __init__(
        self, answer: Callable[[Asked], tuple[int, dict, bytes]], tls: tuple[Path, Path] | None = None
    ) -> None:
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _all(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.path, self.headers, body)
                outer.asked.append(asked)
                status, headers, data = answer(asked)
                cut = headers.pop("cut", None)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have gone
                    self.wfile.write(data if cut is None else data[:cut])
                if cut is not None:
                    self.close_connection = True

            do_GET = do_POST = _all

            def log_message(self, *words) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.netloc = f"127.0.0.1:{self._server.server_port}"
        self.url = f"{'http' if tls is None else 'https'}://{self.netloc}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
