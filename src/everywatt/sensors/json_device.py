"""Meters that answer with JSON over HTTP: credentials from options or environment, failures as SensorError."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import NetworkError, SensorError, UsageError
from everywatt.core.foreign import parse_json
from everywatt.net.client import Client, Limits, Response
from everywatt.net.tls import ClientTls
from everywatt.net.url import Login, Url

MAX_BYTES = 4 << 20
MAX_REDIRECTS = 3
KEEP_S = 30.0  # a BMC is spared a TLS handshake for each reading


class JsonDevice:
    """One device. Credentials reach no other origin: a redirect that leaves it is refused.

    ca_file    certificates (PEM) to trust for https instead of the system's
    timeout_s  for the connection, and for each wait for data
    keep       whether its connection is kept for the next question; small plugs serve one client at a time
    login      credentials, sent where the device asks for them: as a digest where it can check one, else in clear
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: str | None = None,
        timeout_s: float = 5.0,
        keep: bool = False,
        login: Login | None = None,
    ) -> None:
        self._login = login
        self._authorization: Callable[[str, str], str] | None = None
        limits = Limits(
            connect_s=timeout_s,
            silence_s=timeout_s,
            total_s=2 * timeout_s,
            body_bytes=MAX_BYTES,
            redirects=MAX_REDIRECTS,
            keep_s=KEEP_S if keep else 0.0,
        )
        try:
            self.url = Url.parse(url)
            tls = ClientTls(ca=None if ca_file is None else Path(ca_file))
            headers = {"Accept": "application/json"}
            self._client = Client(self.url.origin, headers=headers, tls=tls, limits=limits)
        except UsageError as error:
            raise SensorError(error.message) from None
        if self.url.login is not None:
            raise SensorError(
                "url contains credentials; put them into user and password_file, or into the environment."
            )

    @property
    def host(self) -> str:
        return self.url.netloc

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON at `path`. SensorError where the status is not 200."""
        return good(self.request("GET", path, headers=headers), self.host)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        answer = self._request(method, path, body, headers or {})
        if answer.status == 401 and self._login is not None:
            asked = answer.headers.get("www-authenticate")
            digest = Digest.of(self._login, asked)
            if digest is not None:
                self._authorization = digest.answer
            elif (asked or "").lower().startswith("basic"):
                basic = self._login.basic
                self._authorization = lambda method, path: basic
            else:
                return answer
            answer = self._request(method, path, body, headers or {})
        return answer

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
        if self._authorization is not None:
            headers = {"Authorization": self._authorization(method, path), **headers}
        try:
            return self._client.request(method, path, body=body, headers=headers)
        except NetworkError as error:
            silent = error.kind not in ("redirect", "too-large", "protocol")
            raise SensorError(f"{self.host}{' does not answer' if silent else ''}: {error.reason}.") from None

    def close(self) -> None:
        self._client.close()


def good(answer: Response, host: str) -> Any:
    """The JSON of a response of status 200, None where it has none; SensorError where the status is another."""
    if answer.status in (401, 403):
        raise SensorError(f"{host} refuses access: {answer.status} (credentials missing or wrong).")
    if answer.status != 200:
        raise SensorError(f"{host} responds with status {answer.status}.")
    try:
        return parse_json(answer.body)
    except ValueError:
        return None


_HASHES: Final = {"MD5": "md5", "SHA-256": "sha256"}
_PART: Final = re.compile(r'([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


class Digest:
    """Answers to a server's challenge; each has a count of its own, as the nonce wants it."""

    def __init__(self, login: Login, challenge: Mapping[str, str]) -> None:
        self._login, self._challenge = login, challenge
        self._hash = _HASHES[challenge.get("algorithm", "MD5").upper()]
        self._count = 0

    @classmethod
    def of(cls, login: Login, header: str | None) -> Digest | None:
        """By a WWW-Authenticate header; None where that wants something else."""
        scheme, _, rest = (header or "").partition(" ")
        asked = {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in _PART.findall(rest)}
        known = asked.get("algorithm", "MD5").upper() in _HASHES and "auth" in asked.get("qop", "").split(",")
        whole = scheme.lower() == "digest" and {"realm", "nonce"} <= asked.keys()
        return cls(login, asked) if whole and known else None

    def answer(self, method: str, target: str) -> str:
        """The value of an Authorization header for one request."""
        self._count += 1
        asked, count, own = self._challenge, f"{self._count:08x}", secrets.token_hex(8)
        secret = self._digest(self._login.user, asked["realm"], self._login.password)
        response = self._digest(secret, asked["nonce"], count, own, "auth", self._digest(method, target))
        quoted = {"username": self._login.user, "realm": asked["realm"], "nonce": asked["nonce"], "uri": target}
        quoted |= {"response": response, "cnonce": own} | ({"opaque": asked["opaque"]} if "opaque" in asked else {})
        words = [f'{name}="{_escaped(value)}"' for name, value in quoted.items()]
        return f"Digest {', '.join(words)}, algorithm={asked.get('algorithm', 'MD5')}, qop=auth, nc={count}"

    def _digest(self, *parts: str) -> str:
        return hashlib.new(self._hash, ":".join(parts).encode(), usedforsecurity=False).hexdigest()


def _escaped(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)
