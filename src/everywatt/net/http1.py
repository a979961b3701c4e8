"""HTTP/1.1 without a transport: requests as bytes, and a parser that takes responses apart as their bytes arrive.

By hand because of the arrival times that `bench llm` reports: the parser costs 1.2 µs a piece where h11 costs 6.7, and
it never waits, so that each piece is handed on with the time at which it was read from the socket. Both transports use
it: `client` (blocking) and `streaming` (asyncio). It imports nothing heavy, because the recorder loads it.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from everywatt import __version__
from everywatt.core.errors import NetworkError, UsageError

MAX_HEAD_BYTES: Final = 1 << 16  # of the status line and headers; also of a chunk's head, and of all trailers
MAX_INTERIM: Final = 16  # 1xx responses before the real one
MAX_RETRY_S: Final = 600.0  # however long a server asks to be left alone
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")  # small devices send bare line feeds
_FORBIDDEN: Final = re.compile(r"[\r\n\0]")
_TARGET_SAFE: Final = "/%:@!$&'()*+,;=~?-._"


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a response. Names of headers are in lower case; repeated ones are joined by commas."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str = "HTTP/1.1"
    reason: str = ""


class Parser:
    """Takes one response apart as its bytes arrive. ValueError where it is not HTTP/1.1.

    `compressed` says whether a Content-Encoding was asked for; its decoding is the caller's.
    """

    def __init__(self, *, compressed: bool = False) -> None:
        self.head: Head | None = None
        self.done = False
        self.rest = b""
        self._compressed = compressed
        self._chunked = False
        self._left: int | None = 0  # bytes of the body or of a chunk; None: until the connection ends
        self._chunk_ended = False  # the chunk's data are complete, its line end has not arrived
        self._trailers: int | None = None  # bytes of trailers so far; None: no last chunk yet
        self._interim = 0
        self._ambiguous = False

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        if self.head is None or not self.done or self.rest or self._left is None or self._ambiguous:
            return False
        wish = self.head.headers.get("connection", "").lower()
        return "close" not in wish if self.head.version == "HTTP/1.1" else wish == "keep-alive"

    def feed(self, data: bytes) -> list[bytes]:
        self.rest += data
        while self.head is None:
            if not self._begin():
                return []
        if self.done:
            return []
        if self._chunked:
            return self._chunks()
        if self._left is None:
            taken, self.rest = self.rest, b""
        else:
            taken, self.rest = self.rest[: self._left], self.rest[self._left :]
            self._left -= len(taken)
            self.done = self._left == 0
        return [taken] if taken else []

    def closed(self) -> bool:
        """The connection has ended; returns whether the response is complete."""
        self.done = self.done or (self.head is not None and not self._chunked and self._left is None)
        return self.done

    def _begin(self) -> bool:
        found = _END_OF_HEAD.search(self.rest)
        if found is None or found.start() > MAX_HEAD_BYTES:
            if len(self.rest) > MAX_HEAD_BYTES:
                raise ValueError(f"its head is longer than {MAX_HEAD_BYTES >> 10} KiB")
            return False
        lines = [line.removesuffix("\r") for line in self.rest[: found.start()].decode("latin-1").split("\n")]
        self.rest = self.rest[found.end() :]
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not re.fullmatch("[0-9]{3}", words[1]):
            raise ValueError("its response is not HTTP/1.1")
        status = int(words[1])
        if 100 <= status < 200:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise ValueError("it sends only interim responses")
            return True  # the real response follows
        headers = _headers(lines[1:])
        if not self._compressed and headers.get("content-encoding", "identity") not in ("", "identity"):
            raise ValueError(f"its response is compressed ({headers['content-encoding']}), which was not requested")
        self.head = Head(status, headers, words[0], words[2].strip() if len(words) > 2 else "")
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._ambiguous = self._chunked and "content-length" in headers
        if status in (204, 304):
            self.done = True
        elif not self._chunked:
            self._left = _length(headers.get("content-length"))
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
                self._chunk_ended = True
            if self._left or (end := data.find(b"\r\n", at)) < 0:
                break
            line = data[at:end]
            at = end + 2
            if self._chunk_ended:
                if line:
                    raise ValueError("a chunk is longer than declared")
                self._chunk_ended = False
            elif self._trailers is not None:
                self.done = not line
                self._trailers += len(line)
                if self._trailers > MAX_HEAD_BYTES:
                    raise ValueError("its trailers do not end")
            else:
                self._left = _chunk_size(line)
                self._trailers = 0 if self._left == 0 else None
        self.rest = data[at:]
        if not self._left and len(self.rest) > MAX_HEAD_BYTES:
            raise ValueError("a chunk header does not end")
        return pieces


def _headers(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or line[0] in " \t":
            continue  # a folded line: no header that matters here is ever folded
        name, value = name.strip().lower(), value.strip()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _length(text: str | None) -> int | None:
    """Content-Length; None if absent or invalid. ValueError if there are two."""
    lengths = {part.strip() for part in (text or "").split(",")}
    if len(lengths) > 1:
        raise ValueError("its response has two lengths")
    (length,) = lengths
    return int(length) if re.fullmatch("[0-9]{1,18}", length) else None


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum() or len(digits) > 15:
        raise ValueError("a chunk has no length")
    return int(digits, 16)


def retry_after_s(header: str | None) -> float | None:
    """Seconds of a Retry-After header, which has seconds or a date; None where it makes no sense."""
    if not header:
        return None
    if header.strip().isdecimal():
        return min(float(header), MAX_RETRY_S)
    from email.utils import parsedate_to_datetime

    try:
        return min(max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0), MAX_RETRY_S)
    except (ValueError, TypeError):
        return None


def header_block(headers: Mapping[str, str]) -> str:
    """Headers as they are sent. UsageError where one holds a line break; its value is not repeated in the message."""
    for name, value in headers.items():
        if _FORBIDDEN.search(name) or _FORBIDDEN.search(value):
            raise UsageError(f"The value of the HTTP header {name!r} contains a line break.")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def request_bytes(method: str, target: str, headers: str, body: bytes | None, content_type: str = "") -> bytes:
    """A whole request. `headers` is a `header_block`; blanks and non-ASCII characters of the target are quoted."""
    length = ""
    if body is not None:
        length = f"Content-Length: {len(body)}\r\n"
        if content_type:
            length += f"Content-Type: {content_type}\r\n"
    head = f"{method} {quote(target, safe=_TARGET_SAFE)} HTTP/1.1\r\n{headers}{length}\r\n"
    return head.encode("latin-1", "replace") + (body or b"")


def usual_headers(host: str, *, encoding: str = "identity") -> dict[str, str]:
    """What every request says."""
    return {
        "Host": host,
        "User-Agent": f"everywatt/{__version__}",
        "Accept": "*/*",
        "Accept-Encoding": encoding,
    }


def network_error(error: Exception, server: str, *, waited_s: float | None = None) -> NetworkError:
    """The NetworkError for an exception of a socket, of TLS or of the parser, about the server of that address."""
    ssl = sys.modules.get("ssl")  # takes 4 MB, and is there where it can have raised anything
    if isinstance(error, NetworkError):
        return error
    untrusted = getattr(error, "verify_message", None)
    if untrusted:
        return NetworkError("certificate", server, f"its certificate is not trusted ({untrusted})")
    if isinstance(error, TimeoutError):
        reason = "no data in time" if waited_s is None else f"no data for {waited_s:g} s"
        return NetworkError("timeout", server, reason)
    if ssl is not None and isinstance(error, ssl.SSLError):
        return NetworkError("tls", server, f"TLS failed ({getattr(error, 'reason', None) or error})")
    if isinstance(error, socket.gaierror):
        kind = "connect" if error.errno == socket.EAI_AGAIN else "name"
        return NetworkError(kind, server, "its host name is unknown" if kind == "name" else str(error.strerror))
    if isinstance(error, ValueError):  # of the parser, and UnicodeError of names that cannot be encoded
        return NetworkError("name" if isinstance(error, UnicodeError) else "protocol", server, str(error))
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return NetworkError("connect", server, str(reason))


@dataclass(frozen=True, slots=True)
class Backoff:
    """The one retry. Pure: the caller sleeps, in whatever way it sleeps.

    Waits grow: `first_s`, then twice as long each, `most_s` at most, `retries` of them.

    `jitter` shortens each wait by up to that share, so that many clients do not come back at the same instant.

    >>> list(Backoff(retries=3, jitter=0).delays())
    [0.5, 1.0, 2.0]
    """

    retries: int = 3
    first_s: float = 0.5
    most_s: float = 30.0
    jitter: float = 0.25

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each further attempt."""
        import random  # brings half a megabyte that a recorder has no use for

        for number in range(self.retries):
            yield min(self.first_s * 2**number, self.most_s) * (1 - self.jitter * random.random())

    def at_least(self, delay_s: float, asked_s: float | None) -> float:
        """The wait where the other side said how long it wants (Retry-After); never more than `most_s`."""
        return min(max(delay_s, asked_s or 0.0), self.most_s)
