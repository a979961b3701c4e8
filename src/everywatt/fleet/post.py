"""One post of samples, and what its answer means: taken, refused for good, or to be tried again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from everywatt.core.errors import NetworkError
from everywatt.fleet.encodings import ENCODINGS
from everywatt.fleet.options import AgentOptions
from everywatt.fleet.protobuf import Sample
from everywatt.net.client import Client, Limits
from everywatt.net.http1 import retry_after_s
from everywatt.net.tls import ClientTls
from everywatt.net.tokens import read_token

TIMEOUT_S = 30.0
KEEP_S = 600.0
MAX_ANSWER_BYTES = 4096  # of an error's text; the rest says nothing new
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
        assert options.remote_write is not None
        self._encoding = ENCODINGS[options.remote_write_format]
        token, scheme = read_token(None, options.remote_write_token_file), self._encoding.scheme
        own = {} if token is None or scheme == "Bearer" else {"Authorization": f"{scheme} {token}"}
        self._client = Client(
            options.remote_write,
            token=None if own else token,
            headers={**self._encoding.headers, **own},
            tls=ClientTls(options.remote_write_ca, options.remote_write_cert, options.remote_write_key),
            limits=Limits(
                connect_s=timeout_s,
                silence_s=timeout_s,
                total_s=4 * timeout_s,
                body_bytes=MAX_ANSWER_BYTES,
                truncate=True,
                keep_s=KEEP_S,
            ),
        )

    def post(self, series: Sequence[tuple[bytes, tuple[Sample, ...]]]) -> Answer:
        """Send these series."""
        body = self._encoding.write(series)
        # Ends of series alone: there may be nothing to say of them.
        return self.send(body) if body else Answer(Verdict.TAKEN)

    def send(self, body: bytes) -> Answer:
        """Send a request that is written already. Receivers know samples that come twice, so it may be repeated."""
        try:
            kind = self._encoding.content_type
            response = self._client.request("POST", body=body, content_type=kind, repeatable=True)
        except NetworkError as error:
            return Answer(Verdict.LATER, error.reason)
        text = response.text.strip()
        if 200 <= response.status < 300:
            return Answer(Verdict.TAKEN)
        why = f"{response.status} {text[:200]}".strip()
        if response.status in REFUSED or (response.status == 500 and HOPELESS.search(text)):
            return Answer(Verdict.REFUSED, why)
        return Answer(Verdict.LATER, why, retry_after_s(response.headers.get("retry-after")))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
