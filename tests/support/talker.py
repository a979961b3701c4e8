"""A server on loopback that sends the bytes it is given, for clients of HTTP and what can go wrong with them."""

import contextlib
import socket
import threading


class Talker:
    """A server that says what it is told, connection by connection, and keeps what it heard."""

    def __init__(self, *says, context=None):
        self._says, self._context = says, context
        self.heard: list[bytes] = []
        self.closed = 0  # connections of which all was said
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._socket.close()
        self._thread.join(30)

    def _talk(self):
        for says in self._says:
            try:
                wire, _ = self._socket.accept()
                wire.settimeout(30)
                if self._context is not None:
                    wire = self._context.wrap_socket(wire, server_side=True)
                with wire:
                    for words in says:
                        self.heard.append(self._request(wire))
                        wire.sendall(words)
                self.closed += 1
            except OSError:
                continue

    @staticmethod
    def _request(wire):
        data = b""
        while b"\r\n\r\n" not in data:
            more = wire.recv(65536)
            if not more:
                return data
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        sizes = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        while sizes and len(body) < int(sizes[0]):
            body += wire.recv(65536)
        return head + b"\r\n\r\n" + body
