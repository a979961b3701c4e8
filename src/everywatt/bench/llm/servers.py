"""Any server that speaks the OpenAI chat API: vLLM, llama.cpp, SGLang, TGI, LM Studio, transformers serve.

And Ollama by its own API, which reports the time for loading the model and reading the prompt.

Where a server counts no tokens, a tokenizer that the user names counts them; they are never guessed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.bench.llm.clients import KEY_VARIABLE, Connection
from everywatt.bench.llm.compute import parse_count
from everywatt.bench.llm.http import Events, Http, Lines, Stream, count, document, numbers, part, parts, words
from everywatt.bench.llm.records import Answer, Ask
from everywatt.core.errors import MeasurementRefused, NetworkError, UsageError
from everywatt.core.plugins import library
from everywatt.fleet.metrics import samples
from everywatt.net.client import Response


@dataclass(frozen=True, slots=True)
class Counter:
    """A tokenizer of the tokenizers library."""

    name: str
    tokenizer: Any

    def count(self, text: str) -> int:
        """How many tokens a text has, without those that a template adds."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def counter(path: str | None) -> Counter | None:
    """The counter for a `tokenizer.json`, or the folder that holds one; None if neither is named."""
    if path is None:
        return None
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UsageError(
            f"There is no tokenizer {file}.", cure="the folder of the model, which contains tokenizer.json"
        )
    made = library("tokenizers", "llm").Tokenizer
    try:
        tokenizer = made.from_file(str(file))
        # A file may say to fill every text up to a length, or to cut it there: neither is a token of the text.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return Counter(str(file), tokenizer)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise UsageError(f"{file} is not a tokenizer: {error}.") from None


class _Server:
    """What clients of servers share."""

    where = "server"
    parameters: float | None = None  # of the model, where the server says

    def __init__(self, connection: Connection, root: str) -> None:
        self._of, self._root = connection, root
        self._http = Http(connection, root)

    async def close(self) -> None:
        await self._http.close()


def _messages(ask: Ask) -> list[dict[str, str]]:
    """A question as the messages of a chat."""
    system = [{"role": "system", "content": ask.system}] if ask.system else []
    return [*system, {"role": "user", "content": ask.prompt}]


class OpenAI(_Server):
    """Streams `/v1/chat/completions`, or `/v1/completions` with the parameter endpoint=completions.

    Usage is asked for; where the server gives none, the parameter `tokenizer` (a folder or file of the tokenizers
    library) counts, and without one the counts are None.
    """

    def __init__(self, connection: Connection) -> None:
        connection.only("endpoint", "tokenizer", "usage")
        if not connection.base_url:
            raise UsageError("The client 'openai' requires --base-url.", cure="--base-url http://127.0.0.1:8000")
        super().__init__(connection, f"{connection.base_url.removesuffix('/v1')}/v1")
        self._beside_api = Http(connection, self._root.removesuffix("/v1"))
        self._endpoint = connection.params.get("endpoint", "chat")
        if self._endpoint not in ("chat", "completions"):
            raise UsageError(f"endpoint={self._endpoint} is not one of chat, completions.")
        self._ask_usage = connection.params.get("usage", "yes") == "yes"
        self._counter: Counter | None = counter(connection.params.get("tokenizer"))

    def describe(self) -> dict[str, Any]:
        return {
            "client": "openai",
            "base_url": self._of.base_url,
            "endpoint": self._endpoint,
            "tokenizer": None if self._counter is None else self._counter.name,
            "key": "from the environment" if self._of.key else None,
        }

    async def health(self) -> list[str]:
        """The server answers and has the model. MeasurementRefused where it does not."""
        try:
            reply = await self._http.get("/models")
        except NetworkError as error:
            why = self._of.without_key(error.reason)
            raise MeasurementRefused(f"No server answers at {self._root}: {why}.", cure="start it first") from None
        if reply.status in (401, 403):
            raise MeasurementRefused(
                f"{self._root} requires an API key (HTTP {reply.status}).", cure=f"export {KEY_VARIABLE}=…"
            )
        if reply.status >= 500:
            raise MeasurementRefused(f"{self._root} is not ready: HTTP {reply.status}.", cure="wait until it is ready")
        if 300 <= reply.status < 400:
            where = self._of.without_key(reply.headers.get("location", "elsewhere"))
            raise MeasurementRefused(
                f"{self._root} redirects to {where} (HTTP {reply.status}).", cure="pass that server as --base-url"
            )
        names = _models(reply)
        self.parameters = None if names is None else names.get(self._of.model)
        if names is None:
            return [f"{self._root}/models returns no list, so whether '{self._of.model}' is available is unknown"]
        if names and self._of.model not in names:
            those = self._of.without_key(", ".join(list(names)[:10]))
            raise UsageError(f"The server has no model '{self._of.model}'; it has: {those}.")
        return []

    async def ask(self, ask: Ask) -> Answer:
        body: dict[str, Any] = {"model": self._of.model, "stream": True, **ask.settings}
        if self._ask_usage:
            body["stream_options"] = {"include_usage": True}
        if self._endpoint == "chat":
            body["messages"] = _messages(ask)
            answer = await self._http.stream("/chat/completions", body, Events, _openai_event)
        else:
            body["prompt"] = ask.text
            answer = await self._http.stream("/completions", body, Events, _openai_event)
        if answer.output_tokens is None and self._counter is not None:
            counts = self._counter.count(ask.text), self._counter.count(answer.reasoning + answer.text)
            answer = replace(
                answer, input_tokens=counts[0], output_tokens=counts[1], counted=f"tokenizer {self._counter.name}"
            )
        return answer

    async def phase_counters(self) -> dict[str, tuple[float, float]]:
        """Seconds and requests so far by phase, from the server's /metrics; empty where it has none of them."""
        try:
            reply = await self._beside_api.get("/metrics")
        except NetworkError:
            return {}
        return _phase_counters(reply.text) if reply.status == 200 else {}

    async def close(self) -> None:
        await super().close()
        await self._beside_api.close()


# By phase, the histograms in which servers count it, in seconds: vLLM, SGLang, TGI.
_PHASES = {
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration"),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
}


def _phase_counters(text: str) -> dict[str, tuple[float, float]]:
    """Seconds and requests of each phase, over all engines and models."""
    whole: dict[str, float] = {}
    for name, _, value in samples(text):
        whole[name] = whole.get(name, 0.0) + value
    return {
        phase: (whole[f"{name}_sum"], whole[f"{name}_count"])
        for phase, names in _PHASES.items()
        for name in names
        if f"{name}_sum" in whole and f"{name}_count" in whole
    }


def _openai_event(text: str, at_ns: int, got: Stream) -> None:
    """A piece of the answer, or its end."""
    if text == "[DONE]":
        got.end(at_ns)
    if text in ("", "[DONE]"):
        return
    data = document(text)
    if data.get("error"):
        error = data["error"]
        got.error = str(error.get("message", error)) if isinstance(error, dict) else str(error)
        return
    usage = data.get("usage")
    if isinstance(usage, dict):
        got.input_tokens = count(usage.get("prompt_tokens"))
        got.output_tokens = count(usage.get("completion_tokens"))
    if isinstance(data.get("timings"), dict):
        got.server = numbers(data["timings"])
    for choice in parts(data, "choices"):
        delta = part(choice, "delta")
        got.piece(
            at_ns, words(delta, "content") or words(choice, "text"), words(delta, "reasoning_content", "reasoning")
        )
        for value in _logprobs(choice.get("logprobs")):
            got.logprob(value)
        got.finish = words(choice, "finish_reason") or got.finish


def _logprobs(found: Any) -> list[Any]:
    """Log-probabilities of the tokens of a piece: of the chat API, or of the older completions API."""
    if not isinstance(found, dict):
        return []
    if isinstance(found.get("token_logprobs"), list):
        return list(found["token_logprobs"])
    tokens = [*parts(found, "reasoning_content"), *parts(found, "content")]
    return [token.get("logprob") for token in tokens]


def _models(reply: Response) -> dict[str, int | None] | None:
    """The models that a server has, with how many parameters each has where it tells (llama.cpp does); None where it
    lists none."""
    try:
        listed = {str(one["id"]): one.get("meta") for one in reply.json()["data"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return {
        name: count(meta.get("n_params")) or None if isinstance(meta, dict) else None for name, meta in listed.items()
    }


USUAL_URL = "http://127.0.0.1:11434"


class Ollama(_Server):
    """Streams `/api/chat`: JSON lines. Sampling settings go into `options`."""

    def __init__(self, connection: Connection) -> None:
        connection.only()
        super().__init__(connection, connection.base_url or USUAL_URL)

    def describe(self) -> dict[str, Any]:
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
        body = {"model": self._of.model, "messages": _messages(ask), "stream": True, "options": dict(ask.settings)}
        return await self._http.stream("/api/chat", body, Lines, _ollama_line)


def _ollama_line(text: str, at_ns: int, got: Stream) -> None:
    """A piece of the answer, or its end."""
    if not text.strip():
        return
    data = document(text)
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
