"""Digest credentials (RFC 7616), for devices that want them: MD5, SHA-256, `qop=auth`."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Final

from everywatt.net.url import Login

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
        told = {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in _PART.findall(rest)}
        known = told.get("algorithm", "MD5").upper() in _HASHES and "auth" in told.get("qop", "").split(",")
        return cls(login, told) if scheme.lower() == "digest" and known and {"realm", "nonce"} <= told.keys() else None

    def answer(self, method: str, target: str) -> str:
        """The value of an Authorization header for one request."""
        self._count += 1
        told, count, own = self._challenge, f"{self._count:08x}", secrets.token_hex(8)
        secret = self._digest(self._login.user, told["realm"], self._login.password)
        response = self._digest(secret, told["nonce"], count, own, "auth", self._digest(method, target))
        quoted = {"username": self._login.user, "realm": told["realm"], "nonce": told["nonce"], "uri": target}
        quoted |= {"response": response, "cnonce": own} | ({"opaque": told["opaque"]} if "opaque" in told else {})
        words = [f'{name}="{_escaped(value)}"' for name, value in quoted.items()]
        return f"Digest {', '.join(words)}, algorithm={told.get('algorithm', 'MD5')}, qop=auth, nc={count}"

    def _digest(self, *parts: str) -> str:
        return hashlib.new(self._hash, ":".join(parts).encode(), usedforsecurity=False).hexdigest()


def _escaped(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)
