"""An HTTP API that is asked until it answers: addresses as people type them, tokens, retries with growing waits; and
questions in PromQL to Prometheus, VictoriaMetrics or Mimir.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from everywatt.core.errors import EverywattError, MeasurementRefused, NetworkError, UsageError
from everywatt.net.client import REDIRECTS, Client, Limits, Response
from everywatt.net.http1 import Backoff, retry_after_s
from everywatt.net.tls import ClientTls
from everywatt.net.url import Url

TIMEOUT_S: Final = 60.0
MAX_BYTES: Final = 512 << 20
WAITS: Final = Backoff(retries=4, first_s=0.5, most_s=15.0)
_AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)
_ENDS: Final = ("/api/v1/query_range", "/api/v1/query", "/api/v1/write", "/api/v1", "/graph")
Params = Sequence[tuple[str, str]]


class NotTaken(Exception):
    """The server understood, and refused this very question (400, 413, 422, or an answer that is too large)."""


class _Later(Exception):
    """It may be different the next time. `wait_s` is what the server asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


def corrected(url: str) -> tuple[str, str | None]:
    """An address with its http://, and a sentence where that had to be added. UsageError for anything else.

    >>> corrected("store:9090/prometheus/")
    ('http://store:9090/prometheus', "'store:9090/prometheus/' has no scheme; using http://store:9090/prometheus.")
    """
    text = url.strip()
    full = text if "://" in text else f"http://{text.lstrip('/')}"
    try:
        if any(letter.isspace() for letter in full) or (text.startswith("/") and not text.startswith("//")):
            raise UsageError("blank, or a path")
        Url.parse(full)
    except UsageError:
        raise UsageError(
            f"'{url}' is not the address of a server.", cure="http://HOST:PORT, such as http://store:9090"
        ) from None
    parts = urlsplit(full)
    path = parts.path.rstrip("/")
    for end in _ENDS:
        path = path.removesuffix(end)
    full = parts._replace(path=path, fragment="").geturl()
    return full, None if "://" in text else f"'{url}' has no scheme; using {Url.parse(full).shown}."


class ApiClient:
    """One server, safe to use from threads. A path prefix of its address (a proxy's, a tenant's) and query are kept.

    http_proxy, https_proxy and no_proxy of the environment count.
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
        limits = Limits(connect_s=timeout_s, silence_s=timeout_s, total_s=10 * timeout_s, body_bytes=MAX_BYTES)
        headers = {"Accept": "application/json"}
        self._client = Client(self.url, token=token, headers=headers, tls=ClientTls(ca=ca), limits=limits, proxies=True)
        self.shown = self._client.url.shown
        self._waits, self._sleep = waits, sleep

    def ask(
        self, path: str, params: Params = (), *, body: bytes | None = None, check: Callable[[bytes], object] = bytes
    ) -> bytes:
        """The answer to a GET (or a POST of JSON). `check` raises ValueError where an answer is not whole.

        NotTaken where the server refuses the question; MeasurementRefused where it cannot be asked at all, after as
        many tries as `waits` has.
        """
        waits = self._waits.delays()
        while True:
            try:
                data = self._once(path, params, body)
                try:
                    check(data)
                except ValueError as error:
                    raise _Later(f"its response is not valid ({error})") from None
                return data
            except _Later as later:
                wait_s = next(waits, None)
                if wait_s is None:
                    raise MeasurementRefused(
                        f"{self.shown} does not respond: {later}.",
                        cure="check the address, and whether the server is running",
                    ) from None
                self._sleep(self._waits.at_least(wait_s, later.wait_s))

    def _once(self, path: str, params: Params, body: bytes | None) -> bytes:
        try:
            response = self._client.request("GET" if body is None else "POST", path, params, body=body, repeatable=True)
        except NetworkError as error:
            raise self._trouble(error) from None
        return self._judge(response)

    def _trouble(self, error: NetworkError) -> EverywattError | NotTaken | _Later:
        """What to raise: by what went wrong, asking again may help or not."""
        cures = {
            "certificate": "--ca FILE",
            "tls": "http:// instead",
            "name": "check the address",
            "protocol": "try https:// or another port",
        }
        if error.kind in cures:
            return MeasurementRefused(error.message, cure=cures[error.kind])
        if error.kind == "too-large":
            return NotTaken("the response is too large")
        return _Later(error.reason)

    def _judge(self, answer: Response) -> bytes:
        status = answer.status
        if 200 <= status < 300:
            return answer.body
        text = " ".join(answer.body[:400].decode("utf-8", "replace").split())
        if status in _AGAIN:
            if status in (500, 503) and "timed out" in text:
                raise NotTaken(text)
            raise _Later(f"{status} {text[:200]}".strip(), retry_after_s(answer.headers.get("retry-after")))
        if status in (400, 413, 422):
            if "HTTP request to an HTTPS server" in text or "plain HTTP request" in text:
                raise MeasurementRefused(f"{self.shown} requires TLS.", cure="use https:// instead of http://")
            raise NotTaken(text or f"status {status}")
        if status in (401, 403):
            raise MeasurementRefused(f"{self.shown} requires authentication ({status}).", cure="--token-file FILE")
        if status in REDIRECTS:
            try:
                where = Url.parse(answer.headers.get("location", "")).shown
            except UsageError:
                where = "another location"
            raise MeasurementRefused(
                f"{self.shown} redirects to {where}.", cure="use that address if it is the right one"
            )
        raise MeasurementRefused(
            f"{self.shown} responds with {status} {answer.reason}: no such API.",
            cure="check the address and its path",
        )


class Samples(NamedTuple):
    """One series of an answer: its labels, and its samples as unix seconds and values."""

    labels: Mapping[str, str]
    values: list[tuple[float, float]]


def query(client: ApiClient, promql: str, at_s: float) -> list[Samples]:
    """What an expression is at an instant (unix seconds): one sample a series. MeasurementRefused where it fails."""
    return _samples(client, "/api/v1/query", promql, {"time": at_s})


def query_range(client: ApiClient, promql: str, start_s: float, end_s: float, step_s: float) -> list[Samples]:
    """What an expression is at every step of a time, both ends included."""
    return _samples(client, "/api/v1/query_range", promql, {"start": start_s, "end": end_s, "step": step_s})


def _samples(client: ApiClient, path: str, promql: str, times_s: Mapping[str, float]) -> list[Samples]:
    params = [("query", promql), *((name, f"{at_s:.3f}") for name, at_s in times_s.items())]
    try:
        data = api_answer(client, path, params)["data"]["result"]
    except NotTaken as error:
        raise refusal(client, promql, error) from None
    rows = ((entry["metric"], entry.get("values") or [entry["value"]]) for entry in data)
    return [Samples(labels, [(float(at_s), float(text)) for at_s, text in values]) for labels, values in rows]


def api_answer(client: ApiClient, path: str, params: Params) -> dict[str, Any]:
    """The JSON of an answer. NotTaken if the server refuses it; MeasurementRefused if it is not Prometheus."""
    kept: list[Any] = []
    client.ask(path, params, check=lambda data: kept.append(json.loads(data)))
    found = kept[-1]
    if not isinstance(found, dict) or "status" not in found:
        raise MeasurementRefused(
            f"{client.shown} is not a Prometheus server: unexpected response.", cure="check the address"
        )
    if found["status"] != "success":
        raise NotTaken(str(found.get("error") or "no reason given"))
    if found.get("isPartial"):
        found = {**found, "warnings": [*(found.get("warnings") or ()), "the response is partial"]}
    return found


def refusal(client: ApiClient, promql: str, error: NotTaken) -> MeasurementRefused:
    text = str(error)
    try:
        text = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        pass
    return MeasurementRefused(f"{client.shown} rejects {promql}: {text.rstrip('.')}.")
