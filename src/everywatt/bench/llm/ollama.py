"""Ollama by its own API, which reports the time for loading the model and reading the prompt."""

from __future__ import annotations

import contextlib
from typing import Any

from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.compute import parse_count
from everywatt.bench.llm.http import Http, Lines, count, document, numbers, part, words
from everywatt.bench.llm.values import Answer, Ask
from everywatt.core.errors import MeasurementRefused, NetworkError, UsageError

USUAL_URL = "http://127.0.0.1:11434"


class Ollama:
    """Streams `/api/chat`: JSON lines. Sampling settings go into `options`."""

    where = "server"

    def __init__(self, connection: Connection) -> None:
        connection.only()
        self._of = connection
        self._root = connection.base_url or USUAL_URL
        self._http = Http(connection, self._root)
        self.parameters: float | None = None

    def describe(self) -> dict[str, Any]:
        """What was asked, without any secret."""
        return {"client": "ollama", "base_url": self._root}

    async def health(self) -> list[str]:
        """The server answers and has the model."""
        try:
            reply = await self._http.get("/api/tags")
        except NetworkError as error:
            raise MeasurementRefused(
                f"No Ollama server answers at {self._root}: {error.reason}.", cure="ollama serve"
            ) from None
        try:
            models = {str(one["name"]): one for one in reply.json()["models"]}
        except (ValueError, KeyError, TypeError):
            raise MeasurementRefused(f"The server at {self._root} is not Ollama.", cure="--client openai") from None
        found = models.get(self._of.model) or models.get(f"{self._of.model}:latest")
        if found is None:
            raise UsageError(f"Ollama has no model '{self._of.model}'.", cure=f"ollama pull {self._of.model}")
        with contextlib.suppress(UsageError, KeyError, TypeError):
            self.parameters = parse_count(str(found["details"]["parameter_size"]))
        return []

    async def ask(self, ask: Ask) -> Answer:
        """One question, streamed."""
        system = [{"role": "system", "content": ask.system}] if ask.system else []
        body = {
            "model": self._of.model,
            "messages": [*system, {"role": "user", "content": ask.prompt}],
            "stream": True,
            "options": dict(ask.settings),
        }
        return await self._http.stream("/api/chat", body, _Lines)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


class _Lines(Lines):
    def line(self, at_ns: int, line: bytes) -> None:
        """A piece of the answer, or its end."""
        if not line.strip():
            return
        got, data = self.got, document(line.decode("utf-8", "replace"))
        if data.get("error"):
            got.error = str(data["error"])
            return
        message = part(data, "message")
        got.piece(at_ns, words(message, "content"), words(message, "thinking"))
        if data.get("done"):
            got.finish = words(data, "done_reason") or "stop"
            got.input_tokens, got.output_tokens = count(data.get("prompt_eval_count")), count(data.get("eval_count"))
            got.server = {name: value for name, value in numbers(data).items() if name.endswith("_duration")}
            got.end(at_ns)
