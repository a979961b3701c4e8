"""The two ways in which servers stream an answer: lines, and server-sent events made of lines."""

from __future__ import annotations

from abc import ABC, abstractmethod

from everywatt.bench.llm.http import Stream
from everywatt.net.http1 import Head

MOST_LINE_BYTES = 1 << 26
BOM = b"\xef\xbb\xbf"


class Lines(ABC):
    """Takes a stream of lines apart; who inherits says what a line is."""

    def __init__(self, got: Stream) -> None:
        self.got = got
        self._rest = bytearray()

    def begin(self, head: Head) -> None:  # noqa: B027 - lines come under many types
        """The head is there."""

    def feed(self, at_ns: int, data: bytes) -> bool:
        """A piece came. True: no more is wanted."""
        if b"\n" not in data:
            self._rest += data
            if len(self._rest) > MOST_LINE_BYTES:
                raise ValueError("a line does not end")
            return False
        *lines, rest = (bytes(self._rest) + data).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self.line(at_ns, line.removesuffix(b"\r"))
            if self.got.over:
                return True
        return False

    def end(self, at_ns: int) -> None:
        """All has come: the last line may lack its end."""
        if self._rest:
            self.line(at_ns, bytes(self._rest))

    @abstractmethod
    def line(self, at_ns: int, line: bytes) -> None:
        """One line."""


class Events(Lines):
    """Server-sent events; who inherits says what an event is."""

    def __init__(self, got: Stream) -> None:
        super().__init__(got)
        self._data: list[bytes] = []
        self._first = True

    def begin(self, head: Head) -> None:
        """The head is there: it must say that events follow."""
        kind = head.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "text/event-stream":
            raise ValueError(f"expected an event stream, got {kind or 'no content type'}")

    def line(self, at_ns: int, line: bytes) -> None:
        """A field of an event, its end, or a comment."""
        if self._first:
            self._first, line = False, line.removeprefix(BOM)
        if line.startswith(b"data"):
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        elif not line and self._data:
            text = b"\n".join(self._data).decode("utf-8", "replace")
            self._data.clear()
            self.event(at_ns, text)

    @abstractmethod
    def event(self, at_ns: int, text: str) -> None:
        """The data of one event."""
