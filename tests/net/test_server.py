"""The door of every server, with a real uvicorn behind it: limits on connections, requests and time."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import time

import pytest
from waiting import until
from webserver import certificate

from everywatt.net.client import Client, Limits
from everywatt.net.guard import Access, Guard, ServerLimits, Throttle
from everywatt.net.listen import listen, parse_listen
from everywatt.net.server import HttpServer
from everywatt.net.tls import ClientTls, server_context

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
TOKEN = "correct-horse-battery-staple"
BIG = b"x" * (1 << 20)
SOON_S = 20.0  # far below what it takes where a limit does not work, and far above what a busy machine needs


async def app(scope, receive, send):
    """`/` answers, `/slow` after a while, `/big` with a MiB, `/stream` for as long as it is wanted."""
    path = scope["path"]
    if path == "/slow":
        await asyncio.sleep(0.3)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if path == "/stream":
        while True:
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            try:
                message = await asyncio.wait_for(receive(), 0.05)
            except TimeoutError:
                continue
            if message["type"] == "http.disconnect":
                return
    if path == "/big":
        for _ in range(64):
            await send({"type": "http.response.body", "body": BIG, "more_body": True})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def serving(tls=None, token=None, application=app, kind=socket.socket, **limits):
    sock = kind(fileno=listen(parse_listen("127.0.0.1:0")).detach())
    port = sock.getsockname()[1]
    access = Access(frozenset({f"127.0.0.1:{port}"}), port, token, tls is not None, pages=False)
    server = HttpServer(Guard(application, access), sock, limits=ServerLimits(**limits), tls=tls)
    server.start()
    try:
        yield server, f"{'http' if tls is None else 'https'}://127.0.0.1:{port}", port
    finally:
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < SOON_S and not server._thread.is_alive()


def connect(port, send=b""):
    sock = socket.create_connection(("127.0.0.1", port), SOON_S)
    if send:
        sock.sendall(send)
    return sock


def held(server):
    """How many connections the server has."""
    return sum(map(len, (server.silent, server.ready, server.opening, server.busy, server.idle)))


def closed(sock, within_s=SOON_S):
    """Whether the other side closes a connection in time."""
    sock.settimeout(within_s)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def get(port, path="/", close=False):
    extra = "Connection: close\r\n" if close else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{extra}\r\n".encode()


def test_answers_with_a_date_and_the_headers():
    with serving() as (_, url, _port), Client(url) as client:
        response = client.get("/")
        assert (response.status, response.body) == (200, b"ok")
        assert response.headers["date"].endswith("GMT") and "server" not in response.headers
        assert response.headers["x-content-type-options"] == "nosniff"
        assert client.request("POST", "/", body=b"x").status == 405


def test_a_kept_connection_answers_without_delay():
    with serving() as (_, url, _port), Client(url) as client:
        client.get("/")
        took = []
        for _ in range(20):
            began = time.monotonic()
            client.get("/")
            took.append(time.monotonic() - began)
        assert sorted(took)[5] < 0.030, "40 ms: TCP_NODELAY is not set"


def test_too_many_connections_push_out_the_one_that_waits_longest():
    with serving(waiting=8, head_s=300) as (server, url, port):
        mute = [connect(port) for _ in range(8)]
        until(lambda: len(server.silent) == 8)
        for _ in range(5):
            assert Client(url).get("/").body == b"ok"
        assert closed(mute[0]) and not closed(mute[-1], 0.1)


class Shut(socket.socket):
    """A listening socket of which nothing is accepted until it is `opened`."""

    opened = False

    def accept(self):
        if not type(self).opened:
            raise BlockingIOError
        return super().accept()


def test_who_asked_without_tls_is_answered_however_many_came_at_once(monkeypatch):
    """Without TLS there is one address, loopback: nothing tells who is a stranger there."""
    monkeypatch.setattr(Shut, "opened", False)
    with serving(kind=Shut, connections=8, waiting=16) as (_, _url, port):
        many = [connect(port, get(port)) for _ in range(300)]
        Shut.opened = True
        for one in many:
            one.settimeout(SOON_S)
            assert one.recv(100).startswith(b"HTTP/1.1 200")


def test_idle_connections_do_not_keep_others_out():
    with serving(connections=8) as (server, url, port):
        many = []
        for _ in range(32):  # one after another: while others wait, an answered connection is closed at once
            many.append(connect(port, get(port)))
            assert many[-1].recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: sum(closed(one, 0.01) for one in many) >= 24 and len(server.idle) == 8)
        began = time.monotonic()
        assert Client(url).get("/").body == b"ok" and time.monotonic() - began < SOON_S


def test_a_connection_with_a_request_is_never_pushed_out():
    with serving(connections=4, head_s=300) as (server, url, port):
        streams = [connect(port, get(port, "/stream")) for _ in range(4)]
        until(lambda: len(server.busy) == 4)
        waiting = connect(port, get(port, close=True))
        assert not closed(waiting, 0.2), "all places are taken by requests"
        for one in streams:
            assert not closed(one, 0.05)
        streams[0].close()
        assert closed(waiting), "it was answered"
        assert Client(url).get("/").body == b"ok"


def test_too_many_requests_at_once_are_told_to_wait():
    with serving(in_flight=2) as (server, url, port):
        streams = [connect(port, get(port, "/stream")) for _ in range(2)]
        until(lambda: len(server.busy) == 2)
        response = Client(url).get("/")
        assert response.status == 503 and response.headers["retry-after"] == "1"
        assert response.headers["x-content-type-options"] == "nosniff"
        [one.close() for one in streams]
        until(lambda: not len(server.busy))
        assert Client(url).get("/").status == 200


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.ECONNABORTED])
def test_it_goes_on_where_accepting_fails(number, caplog):
    class Failing(socket.socket):
        calls = 0

        def accept(self):
            Failing.calls += 1
            if Failing.calls in (1, 2, 4):
                raise OSError(number, os.strerror(number))
            return super().accept()

    with serving(kind=Failing) as (_, url, _port):
        for _ in range(4):
            assert Client(url).get("/").body == b"ok"
    assert Failing.calls > 4 and len(caplog.records) <= 3


def test_an_address_with_many_connections_waits_for_one_with_few():
    with serving(connections=8, waiting=64, head_s=300) as (server, _url, port):
        many = [connect(port, get(port, "/stream")) for _ in range(7)]
        until(lambda: len(server.busy) == 7)
        many += [connect(port, b"GET / HT") for _ in range(20)]
        until(lambda: len(server.opening))
        other = socket.socket()
        other.bind(("127.0.0.9", 0))
        other.connect(("127.0.0.1", port))
        other.sendall(b"GET / HT")
        until(lambda: server.opening.size("127.0.0.9"))
        many += [connect(port, b"GET / HT") for _ in range(20)]
        time.sleep(0.2)  # for them to be accepted, of which nothing is to be seen
        other.sendall(get(port)[8:])
        other.settimeout(SOON_S)
        assert other.recv(100).startswith(b"HTTP/1.1 200")
        [one.close() for one in many]


def test_slow_heads_and_idle_clients_are_sent_away():
    with serving(head_s=0.3, idle_s=1) as (_, _url, port):
        began = time.monotonic()
        mute, slow, idle = connect(port), connect(port, b"GET / HTTP/1.1\r\nHost"), connect(port, get(port))
        assert closed(mute) and closed(slow)
        assert closed(idle) and time.monotonic() - began > 0.5
        half = connect(port, get(port))
        assert half.recv(10) == b"HTTP/1.1 2"
        half.sendall(b"GET / HT")  # the beginning of another request
        assert closed(half)


def test_a_client_that_does_not_read_is_sent_away():
    with serving(stalled_s=0.3) as (server, _url, port):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.sendall(get(port, "/big"))
        until(lambda: len(server.busy), "the request")
        until(lambda: not held(server), "its end", SOON_S)
        sock.close()


def test_long_heads_are_refused():
    with serving() as (_, url, port):
        sock = connect(port, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
        assert closed(sock)
        assert Client(url, headers={"X-Long": "x" * 10_000}).get("/").status == 200


@needs_openssl
def test_tls_handshakes_are_bounded(tmp_path, caplog):
    cert, key = certificate(tmp_path)
    with (
        caplog.at_level(logging.WARNING),
        serving(server_context(cert, key), handshake_s=0.4, connections=16) as (server, url, port),
    ):
        tls = ClientTls(ca=cert)
        mute = [connect(port) for _ in range(12)]
        noise = [connect(port, b"nonsense\r\n\r\n") for _ in range(40)]
        assert Client(url, tls=tls).get("/").body == b"ok"
        assert all(map(closed, mute)) and all(map(closed, noise))
        assert Client(url, tls=tls).get("/").body == b"ok"
        flood = [connect(port) for _ in range(100)]
        began = time.monotonic()
        assert Client(url, tls=tls).get("/").body == b"ok" and time.monotonic() - began < SOON_S
        assert len(server.opening) + len(server.busy) + len(server.idle) <= 16
        [one.close() for one in flood]
    assert 0 < len(caplog.records) <= 20


@needs_openssl
def test_clients_with_certificates(tmp_path):
    cert, key = certificate(tmp_path)
    with serving(server_context(cert, key, cert)) as (_, url, _port):
        assert Client(url, tls=ClientTls(ca=cert, cert=cert, key=key)).get("/").body == b"ok"
        with pytest.raises(Exception, match=r"TLS|closed|reset"):
            Client(url, tls=ClientTls(ca=cert)).get("/")


def test_the_right_token_is_never_locked_out():
    with serving(token=TOKEN) as (_, url, _port):
        wrong = Client(url, token="guess")
        assert [wrong.get("/").status for _ in range(11)] == [401] * 10 + [429]
        assert Client(url, token=TOKEN).get("/").status == 200
        assert Client(url).get("/").status == 401


def test_the_end_waits_for_answers_and_not_for_streams():
    with serving(graceful_s=4.0) as (server, _url, port):
        stream, idle, slow = connect(port, get(port, "/stream")), connect(port), connect(port, get(port, "/slow"))
        until(lambda: len(server.busy) == 1 + (len(server.idle) == 0) and held(server) == 3)
        server.stop()
        slow.settimeout(SOON_S)
        data = b""
        while piece := slow.recv(65536):
            data += piece
        assert data.endswith(b"ok\r\n0\r\n\r\n")
        assert closed(idle) and closed(stream)


def test_asked_twice_it_ends_at_once():
    with serving(graceful_s=60.0) as (server, _url, port):
        stream = connect(port, get(port, "/stream"))
        until(lambda: len(server.busy) == 1)
        server.stop()
        server.stop()
        assert closed(stream)


def test_an_application_that_fails_is_an_answer_too(caplog):
    async def broken(scope, receive, send):
        raise RuntimeError("secret detail")

    with serving(application=broken) as (_, url, _port):
        response = Client(url).get("/")
    assert response.status == 500 and b"secret" not in response.body


def test_pipelined_requests_are_answered_in_order():
    with serving() as (_, _url, port):
        sock = connect(port, get(port, "/slow") + get(port) + get(port, close=True))
        sock.settimeout(5)
        data = b""
        while piece := sock.recv(65536):
            data += piece
        assert data.count(b"HTTP/1.1 200") == 3


def test_log_lines_are_throttled(caplog):
    now = [0.0]
    throttle = Throttle(3, lambda: now[0])
    log = logging.getLogger("everywatt.test.throttle")
    with throttle.on(log):
        for number in range(10):
            log.warning("line %d", number)
        now[0] = 61.0
        log.warning("later")
    log.warning("after")
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["line 0", "line 1", "line 2", "later (7 similar lines omitted)", "after"]


def test_time_limits_of_the_client_hold_for_a_stream():
    with serving() as (_, url, _port), pytest.raises(Exception, match=r"within 0\.3 s"):
        Client(url, limits=Limits(total_s=0.3)).get("/stream")
