"""The blocking client: what it sends, what it follows, what it refuses, and when it stops waiting."""

import gzip
import http.client
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib

import pytest
from api_server import ApiServer
from hypothesis import given, settings
from hypothesis import strategies as st
from talker import Talker
from waiting import until
from webserver import certificate

from everywatt.core.errors import NetworkError, UsageError
from everywatt.net.client import Client, Decoder, Limits
from everywatt.net.tls import ClientTls
from everywatt.net.url import Login, Url

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def local(server):
    return f"http://127.0.0.1:{server.port}"


def kind_of(call):
    with pytest.raises(NetworkError) as caught:
        call()
    assert caught.value.exit_code == 3
    return caught.value.kind


def test_what_is_sent():
    with Talker([OK]) as server:
        client = Client(f"{local(server)}/a b?org=2", token="t0ken", headers={"X-One": "1"})
        response = client.request("POST", "/q", [("query", "ü=1")], body=b"{}", headers={"X-Two": "2"})
    assert (response.status, response.body, response.reason, response.truncated) == (200, b"ok", "OK", False)
    head, _, body = server.heard[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /a%20b/q?org=2&query=%C3%BC%3D1 HTTP/1.1" and body == b"{}"
    assert {f"Host: 127.0.0.1:{server.port}", "Authorization: Bearer t0ken", "X-One: 1", "X-Two: 2"} <= set(lines)
    assert "Content-Length: 2" in lines and "Content-Type: application/json" in lines


def test_a_login_is_sent_and_never_shown():
    with Talker([b"HTTP/1.1 404 Not Found\r\n\r\n"], [b""]) as server:
        client = Client(f"http://ada:s%23cret@127.0.0.1:{server.port}/x?key=hidden")
        assert client.get().status == 404
        with pytest.raises(NetworkError) as caught:
            client.get()
    assert b"Authorization: Basic YWRhOnMjY3JldA==" in server.heard[0]
    for text in (str(caught.value), repr(client.url), client.url.shown, repr(Login("ada", "s#cret"))):
        assert "cret" not in text and "hidden" not in text


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\nb", "a\0b"])
def test_no_header_can_hold_another(value):
    with pytest.raises(UsageError) as caught:
        Client("http://127.0.0.1:1").get(headers={"X-A": value})
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "plug", "ftp://plug", "http://", "http://a:port", "http:// a", "http://a\n/"])
def test_what_is_no_address(text):
    with pytest.raises(UsageError, match="is not an http"):
        Url.parse(text)


def test_addresses():
    url = Url.parse("HTTPS://Ada:pw@[::1]:8443/a/b/?q=1#x")
    assert (url.scheme, url.host, url.port, url.path, url.query) == ("https", "::1", 8443, "/a/b/", "q=1")
    assert url.origin == "https://[::1]:8443" and url.shown == "https://[::1]:8443/a/b" and url.target == "/a/b/?q=1"
    assert Url.parse("http://H:80/").origin == "http://h" != Url.parse("https://h:80").origin
    with pytest.raises(UsageError) as caught:
        Url.parse("ftp://me:pw@host")
    assert "pw" not in str(caught.value)


# Connections


def test_a_connection_is_used_again_and_a_closed_one_is_not():
    with Talker([OK, OK], [OK]) as server, Client(local(server)) as client:
        assert [client.get().body for _ in range(2)] == [b"ok", b"ok"]
        until(lambda: server.closed == 1)
        assert client.request("POST", body=b"").body == b"ok"
    assert len(server.heard) == 3


def test_only_repeatable_requests_are_sent_twice():
    # The second request on each connection is read and then answered by closing it.
    with Talker([OK, b""], [OK]) as server, Client(local(server)) as client:
        assert client.get().body == client.get().body == b"ok"
    with Talker([OK, b""], [OK]) as server, Client(local(server)) as client:
        client.get()
        assert kind_of(lambda: client.request("POST", body=b"x")) == "cut"
    with Talker([OK, b""], [OK]) as server, Client(local(server)) as client:
        client.get()
        assert client.request("POST", body=b"x", repeatable=True).body == b"ok"


def test_one_that_never_answered_is_not_asked_twice():
    with Talker([b""], [OK]) as server:
        assert kind_of(Client(local(server)).get) == "cut"


def test_nothing_is_kept_where_that_was_not_wanted():
    with Talker([OK], [OK]) as server:
        client = Client(local(server), limits=Limits(keep_s=0))
        assert client.get().body == client.get().body == b"ok"
    assert all(b"Connection: close" in heard for heard in server.heard)


def test_threads_share_a_client():
    with ApiServer(lambda asked: (200, {}, asked.query["n"].encode() * 1000)) as server, Client(server.url) as client:
        found = {}

        def ask(n):
            found[n] = [client.get("/", [("n", str(n))]).body for _ in range(20)]

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert found == {n: [str(n).encode() * 1000] * 20 for n in range(8)}


# Redirects


def redirect(where, status=302):
    return f"HTTP/1.1 {status} Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()


def test_redirects_within_the_origin():
    with Talker([redirect("/b/?x=1"), redirect("c", 303), OK]) as server:
        client = Client(local(server), limits=Limits(redirects=3))
        assert client.request("POST", "/a/", body=b"{}").body == b"ok"
    lines = [heard.split(b"\r\n")[0] for heard in server.heard]
    assert lines == [b"POST /a/ HTTP/1.1", b"POST /b/?x=1 HTTP/1.1", b"GET /b/c HTTP/1.1"]
    assert server.heard[1].endswith(b"{}") and server.heard[2].endswith(b"\r\n\r\n")
    with Talker([redirect("/x")] * 3) as server:
        assert kind_of(Client(local(server), limits=Limits(redirects=2)).get) == "redirect"
    with Talker([redirect("/x")]) as server:
        assert Client(local(server)).get().status == 302, "none is followed unless that was asked for"


@pytest.mark.parametrize("secret", [{"token": "t0ken"}, {"login": "a:b@"}, {"headers": {"X-Auth-Token": "t"}}, {}])
def test_a_redirect_to_another_origin_is_refused_and_nobody_there_is_asked(secret):
    with Talker([OK]) as other:
        for where in (f"{local(other)}/x", f"//127.0.0.1:{other.port}/x", f"http://user:pw@127.0.0.1:{other.port}/"):
            with Talker([redirect(where)]) as server:
                url = local(server).replace("//", f"//{secret.get('login', '')}")
                given = {name: value for name, value in secret.items() if name != "login"}
                client = Client(url, limits=Limits(redirects=3), **given)
                with pytest.raises(NetworkError, match="another origin") as caught:
                    client.get()
                assert caught.value.kind == "redirect" and "pw" not in str(caught.value)
        assert other.heard == []


@pytest.mark.parametrize(
    "where", ["http://h/x", "https://h:444/", "https://h2/", "ftp://h/", "https://h@evil/", "http://["]
)
def test_never_from_https_to_anything_else(where):
    client = Client("https://h/a", token="t", limits=Limits(redirects=3))
    with pytest.raises(NetworkError):
        client._within_origin(where, "/a")


# Limits


def answering(*parts, pause_s=0.0):
    """A server that sends parts with pauses, on one connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        wire, _ = listener.accept()
        with wire, listener:
            wire.recv(65536)
            try:
                for part in parts:
                    wire.sendall(part)
                    time.sleep(pause_s)  # a server that is slow
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_body_is_bounded():
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    assert kind_of(Client(answering(head, *[b"x" * 1000] * 100), limits=Limits(body_bytes=5000)).get) == "too-large"
    cut = Client(answering(head, b"x" * 9000), limits=Limits(body_bytes=5000, truncate=True)).get()
    assert (len(cut.body), cut.truncated) == (5000, True)
    whole = Client(answering(head, b"x" * 5000), limits=Limits(body_bytes=5000)).get()
    assert (len(whole.body), whole.truncated) == (5000, False)


def test_a_bomb_is_refused_with_little_memory():
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(128)) + packer.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    assert kind_of(Client(answering(head, bomb), limits=Limits(body_bytes=1 << 20)).get) == "too-large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kB"


def test_a_head_is_bounded():
    assert kind_of(Client(answering(b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n" * 1000] * 20)).get) == "protocol"
    assert kind_of(Client(answering(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)).get) == "protocol"


def test_time_is_bounded():
    slow = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 1000, pause_s=0.02)
    began = time.monotonic()
    with pytest.raises(NetworkError, match=r"0\.3 s") as caught:
        Client(slow, limits=Limits(silence_s=5, total_s=0.3)).get()
    assert caught.value.kind == "timeout" and time.monotonic() - began < 15, "a thousand pieces take 20 s"
    mute = answering(b"", pause_s=20)
    with pytest.raises(NetworkError, match=r"no data for 0\.1 s"):
        Client(mute, limits=Limits(silence_s=0.1)).get()


def test_connecting_is_bounded():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        try:
            with pytest.raises(NetworkError, match=r"no connection within 0\.2 s") as caught:
                Client(f"http://127.0.0.1:{port}", limits=Limits(connect_s=0.2)).get()
            assert caught.value.kind == "connect-timeout"
        finally:
            [one.close() for one in waiting]


def test_nobody_there_and_no_such_name():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert kind_of(Client(f"http://127.0.0.1:{port}").get) == "connect"
    assert kind_of(Client("http://no-such-host.invalid").get) in ("name", "connect")
    assert kind_of(Client(f"http://{'a' * 70}.lan").get) == "name"


@pytest.mark.parametrize(
    "said, kind",
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "cut"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "cut"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "damaged"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 100, mtime=0)[:-9], "cut"),
        (b"HTTP/1.1 20", "cut"),
    ],
)
def test_what_is_no_whole_response(said, kind):
    assert kind_of(Client(answering(said)).get) == kind


def test_a_refusal_is_read_although_the_body_was_not_taken():
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch"
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse():
        wire, _ = listener.accept()
        with wire:
            wire.recv(1000)
            wire.sendall(answer)
            wire.shutdown(socket.SHUT_WR)
            while wire.recv(1 << 16):
                pass

    threading.Thread(target=refuse, daemon=True).start()
    with listener:
        response = Client(f"http://127.0.0.1:{listener.getsockname()[1]}").request("POST", body=b"x" * (8 << 20))
    assert (response.status, response.body) == (413, b"much")


def test_small_devices_send_bare_line_feeds():
    assert Client(answering(b"HTTP/1.0 200 OK\nContent-Type: text/plain\nContent-Length: 2\n\nok")).get().body == b"ok"


# The same as http.client


def chunked(body, sizes):
    out, at = [], 0
    for size in sizes:
        if piece := body[at : at + size]:
            out.append(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece))
        at += size
    if rest := body[at:]:
        out.append(b"%X\r\n%s\r\n" % (len(rest), rest))
    return b"".join(out) + b"0\r\nTrailer: x\r\n\r\n"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(200, 599).filter(lambda status: status not in (204, 304)),
    st.binary(max_size=3000),
    st.sampled_from(["length", "chunked", "close"]),
    st.lists(st.integers(1, 700), max_size=8),
    st.lists(st.integers(1, 2000), max_size=5),
)
def test_it_reads_what_the_standard_library_reads(status, body, framing, sizes, cuts):
    head = {"length": f"Content-Length: {len(body)}\r\n", "chunked": "Transfer-Encoding: chunked\r\n", "close": ""}
    data = f"HTTP/1.1 {status} Some Thing\r\nX-A: 1\r\nX-A: 2\r\n{head[framing]}\r\n".encode()
    data += chunked(body, sizes) if framing == "chunked" else body
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    pieces.append(data[at:])
    response = Client(answering(*pieces)).get()
    host = answering(*pieces).removeprefix("http://")
    old = http.client.HTTPConnection(host, timeout=60)
    old.request("GET", "/")
    answer = old.getresponse()
    assert (response.status, response.reason, response.body) == (answer.status, answer.reason, answer.read())
    assert response.headers["x-a"] == "1, 2" == answer.getheader("X-A")
    old.close()


@given(st.binary(max_size=2000), st.booleans(), st.lists(st.integers(1, 300)))
def test_decoding_by_pieces(data, two_members, cuts):
    packed = gzip.compress(data[:50]) + gzip.compress(data[50:]) if two_members else gzip.compress(data)
    decoder, found, at = Decoder("gzip"), b"", 0
    for cut in [*cuts, len(packed)]:
        found += decoder.feed(packed[at : at + cut], 1 << 20)
        at += cut
    assert found == data and decoder.complete


# TLS and proxies


@needs_openssl
def test_tls(tmp_path):
    cert, key = certificate(tmp_path)
    with ApiServer(lambda asked: (200, {}, b"hidden"), tls=(cert, key)) as server:
        with Client(server.url, tls=ClientTls(ca=cert)) as client:
            assert [client.get().body for _ in range(3)] == [b"hidden"] * 3
        with pytest.raises(NetworkError, match="certificate is not trusted") as caught:
            Client(server.url).get()
        assert caught.value.kind == "certificate"
        assert kind_of(Client(server.url.replace("https", "http")).get) in ("cut", "connect", "protocol")
    with ApiServer(lambda asked: (200, {}, b"")) as plain:
        assert kind_of(Client(f"https://{plain.netloc}").get) == "tls"
    with pytest.raises(UsageError, match="cannot be used for TLS"):
        Client("https://store", tls=ClientTls(ca=key))


@needs_openssl
def test_a_client_certificate(tmp_path):
    cert, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(cert)
    context.verify_mode = ssl.CERT_REQUIRED
    with Talker([OK], context=context) as server:
        tls = ClientTls(ca=cert, cert=cert, key=key)
        assert Client(f"https://127.0.0.1:{server.port}", tls=tls).get().body == b"ok"


class Proxy:
    """Takes one connection, keeps the head it was sent, and answers as told or tunnels."""

    def __init__(self, answer=None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://me:pw@127.0.0.1:{self._listener.getsockname()[1]}"
        self.head, self._answer = b"", answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        wire, _ = self._listener.accept()
        with wire, self._listener:
            while b"\r\n\r\n" not in self.head:
                self.head += wire.recv(65536)
            if self._answer is not None:
                wire.sendall(self._answer)
                return
            place = self.head.split(b" ")[1].decode().rsplit(":", 1)
            with socket.create_connection((place[0], int(place[1]))) as far:
                wire.sendall(b"HTTP/1.1 200 Connection established\r\nX-Proxy: 1\r\n\r\n")
                back = threading.Thread(target=self._pump, args=(far, wire))
                back.start()
                self._pump(wire, far)
                back.join()

    @staticmethod
    def _pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_a_proxy_of_the_environment(monkeypatch):
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    proxy = Proxy(OK)
    monkeypatch.setenv("http_proxy", proxy.url)
    assert Client("http://store.invalid:9090/a", proxies=True).get("/b").body == b"ok"
    assert proxy.head.startswith(b"GET http://store.invalid:9090/a/b HTTP/1.1\r\nHost: store.invalid:9090\r\n")
    assert b"Proxy-Authorization: Basic bWU6cHc=" in proxy.head
    with Talker([OK], [OK]) as server:
        assert Client(local(server)).get().body == b"ok", "unless it is asked for, none is used"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert Client(local(server), proxies=True).get().body == b"ok"


@needs_openssl
def test_a_proxy_for_tls(monkeypatch, tmp_path):
    cert, key = certificate(tmp_path)
    monkeypatch.delenv("no_proxy", raising=False)
    with ApiServer(lambda asked: (200, {}, b"hidden"), tls=(cert, key)) as server:
        proxy = Proxy()
        monkeypatch.setenv("https_proxy", proxy.url)
        with Client(server.url, token="t0ken", tls=ClientTls(ca=cert), proxies=True) as client:
            assert client.get().body == b"hidden"
    assert proxy.head.startswith(b"CONNECT 127.0.0.1:") and b"t0ken" not in proxy.head
    proxy = Proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    monkeypatch.setenv("https_proxy", proxy.url)
    with pytest.raises(NetworkError, match="responds with 407") as caught:
        Client(server.url, tls=ClientTls(ca=cert), proxies=True).get()
    assert "pw" not in str(caught.value)


def test_it_loads_nothing_heavy():
    code = (
        "import sys, everywatt.net.client\n"
        "print(sorted({'asyncio', 'ssl', 'http.client', 'email', 'numpy', 'urllib.request', 'h11'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
