"""JSON over HTTP for meters: time-outs, verified TLS, no redirect to another host, nothing secret in any message."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from everywatt.core.errors import SensorError

MOST_BYTES = 4 << 20
MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the status, the headers in lower case, the JSON (None where there is none)."""

    status: int
    headers: Mapping[str, str]
    data: Any


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password. Its text shows neither."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


def login_of(name: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> Login | None:
    """A sensor's credentials: `user` and `password_file` of its options, else two variables of the environment."""
    prefix = f"EVERYWATT_{name.upper()}_"
    user = options.get("user") or environ.get(prefix + "USER")
    password = secret(options.get("password_file"), environ.get(prefix + "PASSWORD"))
    return Login(str(user), password) if user and password is not None else None


def secret(file: Any, otherwise: str | None) -> str | None:
    """The first line of a file, or what the environment says. SensorError where the file cannot be read."""
    if not file:
        return otherwise
    try:
        return Path(str(file)).read_text(encoding="utf-8").splitlines()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no text"
        raise SensorError(f"{file} cannot be read: {reason}.") from None


@dataclass(frozen=True, slots=True)
class Site:
    """One web server. `ca_file` is a certificate (authority) to trust for https beside, instead of, the system's."""

    url: str
    ca_file: str | None = None
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SensorError("url is no http:// or https:// address.")
        if parts.username or parts.password:
            raise SensorError("url holds credentials; they belong in user and password_file, or in the environment.")

    @property
    def host(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.url).netloc

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """GET `path` of this server, following redirects that stay on it."""
        return self.request("GET", path, None, headers)

    def request(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """Any request with JSON. Raises SensorError where there is no answer, or one from somewhere else."""
        url = urljoin(self.url, path)
        for _ in range(MOST_REDIRECTS + 1):
            self._same_place(url)
            answer = self._once(method, url, body, headers or {})
            if answer.status not in _REDIRECTS:
                return answer
            url = urljoin(url, answer.headers.get("location", ""))
        raise SensorError(f"{self.host} redirects more than {MOST_REDIRECTS} times.")

    def _same_place(self, url: str) -> None:
        own, other = urlsplit(self.url), urlsplit(url)
        usual = {"http": 80, "https": 443}
        there = [(one.scheme, one.hostname, one.port or usual.get(one.scheme)) for one in (own, other)]
        if there[0] != there[1]:
            raise SensorError(f"{self.host} redirects to another place ({other.scheme}://{other.hostname}): refused.")

    def _once(self, method: str, url: str, body: Any, headers: Mapping[str, str]) -> Answer:
        import http.client

        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        text = None if body is None else json.dumps(body)
        sent = {"Accept": "application/json", **({"Content-Type": "application/json"} if text else {}), **headers}
        connection = self._connect(parts.scheme, str(parts.hostname), parts.port)
        try:
            connection.request(method, target, text, sent)
            response = connection.getresponse()
            raw = response.read(MOST_BYTES + 1)
            found = {name.lower(): value for name, value in response.getheaders()}
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SensorError(f"{self.host} does not answer: {_reason(error)}.") from None
        finally:
            connection.close()
        if len(raw) > MOST_BYTES:
            raise SensorError(f"{self.host} answers with more than {MOST_BYTES >> 20} MiB.")
        return Answer(response.status, found, _json(raw))

    def _connect(self, scheme: str, host: str, port: int | None) -> Any:
        import http.client

        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise SensorError(f"ca_file cannot be used: {_reason(error)}.") from None
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=context)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "time is up"
    verify = getattr(error, "verify_message", None)
    if verify:
        return f"its certificate is not trusted ({verify})"
    return getattr(error, "strerror", None) or type(error).__name__


def number(value: Any) -> float | None:
    """A finite JSON number, None for anything else (also for true and false)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < 1e15 else None


def good(answer: Answer, host: str) -> Any:
    """The data of an answer of status 200; SensorError with the status where it is another."""
    if answer.status == 401 or answer.status == 403:
        raise SensorError(f"{host} refuses: {answer.status} (credentials missing or wrong).")
    if answer.status != 200:
        raise SensorError(f"{host} answers with status {answer.status}.")
    return answer.data
