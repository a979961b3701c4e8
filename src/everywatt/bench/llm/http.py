"""One HTTP client with keep-alive for streamed answers: time-outs, retries with backoff, and raw times of arrival."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.values import OK, Answer
from everywatt.bench.llm.wire import whole
from everywatt.core.errors import MissingExtra

if TYPE_CHECKING:
    import httpx

AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
MOST_ERROR_BYTES = 2000
LINGER_S = 0.05
THINK, NO_MORE = "<think>", "</think>"


@dataclass(slots=True)
class Stream:
    """What has arrived of one answer so far. Clients fill it, piece by piece."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    piece_ns: list[int] = field(default_factory=list)
    first_answer_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None
    done: bool = False
    error: str | None = None
    sent_ns: int | None = None
    logprob_sum: float | None = None
    logprob_tokens: int = 0
    server: Mapping[str, Any] = field(default_factory=dict)
    ended_ns: int | None = None
    limit: asyncio.Timeout | None = None

    def end(self, at_ns: int) -> bool:
        """The answer is complete. True where the rest, in which nothing is said, should be heard for a moment: a
        connection that is read to its end can be used again."""
        self.done, self.ended_ns = True, at_ns
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time() + LINGER_S)
        return self.limit is not None

    async def trace(self, event: str, info: Any) -> None:
        """httpx tells what it does: the first byte of the request goes out here, on a connection that stands."""
        if event.endswith("send_request_headers.started"):
            self.sent_ns = time.monotonic_ns()

    def piece(self, at_ns: int, text: str = "", reasoning: str = "") -> None:
        """A piece of text arrived."""
        if not text and not reasoning:
            return
        self.piece_ns.append(at_ns)
        if reasoning:
            self.reasoning.append(reasoning)
        if text:
            self.text.append(text)
            if self.first_answer_ns is None and _spoken("".join(self.text)):
                self.first_answer_ns = at_ns

    def logprob(self, value: Any) -> None:
        """A token's log-probability; what is no number (the first token of an echoed prompt has none) is left out."""
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            self.logprob_sum = (self.logprob_sum or 0.0) + value
            self.logprob_tokens += 1

    def answer(self, status: str, began_ns: int, sent_ns: int, *, attempts: int, error: str | None = None) -> Answer:
        """The answer as it stands, which ended now if it did not before."""
        thought, text = _apart(whole(self.text))
        return Answer(
            status,
            text,
            whole(self.reasoning) + thought,
            began_ns,
            sent_ns,
            self.ended_ns or time.monotonic_ns(),
            tuple(self.piece_ns),
            self.first_answer_ns,
            self.input_tokens,
            self.output_tokens,
            "usage" if self.output_tokens is not None else None,
            attempts,
            self.finish,
            error,
            self.logprob_sum,
            self.logprob_tokens,
            self.server,
        )


def _apart(text: str) -> tuple[str, str]:
    """Reasoning that a server leaves in the text, between <think> and </think> at its start, and the rest."""
    body = text.lstrip()
    if not body.startswith(THINK):
        return "", text
    thought, _, rest = body.removeprefix(THINK).partition(NO_MORE)
    return thought, rest.lstrip()


def _spoken(text: str) -> bool:
    """Whether a text so far has something of the answer itself; a beginning of <think> may become one."""
    body = text.lstrip()
    return bool(_apart(text)[1].strip()) if body.startswith(THINK) else bool(body) and not THINK.startswith(body)


class Refused(Exception):
    """The server answered with an error. `again` tells whether a further attempt makes sense."""

    def __init__(self, code: int, text: str, after_s: float | None) -> None:
        super().__init__(f"HTTP {code}: {text}" if text else f"HTTP {code}")
        self.again = code in AGAIN
        self.status = "failed" if code >= 500 or code == 429 else "refused"
        self.after_s = after_s


class Http:
    """Requests to one server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._client: httpx.AsyncClient | None = None
        self._lingers = True  # until a server keeps a stream open after its last event

    @property
    def client(self) -> httpx.AsyncClient:
        """The client, made when it is first needed: inside of the running event loop."""
        if self._client is None:
            try:
                import httpx
            except ImportError:
                raise MissingExtra("httpx", "llm") from None
            of = self.connection
            headers = {"Authorization": f"Bearer {of.key}"} if of.key else {}
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=max(of.concurrency, 20))
            self._client = httpx.AsyncClient(
                headers=headers,
                limits=limits,
                trust_env=False,
                timeout=httpx.Timeout(of.silence_s, connect=of.connect_s, pool=None),
            )
        return self._client

    async def get(self, url: str, timeout_s: float = 10.0) -> httpx.Response:
        """A small document; httpx.HTTPError where there is none."""
        return await self.client.get(url, timeout=timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def stream(self, url: str, body: Mapping[str, Any], read: Callable[[Any, Stream], Any]) -> Answer:
        """POST and read the answer as it comes. Tried again only as long as nothing of an answer has arrived."""
        began_ns = time.monotonic_ns()
        waits = self.connection.backoff.delays()
        attempts = 0
        while True:
            attempts += 1
            got, asked_ns = Stream(), time.monotonic_ns()
            status, error, again, after_s = await self._attempt(url, body, read, got)
            wait_s = next(waits, None) if again and not got.piece_ns else None
            if wait_s is None:
                break
            await asyncio.sleep(self.connection.backoff.at_least(wait_s, after_s))
        made = got.answer(status, began_ns, got.sent_ns or asked_ns, attempts=attempts, error=error)
        return self.connection.without_key_in(made)

    async def _attempt(
        self, url: str, body: Mapping[str, Any], read: Callable[[Any, Stream], Any], got: Stream
    ) -> tuple[str, str | None, bool, float | None]:
        """Status, what went wrong, whether to try again, and how long the server asks to wait."""
        import httpx

        try:
            request = self.client.build_request("POST", url, json=body, extensions={"trace": got.trace})
            async with asyncio.timeout(self.connection.total_s) as limit, _streamed(self.client, request) as response:
                if response.status_code >= 400:
                    raise Refused(response.status_code, await _said(response), _after(response))
                got.limit = limit if self._lingers else None
                await read(response, got)
        except Refused as error:
            return error.status, str(error), error.again, error.after_s
        except (httpx.HTTPError, httpx.StreamError, OSError, ValueError) as error:
            if not got.done:
                return (*_trouble(error, got), None)
            self._lingers = False
        if got.error is not None:
            return "broken" if got.piece_ns else "failed", got.error, not got.piece_ns, None
        if not got.done and got.finish is None:
            return "broken", "the stream ended before the answer did", not got.piece_ns, None
        return OK, None, False, None


def _trouble(error: Exception, got: Stream) -> tuple[str, str, bool]:
    """Status, what went wrong and whether to try again, where an answer did not come to its end."""
    import httpx

    if isinstance(error, TimeoutError | httpx.TimeoutException):
        why = f"nothing for too long ({type(error).__name__})"
        return "timeout", why, isinstance(error, httpx.ConnectTimeout)
    if isinstance(error, ValueError):
        return "broken", f"what the server sent cannot be read: {error}", False
    return ("broken" if got.piece_ns else "failed"), f"{type(error).__name__}: {error}", True


@asynccontextmanager
async def _streamed(client: httpx.AsyncClient, request: httpx.Request) -> AsyncIterator[httpx.Response]:
    response = await client.send(request, stream=True)
    try:
        yield response
    finally:
        await response.aclose()


async def _said(response: httpx.Response) -> str:
    """The beginning of what the server said about its error."""
    data = b""
    async for part in response.aiter_bytes():
        data += part
        if len(data) >= MOST_ERROR_BYTES:
            break
    return data[:MOST_ERROR_BYTES].decode("utf-8", "replace").strip()


def _after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None
