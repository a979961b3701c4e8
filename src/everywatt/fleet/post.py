"""One post of samples, and what its answer means: taken, refused for good, or to be tried again."""

from __future__ import annotations

import base64
import http.client
import re
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from everywatt.core.errors import UsageError
from everywatt.fleet.options import AgentOptions
from everywatt.fleet.protobuf import Sample, write_request
from everywatt.net.listen import read_token

if TYPE_CHECKING:
    import ssl

TIMEOUT_S = 30.0
MOST_WAIT_S = 600.0
MOST_ANSWER = 4096
REFUSED = (400, 409, 413, 422)
# Prometheus answers 500 to samples that it can never take.
HOPELESS = re.compile(r"out of bounds|out of order|too old|too far|duplicate sample|out-of-order", re.IGNORECASE)


class Verdict(Enum):
    """What became of a post."""

    TAKEN = "taken"
    REFUSED = "refused"
    LATER = "later"


class Answer(NamedTuple):
    """A verdict, why, and how long the receiver wants to be left alone (None: it does not say)."""

    verdict: Verdict
    why: str = ""
    wait_s: float | None = None


class Poster:
    """Keeps one connection to the receiver. Raises nothing but UsageError, when it is made."""

    def __init__(self, options: AgentOptions, *, timeout_s: float = TIMEOUT_S) -> None:
        from everywatt import __version__

        assert options.remote_write is not None
        parts = urlsplit(options.remote_write)
        self._host, self._port = parts.hostname or "", parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout_s = timeout_s
        self._tls = _tls(options) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
            "User-Agent": f"everywatt/{__version__}",
        }
        token = read_token(None, options.remote_write_token_file)
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        elif parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()

    def post(self, series: Sequence[tuple[bytes, tuple[Sample, ...]]]) -> Answer:
        """Send these series."""
        import cramjam

        return self.send(bytes(cramjam.snappy.compress_raw(write_request(series))))

    def send(self, body: bytes) -> Answer:
        """Send a request that is compressed already."""
        try:
            return self._answer(*self._send(body))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer(Verdict.LATER, _reason(error))

    def _send(self, body: bytes) -> tuple[int, str, str | None]:
        """Status, text and Retry-After; a connection that the receiver has closed meanwhile is made once more."""
        for again in (True, False):
            kept = self._connection is not None
            connection = self._connection or self._connect()
            try:
                connection.request("POST", self._target, body, self._headers)
                answer = connection.getresponse()
                text = answer.read(MOST_ANSWER).decode("utf-8", "replace").strip()
                if answer.read(1):
                    self.close()  # a longer answer than anybody needs
                return answer.status, text, answer.getheader("Retry-After")
            except (
                http.client.RemoteDisconnected,
                BrokenPipeError,
                ConnectionResetError,
                http.client.CannotSendRequest,
            ):
                self.close()
                if not (kept and again):
                    raise
        raise AssertionError

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._tls
            )
        else:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return self._connection

    @staticmethod
    def _answer(status: int, text: str, retry_after: str | None) -> Answer:
        if 200 <= status < 300:
            return Answer(Verdict.TAKEN)
        why = f"{status} {text[:200]}".strip()
        if status in REFUSED or (status == 500 and HOPELESS.search(text)):
            return Answer(Verdict.REFUSED, why)
        return Answer(Verdict.LATER, why, wait_of(retry_after, time.time()))

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def wait_of(header: str | None, now_s: float) -> float | None:
    """Seconds of a Retry-After header, which has seconds or a date; None where it makes no sense."""
    if not header:
        return None
    if header.strip().isdecimal():
        return min(float(header), MOST_WAIT_S)
    try:
        return min(max(parsedate_to_datetime(header).timestamp() - now_s, 0.0), MOST_WAIT_S)
    except (ValueError, TypeError):
        return None


def _tls(options: AgentOptions) -> ssl.SSLContext:
    if not hasattr(http.client, "HTTPSConnection"):
        raise UsageError("This agent was started without TLS.", cure="restart it with the new address")
    import ssl

    try:
        context = ssl.create_default_context(cafile=options.remote_write_ca)
        if options.remote_write_cert is not None:
            context.load_cert_chain(options.remote_write_cert, options.remote_write_key, password="")
    except (OSError, ValueError) as error:
        files = [options.remote_write_ca, options.remote_write_cert, options.remote_write_key]
        named = ", ".join(str(Path(file)) for file in files if file is not None)
        raise UsageError(f"{named} cannot be used for TLS: {error}.") from None
    return context


def _reason(error: Exception) -> str:
    untrusted = getattr(error, "verify_message", None)
    if untrusted:
        return f"its certificate is not trusted ({untrusted})"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
