"""The OpenAI client against a server that follows a script."""

import asyncio
import base64
import json
import time

import numpy as np
import pytest
from answering import answering
from sse_server import running
from waiting import until

from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.records import Ask
from everywatt.core.errors import MeasurementRefused, UsageError


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server")) as one:
        yield one


def ask(server, *scripts, environ=None, **params):
    """The answers to some scripts, asked at once."""

    async def all_of_them():
        client = make(
            "openai", Connection.of("scripted", server.url, {"backoff": "10ms", **params}, environ=environ or {})
        )
        try:
            await client.health()
            asks = [Ask(script if isinstance(script, str) else json.dumps(script)) for script in scripts]
            return await asyncio.gather(*(client.ask(one) for one in asks))
        finally:
            await client.close()

    return asyncio.run(all_of_them())


def one_by_one(server, *scripts):
    async def all_of_them():
        client = make("openai", Connection.of("scripted", server.url))
        try:
            return [await client.ask(Ask(json.dumps(script))) for script in scripts]
        finally:
            await client.close()

    return asyncio.run(all_of_them())


def test_text_usage_and_times(server):
    (answer,) = ask(server, "What is 20 + 3?")
    assert (answer.status, answer.text.strip(), answer.finish) == ("ok", "23", "stop")
    assert (answer.input_tokens, answer.output_tokens, answer.counted) == (7, 8, "usage")
    assert len(answer.piece_ns) == 8
    assert answer.sent_ns <= answer.piece_ns[0] <= answer.piece_ns[-1] <= answer.ended_ns
    assert logged(server, "What is 20 + 3?")["request"]["stream_options"] == {"include_usage": True}


def test_times_of_arrival_are_within_two_milliseconds_of_the_servers(server):
    """On a busy machine either side is held up now and then. A client that is late by itself is late every time."""
    near = {"late": 0, "ttft": 0, "gaps": 0}
    for batch in range(20):
        names = [{"tokens": 10, "first_ms": 30, "gap_ms": 5, "n": f"near {batch} {number}"} for number in range(5)]
        for answer, name in zip(one_by_one(server, *names), names, strict=True):
            truth = logged(server, name)
            assert answer.sent_ns < truth["at_ns"]  # it is sent before it comes
            came, sent = np.array(answer.piece_ns), np.array(truth["pieces"])
            near["late"] += np.median(came - sent) < 2e6
            near["ttft"] += abs(came[0] - answer.sent_ns - (sent[0] - truth["at_ns"])) < 2e6
            near["gaps"] += np.median(np.abs(np.diff(came) - np.diff(sent))) < 2e6
        if min(near.values()) >= 3:
            break
    assert min(near.values()) >= 3, near


def logged(server, script):
    """What the server wrote down of a request; it does so a moment after the last byte."""
    prompt = script if isinstance(script, str) else json.dumps(script)
    return until(lambda: [one for one in server.log if one["prompt"] == prompt], "the server's log")[0]


def test_times_of_arrival_follow_the_server(server):
    (answer,) = ask(server, {"tokens": 5, "first_ms": 200, "gap_ms": 50})
    for number, at_ns in enumerate(answer.piece_ns):  # later where the machine is held up, never earlier
        assert (at_ns - answer.sent_ns) / 1e6 >= 200 + 50 * number - 1


def test_one_connection_is_kept_for_one_query_after_the_other(server):
    names = [{"tokens": 3, "n": f"kept {number}"} for number in range(6)]
    assert {answer.status for answer in one_by_one(server, *names)} == {"ok"}
    # A machine that is held up for longer than the client listens to the end of a stream costs it a connection.
    assert len({logged(server, name)["peer"] for name in names}) < 6


def test_a_stream_that_stays_open_after_its_end_takes_nobodys_time(server):
    names = [{"tokens": 3, "hold_s": 2, "n": f"held {number}"} for number in range(3)]
    answers = one_by_one(server, *names)
    assert [(answer.status, answer.output_tokens) for answer in answers] == [("ok", 3)] * 3
    for answer, name in zip(answers, names, strict=True):
        # The answer ended with its last event, two seconds before the server was done with it.
        assert answer.ended_ns < logged(server, name)["done_ns"]


def test_without_usage_nothing_is_guessed(server):
    (answer,) = ask(server, {"tokens": 3, "usage": False})
    assert (answer.status, answer.output_tokens, answer.input_tokens, answer.counted) == ("ok", None, None, None)
    assert len(answer.piece_ns) == 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server, status):
    (answer,) = ask(server, {"status": status, "times": 2, "n": f"again {status}"})
    assert (answer.status, answer.attempts) == ("ok", 3)
    assert answer.began_ns < answer.sent_ns


def test_a_server_that_stays_busy_has_failed(server):
    (answer,) = ask(server, {"status": 500, "times": 99, "n": "stays"}, retries="2")
    assert (answer.status, answer.attempts) == ("failed", 3)
    assert "HTTP 500" in answer.error


def test_a_wrong_request_is_not_repeated(server):
    (answer,) = ask(server, {"status": 400, "times": 99})
    assert (answer.status, answer.attempts) == ("refused", 1)


def test_a_reset_in_the_middle_keeps_what_came(server):
    (answer,) = ask(server, {"tokens": 8, "reset_after": 3, "gap_ms": 20})
    assert (answer.status, len(answer.piece_ns), answer.attempts) == ("broken", 3, 1)
    assert answer.text == "ok ok ok "


def test_a_stream_without_an_end_is_broken(server):
    raw = b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n'
    (answer,) = ask(server, {"raw": base64.b64encode(raw).decode()})
    assert (answer.status, answer.text) == ("broken", "half")


def test_silence_ends_at_the_time_out(server):
    began = time.monotonic()
    (answer,) = ask(server, {"tokens": 5, "silent_after": 2}, timeout="3s")
    assert (answer.status, len(answer.piece_ns)) == ("timeout", 2)
    assert time.monotonic() - began < 300  # of the ten minutes that the server says nothing


def test_invalid_utf8_is_replaced(server):
    raw = b'data: {"choices":[{"delta":{"content":"a\xff\xfeb"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    (answer,) = ask(server, {"raw": base64.b64encode(raw).decode()})
    assert answer.status == "ok"
    assert answer.text.startswith("a") and answer.text.endswith("b")


def test_a_line_of_a_megabyte(server):
    event = {"choices": [{"delta": {"content": "x" * 2**20}, "finish_reason": "stop"}]}
    raw = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
    (answer,) = ask(server, {"raw": base64.b64encode(raw).decode()})
    assert (answer.status, len(answer.text)) == ("ok", 2**20)


def test_what_is_not_json_is_broken(server):
    (answer,) = ask(server, {"raw": base64.b64encode(b"data: {nonsense\n\n").decode()})
    assert answer.status == "broken"
    assert "cannot be read" in answer.error


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"5",
        b'{"choices": "x"}',
        b'{"choices": ["x"]}',
        b'{"choices": [{"delta": "x"}]}',
        b'{"choices": [{"delta": {"content": 5}}]}',
        b'{"choices": [{"delta": {"content": "a"}, "logprobs": {"content": 5}}]}',
        b'{"choices": [{"delta": {}, "finish_reason": 5}]}',
        b"[" * 100_000,
    ],
)
def test_an_event_of_another_shape_breaks_one_query_and_not_the_run(server, data):
    raw = b"data: " + data + b"\n\ndata: [DONE]\n\n"
    broken, fine = ask(server, {"raw": base64.b64encode(raw).decode()}, {"tokens": 2, "n": data.hex()[:20]})
    assert (broken.status, fine.status) == ("broken", "ok")
    assert "cannot be read" in broken.error


def test_numbers_that_are_none_are_not_taken(server):
    event = b'{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "timings": {"a": NaN, "b": 1.5}, '
    event += b'"usage": {"prompt_tokens": 1e308, "completion_tokens": -3}}'
    (answer,) = ask(server, {"raw": base64.b64encode(b"data: " + event + b"\n\ndata: [DONE]\n\n").decode()})
    assert (answer.status, answer.input_tokens, answer.output_tokens) == ("ok", None, None)
    assert answer.server == {"b": 1.5}


def test_a_character_in_two_halves_is_one(server):
    halves = [
        rb'{"choices": [{"delta": {"content": "\ud83d"}}]}',
        rb'{"choices": [{"delta": {"content": "\ude00 \ud83d"}}]}',
    ]
    raw = b"".join(b"data: " + half + b"\n\n" for half in halves) + b"data: [DONE]\n\n"
    (answer,) = ask(server, {"raw": base64.b64encode(raw).decode()})
    assert (answer.status, answer.text) == ("ok", "\U0001f600 \ufffd")


def test_reasoning_is_told_from_the_answer(server):
    events = [{"delta": {"reasoning_content": "hm"}}, {"delta": {"content": "4"}, "finish_reason": "stop"}]
    raw = "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in events) + "data: [DONE]\n\n"
    (answer,) = ask(server, {"raw": base64.b64encode(raw.encode()).decode()})
    assert (answer.reasoning, answer.text, len(answer.piece_ns)) == ("hm", "4", 2)
    assert answer.first_answer_ns == answer.piece_ns[1]


def test_the_key_is_sent_and_shown_nowhere(server):
    environ = {"EVERYWATT_LLM_API_KEY": "sk-very-secret"}
    connection = Connection.of("scripted", server.url, {}, environ=environ)
    assert "secret" not in repr(connection)
    good, echoed = ask(server, {"need_key": "sk-very-secret"}, {"echo_key": 1}, environ=environ)
    assert good.status == "ok"
    assert echoed.status == "refused" and "***" in echoed.error and "secret" not in echoed.error
    (without,) = ask(server, {"need_key": "sk-very-secret", "n": 2})
    assert without.status == "refused"


@pytest.mark.parametrize("name", ["api_key", "token", "Authorization"])
def test_a_key_on_the_command_line_is_not_taken(name):
    with pytest.raises(UsageError, match="visible to every user of this machine"):
        Connection.of("m", "http://127.0.0.1:1", {name: "x"})


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://u:p@h", "http://h:99999", "http://h?k=1"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(UsageError):
        Connection.of("m", url)


def test_nobody_there_is_said_before_anything_else(server):
    with pytest.raises(MeasurementRefused, match="No server answers"):
        asyncio.run(make("openai", Connection.of("m", "http://127.0.0.1:9")).health())
    with pytest.raises(UsageError, match="has no model 'other'; it has: scripted"):
        asyncio.run(make("openai", Connection.of("other", server.url)).health())


def test_an_unknown_parameter_or_client_is_named():
    with pytest.raises(UsageError, match="no parameter 'colour'"):
        make("openai", Connection.of("m", "http://h", {"colour": "red"}))
    with pytest.raises(UsageError, match="no client 'nobody'"):
        make("nobody", Connection.of("m"))


VLLM = """\
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 9.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 10.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 2.5
vllm:request_queue_time_seconds_count{engine="1",model_name="m"} 2.0
vllm:request_queue_time_seconds_sum{engine="1",model_name="m"} 1.5
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 12.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 6.0
"""


@pytest.mark.parametrize(
    "status, text, found", [(200, VLLM, {"queue": (4.0, 12.0), "prefill": (6.0, 12.0)}), (404, VLLM, {}), (200, "", {})]
)
def test_phases_that_the_server_counts(status, text, found):
    async def counted(url):
        client = make("openai", Connection.of("m", f"{url}/v1"))
        try:
            return await client.phase_counters()
        finally:
            await client.close()

    with answering(lambda path, body: (status, [text.encode()])) as (url, asked):
        assert asyncio.run(counted(url)) == found
        assert [path for path, *_ in asked] == ["/metrics"]
