"""The asyncio HTTP client: streamed responses, each piece with the time at which it was read from the socket.

No task wakes up for a piece, so that hundreds of streams cost little and are seen when they arrive. A connection is
kept for the next request where the server allows it. No proxy, no redirects, no compression: only the server that was
named is asked, and nothing stands between its bytes and their times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from everywatt.core.errors import NetworkError
from everywatt.net.http1 import Head, Parser, header_block, network_error, request_bytes, usual_headers
from everywatt.net.tls import ClientTls
from everywatt.net.url import Url

if TYPE_CHECKING:
    import ssl

KEEP_S: Final = 4.0  # many servers close a connection that was idle for five seconds


class BodySink(Protocol):
    """Takes a response while it arrives. Times are CLOCK_MONOTONIC nanoseconds."""

    def begin(self, head: Head) -> None:
        """The head is complete."""

    def feed(self, at_ns: int, data: bytes) -> bool:
        """A piece of the body arrived. True: no more is wanted."""

    def end(self, at_ns: int) -> None:
        """The body is complete."""


class Sink(BodySink, Protocol):
    """Receives a response, and the time at which its request is sent."""

    def sent(self, at_ns: int) -> None:
        """The request goes out."""


class _Exchange:
    """One request and its response on one connection; `over` is done when the response is, or when it cannot come."""

    def __init__(self, sink: Sink, server: str, silence_s: float, linger_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._sink, self._server, self._silence_s, self._linger_s = sink, server, silence_s, linger_s
        self._parser = Parser()
        self._begun = self._enough = False
        self.heard = False  # whether anything of the response has come
        self._heard_s = self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._check)
        self.over: asyncio.Future[None] = self._loop.create_future()

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.over.done() and self._parser.reusable

    @property
    def left_open(self) -> bool:
        """Whether all that was wanted had come and the server did not end its response."""
        return self._enough and not self._parser.done

    def received(self, at_ns: int, data: bytes) -> None:
        if self.over.done():
            return
        self.heard, self._heard_s = True, self._loop.time()
        try:
            pieces = self._parser.feed(data)
        except ValueError as error:
            self._finish(network_error(error, self._server))
            return
        try:
            self._hand_on(at_ns, pieces)
        except Exception as error:  # noqa: BLE001 - it reaches the caller, who waits for `over`
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
            reason = "it closed the connection before the response was complete" if error is None else str(error)
            self._finish(NetworkError("cut", self._server, reason))

    def _check(self) -> None:
        left_s = self._silence_s - (self._loop.time() - self._heard_s)
        if left_s <= 0:
            self._finish(NetworkError("timeout", self._server, f"no data for {self._silence_s:g} s"))
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


class _Connection(asyncio.Protocol):
    """A connection. It carries one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange: _Exchange | None = None
        self.idle_since_s = 0.0  # on the clock of the loop; 0: it was not kept yet

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        at_ns = time.monotonic_ns()
        if self.exchange is None:
            self.close()  # nothing was asked
        else:
            self.exchange.received(at_ns, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.exchange is not None:
            self.exchange.lost(exc)

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class StreamClient:
    """One server. Responses go to a `Sink` while they arrive."""

    def __init__(
        self,
        url: str,
        *,
        connect_s: float = 10.0,
        silence_s: float = 120.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = Url.parse(url)
        self._connect_s, self._silence_s = connect_s, silence_s
        self._context: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        self._headers = header_block(usual_headers(self.url.netloc) | dict(headers or {}))

    async def request(self, method: str, path: str, body: bytes | None, sink: Sink, *, linger_s: float = 0.0) -> bool:
        """Ask for a path below the URL, and wait for the end of the response. NetworkError where it does not come.

        A request on a kept connection that ends without a response is sent again at once, on another one. What the sink
        raises is raised here. When the sink wants no more, the end of the response is awaited for
        `linger_s`, since only then the connection can be used again. Returns whether the server let that time pass.
        """
        data = request_bytes(method, self.url.base + path, self._headers, body, "application/json")
        while True:
            connection = await self._connection()
            exchange = _Exchange(sink, self.url.shown, self._silence_s, linger_s)
            connection.exchange = exchange
            sink.sent(time.monotonic_ns())
            if connection.transport is None:
                exchange.lost(None)
            else:
                connection.transport.write(data)
            try:
                await exchange.over
            except NetworkError as error:
                # Some servers close a connection that they promised to keep, just as it is used again.
                if error.kind != "cut" or exchange.heard or not connection.idle_since_s:
                    raise
            else:
                return exchange.left_open
            finally:
                self._give_back(connection)

    def close(self) -> None:
        for connection in self._idle:
            with suppress(OSError, RuntimeError):
                connection.close()
        self._idle.clear()

    async def _connection(self) -> _Connection:
        """The connection that was used last, or a new one."""
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.open and now_s - connection.idle_since_s < KEEP_S:
                return connection
            connection.close()
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect()
        except TimeoutError:
            reason = f"no connection within {self._connect_s:g} s"
            raise NetworkError("connect-timeout", self.url.shown, reason) from None
        except (OSError, ValueError) as error:
            raise network_error(error, self.url.shown) from None

    async def _connect(self) -> _Connection:
        if self.url.tls and self._context is None:
            self._context = ClientTls().context()
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, self.url.host, self.url.port, ssl=self._context, happy_eyeballs_delay=0.25
        )
        return connection

    def _give_back(self, connection: _Connection) -> None:
        """The exchange is over: keep the connection where that is possible."""
        exchange, connection.exchange = connection.exchange, None
        if exchange is not None and exchange.reusable and connection.open:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()
