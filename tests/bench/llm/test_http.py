"""The clients of LLM servers over HTTP: requests, connections, and all that can be wrong with a server."""

import asyncio
import json
import shutil
import ssl
import subprocess

import pytest
from talker import Talker

from everywatt.bench.llm.clients import Connection, make
from everywatt.bench.llm.http import Http, Reading
from everywatt.bench.llm.records import Ask
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.net.streaming import StreamClient

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def says(text="ok", end=True):
    piece = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    data = f"data: {json.dumps(piece)}\n\ndata: [DONE]\n\n".encode()
    return EVENTS + chunk(data) + (b"0\r\n\r\n" if end else b"")


def asked(url, count=1, *, pause_s=0.0, environ=None, **params):
    async def all_of_them():
        client = make("openai", Connection.of("m", url, {"backoff": "10ms", **params}, environ=environ or {}))
        answers = []
        try:
            for number in range(count):
                if number:
                    await asyncio.sleep(pause_s)
                answers.append(await client.ask(Ask(f"question {number}")))
        finally:
            await client.close()
        return answers

    return asyncio.run(all_of_them())


def test_the_request():
    with Talker([says()]) as server:
        (answer,) = asked(f"http://127.0.0.1:{server.port}/a b/v1", environ={"EVERYWATT_LLM_API_KEY": "k-1"})
    assert (answer.status, answer.text) == ("ok", "ok")
    head, _, body = server.heard[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /a%20b/v1/chat/completions HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}" in lines and "Authorization: Bearer k-1" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert json.loads(body)["messages"] == [{"role": "user", "content": "question 0"}]


def test_a_connection_is_used_again():
    with Talker([says("one"), says("two"), says("three")]) as server:
        answers = asked(f"http://127.0.0.1:{server.port}", 3)
    assert [one.text for one in answers] == ["one", "two", "three"]
    assert {(one.status, one.attempts) for one in answers} == {("ok", 1)}


def test_a_connection_that_the_server_closed_meanwhile_is_not():
    with Talker([says("one")], [says("two")]) as server:
        answers = asked(f"http://127.0.0.1:{server.port}", 2, pause_s=0.3)
    assert [(one.status, one.text) for one in answers] == [("ok", "one"), ("ok", "two")]


def test_a_kept_connection_that_the_server_closes_costs_no_attempt():
    """llama.cpp promises to keep a connection and closes it after every streamed answer."""
    with Talker([says("one"), b""], [says("two"), b""], [says("three")]) as server:
        answers = asked(f"http://127.0.0.1:{server.port}", 3, retries="0")
    assert [(one.status, one.text, one.attempts) for one in answers] == [
        ("ok", "one", 1), ("ok", "two", 1), ("ok", "three", 1)
    ]  # fmt: skip
    assert all(one.began_ns <= one.sent_ns < one.piece_ns[0] for one in answers)


def test_a_connection_that_broke_before_an_answer_is_tried_again():
    with Talker([b""], [says("later")]) as server:
        (answer,) = asked(f"http://127.0.0.1:{server.port}")
    assert (answer.status, answer.text, answer.attempts) == ("ok", "later", 2)


def test_one_that_broke_in_the_middle_is_not():
    with Talker([EVENTS + chunk(b'data: {"choices": [{"delta": {"content": "ha"}}]}\n\n')]) as server:
        (answer,) = asked(f"http://127.0.0.1:{server.port}")
    assert (answer.status, answer.text, answer.attempts) == ("broken", "ha", 1)
    assert "closed the connection" in answer.error


def test_a_server_that_points_elsewhere():
    there = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://other/v1\r\nContent-Length: 0\r\n\r\n"
    with Talker([there, there]) as server:
        url = f"http://127.0.0.1:{server.port}"
        (answer,) = asked(url)
        assert (answer.status, answer.error) == ("refused", "HTTP 307: redirected to https://other/v1")
    with (
        Talker([there]) as server,
        pytest.raises(MeasurementRefused, match=r"redirects to https://other/v1 \(HTTP 307\)"),
    ):
        asyncio.run(make("openai", Connection.of("m", f"http://127.0.0.1:{server.port}", environ={})).health())


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\nhey", "got text/html"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhey", "got no content type"),
        (b"nonsense\r\n\r\n", "not HTTP/1.1"),
    ],
)
def test_what_is_no_stream_of_events(head, why):
    with Talker([head]) as server:
        (answer,) = asked(f"http://127.0.0.1:{server.port}")
    assert answer.status == "broken" and why in answer.error


def test_a_time_out_of_the_whole():
    with Talker([EVENTS, b""]) as server:
        (answer,) = asked(f"http://127.0.0.1:{server.port}", total_timeout="200ms")
    assert (answer.status, answer.attempts) == ("timeout", 1)


def test_a_document_that_never_ends_is_cut_short(monkeypatch):
    monkeypatch.setattr("everywatt.bench.llm.http.MOST_BYTES", 10)

    async def read(url):
        reply = Reading()
        left_open = await StreamClient(url).request("GET", "/", None, reply)
        return reply.response.text, left_open

    with Talker([b"HTTP/1.1 200 OK\r\n\r\n12345678" + b"12345678" * 3, b""]) as server:
        assert asyncio.run(read(f"http://127.0.0.1:{server.port}")) == ("1234567812", True)


def test_a_key_that_no_header_can_carry():
    with pytest.raises(UsageError, match="key in EVERYWATT_LLM_API_KEY contains characters") as refused:
        Connection.of("m", "http://h", environ={"EVERYWATT_LLM_API_KEY": "sec\nret"})
    assert "sec" not in str(refused.value)
    # `export KEY=$(cat file)` keeps no line end, a file that is sourced may.
    assert Connection.of("m", "http://h", environ={"EVERYWATT_LLM_API_KEY": "secret\r\n"}).key == "secret"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls_and_a_certificate_that_nobody_signed(tmp_path, monkeypatch):
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with Talker([says("hidden"), says("again")], context=context) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        answers = asked(f"https://127.0.0.1:{server.port}", 2)
        assert [(one.status, one.text) for one in answers] == [("ok", "hidden"), ("ok", "again")]
    with Talker([says()], context=context) as server:
        monkeypatch.delenv("SSL_CERT_FILE")
        client = make("openai", Connection.of("m", f"https://127.0.0.1:{server.port}", environ={}))
        with pytest.raises(MeasurementRefused, match="certificate is not trusted"):
            asyncio.run(client.health())


def test_an_idle_connection_is_not_kept_for_long(monkeypatch):
    monkeypatch.setattr("everywatt.net.streaming.KEEP_S", 0.0)
    with Talker([says("one"), says("never")], [says("two")]) as server:
        answers = asked(f"http://127.0.0.1:{server.port}", 2)
    assert [one.text for one in answers] == ["one", "two"]


def test_closing_lets_go_of_connections():
    async def open_and_close(url):
        http = Http(Connection.of("m", url, environ={}), url)
        await http.get("/")
        (connection,) = http.client._idle
        await http.close()
        await asyncio.sleep(0)
        return connection.open

    with Talker([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]) as server:
        assert asyncio.run(open_and_close(f"http://127.0.0.1:{server.port}")) is False


def test_a_wait_that_the_server_asks_for_ends_with_the_total_time():
    busy = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
    with Talker([busy]) as server:
        (answer,) = asked(f"http://127.0.0.1:{server.port}", total_timeout="2s")
    assert (answer.status, answer.attempts) == ("failed", 1)
    assert "the server asks to wait" in answer.error and "total_timeout" in answer.error
    assert answer.ended_ns - answer.began_ns < 2_000_000_000
