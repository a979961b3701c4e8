"""Questions to a server over HTTP: corrected addresses, tokens, TLS, retries with waits that grow, answers as bytes."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.retry import Backoff
from everywatt.fleet.post import wait_of

TIMEOUT_S: Final = 60.0
MOST_BYTES: Final = 512 << 20
WAITS: Final = Backoff(retries=4, first_s=0.5, most_s=15.0)
_AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)
_ELSEWHERE: Final = (301, 302, 303, 307, 308)
_ENDS: Final = ("/api/v1/query_range", "/api/v1/query", "/api/v1/write", "/api/v1", "/graph")
Params = Sequence[tuple[str, str]]


class NotTaken(Exception):
    """The server understood, and said no to this very question (400, 413, 422, or an answer that is too large)."""


class _Later(Exception):
    """It may be different the next time. `wait_s` is what the server asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


def corrected(url: str) -> tuple[str, str | None]:
    """An address with its http://, and the sentence to tell where that had to be added. UsageError for anything else.

    >>> corrected("store:9090/prometheus/")
    ('http://store:9090/prometheus', "'store:9090/prometheus/' has no http://; it is taken as http://store:9090/prometheus.")
    """
    text = url.strip()
    told = text if "://" in text else f"http://{text.lstrip('/')}"
    try:
        parts = urlsplit(told)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or any(letter.isspace() or not letter.isprintable() for letter in told):
        raise UsageError(f"'{url}' is not an address of a server.", cure="http://HOST:PORT, as in http://store:9090")
    path = parts.path.rstrip("/")
    for end in _ENDS:
        path = path.removesuffix(end)
    told = parts._replace(path=path, fragment="").geturl()
    return told, None if "://" in text else f"'{url}' has no http://; it is taken as {_shown(urlsplit(told))}."


def _shown(parts: SplitResult) -> str:
    """An address without the secret that may stand in it."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


class Client:
    """One server. A path prefix of the address (a proxy's, a tenant's) and its query are kept.

    Safe to use from several threads: each question has a connection of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        waits: Backoff = WAITS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url, self.corrected = corrected(url)
        self._parts = urlsplit(self.url)
        self.shown = _shown(self._parts)
        self._timeout_s, self._waits, self._sleep = timeout_s, waits, sleep
        self._tls = _trust(ca) if self._parts.scheme == "https" else None
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "everywatt"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        elif self._parts.username is not None:
            pair = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()

    def ask(
        self, path: str, params: Params = (), *, body: bytes | None = None, sound: Callable[[bytes], object] = bytes
    ) -> bytes:
        """The answer to a GET (or a POST of JSON). `sound` raises ValueError where an answer is not whole.

        NotTaken where the server refuses the question; MeasurementRefused where it cannot be asked at all, after as
        many tries as `waits` has.
        """
        waits = self._waits.delays()
        while True:
            try:
                data = self._once(path, params, body)
                try:
                    sound(data)
                except ValueError as error:
                    raise _Later(f"its answer makes no sense ({error})") from None
                return data
            except _Later as later:
                wait_s = next(waits, None)
                if wait_s is None:
                    raise MeasurementRefused(
                        f"{self.shown} gives no answer: {later}.", cure="the address, and whether the server runs"
                    ) from None
                self._sleep(self._waits.at_least(wait_s, later.wait_s))

    def _once(self, path: str, params: Params, body: bytes | None) -> bytes:
        query = "&".join(filter(None, (self._parts.query, urlencode(list(params)))))
        target = f"{self._parts.path}{path}" + (f"?{query}" if query else "")
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        connection = self._connection()
        try:
            connection.request("GET" if body is None else "POST", target, body, headers)
            answer = connection.getresponse()
            data = answer.read(MOST_BYTES + 1)
            encoding, length = answer.getheader("Content-Encoding"), answer.length
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._trouble(error) from None
        finally:
            connection.close()
        if len(data) > MOST_BYTES:
            raise NotTaken("the answer is too large")
        if length:
            raise _Later("it stopped in the middle of its answer")
        return self._judge(answer, _unpacked(data) if encoding == "gzip" else data)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _trouble(self, error: Exception) -> Exception:
        if isinstance(error, ssl.SSLCertVerificationError):
            return MeasurementRefused(
                f"The certificate of {self.shown} is not trusted: {error.verify_message}.", cure="--ca FILE"
            )
        if isinstance(error, ssl.SSLError):
            return MeasurementRefused(
                f"{self.shown} does not speak TLS as it should: {error.reason or error}.", cure="http:// instead"
            )
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            return MeasurementRefused(f"'{self._parts.hostname}' is no name that is known here.", cure="the address")
        if isinstance(error, TimeoutError):
            return _Later(f"nothing came for {self._timeout_s:g} s")
        if isinstance(error, http.client.IncompleteRead):
            return _Later("it stopped in the middle of its answer")
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            return MeasurementRefused(f"{self.shown} does not speak HTTP.", cure="https:// or another port")
        return _Later(str(getattr(error, "strerror", None) or error or type(error).__name__))

    def _judge(self, answer: http.client.HTTPResponse, data: bytes) -> bytes:
        status = answer.status
        if 200 <= status < 300:
            return data
        text = " ".join(data[:400].decode("utf-8", "replace").split())
        if status in _AGAIN:
            if status in (500, 503) and "timed out" in text:
                raise NotTaken(text)
            raise _Later(f"{status} {text[:200]}".strip(), wait_of(answer.getheader("Retry-After"), time.time()))
        if status in (400, 413, 422):
            if "HTTP request to an HTTPS server" in text or "plain HTTP request" in text:
                raise MeasurementRefused(f"{self.shown} speaks TLS only.", cure="https:// instead of http://")
            raise NotTaken(text or f"status {status}")
        if status in (401, 403):
            raise MeasurementRefused(f"{self.shown} wants to know who asks ({status}).", cure="--token-file FILE")
        if status in _ELSEWHERE:
            where = urlsplit(answer.getheader("Location") or "")
            raise MeasurementRefused(
                f"{self.shown} sends us to {_shown(where) or 'another place'}.",
                cure="that address, if it is the right one",
            )
        raise MeasurementRefused(
            f"{self.shown} answers {status} {answer.reason}: there is no such interface.",
            cure="the address, with its path",
        )


def _unpacked(data: bytes) -> bytes:
    try:
        unpacker = zlib.decompressobj(31)
        plain = unpacker.decompress(data, MOST_BYTES)
    except zlib.error:
        raise _Later("its answer cannot be unpacked") from None
    if unpacker.unconsumed_tail:
        raise NotTaken("the answer is too large")
    if not unpacker.eof:
        raise _Later("it stopped in the middle of its answer")
    return plain


def _trust(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise UsageError(f"{ca} cannot be used for TLS: {error}.") from None
