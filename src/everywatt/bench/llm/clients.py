"""Clients: how a question reaches a model. The contract, and how a client is made.

Clients register by the entry point group `everywatt.llm_clients`, ours too: a callable that takes a `Connection` and
returns a `Client`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from everywatt.bench.llm.records import Answer, Ask
from everywatt.core.errors import UsageError
from everywatt.core.plugins import LLM_CLIENTS, border, required_plugin
from everywatt.core.units import parse_duration_s
from everywatt.net.http1 import Backoff

KEY_VARIABLE = "EVERYWATT_LLM_API_KEY"
PhaseCounters = Mapping[str, tuple[float, float]]


class Client(Protocol):
    """What everywatt asks of a client. Nothing but `health` may raise: what goes wrong is in the Answer."""

    @property
    def where(self) -> str:
        """Where the model runs: `server` (behind a URL), `here` (this process and its children) or `nowhere`."""

    def describe(self) -> dict[str, Any]:
        """Plain data for the record: what was asked, without any secret."""

    async def health(self) -> list[str]:
        """Make sure that it can answer, before a run exists. Gives remarks; raises EverywattError where it cannot."""

    async def ask(self, ask: Ask) -> Answer:
        """Ask and wait for the whole answer."""

    async def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class CountsPhases(Protocol):
    """A client whose server may count how long its requests queued, were read and were answered."""

    async def phase_counters(self) -> PhaseCounters:
        """Seconds and requests so far, by phase; empty where the server counts none."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a model.

    connect_s   at most so long for a connection
    silence_s   at most so long between two pieces of an answer, and until the first
    total_s     at most so long for an answer as a whole
    key         the API key, from the environment; it is in no repr and in no record
    """

    model: str
    base_url: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    connect_s: float = 10.0
    silence_s: float = 120.0
    total_s: float = 3600.0
    backoff: Backoff = field(default_factory=Backoff)
    concurrency: int = 1
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        model: str,
        base_url: str = "",
        params: Mapping[str, str] | None = None,
        *,
        concurrency: int = 1,
        environ: Mapping[str, str] | None = None,
    ) -> Connection:
        """From what the user gave: `params` may hold connect_timeout, timeout, total_timeout, retries, api_key_env."""
        left = dict(params or {})
        no_secrets(left)
        base_url = checked_url(base_url) if base_url else ""
        variable = left.pop("api_key_env", KEY_VARIABLE)
        env = os.environ if environ is None else environ
        if variable != KEY_VARIABLE and not env.get(variable):
            raise UsageError(f"The environment variable {variable}, named by api_key_env, is not set.")
        key = env.get(variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                f"The key in {variable} contains characters that cannot be sent.", cure=f"check {variable}"
            )
        retries = left.pop("retries", "3")
        if not retries.isdecimal():
            raise UsageError(f"retries={retries} is not a whole number.")
        times = {
            name: _seconds(text, left.pop(text, None))
            for name, text in (("connect_s", "connect_timeout"), ("silence_s", "timeout"), ("total_s", "total_timeout"))
        }
        return cls(
            model,
            base_url,
            left,
            backoff=Backoff(retries=int(retries), first_s=_seconds("backoff", left.pop("backoff", None)) or 0.5),
            concurrency=concurrency,
            key=key or None,
            **{name: value for name, value in times.items() if value is not None},
        )

    def without_key(self, text: str) -> str:
        """A text in which the key does not appear, whatever a server sent back."""
        return text.replace(self.key, "***") if self.key else text

    def without_key_in(self, answer: Answer) -> Answer:
        """An answer in which the key does not appear: it goes to a file."""
        if not self.key:
            return answer
        words = {name: getattr(answer, name) for name in ("text", "reasoning", "error", "finish")}
        clean: dict[str, Any] = {name: text and self.without_key(text) for name, text in words.items()}
        return replace(answer, **clean)

    def only(self, *known: str) -> None:
        """UsageError where a parameter is not one of those that the client knows."""
        odd = [name for name in self.params if name not in known]
        if odd:
            common = "connect_timeout, timeout, total_timeout, retries, backoff, api_key_env"
            raise UsageError(f"This client has no parameter '{odd[0]}'; it has: {', '.join((*known, common))}.")


def no_secrets(names: Iterable[str]) -> None:
    """UsageError where a parameter is called like a secret: every user of the machine could read it."""
    for name in names:
        if name.lower().replace("-", "_") in ("api_key", "apikey", "key", "token", "authorization", "password"):
            raise UsageError(
                f"'{name}' was refused: a secret on the command line is visible to every user of this machine.",
                cure=f"export {KEY_VARIABLE}=…, or --client-param api_key_env=NAME",
            )


def checked_url(text: str) -> str:
    """A base URL without a slash at its end; UsageError if it is not valid or contains a password."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise UsageError(f"'{text}' is not a URL: {error}.") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise UsageError(f"'{text}' is not a URL such as http://127.0.0.1:8000.")
    if url.username or url.password or url.query:
        raise UsageError("A base URL takes no user, password or query.", cure=f"export {KEY_VARIABLE}=…")
    return text.rstrip("/")


def make(name: str, connection: Connection) -> Client:
    """The client that is registered under that name in the entry point group `everywatt.llm_clients`."""
    maker: Callable[[Connection], Client] = required_plugin(LLM_CLIENTS, name, "client")
    with border(name):
        return maker(connection)


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration_s(text)
    if not seconds > 0:
        raise UsageError(f"{name}={text} is not a duration.")
    return seconds
