"""A small web server on loopback, plain or with TLS, that answers what a test tells it to; and a BMC made of it."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    return cert, key


class Server:
    """`answers` is path → object, or a function (method, path, headers, body) → (status, headers, object)."""

    def __init__(self, answers, tls: tuple[Path, Path] | None = None) -> None:
        self.seen: list[tuple[str, str, dict[str, str], object]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append((self.command, self.path, headers, body))
                if callable(answers):
                    status, extra, data = answers(self.command, self.path, headers, body)
                else:
                    status, extra, data = (200, {}, answers[self.path]) if self.path in answers else (404, {}, {})
                raw = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(status)
                for name, value in {**extra, "Content-Length": str(len(raw))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *words) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Bmc:
    """A Redfish BMC that wants a session: pass its `answer` to a Server."""

    def __init__(self, objects: dict[str, object], user: str = "reader", password: str = "s3cret-pass") -> None:
        self.objects, self.user, self.password = objects, user, password
        self.sessions: set[str] = set()
        self.logins = 0

    def answer(self, method, path, headers, body):
        place = "/redfish/v1/SessionService/Sessions"
        if method == "POST" and path == place:
            if (body or {}).get("UserName") != self.user or (body or {}).get("Password") != self.password:
                return 401, {}, {}
            self.logins += 1
            token = f"token-{self.logins}"
            self.sessions.add(token)
            return 201, {"X-Auth-Token": token, "Location": f"{place}/{token}"}, {}
        if headers.get("x-auth-token") not in self.sessions:
            return 401, {}, {}
        if method == "DELETE":
            self.sessions.discard(path.rpartition("/")[2])
            return 204, {}, b""
        found = self.objects.get(path)
        return (200, {}, found() if callable(found) else found) if found is not None else (404, {}, {})
