"""The server process: uvicorn on a socket that is open already, ended by a signal, with limits on slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from everywatt.fleet.http import PLAIN
from everywatt.report.web.app import Site, until_filled

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_CONNECTIONS = 128
KEEP_ALIVE_S = 15
GRACEFUL_S = 3


class Server(uvicorn.Server):
    """uvicorn, with the site's own beginning and end. A signal ends it in order, a second one at once."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends on a signal without passing it on: the end was asked for, and is no failure."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in ENDING}
        caught = [number for number in ENDING if before[number] is not signal.SIG_IGN]
        for number in caught:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def stop(self) -> None:
        """End soon; asked a second time, now."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def main_loop(self) -> None:
        filling = asyncio.ensure_future(until_filled(self._site))
        try:
            await super().main_loop()
        finally:
            filling.cancel()
            # Streams never end by themselves, and would keep the server from ending.
            await self._site.hubs.close()


def run(site: Site, sock: socket.socket, *, cert: Path | None = None, key: Path | None = None) -> None:
    """Serve until a signal says to end."""
    config = uvicorn.Config(
        site.app(),
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_S,
        ssl_certfile=cert,
        ssl_keyfile=key,
        **PLAIN,
    )
    try:
        Server(config, site).run(sockets=[sock])
    finally:
        sock.close()
