"""The server process of `everywatt serve`: ended in order by a signal, at once by a second one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from everywatt.net.server import HttpServer, ServerLimits
from everywatt.net.tls import server_context
from everywatt.report.web.app import Site, until_filled

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Every open live page holds a request in flight.
LIMITS = ServerLimits(in_flight=120, idle_s=15, graceful_s=3.0)


def run(site: Site, sock: socket.socket, *, cert: Path | None = None, key: Path | None = None) -> None:
    """Serve until a signal says to end."""
    tls = None if cert is None or key is None else server_context(cert, key)
    try:
        asyncio.run(_serve(site, HttpServer(site.app(), sock, limits=LIMITS, tls=tls)))
    finally:
        sock.close()


async def _serve(site: Site, server: HttpServer) -> None:
    filling = asyncio.ensure_future(until_filled(site))
    try:
        with _ended_by_signals(server.stop):
            # Streams never end by themselves, and would keep the server from ending.
            await server.serve(site.hubs.close)
    finally:
        filling.cancel()


@contextlib.contextmanager
def _ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """A signal calls `stop` and is not passed on: the end was asked for, and is no failure."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in ENDING}
    caught = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    for number in caught:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
