"""The blocking HTTP client: sensors, fleet, Slurm and live views ask servers by it.

One `Client` is one server. Credentials belong to its origin (scheme, host, port): a redirect to any other origin is
refused, not followed with fewer headers, so a token never travels. Responses are bounded in size, also after
decompression, and in time. Not http.client, because that has no total deadline, no limit on what it unpacks, keeps no
connection across calls, and loads 5 MB of email and ssl modules that a recorder has no use for.

>>> Client("http://plug.lan", limits=Limits(total_s=2.0)).get("/status").json()  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from everywatt.core.errors import NetworkError, UsageError
from everywatt.net.http1 import Head, Parser, header_block, network_error, request_bytes, usual_headers
from everywatt.net.tls import ClientTls
from everywatt.net.url import Url

RECEIVE_BYTES: Final = 1 << 18
MAX_IDLE: Final = 4  # connections that wait for the next request
REDIRECTS: Final = (301, 302, 303, 307, 308)
REPEATABLE: Final = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")  # idempotent by RFC 9110


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client waits for, and how much it takes.

    connect_s    for the connection, with its TLS handshake; looking up a name is bounded by the resolver only
    silence_s    between two pieces of a response, and until the first
    total_s      for the whole, redirects included
    body_bytes   of a response, after decompression
    truncate     cut a longer body off instead of raising NetworkError
    redirects    to follow within the origin; 0 returns the redirect itself
    keep_s       how long an idle connection is kept; 0 closes it after each response
    """

    connect_s: float = 10.0
    silence_s: float = 60.0
    total_s: float = 600.0
    body_bytes: int = 64 << 20
    truncate: bool = False
    redirects: int = 0
    keep_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response. `truncated`: the body was longer than the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    reason: str = ""
    truncated: bool = False

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. ValueError where it is something else, or nested too deeply."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("the response is nested too deeply") from None


class _Stale(Exception):
    """A connection that was kept had been closed by the server before it answered anything."""


class Client:
    """Requests to one server. Safe to use from several threads: each request has a connection to itself.

    url      with a path, it is put before the path of every request; with a query, that is kept too
    token    a bearer token; without one, a login that stands in the URL is sent (Basic)
    headers  to send with each request
    proxies  whether http_proxy, https_proxy and no_proxy of the environment count
    """

    def __init__(
        self,
        url: str | Url,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ClientTls | None = None,
        limits: Limits | None = None,
        proxies: bool = False,
    ) -> None:
        self.url = url if isinstance(url, Url) else Url.parse(url)
        self.limits = limits or Limits()
        self._context = (tls or ClientTls()).context() if self.url.tls else None
        self._proxy = _environment_proxy(self.url) if proxies else None
        sent = usual_headers(self.url.netloc, encoding="gzip") | dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        elif self.url.login is not None:
            sent["Authorization"] = self.url.login.basic
        if not self.limits.keep_s:
            sent["Connection"] = "close"
        if self._proxy is not None and self._proxy.login is not None and not self.url.tls:
            sent["Proxy-Authorization"] = self._proxy.login.basic
        self._headers = sent
        self._idle: list[tuple[float, socket.socket]] = []  # since when each waits for the next request

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, path: str = "", params: Iterable[tuple[str, str]] = (), **more: Any) -> Response:
        return self.request("GET", path, params, **more)

    def request(
        self,
        method: str,
        path: str = "",
        params: Iterable[tuple[str, str]] = (),
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Response:
        """Ask, and wait for the whole response, whatever its status. NetworkError without one.

        A request on a kept connection that turns out to be closed is sent once more on a new one, where sending it
        twice does no harm: `repeatable`, which is by the method unless set.
        """
        deadline_s = time.monotonic() + self.limits.total_s
        query = "&".join(filter(None, (self.url.query, urlencode(list(params)))))
        target = (f"{self.url.base}{path}" if path else self.url.path) or "/"
        target += ("&" if "?" in target else "?") + query if query else ""
        block = header_block(self._headers | dict(headers or {}))
        again = method in REPEATABLE if repeatable is None else repeatable
        for _ in range(self.limits.redirects + 1):
            prefix = self.url.origin if self._proxy is not None and not self.url.tls else ""
            data = request_bytes(method, prefix + target, block, body, content_type)
            response = self._exchange(data, deadline_s, again)
            location = response.headers.get("location")
            if response.status not in REDIRECTS or location is None or not self.limits.redirects:
                return response
            target = self._within_origin(location, target)
            if response.status == 303:
                method, body, again = "GET", None, True
        raise self._error("redirect", f"it redirects more than {self.limits.redirects} times")

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    def _error(self, kind: str, reason: str, cure: str | None = None) -> NetworkError:
        return NetworkError(kind, self.url.shown, reason, cure=cure)

    def _late(self) -> NetworkError:
        return self._error("timeout", f"no complete response within {self.limits.total_s:g} s")

    def _within_origin(self, location: str, target: str) -> str:
        try:
            where = self.url.joined(location, target)
        except UsageError:
            raise self._error("redirect", "it redirects to an invalid address") from None
        if where.origin != self.url.origin:
            raise self._error(
                "redirect",
                f"it redirects to another origin ({where.origin}), which is refused",
                "use that address if it is the right one",
            )
        return where.target

    def _exchange(self, data: bytes, deadline_s: float, repeatable: bool) -> Response:
        kept = self._kept()
        if kept is not None:
            try:
                return self._talk(kept, data, deadline_s)
            except _Stale:
                if not repeatable:
                    raise self._error("cut", "it closed the connection without a response") from None
        try:
            return self._talk(self._connect(deadline_s), data, deadline_s)
        except _Stale:
            raise self._error("cut", "it closed the connection without a response") from None

    def _kept(self) -> socket.socket | None:
        """The connection that was used last, unless it is too old or the server has closed it meanwhile."""
        while self._idle:
            try:
                since_s, sock = self._idle.pop()
            except IndexError:  # another thread took it
                return None
            if time.monotonic() - since_s < self.limits.keep_s and _quiet(sock):
                return sock
            sock.close()
        return None

    def _talk(self, sock: socket.socket, data: bytes, deadline_s: float) -> Response:
        """Send, and read the response. _Stale where the connection ended before its first byte."""
        parser = Parser(compressed=True)
        keep = False
        try:
            try:
                sock.settimeout(self._patience_s(deadline_s))
                sock.sendall(data)
            except TimeoutError:
                raise
            except OSError:
                pass  # a server may refuse a body by a response before it has read all of it
            response = self._read(sock, parser, deadline_s)
            keep = parser.reusable and not response.truncated and self.limits.keep_s > 0
            return response
        except (OSError, ValueError) as error:
            if isinstance(error, ConnectionError) and parser.head is None:
                raise _Stale from None
            if isinstance(error, TimeoutError) and time.monotonic() > deadline_s - 0.001:
                raise self._late() from None
            raise network_error(error, self.url.shown, waited_s=self.limits.silence_s) from None
        finally:
            if keep and len(self._idle) < MAX_IDLE:
                self._idle.append((time.monotonic(), sock))
            else:
                sock.close()

    def _patience_s(self, deadline_s: float) -> float:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise self._late()
        return min(self.limits.silence_s, left_s)

    def _read(self, sock: socket.socket, parser: Parser, deadline_s: float) -> Response:
        body = bytearray()
        decoder: Decoder | None = None
        truncated = False
        while not parser.done and not truncated:
            sock.settimeout(self._patience_s(deadline_s))
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                if parser.closed():
                    break
                if parser.head is None and not parser.rest:
                    raise _Stale
                raise self._error("cut", "it closed the connection before the response was complete")
            for piece in parser.feed(data):
                if decoder is None:
                    decoder = Decoder((parser.head or Head(0)).headers.get("content-encoding", ""))
                left = self.limits.body_bytes - len(body)
                try:
                    decoded = decoder.feed(piece, left + 1)
                except ValueError as error:
                    raise self._error("damaged", str(error)) from None
                body += decoded[:left]
                truncated = truncated or len(decoded) > left
            if truncated and not self.limits.truncate:
                raise self._error("too-large", f"its response is larger than {_size(self.limits.body_bytes)}")
        if decoder is not None and not truncated and not decoder.complete:
            raise self._error("cut", "its compressed response is incomplete")
        head = parser.head or Head(0)
        return Response(head.status, head.headers, bytes(body), head.reason, truncated)

    def _connect(self, deadline_s: float) -> socket.socket:
        limit_s = min(self.limits.connect_s, deadline_s - time.monotonic())
        until_s = time.monotonic() + limit_s
        try:
            near = self._proxy or self.url
            sock = _open_socket(near.host, near.port, until_s)
            try:
                if self._proxy is not None and self.url.tls:
                    self._tunnel(sock, until_s)
                if self._context is not None:
                    sock.settimeout(max(until_s - time.monotonic(), 0.001))
                    sock = self._context.wrap_socket(sock, server_hostname=self.url.host)
            except BaseException:
                sock.close()
                raise
        except TimeoutError:
            raise self._error("connect-timeout", f"no connection within {limit_s:.3g} s") from None
        except (OSError, ValueError) as error:
            raise network_error(error, self.url.shown) from None
        return sock

    def _tunnel(self, sock: socket.socket, until_s: float) -> None:
        assert self._proxy is not None
        place = f"{self.url.host}:{self.url.port}" if ":" not in self.url.host else f"[{self.url.host}]:{self.url.port}"
        headers = {"Host": place}
        if self._proxy.login is not None:
            headers["Proxy-Authorization"] = self._proxy.login.basic
        sock.sendall(f"CONNECT {place} HTTP/1.1\r\n{header_block(headers)}\r\n".encode("latin-1", "replace"))
        parser = Parser()
        while parser.head is None:
            sock.settimeout(max(until_s - time.monotonic(), 0.001))
            data = sock.recv(1)  # not a byte beyond the head: what follows is TLS
            if not data:
                raise ConnectionError("the proxy closed the connection")
            parser.feed(data)
        if not 200 <= parser.head.status < 300:
            raise ConnectionError(
                f"the proxy {self._proxy.shown} responds with {parser.head.status} {parser.head.reason}"
            )


def _quiet(sock: socket.socket) -> bool:
    """Whether nothing has come, neither an end nor bytes that were not asked for."""
    try:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False


def _open_socket(host: str, port: int, until_s: float) -> socket.socket:
    """A TCP connection to the first address of a name that takes one."""
    trouble: OSError = ConnectionError("its name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            trouble = error
    raise trouble


class Decoder:
    """Undoes a Content-Encoding piece by piece. ValueError where it is not gzip, or the data are not so encoded."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise ValueError(f"its encoding {name[:40]} was not requested")
        self._unpacker: Any = zlib.decompressobj(31) if "gzip" in name else None

    @property
    def complete(self) -> bool:
        """Whether the compressed data have come to their end."""
        return self._unpacker is None or bool(self._unpacker.eof)

    def feed(self, data: bytes, most: int) -> bytes:
        """What these bytes stand for, `most` bytes at most."""
        if self._unpacker is None:
            return data[:most]
        try:
            given = bytes(self._unpacker.decompress(data, most))
            while self._unpacker.eof and self._unpacker.unused_data and len(given) < most:
                rest = self._unpacker.unused_data  # a second member of a gzip file
                self._unpacker = zlib.decompressobj(31)
                given += self._unpacker.decompress(rest, most - len(given))
            return given
        except zlib.error:
            raise ValueError("its response is not valid gzip") from None


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"


def _environment_proxy(url: Url) -> Url | None:
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    text = proxies.get(url.scheme)
    if not text or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    proxy = Url.parse(text if "://" in text else f"http://{text}")
    if proxy.scheme != "http":
        raise UsageError(f"The proxy {proxy.shown} requires TLS, which is not supported.")
    return proxy
