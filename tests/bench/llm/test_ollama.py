"""Ollama's own API, in the format that its documentation gives."""

import asyncio
import json

import pytest
from answering import answering

from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.records import Ask
from everywatt.core.errors import MeasurementRefused, UsageError

TAGS = {
    "models": [
        {
            "name": "tiny:latest",
            "model": "tiny:latest",
            "size": 98566144,
            "details": {"format": "gguf", "family": "llama", "parameter_size": "134.52M", "quantization_level": "Q4_1"},
        }
    ]
}
END = {
    "model": "tiny",
    "created_at": "2026-11-16T02:00:01.5Z",
    "message": {"role": "assistant", "content": ""},
    "done": True,
    "done_reason": "stop",
    "total_duration": 4883583458,
    "load_duration": 1334875,
    "prompt_eval_count": 26,
    "prompt_eval_duration": 342546000,
    "eval_count": 3,
    "eval_duration": 4535599000,
}


def piece(content="", **more):
    message = {"role": "assistant", "content": content, **more}
    line = {"model": "tiny", "created_at": "2026-11-16T02:00:00Z", "message": message, "done": False}
    return json.dumps(line).encode() + b"\n"


def server(*lines, status=200):
    def function(path, body):
        if path == "/api/tags":
            return 200, [json.dumps(TAGS).encode()]
        return status, list(lines)

    return answering(function)


def ask(url, model="tiny", **settings):
    async def whole():
        client = make("ollama", Connection.of(model, url, {"backoff": "10ms", "retries": "1"}, environ={}))
        try:
            await client.health()
            return await client.ask(Ask("hello", "be short", settings)), client.parameters
        finally:
            await client.close()

    return asyncio.run(whole())


def test_text_counts_and_durations():
    with server(piece("The "), piece("sky "), piece("is."), json.dumps(END).encode() + b"\n") as (url, asked):
        answer, parameters = ask(url, temperature=0, num_predict=5)
    assert (answer.status, answer.text, answer.finish) == ("ok", "The sky is.", "stop")
    assert (answer.input_tokens, answer.output_tokens, answer.counted) == (26, 3, "usage")
    assert len(answer.piece_ns) == 3
    assert answer.server["load_duration"] == 1334875 and answer.server["eval_duration"] == 4535599000
    assert parameters == pytest.approx(134.52e6)
    path, body, _ = asked[-1]
    assert path == "/api/chat"
    assert (body["model"], body["stream"], body["options"]) == ("tiny", True, {"temperature": 0, "num_predict": 5})
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_thinking_is_told_from_the_answer():
    with server(piece(thinking="hm "), piece("4"), json.dumps(END).encode()) as (url, _):
        answer, _ = ask(url)
    assert (answer.reasoning, answer.text) == ("hm ", "4")
    assert answer.first_answer_ns == answer.piece_ns[1]


def test_an_error_in_the_stream_and_one_before_it():
    with server(piece("a"), b'{"error": "out of memory"}\n') as (url, _):
        answer, _ = ask(url)
    assert (answer.status, answer.error, answer.text) == ("broken", "out of memory", "a")
    with server(b'{"error": "model is loading"}', status=503) as (url, _):
        answer, _ = ask(url)
    assert (answer.status, answer.attempts) == ("failed", 2)
    with server(piece("half")) as (url, _):
        answer, _ = ask(url)
    assert answer.status == "broken"


def test_a_model_that_is_not_there_and_a_server_that_is_another():
    with server() as (url, _), pytest.raises(UsageError, match="ollama pull other"):
        ask(url, "other")
    with (
        answering(lambda path, body: (200, [b"{}"])) as (url, _),
        pytest.raises(MeasurementRefused, match="not Ollama"),
    ):
        ask(url)
    with pytest.raises(MeasurementRefused, match="No Ollama"):
        ask("http://127.0.0.1:9")
