"""The server of every page and endpoint: uvicorn's HTTP behind our own door.

uvicorn parses and answers; this module accepts, and is the transport. It bounds what a stranger can hold: connections,
requests in flight, time for the TLS handshake, for a request's head, between requests, and for reading a response. Log
lines about strangers are throttled. asyncio's own TLS takes 290 KB a connection, which strangers turn into garbage
faster than it is collected; OpenSSL on the socket itself takes 23 KB.

A connection waits outside, where it costs a file descriptor, until it has sent something (with TLS, a whole first
message). Of those the newest of the address that has the fewest connections comes in first: whoever waits long is a
stranger, or has given up. When there are too many, the oldest of the address that has the most is closed.

Of uvicorn it uses `Config`, the protocol class that `Config(http="h11")` names, with the constructor and the `shutdown`
that every `--http` class has, and `ServerState`. tests/net/test_server.py runs all of it, so an upgrade that changes
one of them is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from everywatt.net.guard import MOST_HEAD_BYTES, App, Message, Receive, Refusal, Send, ServerLimits, Throttle, refuse

LOG: Final = logging.getLogger("everywatt.net.server")
LOG_LINES_PER_MINUTE: Final = 20
TLS_HANDSHAKE: Final = 22  # the type of the first record
RECORD_HEAD_BYTES: Final = 5
ACCEPTS_AT_ONCE: Final = 64
ADMITS_AT_ONCE: Final = 8
LOOK_AGAIN_S: Final = 0.005  # at half a message; then after twice as long, and so on
ACCEPT_PAUSE_S: Final = 0.2  # after an accept that failed: out of descriptors, usually
SELECTABLE: Final = 1024  # descriptors from this number on cannot be waited for by select(), which sensors use
AGAIN: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
PIECE_BYTES: Final = 16 << 10  # a TLS record
PAUSE_BYTES: Final = 64 << 10  # an application that has so much unsent waits
JOIN_S: Final = 3.0


class _Crowd:
    """Connections by address, each address's oldest first."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[_Connection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_Connection]:
        return iter([one for group in self._groups.values() for one in group])

    def size(self, address: str) -> int:
        return len(self._groups.get(address, ()))

    def add(self, connection: _Connection) -> None:
        self._groups.setdefault(connection.address, {})[connection] = None
        self._count += 1

    def remove(self, connection: _Connection) -> None:
        group = self._groups[connection.address]
        del group[connection]
        self._count -= 1
        if not group:
            del self._groups[connection.address]

    def oldest(self) -> _Connection:
        """Of the address that has the most."""
        fullest = max(self._groups.values(), key=len)
        return next(iter(fullest))

    def newest(self, weight: Callable[[str], int]) -> _Connection:
        """Of the address of the least weight."""
        return next(reversed(self._groups[min(self._groups, key=weight)]))


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
        self.tls = tls
        self._app, self._sock = app, sock
        quarter = max(4, min(SELECTABLE, resource.getrlimit(resource.RLIMIT_NOFILE)[0]) // 4)
        self._most = min(self.limits.connections, quarter)
        self._most_waiting = min(self.limits.waiting, quarter)
        # Nothing sent yet; something sent, but no room; handshake or head of a request; request; between two requests.
        self.silent, self.ready, self.opening, self.busy, self.idle = (_Crowd() for _ in range(5))
        self._admitting = self._paused = self._queued = False
        self._state = ServerState()
        self._throttle = Throttle(LOG_LINES_PER_MINUTE)
        self._stops = 0
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def connections(self) -> list[_Connection]:
        return [*self.silent, *self.ready, *self.opening, *self.busy, *self.idle]

    # From other threads

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
        loop.add_reader(self._sock, self._accept)
        with self._throttle.on(LOG, logging.getLogger("uvicorn.error"), logging.getLogger("asyncio")):
            try:
                await self._stopped.wait()
            finally:
                loop.remove_reader(self._sock)
                if closing is not None:
                    await closing()
                await self._finish()

    async def _finish(self) -> None:
        for connection in self.connections:
            connection.finish()
        until_s = time.monotonic() + self.limits.graceful_s
        while (self.connections or self._state.tasks) and time.monotonic() < until_s and self._stops < 2:
            await asyncio.sleep(0.01)
        for connection in self.connections:
            connection.abort()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.sleep(0)

    # Connections

    def _accept(self) -> None:
        assert self._loop is not None
        self._queued = True
        for _ in range(ACCEPTS_AT_ONCE):
            if self.tls is None and len(self.ready) >= ADMITS_AT_ONCE:
                self._paused = self._loop.remove_reader(self._sock)
                return
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, ConnectionError) as error:
                self._queued = isinstance(error, ConnectionError)
                return
            except OSError as error:
                LOG.warning("cannot accept connections: %s", error.strerror)
                if len(self.connections) > ADMITS_AT_ONCE:  # else it is not they who take the descriptors
                    self._evict(self.silent, self.ready, self.idle)
                self._loop.remove_reader(self._sock)
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            if len(self.silent) + len(self.ready) >= self._most_waiting:
                self._evict(self.silent, self.ready)
            sock.setblocking(False)
            _Connection(self, self._loop, sock, network_of(peer[0]))

    def _accept_again(self) -> None:
        assert self._loop is not None and self._stopped is not None
        if not self._stopped.is_set():
            self._loop.add_reader(self._sock, self._accept)

    @staticmethod
    def _evict(*crowds: _Crowd) -> None:
        """Close the oldest connection among these."""
        found = [crowd.oldest() for crowd in crowds if len(crowd)]
        if found:
            min(found, key=lambda one: one.since_s).abort()

    def admit(self) -> None:
        """Let in who is ready, soon."""
        if self._paused and len(self.ready) < ADMITS_AT_ONCE:
            self._paused = False
            self._accept_again()
        if not self._admitting and len(self.ready) and self._loop is not None:
            self._admitting = True
            self._loop.call_soon(self._admit)

    def _admit(self) -> None:
        self._admitting = False
        for _ in range(ADMITS_AT_ONCE):
            if not len(self.ready):
                return
            one = self.ready.newest(self._inside)
            if len(self.opening) + len(self.busy) + len(self.idle) >= self._most:
                oldest = next((crowd.oldest() for crowd in (self.idle, self.opening) if len(crowd)), None)
                if oldest is None or self._inside(one.address) > self._inside(oldest.address):
                    return  # until a request ends
                oldest.abort()
            one.begin()
        self.admit()

    def _inside(self, address: str) -> int:
        return self.opening.size(address) + self.busy.size(address) + self.idle.size(address)

    def protocol(self, connection: _Connection) -> Any:
        """uvicorn's side of a new connection."""
        state = {"connection": connection}
        return self._config.http_protocol_class(config=self._config, server_state=self._state, app_state=state)  # type: ignore[call-arg]

    # Requests

    async def _counted(self, scope: Message, receive: Receive, send: Send) -> None:
        connection = scope["state"]["connection"]
        self._state.default_headers[:] = [(b"date", formatdate(usegmt=True).encode())]
        connection.move(self.busy)
        try:
            if len(self.busy) > self.limits.in_flight:
                busy = Refusal(503, "Too many requests at once. Try again in a second.", (("retry-after", "1"),))
                await refuse(busy, scope, send)
            else:
                await self._app(scope, receive, send)
        finally:
            connection.move(self.idle)
            if len(self.ready) or self._queued:
                connection.finish()  # one request each while others wait


class _Connection(asyncio.Transport):
    """The transport under uvicorn's protocol, on a socket that may speak TLS; it keeps the times."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop, sock: socket.socket, address: str) -> None:
        super().__init__()
        self.address, self.since_s = address, loop.time()
        self._server, self._loop, self._crowd = server, loop, server.silent
        self._sock: Any = sock
        self._fd = sock.fileno()  # also of the TLS socket; asyncio would look up the names of a socket at every turn
        self._inner: Any = None
        self._unsent: deque[memoryview] = deque()
        self._look_again_s = LOOK_AGAIN_S
        self._closing = self._closed = self._deaf = self._full = False
        self._timer: asyncio.TimerHandle | None = None
        self._crowd.add(self)
        self._within(server.limits.head_s if server.tls is None else server.limits.handshake_s)
        self._arrived()

    def move(self, crowd: _Crowd) -> None:
        """Be among others now."""
        if self._closed:
            return
        self._crowd.remove(self)
        crowd.add(self)
        self._crowd = crowd
        if not self._unsent:
            self._within(None)
        self._server.admit()

    def _within(self, limit_s: float | None) -> None:
        """Close if nothing else is said for so long."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if limit_s is None else self._loop.call_later(limit_s, self._too_late)

    def _too_late(self) -> None:
        if self._server.tls is not None and self._inner is None:
            LOG.warning("a TLS handshake failed: it took too long")
        self.abort()

    # The beginning

    def _arrived(self) -> None:
        """Ready once there is something to read: with TLS a whole message, so that half of one costs no memory."""
        try:
            head = self._sock.recv(RECORD_HEAD_BYTES, socket.MSG_PEEK)
            if self._server.tls is not None and head:
                if head[0] != TLS_HANDSHAKE:
                    raise ConnectionError("the client does not speak TLS")
                needs = RECORD_HEAD_BYTES + int.from_bytes(head[3:], "big") * (len(head) == RECORD_HEAD_BYTES)
                if len(self._sock.recv(needs, socket.MSG_PEEK)) < min(needs, PIECE_BYTES):
                    self._loop.remove_reader(self._fd)
                    self._loop.call_later(self._look_again_s, self._look_again)
                    self._look_again_s *= 2
                    return
        except OSError as error:
            if isinstance(error, AGAIN):
                self._loop.add_reader(self._fd, self._arrived)
            else:
                self._failed(error)
            return
        if not head:
            self.abort()
            return
        self._loop.remove_reader(self._fd)
        self.move(self._server.ready)
        self._within(self._server.limits.head_s)

    def _look_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._fd, self._arrived)

    def begin(self) -> None:
        """Come in, with the TLS handshake where there is one."""
        self.move(self._server.opening)
        if self._server.tls is None:
            self._opened()
            return
        self._within(self._server.limits.handshake_s)
        try:
            self._sock = self._server.tls.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            self._failed(error)
            return
        self._loop.add_reader(self._fd, self._handshake)
        self._handshake()

    def _handshake(self) -> None:
        try:
            self._sock.do_handshake()
        except AGAIN:
            return  # for the client: what the server says fits into an empty socket
        except OSError as error:
            self._failed(error)
            return
        self._opened()

    def _opened(self) -> None:
        self._within(self._server.limits.head_s)
        self._inner = self._server.protocol(self)
        self._inner.connection_made(self)
        self._loop.add_reader(self._fd, self._readable)
        self._readable()

    def _failed(self, error: OSError) -> None:
        what = "a connection" if self._server.tls is None else "a TLS handshake"
        LOG.warning("%s failed: %s", what, getattr(error, "reason", None) or error)
        self.abort()

    # Reading and writing

    def _readable(self) -> None:
        if self._deaf or self._closing:
            return
        try:
            data = self._sock.recv(PIECE_BYTES)
        except AGAIN:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._crowd is self._server.idle:
            self.move(self._server.opening)
            self._within(self._server.limits.head_s)
        self._inner.data_received(data)
        if self._server.tls is not None and not self._closed and self._sock.pending():
            self._loop.call_soon(self._readable)  # it has been read from the socket already

    def pause_reading(self) -> None:
        self._deaf = True
        if not self._closed:
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        self._deaf = False
        if not self._closing:
            self._loop.add_reader(self._fd, self._readable)
            self._loop.call_soon(self._readable)

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self._unsent.append(memoryview(data))
            if len(self._unsent) == 1:
                self._send()

    def _send(self) -> None:
        """Send what the socket takes, piece by piece: a piece that it did not take is offered again as it is."""
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0][:PIECE_BYTES])
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
        except AGAIN:
            self._within(self._server.limits.stalled_s)
            self._loop.add_writer(self._fd, self._send)
            full = sum(map(len, self._unsent)) > PAUSE_BYTES
        except OSError:
            self.abort()
            return
        else:
            self._loop.remove_writer(self._fd)
            self._within(None)
            full = False
            if self._closing:
                self._end()
                return
        if full != self._full:
            self._full = full
            (self._inner.pause_writing if full else self._inner.resume_writing)()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._sock, "sslcontext": self._server.tls}.get(name, default)

    # The end

    def finish(self) -> None:
        """Answer what is being answered, then close."""
        if self._inner is None:
            self.abort()
        else:
            self._inner.shutdown()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what is unsent, then close."""
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._fd)
        if not self._unsent:
            self._end()

    def _end(self) -> None:
        if self._server.tls is not None and self._inner is not None:
            with contextlib.suppress(OSError, ValueError):
                self._sock.unwrap()  # says goodbye, and does not wait for an answer
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._closed:
            return
        self._closed = self._closing = True
        self._within(None)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._crowd.remove(self)
        self._unsent.clear()
        self._sock.close()
        if self._inner is not None:
            self._loop.call_soon(self._inner.connection_lost, None)
        # uvicorn's objects hold each other, and this one, until garbage is collected: at least without TLS's memory.
        self._sock = self._inner = None
        self._server.admit()


def network_of(ip: str) -> str:
    """Who an address belongs to: itself, or with IPv6 its network of 64 bits, of which one machine may have all."""
    if ":" not in ip:
        return ip
    found = ipaddress.IPv6Address(ip.partition("%")[0])
    return str(found.ipv4_mapped or int(found) >> 64)
