"""The server of every page and endpoint: uvicorn's HTTP behind our own door.

uvicorn parses and answers; this module accepts. It bounds what a stranger can hold: connections (when there are too
many, the one that has waited longest without a request is closed), requests in flight, time for the TLS handshake, for
a request's head, between requests, and for reading a response. Log lines about strangers are throttled.

Of uvicorn it uses `Config`, the protocol class that `Config(http="h11")` names, with the constructor and the `shutdown`
that every `--http` class has, and `ServerState`. tests/net/test_server.py runs all of it, so an upgrade that changes
one of them is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.server import ServerState

from everywatt.net.guard import MOST_HEAD_BYTES, App, Message, Receive, Refusal, Send, refuse

if TYPE_CHECKING:
    import ssl

LOG: Final = logging.getLogger("everywatt.net.server")
LOG_LINES_PER_MINUTE: Final = 20
TLS_HANDSHAKE: Final = b"\x16"  # the type of the first record
ACCEPT_PAUSE_S: Final = 0.2  # after an accept that failed: out of descriptors, usually
JOIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What strangers may take.

    connections   that have sent something, at a time; never more than a quarter of the process's file descriptors
    silent        that have sent nothing yet; also never more than a quarter. They cost little
    in_flight     requests that are being answered; more get 503
    handshake_s   for TLS
    head_s        from the connection, or the first byte, to a request's whole head
    idle_s        between two requests
    stalled_s     without reading anything of a response
    graceful_s    at the end, for responses that are on their way
    """

    connections: int = 40  # with TLS, 300 KB each
    silent: int = 160
    in_flight: int = 32
    handshake_s: float = 5.0
    head_s: float = 5.0
    idle_s: int = 75
    stalled_s: float = 30.0
    graceful_s: float = 1.0


class HttpServer:
    """An ASGI application on a socket that is listening already."""

    def __init__(
        self,
        app: App,
        sock: socket.socket,
        *,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self._app, self._sock, self._tls = app, sock, tls
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(self.limits.connections, max(4, descriptors // 4))
        self._most_silent = min(self.limits.silent, max(4, descriptors // 4))
        # In the order in which they came, or had their last request.
        self._silent: dict[_Connection, None] = {}
        self._connections: dict[_Connection, None] = {}
        self._by_client: dict[tuple[str, int], _Connection] = {}
        self._in_flight = 0
        self._state = ServerState()
        self._throttle = Throttle(LOG_LINES_PER_MINUTE)
        self._stops = 0
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # From outside

    def start(self) -> None:
        """Serve in a thread, until `close`."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread: responses that are on their way have `graceful_s`."""
        self.stop()
        if self._thread is not None:
            self._thread.join(self.limits.graceful_s + JOIN_S)
        self._sock.close()

    def stop(self) -> None:
        """End soon; asked a second time, at once. From any thread."""
        self._stops += 1
        if self._loop is not None and self._stopped is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopped.set)

    async def serve(self, closing: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until `stop`. `closing` is awaited when the end begins, so that endless responses can be ended."""
        loop = self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        if self._stops:
            self._stopped.set()
        loop.set_exception_handler(lambda _, context: LOG.warning("%s", context.get("message")))
        self._config = uvicorn.Config(
            self._counted,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=self.limits.idle_s,
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        )
        self._config.load()
        self._sock.setblocking(False)
        accepting = loop.create_task(self._accept())
        with self._throttle.on(LOG, logging.getLogger("uvicorn.error"), logging.getLogger("asyncio")):
            try:
                await self._stopped.wait()
            finally:
                accepting.cancel()
                if closing is not None:
                    await closing()
                await self._finish()

    async def _finish(self) -> None:
        for connection in [*self._silent, *self._connections]:
            connection.finish()
        until_s = time.monotonic() + self.limits.graceful_s
        while (
            (self._silent or self._connections or self._state.tasks) and time.monotonic() < until_s and self._stops < 2
        ):
            await asyncio.sleep(0.01)
        for connection in [*self._silent, *self._connections]:
            connection.abort()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.sleep(0)

    # Connections

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                LOG.warning("cannot accept connections: %s", error.strerror)
                self._evict(self._silent or self._connections)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._silent) >= self._most_silent:
                self._evict(self._silent)
            connection = _Connection(self, sock)
            self._silent[connection] = None
            connection.open(self._tls)
            await asyncio.sleep(0)  # accepting must not keep others waiting

    def heard(self, connection: _Connection) -> bool:
        """A connection has sent its first byte. False where all places are taken by requests."""
        self._silent.pop(connection, None)
        if len(self._connections) >= self._most and not self._evict(self._connections):
            return False
        self._connections[connection] = None
        return True

    @staticmethod
    def _evict(connections: dict[_Connection, None]) -> bool:
        """Close the connection that has waited longest and has no request; False where all have one."""
        waiting = next((one for one in connections if not one.requests), None)
        if waiting is None:
            return False
        del connections[waiting]
        waiting.abort()
        return True

    def protocol(self) -> Any:
        """uvicorn's side of a new connection."""
        return self._config.http_protocol_class(config=self._config, server_state=self._state, app_state={})  # type: ignore[call-arg]

    def opened(self, connection: _Connection, client: tuple[str, int]) -> None:
        """A connection is past its handshake."""
        self._by_client[client] = connection

    def waits(self, connection: _Connection) -> None:
        """A connection has no request any more: it has waited for a shorter time than all others."""
        if self._connections.pop(connection, connection) is None:
            self._connections[connection] = None

    def lost(self, connection: _Connection, client: tuple[str, int] | None) -> None:
        """A connection has ended, or never began."""
        self._silent.pop(connection, None)
        self._connections.pop(connection, None)
        if client is not None and self._by_client.get(client) is connection:
            del self._by_client[client]

    def failed(self, error: BaseException) -> None:
        """A connection did not finish its handshake."""
        # Frames and exception hold each other, with TLS buffers of 300 KiB, until the next full garbage collection.
        traceback.clear_frames(error.__traceback__)
        LOG.warning("a TLS handshake failed: %s", getattr(error, "reason", None) or error or type(error).__name__)

    # Requests

    async def _counted(self, scope: Message, receive: Receive, send: Send) -> None:
        connection = self._by_client.get(tuple((scope.get("client") or ("", 0))[:2]))
        self._state.default_headers[:] = [(b"date", formatdate(usegmt=True).encode())]
        self._in_flight += 1
        if connection is not None:
            connection.busy(1)
        try:
            if self._in_flight > self.limits.in_flight:
                busy = Refusal(503, "Too many requests at once. Try again in a second.", (("retry-after", "1"),))
                await refuse(busy, scope, send)
            else:
                await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            if connection is not None:
                connection.busy(-1)


class _Connection(asyncio.Protocol):
    """Stands between a transport and uvicorn's protocol, and keeps the times."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        self._server, self._sock = server, sock
        self._task: asyncio.Task[None] | None = None
        self._transport: Any = None
        self._inner: Any = None
        self._client: tuple[str, int] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.requests = 0
        self._heard = False

    def open(self, tls: ssl.SSLContext | None) -> None:
        """Begin, with the TLS handshake where there is one."""
        self._task = asyncio.get_running_loop().create_task(self._open(tls))

    async def _open(self, tls: ssl.SSLContext | None) -> None:
        limit_s = None if tls is None else self._server.limits.handshake_s
        try:
            if limit_s is not None:
                await asyncio.wait_for(_tls_begins(self._sock), limit_s)
                self._heard = True
                if not self._server.heard(self):
                    return
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, self._sock, ssl=tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:  # TimeoutError is one
            self._server.failed(error)
        finally:
            if self._transport is None:
                self._sock.close()
                self._server.lost(self, None)

    def busy(self, change: int) -> None:
        """A request has begun (1) or ended (-1)."""
        self.requests += change
        self._cancel_head()
        if not self.requests:
            self._server.waits(self)

    def finish(self) -> None:
        """Answer what is being answered, then close."""
        if self._inner is None:
            self.abort()
        else:
            self._inner.shutdown()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self._task is not None:
            self._task.cancel()

    def _cancel_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_head(self) -> None:
        if self._head_timer is None and not self.requests:
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(self._server.limits.head_s, self._transport.abort)

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername")
        self._transport, self._inner = transport, self._server.protocol()
        self._client = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        self._server.opened(self, self._client)
        self._inner.connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if not self._heard:
            self._heard = True
            if not self._server.heard(self):
                self.abort()
                return
        self._await_head()
        self._inner.data_received(data)

    def eof_received(self) -> Any:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        loop = asyncio.get_running_loop()
        self._stall_timer = loop.call_later(self._server.limits.stalled_s, self._transport.abort)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._server.lost(self, self._client)
        self._inner.connection_lost(exc)


async def _tls_begins(sock: socket.socket) -> None:
    """Wait for the first byte of a handshake. OSError where it is another: such a client costs no memory for TLS."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
    if sock.recv(1, socket.MSG_PEEK) != TLS_HANDSHAKE:
        raise ConnectionError("the client does not speak TLS")


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
