"""Addresses of servers: taken apart once, compared by origin, and shown without the secrets they may hold."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urljoin, urlsplit

from everywatt.core.errors import UsageError

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password. Its repr shows neither."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header (RFC 7617)."""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Url:
    """An http or https address. `query` has no question mark; a fragment is dropped."""

    scheme: str
    host: str
    port: int
    path: str = ""
    query: str = field(default="", repr=False)
    login: Login | None = None

    @classmethod
    def parse(cls, text: str) -> Url:
        """UsageError where the text is not such an address."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        odd = not text.isprintable() or any(letter.isspace() for letter in parts.netloc)
        if odd or parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
            raise UsageError(
                f"'{_without_login(text)}' is not an http:// or https:// address.", cure="http://HOST:PORT"
            )
        login = None
        if parts.username is not None:
            login = Login(unquote(parts.username), unquote(parts.password or ""))
        host, port = parts.hostname, port or DEFAULT_PORTS[parts.scheme]
        return cls(parts.scheme, host, port, parts.path, parts.query, login)

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def netloc(self) -> str:
        """Host and port as a Host header names them: no port where it is the usual one."""
        try:
            name = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode("ascii")
        except UnicodeError:
            name = self.host.encode("ascii", "backslashreplace").decode("ascii")  # for the resolver to refuse
        return name if self.port == DEFAULT_PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port: what credentials are bound to."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def shown(self) -> str:
        """For messages: without user, password and query."""
        return f"{self.origin}{self.base}"

    @property
    def base(self) -> str:
        """The path without slashes at its end, to put a path behind it."""
        return self.path.rstrip("/")

    def joined(self, location: str, target: str) -> Url:
        """Where a Location header of the response to `target` points to. UsageError where it is no address."""
        try:
            return Url.parse(urljoin(f"{self.origin}{target}", location))
        except ValueError:
            raise UsageError("The location is not an address.") from None

    @property
    def target(self) -> str:
        """Path and query as a request names them."""
        return (self.path or "/") + (f"?{self.query}" if self.query else "")


def _without_login(text: str) -> str:
    scheme, slashes, rest = text.partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}" if slashes else text
