"""Questions over HTTP, and all that can be wrong with a server."""

import gzip
import json
import shutil
import threading

import pytest
from api_server import ApiServer
from webserver import certificate

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.net.api import ApiClient, NotTaken, corrected
from everywatt.net.http1 import Backoff

WAITS = Backoff(retries=3, first_s=0.5, jitter=0.0)


def client(url, **more):
    slept = []
    made = ApiClient(url, **{"waits": WAITS, "sleep": slept.append, **more})
    return made, slept


@pytest.mark.parametrize(
    "text, url",
    [
        ("localhost:9090", "http://localhost:9090"),
        ("store", "http://store"),
        ("//store:1/x/", "http://store:1/x"),
        ("http://store:9090/", "http://store:9090"),
        ("http://store/prometheus/api/v1/query_range", "http://store/prometheus"),
        ("https://g/api/datasources/proxy/uid/abc/", "https://g/api/datasources/proxy/uid/abc"),
        ("http://[::1]:9090/graph", "http://[::1]:9090"),
    ],
)
def test_addresses_are_corrected_and_it_is_said(text, url):
    found, told = corrected(text)
    assert found == url
    assert (told is not None) == ("://" not in text) and (told is None or url in told)


@pytest.mark.parametrize("text", ["", "ftp://store", "http://", "http://store:port", "http:// store", "http://a\nb"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError, match="is not the address"):
        corrected(text)


def test_prefix_query_token_and_gzip():
    body = gzip.compress(b'{"a": 1}')
    with ApiServer(lambda asked: (200, {"Content-Encoding": "gzip"}, body)) as server:
        made, slept = client(f"{server.url}/api/datasources/proxy/uid/x?orgId=2", token="secret")
        assert json.loads(made.ask("/api/v1/query", [("query", 'a{b="ü\n"}')])) == {"a": 1}
        (asked,) = server.asked
    assert asked.path == "/api/datasources/proxy/uid/x/api/v1/query"
    assert asked.query == {"orgId": "2", "query": 'a{b="ü\n"}'}
    assert asked.headers["Authorization"] == "Bearer secret" and slept == []


def test_a_password_is_sent_and_never_shown():
    with ApiServer(lambda asked: (404, {}, b"")) as server:
        made, _ = client(f"http://ada:s%23cret@{server.netloc}")
        with pytest.raises(MeasurementRefused) as caught:
            made.ask("/x")
        assert server.asked[0].headers["Authorization"] == "Basic YWRhOnMjY3JldA=="
    assert "cret" not in str(caught.value) and "404" in str(caught.value)


def test_a_busy_server_is_asked_again_and_told_how_long():
    answers = iter([(503, {}, b"busy"), (429, {"Retry-After": "7"}, b""), (200, {}, b"{}")])
    with ApiServer(lambda asked: next(answers)) as server:
        made, slept = client(server.url)
        assert made.ask("/x") == b"{}"
    assert slept == [0.5, 7.0]


@pytest.mark.parametrize(
    "broken, why",
    [
        ((200, {"cut": 5}, b'{"status": "success"}'), "before the response was complete"),
        ((200, {"Content-Length": "8"}, b'{"status": "success"}'[:8]), "is not valid"),
        ((200, {"Content-Encoding": "gzip"}, gzip.compress(b"{}" * 99)[:-6]), "is incomplete"),
        ((200, {"Content-Encoding": "gzip"}, b"no gzip at all"), "not valid gzip"),
        ((502, {}, b"<html>bad gateway</html>"), "502"),
    ],
)
def test_half_answers_are_asked_for_again_and_then_told(broken, why):
    with ApiServer(lambda asked: (broken[0], dict(broken[1]), broken[2])) as server:
        made, slept = client(server.url)
        with pytest.raises(MeasurementRefused, match=why):
            made.ask("/x", check=json.loads)
        assert len(server.asked) == 4 and slept == [0.5, 1.0, 2.0]
    good = iter([broken, (200, {}, b"[1]")])
    with ApiServer(lambda asked: (lambda one: (one[0], dict(one[1]), one[2]))(next(good))) as server:
        assert client(server.url)[0].ask("/x", check=json.loads) == b"[1]"


def test_a_slow_server():
    done = threading.Event()
    with ApiServer(lambda asked: (done.wait(10), (200, {}, b"{}"))[1]) as server:
        made, slept = client(server.url, timeout_s=0.05)
        with pytest.raises(MeasurementRefused, match=r"no data for 0\.05 s"):
            made.ask("/x")
        done.set()
    assert len(slept) == 3


def test_nobody_there():
    with ApiServer(lambda asked: (200, {}, b"")) as server:
        url = server.url
    made, slept = client(url)
    with pytest.raises(MeasurementRefused, match="Connection refused") as caught:
        made.ask("/x")
    assert caught.value.exit_code == 3 and len(slept) == 3


def test_a_name_that_nobody_knows():
    with pytest.raises(MeasurementRefused, match=r"its host name is unknown|gives no answer"):
        client("http://no-such-host.invalid")[0].ask("/x")


@pytest.mark.parametrize(
    "status, headers, body, error, match",
    [
        (422, {}, b"too many", NotTaken, "too many"),
        (413, {}, b"", NotTaken, "413"),
        (503, {}, b"query timed out", NotTaken, "timed out"),
        (400, {}, b"ApiClient sent an HTTP request to an HTTPS server.", MeasurementRefused, "https://"),
        (401, {}, b"", MeasurementRefused, "--token-file"),
        (403, {}, b"", MeasurementRefused, "--token-file"),
        (302, {"Location": "https://login/x?next=1"}, b"", MeasurementRefused, "redirects to https://login/x"),
        (404, {}, b"", MeasurementRefused, "404"),
    ],
)
def test_what_is_not_asked_again(status, headers, body, error, match):
    with ApiServer(lambda asked: (status, dict(headers), body)) as server:
        made, slept = client(server.url)
        with pytest.raises(error, match=match):
            made.ask("/x")
        assert len(server.asked) == 1 and slept == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_wrong_tls(tmp_path):
    cert, key = certificate(tmp_path)
    with ApiServer(lambda asked: (200, {}, b"{}"), tls=(cert, key)) as server:
        with pytest.raises(MeasurementRefused, match=r"not trusted.*--ca"):
            client(server.url)[0].ask("/x")
        assert client(server.url, ca=cert)[0].ask("/x") == b"{}"
    plain = ApiServer(lambda asked: (200, {}, b"{}"))
    with plain, pytest.raises(MeasurementRefused, match="TLS failed"):
        client(f"https://{plain.netloc}")[0].ask("/x")
    with pytest.raises(UsageError, match="cannot be used for TLS"):
        client("https://store", ca=key)
