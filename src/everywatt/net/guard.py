"""Who may ask what: every request passes here first, and every answer takes its headers from here.

Plain ASGI, so that nothing behind it can forget it. There is nothing but GET; what a request may be is decided from its
head alone, before anything else looks at it.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everywatt.core.jsonio import dumps

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MOST_TARGET_BYTES = 4096
MOST_HEAD_BYTES = 16 << 10
MOST_FAILURES = 10
FORGET_S = 60.0
MOST_CLIENTS_KEPT = 1000
OPEN_PATHS = ("/login", "/favicon.ico")
OPEN_FOLDER = "/static/"
LOGIN_PATH = "/api/login"

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Refusal(NamedTuple):
    """An answer that is no: status, what is wrong, and headers."""

    status: int
    text: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What this server lets in.

    hosts       what a Host header may say
    port        the port that it listens on
    token       None: whoever reaches it may look
    tls         whether answers go through TLS
    own_ip      also let in the address itself that the connection came to (it listens on all of them)
    pages       whether there is a page to log in by; else all that is without the token is refused
    session     what the cookie holds: never the token, and another one after each start
    """

    hosts: frozenset[str]
    port: int
    token: str | None = None
    tls: bool = False
    own_ip: bool = False
    pages: bool = True
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie_name(self) -> str:
        """A name of its own for each port, since cookies do not keep ports apart; browsers hold `__Host-` to TLS."""
        return f"{'__Host-' if self.tls else ''}everywatt-{self.port}"

    def cookie(self) -> str:
        """The Set-Cookie header for a client that presented the token."""
        secure = "; Secure" if self.tls else ""
        return f"{self.cookie_name}={self.session}; Path=/; HttpOnly; SameSite=Strict{secure}"


class Failures:
    """Wrong tokens by client address: ten in a minute, and the address waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, list[float]] = {}

    def too_many(self, client: str) -> bool:
        return len(self._recent(client)) >= MOST_FAILURES

    def add(self, client: str) -> None:
        """One more wrong token. The addresses that failed longest ago are forgotten when there are very many."""
        recent = [*self._recent(client), self._clock()]
        self._seen.pop(client, None)
        self._seen[client] = recent[-MOST_FAILURES:]
        while len(self._seen) > MOST_CLIENTS_KEPT:
            del self._seen[next(iter(self._seen))]

    def _recent(self, client: str) -> list[float]:
        since = self._clock() - FORGET_S
        return [at for at in self._seen.get(client, ()) if at > since]


class Guard:
    """The ASGI application that stands before `app`."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access
        self._failures = Failures()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": with_headers(message.get("headers", ()))}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await refuse(refusal, scope, send)

    def _refusal(self, scope: Message) -> Refusal | None:
        headers = _headers(scope)
        return self._target(scope, headers) or self._foreign(headers) or self._stranger(scope, headers)

    def _target(self, scope: Message, headers: dict[str, list[str]]) -> Refusal | None:
        """Wrong host, too long, not GET, or with a body."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not hosts[0]:
            return Refusal(400, "A request must name one host.")
        if not self._known(hosts[0], scope):
            return Refusal(421, "This server does not serve that host name. Start it with --name NAME if it should.")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) > MOST_TARGET_BYTES:
            return Refusal(414, "The address is too long.")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEAD_BYTES:
            return Refusal(431, "The head of the request is too long.")
        if scope["method"] != "GET":
            return Refusal(405, "Only GET is supported.", (("allow", "GET"),))
        if headers.get("transfer-encoding") or any(
            length.strip() != "0" for length in headers.get("content-length", ())
        ):
            return Refusal(413, "A request body is not accepted.")
        return None

    def _known(self, host: str, scope: Message) -> bool:
        host = host.lower()
        name, colon, port = host.rpartition(":")
        host = f"{name.rstrip('.')}:{port}" if colon and not host.endswith("]") else host.rstrip(".")
        if host in self._access.hosts:
            return True
        server = scope.get("server")
        if not self._access.own_ip or not server:
            return False
        # An address in numbers cannot be rebound: whoever typed it meant this machine.
        ip = f"[{server[0]}]" if ":" in server[0] else server[0]
        return host == f"{ip}:{server[1]}"

    def _foreign(self, headers: dict[str, list[str]]) -> Refusal | None:
        """Requested by a page of another origin."""
        own = f"{'https' if self._access.tls else 'http'}://{headers['host'][0].lower()}"
        if any(origin.lower() != own for origin in headers.get("origin", ())):
            return Refusal(403, "Cross-origin requests are not allowed.")
        sites, modes = headers.get("sec-fetch-site", []), headers.get("sec-fetch-mode", [])
        if any(site not in ("same-origin", "none") for site in sites) and modes != ["navigate"]:
            return Refusal(403, "Cross-origin requests are not allowed.")
        return None

    def _stranger(self, scope: Message, headers: dict[str, list[str]]) -> Refusal | None:
        """Without the token, where there is one."""
        path = scope["path"]
        pages = self._access.pages
        if self._access.token is None or (pages and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))):
            return None
        if path != LOGIN_PATH and self._has_cookie(headers.get("cookie", ())):
            return None
        client = str((scope.get("client") or ("?",))[0])
        shown = headers.get("authorization", [])
        if not shown:
            if path.startswith("/api/") or not pages:
                return Refusal(401, "This page requires a token.", (("www-authenticate", "Bearer"),))
            return Refusal(303, "This page requires a token.", (("location", "/login"),))
        if len(shown) == 1 and self._is_token(shown[0]):
            return None  # looked at first: guessing by others must not lock out who has the token
        if self._failures.too_many(client):
            return Refusal(429, "Too many wrong tokens. Wait a minute.", (("retry-after", "60"),))
        self._failures.add(client)
        return Refusal(401, "Wrong token.", (("www-authenticate", "Bearer"),))

    def _is_token(self, header: str) -> bool:
        scheme, _, value = header.partition(" ")
        return scheme.lower() == "bearer" and _same(value.strip(), self._access.token or "")

    def _has_cookie(self, headers: Iterable[str]) -> bool:
        for part in ";".join(headers).split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._access.cookie_name and _same(value, self._access.session):
                return True
        return False


def with_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """An answer's headers with the ones that every answer has; no cache may keep a copy unless allowed."""
    kept = [(name, value) for name, value in headers if name.decode("latin-1").lower() not in HEADERS]
    if not any(name.lower() == b"cache-control" for name, _ in kept):
        kept.append((b"cache-control", b"no-store"))
    return kept + [(name.encode("latin-1"), value.encode("latin-1")) for name, value in HEADERS.items()]


def _headers(scope: Message) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _same(given: str, wanted: str) -> bool:
    """Compared in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("utf-8"))


async def refuse(refusal: Refusal, scope: Message, send: Send) -> None:
    """Answer a request with a refusal, and with the headers that every answer has."""
    api = scope.get("path", "").startswith("/api/")
    body = (dumps({"error": refusal.text}) if api else refusal.text + "\n").encode()
    kind = "application/json" if api else "text/plain; charset=utf-8"
    # Whoever is refused holds no connection: it is needed by others.
    headers = [("content-type", kind), ("content-length", str(len(body))), ("connection", "close"), *refusal.headers]
    plain = with_headers((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
    await send({"type": "http.response.start", "status": refusal.status, "headers": plain})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What strangers may take.

    connections   that have sent something, at a time; never more than a quarter of the process's file descriptors
    waiting       for that; also never more than a quarter. They cost little
    in_flight     requests that are being answered; more get 503
    handshake_s   for TLS
    head_s        from the connection, or the first byte, to a request's whole head
    idle_s        between two requests
    stalled_s     without reading anything of a response
    graceful_s    at the end, for responses that are on their way
    """

    connections: int = 128  # with TLS, 23 KB each when idle
    waiting: int = 256
    in_flight: int = 128
    handshake_s: float = 5.0
    head_s: float = 5.0
    idle_s: int = 75
    stalled_s: float = 30.0
    graceful_s: float = 1.0


class Throttle(logging.Filter):
    """So many lines a minute; the first line of the next minute says how many were left out."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._clock = per_minute, clock
        self._began_s, self._count, self._left_out = clock(), 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """logging: whether a line may be written now."""
        now_s = self._clock()
        if now_s - self._began_s >= 60:
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count > self._most:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out} similar lines omitted)", None
            self._left_out = 0
        return True

    @contextlib.contextmanager
    def on(self, *loggers: logging.Logger) -> Iterator[None]:
        """Throttle these while the context lasts."""
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(self)
