"""Network: bytes per second through TCP on the loopback device, sent and received by one process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everywatt.stress.pacing import Stretch, block_bytes, pace

BLOCK_BYTES = 64 * 1024
SMALLEST_BYTES = 1024


class NetworkWork:
    """A connection to itself; a level is bytes per second."""

    about = ""

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname())
            self._receiver, _ = server.accept()
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * BLOCK_BYTES)
        self._block = memoryview(bytes(BLOCK_BYTES))
        self._size = BLOCK_BYTES
        self._into = bytearray(BLOCK_BYTES)
        self._received = 0
        self._before = 0

    def done(self) -> float:
        """Bytes received so far."""
        return self._received

    def work(self) -> None:
        """Send a block and receive it."""
        sent = self._sender.send(self._block[: self._size])
        while sent > 0:
            taken = self._receiver.recv_into(self._into, sent)
            self._received += taken
            sent -= taken

    def begin(self, stretch: Stretch) -> None:
        """Count from here, in blocks that suit the rate."""
        self._before = self._received
        self._size = block_bytes(stretch.level, SMALLEST_BYTES, BLOCK_BYTES)

    def play(self, stretch: Stretch, wait: Callable[[int], None]) -> None:
        """Send until the end of the stretch."""
        pace(self, stretch, wait)

    def report(self) -> dict[str, Any]:
        """Bytes received in this stretch."""
        return {"done": self._received - self._before}

    def close(self) -> None:
        """Hang up."""
        self._sender.close()
        self._receiver.close()
