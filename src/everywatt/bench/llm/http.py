"""Questions over HTTP: streamed answers with raw times of arrival, time-outs, retries with backoff.

What a server sends is looked at before it is trusted: every surprise is a ValueError, which ends that query alone.
Answers are streamed in two ways: as lines, and as server-sent events made of lines.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.records import OK, Answer
from everywatt.core.clocks import NS
from everywatt.core.errors import NetworkError
from everywatt.net.client import Response
from everywatt.net.http1 import Head, retry_after_s
from everywatt.net.streaming import BodySink, Sink, StreamClient


def document(text: str) -> dict[str, Any]:
    """A JSON object as it came."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


def part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A nested object, or an empty one if it is missing."""
    found = data.get(name)
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"'{name}' is not an object")
    return found or {}


def parts(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a nested list; empty if the list is missing."""
    found = data.get(name)
    if found is not None and not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
        raise ValueError(f"'{name}' is not a list of objects")
    return found or []


def words(data: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that has a text; empty where none has."""
    for name in names:
        found = data.get(name)
        if found is not None and not isinstance(found, str):
            raise ValueError(f"'{name}' is not a string")
        if found:
            return found
    return ""


def count(value: Any) -> int | None:
    """A number of tokens as reported by a server; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def numbers(data: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of an object; the rest of it is left out."""
    return {
        name: value
        for name, value in data.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def whole(pieces: list[str]) -> str:
    """The text of all pieces; a character that came in two halves is one again, half a character is replaced."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
MOST_ERROR_BYTES = 2000  # kept of what a server says that refuses
MOST_BYTES = 1 << 26  # of a document (lists of models, metrics), and of one line of a stream
LINGER_S = 0.05  # so long the end of a complete answer is waited for: then its connection can be used again
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
    _begun: str = ""  # as much of the text as it takes to see where the answer itself begins

    def end(self, at_ns: int) -> None:
        self.done, self.ended_ns = True, at_ns

    @property
    def over(self) -> bool:
        return self.done or self.error is not None

    def piece(self, at_ns: int, text: str = "", reasoning: str = "") -> None:
        if not text and not reasoning:
            return
        self.piece_ns.append(at_ns)
        if reasoning:
            self.reasoning.append(reasoning)
        if text:
            self.text.append(text)
            if self.first_answer_ns is None and self._spoken(text):
                self.first_answer_ns = at_ns

    def _spoken(self, text: str) -> bool:
        """Whether this piece has something of the answer itself; a beginning of <think> may become one."""
        self._begun += text
        body = self._begun.lstrip()
        if not body.startswith(THINK):
            return bool(body) and not THINK.startswith(body)
        thought, ended, rest = body.removeprefix(THINK).partition(NO_MORE)
        if not ended:
            self._begun = THINK + thought[-len(NO_MORE) :]
        return bool(rest.strip())

    def logprob(self, value: Any) -> None:
        """A token's log-probability; what is no number (the first token of an echoed prompt has none) is left out."""
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            self.logprob_sum = (self.logprob_sum or 0.0) + value
            self.logprob_tokens += 1

    def answer(self, status: str, began_ns: int, sent_ns: int, *, attempts: int, error: str | None = None) -> Answer:
        """The answer so far; it ends now unless it has already ended."""
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


@dataclass(slots=True)
class Reading(Sink):
    """A response on its way. An answer goes into its stream; a small document (there is no reader), and what a server
    says that refuses, is kept."""

    reader: BodySink | None = None
    got: Stream = field(default_factory=Stream)
    head: Head = field(default_factory=lambda: Head(0))
    kept: bytearray = field(default_factory=bytearray)

    @property
    def refused(self) -> bool:
        """Whether the server answers with an error."""
        return self.head.status >= 300

    @property
    def response(self) -> Response:
        """The document, or the refusal, as a whole."""
        return Response(self.head.status, self.head.headers, bytes(self.kept))

    def sent(self, at_ns: int) -> None:
        self.got.sent_ns = at_ns

    def begin(self, head: Head) -> None:
        self.head = head
        if self.reader is not None and not self.refused:
            self.reader.begin(head)

    def feed(self, at_ns: int, data: bytes) -> bool:
        if self.reader is not None and not self.refused:
            return self.reader.feed(at_ns, data)
        most = MOST_BYTES if self.reader is None else MOST_ERROR_BYTES
        self.kept += data[: most - len(self.kept)]
        return len(self.kept) >= most

    def end(self, at_ns: int) -> None:
        if self.reader is not None and not self.refused:
            self.reader.end(at_ns)


BOM = b"\xef\xbb\xbf"


Take = Callable[[str, int, Stream], None]
"""What is to be done with a text that came, and when (ns), for an answer."""


class Lines:
    """Takes a stream of lines apart: `take` gets each."""

    def __init__(self, got: Stream, take: Take) -> None:
        self._got, self._take = got, take
        self._rest = bytearray()

    def begin(self, head: Head) -> None:
        """The head is there: lines come under many types."""

    def feed(self, at_ns: int, data: bytes) -> bool:
        """A piece came. True: no more is wanted."""
        if b"\n" not in data:
            self._rest += data
            if len(self._rest) > MOST_BYTES:
                raise ValueError("a line does not end")
            return False
        *lines, rest = (bytes(self._rest) + data).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._line(at_ns, line.removesuffix(b"\r"))
            if self._got.over:
                return True
        return False

    def end(self, at_ns: int) -> None:
        """All has come: the last line may lack its end."""
        if self._rest:
            self._line(at_ns, bytes(self._rest))

    def _line(self, at_ns: int, line: bytes) -> None:
        self._take(line.decode("utf-8", "replace"), at_ns, self._got)


class Events(Lines):
    """Server-sent events: `take` gets the data of each."""

    def __init__(self, got: Stream, take: Take) -> None:
        super().__init__(got, take)
        self._data: list[bytes] = []
        self._first = True

    def begin(self, head: Head) -> None:
        """The head is there: it must say that events follow."""
        kind = head.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "text/event-stream":
            raise ValueError(f"expected an event stream, got {kind or 'no content type'}")

    def _line(self, at_ns: int, line: bytes) -> None:
        """A field of an event, its end, or a comment."""
        if self._first:
            self._first, line = False, line.removeprefix(BOM)
        if line.startswith(b"data"):
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        elif not line and self._data:
            text = b"\n".join(self._data).decode("utf-8", "replace")
            self._data.clear()
            self._take(text, at_ns, self._got)


class Http:
    """Requests to one server."""

    def __init__(self, connection: Connection, root: str) -> None:
        self._of, self._root = connection, root
        self._client: StreamClient | None = None
        self._linger_s = LINGER_S  # until a server keeps a stream open after its last event

    @property
    def client(self) -> StreamClient:
        """The connections to the server; made when first needed."""
        if self._client is None:
            key = {"Authorization": f"Bearer {self._of.key}"} if self._of.key else {}
            self._client = StreamClient(
                self._root, connect_s=self._of.connect_s, silence_s=self._of.silence_s, headers=key
            )
        return self._client

    async def get(self, path: str, timeout_s: float = 10.0) -> Response:
        """A small document; NetworkError if it cannot be fetched."""
        reply = Reading()
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange("GET", path, None, reply)
        except TimeoutError:
            raise NetworkError("timeout", self._root, f"no response within {timeout_s:g} s") from None
        return reply.response

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def stream(self, path: str, body: Mapping[str, Any], kind: type[Lines], take: Take) -> Answer:
        """POST and read the answer as it comes. Tried again only as long as nothing of an answer has arrived.

        All attempts and the waits between them share the total time: a wait that would outlast it is not begun.
        """
        began_ns = time.monotonic_ns()
        waits = self._of.backoff.delays()
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        attempts = 0
        while True:
            attempts += 1
            got, asked_ns = Stream(), time.monotonic_ns()
            left_s = self._of.total_s - (asked_ns - began_ns) / NS
            status, error, again, after_s = await self._attempt(path, data, Reading(kind(got, take), got), left_s)
            wait_s = next(waits, None) if again and not got.piece_ns else None
            if wait_s is None:
                break
            wait_s = self._of.backoff.at_least(wait_s, after_s)
            if wait_s >= self._of.total_s - (time.monotonic_ns() - began_ns) / NS:
                if after_s:
                    error = f"{error}; the server asks to wait {after_s:g} s, longer than total_timeout allows"
                break
            await asyncio.sleep(wait_s)
        made = got.answer(status, began_ns, got.sent_ns or asked_ns, attempts=attempts, error=error)
        return self._of.without_key_in(made)

    async def _attempt(
        self, path: str, data: bytes, into: Reading, left_s: float
    ) -> tuple[str, str | None, bool, float | None]:
        """Status, what went wrong, whether to try again, and how long the server asks to wait."""
        got = into.got
        try:
            async with asyncio.timeout(left_s):
                await self._exchange("POST", path, data, into)
            if into.refused:
                return _refusal(into.response)
        except (NetworkError, TimeoutError, ValueError) as error:
            if not got.done:
                return (*_trouble(error, got, self._of.total_s), None)
        if got.error is not None:
            return "broken" if got.piece_ns else "failed", got.error, not got.piece_ns, None
        if not got.done and got.finish is None:
            return "broken", "the stream ended before the answer was complete", not got.piece_ns, None
        return OK, None, False, None

    async def _exchange(self, method: str, path: str, data: bytes | None, sink: Sink) -> None:
        """Ask, and wait for the end of the answer."""
        if await self.client.request(method, path, data, sink, linger_s=self._linger_s):
            self._linger_s = 0.0


def _refusal(said: Response) -> tuple[str, str, bool, float | None]:
    """The same of an answer with an error."""
    code, where = said.status, said.headers.get("location")
    text = f"redirected to {where}" if where and code < 400 else said.text.strip()
    status = "failed" if code >= 500 or code == 429 else "refused"
    return status, f"HTTP {code}: {text}".rstrip(": "), code in AGAIN, retry_after_s(said.headers.get("retry-after"))


def _trouble(error: Exception, got: Stream, total_s: float) -> tuple[str, str, bool]:
    """Status, what went wrong and whether to try again, where an answer did not come to its end."""
    if isinstance(error, NetworkError) and error.kind != "protocol":
        timeout = error.kind in ("timeout", "connect-timeout")
        status = "timeout" if timeout else "broken" if got.piece_ns else "failed"
        return status, error.reason, error.kind != "timeout"
    if isinstance(error, TimeoutError):
        return "timeout", f"no complete answer within {total_s:g} s", False
    why = error.reason if isinstance(error, NetworkError) else error
    return "broken", f"the response of the server cannot be read: {why}", False
