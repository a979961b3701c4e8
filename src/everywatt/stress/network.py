"""Network: bytes per second through TCP on the loopback device, sent and received by one process."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from everywatt.stress.transfer import Transfer


class NetworkWork(Transfer):
    """A connection to itself."""

    least_bytes = 1024
    most_bytes = 64 * 1024

    def __init__(self, steps: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> None:
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname())
            self._receiver, _ = server.accept()
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * self.most_bytes)
        self._block = memoryview(bytes(self.most_bytes))
        self._into = bytearray(self.most_bytes)

    def move(self, size: int) -> int:
        """Send a block and receive it."""
        sent = left = self._sender.send(self._block[:size])
        while left > 0:
            left -= self._receiver.recv_into(self._into, left)
        return sent

    def close(self) -> None:
        """Hang up."""
        self._sender.close()
        self._receiver.close()
