"""HTTP/1.1 for streamed answers, by hand: a piece is handed on where it is read from the socket, with the time of that.

No task wakes up for a piece, so that hundreds of streams cost little and are seen when they come. A connection is kept
for the next query where the server lets it stand. No proxy, no redirection, no compression: nobody is asked but the
server that was named.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from everywatt import __version__

KEEP_S: Final = 4.0  # many servers close a connection that was idle for five seconds
MOST_HEAD_BYTES: Final = 1 << 16


class ConnectTimeout(TimeoutError):
    """No connection was made in time."""


class Silence(TimeoutError):
    """The server said nothing for too long."""


class Cut(ConnectionError):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str = "HTTP/1.1"


class Sink(Protocol):
    """Where an answer goes while it comes."""

    def begin(self, head: Head) -> None:
        """The head is there."""

    def feed(self, at_ns: int, data: bytes) -> bool:
        """A piece of the body came. True: no more is wanted."""

    def end(self, at_ns: int) -> None:
        """The body is complete."""


class Parser:
    """Takes an answer apart as its bytes come. ValueError where it is no HTTP."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.done = False
        self.rest = b""
        self._chunked = False
        self._left: int | None = 0  # of the body or of a chunk; None: until the connection ends
        self._tail = False  # a chunk's data are complete, the end of its line is not here yet
        self._trailers = False

    @property
    def keeps(self) -> bool:
        """Whether the connection can be used again."""
        if self.head is None or not self.done or self.rest or self._left is None:
            return False
        wish = self.head.headers.get("connection", "").lower()
        return wish != "close" if self.head.version == "HTTP/1.1" else wish == "keep-alive"

    def feed(self, data: bytes) -> list[bytes]:
        """What these bytes hold of the body."""
        self.rest += data
        while self.head is None:
            if not self._begin():
                return []
        if self.done:
            return []
        if self._chunked:
            return self._chunks()
        taken, self.rest = (self.rest, b"") if self._left is None else _cut(self.rest, self._left)
        if self._left is not None:
            self._left -= len(taken)
            self.done = self._left == 0
        return [taken] if taken else []

    def closed(self) -> bool:
        """The connection has ended; gives whether the answer had."""
        self.done = self.done or (self.head is not None and not self._chunked and self._left is None)
        return self.done

    def _begin(self) -> bool:
        end = self.rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self.rest) > MOST_HEAD_BYTES:
                raise ValueError("its head has no end")
            return False
        lines = self.rest[:end].decode("latin-1").split("\r\n")
        self.rest = self.rest[end + 4 :]
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise ValueError("it is not HTTP/1.1")
        status = int(words[1])
        if 100 <= status < 200:
            return True  # an interim answer: the real one follows
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("content-encoding", "identity") not in ("", "identity"):
            raise ValueError(f"it is compressed ({headers['content-encoding']}), which was not asked for")
        self.head = Head(status, headers, words[0])
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        if status in (204, 304):
            self.done = True
        elif not self._chunked:
            self._left = int(length) if length.isdecimal() else None
            self.done = self._left == 0
        return True

    def _chunks(self) -> list[bytes]:
        pieces: list[bytes] = []
        data, at = self.rest, 0
        while not self.done:
            if self._left:
                piece = data[at : at + self._left]
                if piece:
                    pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._tail = True
            if self._left or (end := data.find(b"\r\n", at)) < 0:
                break
            line = data[at:end]
            at = end + 2
            if self._tail:
                if line:
                    raise ValueError("a chunk is longer than it said")
                self._tail = False
            elif self._trailers:
                self.done = not line
            else:
                self._left = _size(line)
                self._trailers = self._left == 0
        self.rest = data[at:]
        if not self._left and len(self.rest) > MOST_HEAD_BYTES:
            raise ValueError("a chunk's head has no end")
        return pieces


def _cut(data: bytes, size: int) -> tuple[bytes, bytes]:
    return data[:size], data[size:]


def _size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum() or len(digits) > 15:
        raise ValueError("a chunk does not say how long it is")
    return int(digits, 16)


class Exchange:
    """One question and its answer on one connection; `over` is done when the answer is, or when it cannot come."""

    def __init__(self, sink: Sink, silence_s: float, linger_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._sink, self._silence_s, self._linger_s = sink, silence_s, linger_s
        self._parser = Parser()
        self._begun = self._enough = False
        self._heard_s = self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._check)
        self.over: asyncio.Future[None] = self._loop.create_future()

    @property
    def keeps(self) -> bool:
        """Whether the connection can be used again."""
        return self._parser.keeps

    @property
    def left_open(self) -> bool:
        """Whether the server had said all and did not end its answer."""
        return self._enough and not self._parser.done

    def came(self, at_ns: int, data: bytes) -> None:
        """Bytes of the answer."""
        if self.over.done():
            return
        self._heard_s = self._loop.time()
        try:
            pieces = self._parser.feed(data)
            self._hand_on(at_ns, pieces)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer is told
            self._finish(error)

    def _hand_on(self, at_ns: int, pieces: list[bytes]) -> None:
        head = self._parser.head
        if head is None:
            return
        if not self._begun:
            self._begun = True
            self._sink.begin(head)
        for piece in pieces:
            if self._enough:
                break
            if self._sink.feed(at_ns, piece):
                self._enough = True
                self._timer.cancel()
                self._timer = self._loop.call_later(self._linger_s, self._finish)
        if self._parser.done:
            if not self._enough:
                self._sink.end(at_ns)
            self._finish()

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        if self.over.done():
            return
        if self._enough:
            self._finish()
        elif error is None and self._parser.closed():
            try:
                self._sink.end(time.monotonic_ns())
            except ValueError as odd:
                self._finish(odd)
            else:
                self._finish()
        else:
            self._finish(Cut(str(error) if error is not None else "the server closed the connection"))

    def _check(self) -> None:
        left_s = self._silence_s - (self._loop.time() - self._heard_s)
        if left_s <= 0:
            self._finish(Silence(f"nothing for {self._silence_s:g} s"))
        else:
            self._timer = self._loop.call_later(left_s, self._check)

    def _finish(self, error: Exception | None = None) -> None:
        self._timer.cancel()
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


class Wire(asyncio.Protocol):
    """A connection. It has one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.idle_since_s = 0.0

    def connection_made(self, transport: Any) -> None:
        """asyncio: it stands."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were read."""
        at_ns = time.monotonic_ns()
        if self.exchange is None:
            self.close()  # nobody asked: who knows what this is
        else:
            self.exchange.came(at_ns, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it has ended."""
        self.transport = None
        if self.exchange is not None:
            self.exchange.lost(exc)

    @property
    def stands(self) -> bool:
        """Whether it can be used."""
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        """Let go of it."""
        if self.transport is not None:
            self.transport.abort()


class Server:
    """A server's address, and the connections to it that nobody uses at present."""

    def __init__(self, url: str, connect_s: float, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self.host, self._tls = parts.hostname or "", parts.scheme == "https"
        self.port = parts.port or (443 if self._tls else 80)
        self._path, self._connect_s = parts.path.rstrip("/"), connect_s
        self._context: ssl.SSLContext | None = None
        self._idle: list[Wire] = []
        name = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode("ascii")
        usual = self.port == (443 if self._tls else 80)
        common = {"Host": name if usual else f"{name}:{self.port}", "User-Agent": f"everywatt/{__version__}"}
        common |= {"Accept": "*/*", "Accept-Encoding": "identity", **headers}
        self._headers = "".join(f"{key}: {value}\r\n" for key, value in common.items())

    async def wire(self) -> Wire:
        """A connection that stands: the one that was used last, or a new one."""
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            wire = self._idle.pop()
            if wire.stands and now_s - wire.idle_since_s < KEEP_S:
                return wire
            wire.close()
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect()
        except TimeoutError:
            raise ConnectTimeout(f"no connection within {self._connect_s:g} s") from None

    async def _connect(self) -> Wire:
        if self._tls and self._context is None:
            self._context = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(
            Wire, self.host, self.port, ssl=self._context if self._tls else None, happy_eyeballs_delay=0.25
        )
        return wire

    def send(self, wire: Wire, exchange: Exchange, method: str, path: str, body: bytes | None = None) -> int:
        """Send a request for a path below the URL; gives when its first byte went out. The exchange gets the answer."""
        length = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        target = quote(self._path + path, safe="/%:@!$&'()*+,;=~?-._")
        head = f"{method} {target} HTTP/1.1\r\n{self._headers}{length}\r\n".encode("latin-1", "replace")
        wire.exchange = exchange
        sent_ns = time.monotonic_ns()
        if wire.transport is None:
            exchange.lost(None)
        else:
            wire.transport.write(head + (body or b""))
        return sent_ns

    def give_back(self, wire: Wire) -> None:
        """The exchange is over: keep the connection where that is possible."""
        exchange, wire.exchange = wire.exchange, None
        if exchange is not None and exchange.over.done() and exchange.keeps and wire.stands:
            wire.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for wire in self._idle:
            with suppress(OSError, RuntimeError):
                wire.close()
        self._idle.clear()
