"""HTTP/1.1 by hand: whatever way the bytes come in, the same response comes out."""

import contextlib
import itertools
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.net.http1 import Parser, retry_after_s

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Two:  a b \r\n\r\n"
WORLD = b"world" * 9


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def parsed(pieces):
    parser = Parser()
    found = b"".join(piece for data in pieces for piece in parser.feed(data))
    return parser, found


ANSWERS = {
    "chunked": (CHUNKED + chunk(b"hello ") + chunk(WORLD, b";a=b") + b"0\r\n\r\n", b"hello " + WORLD, True),
    "trailers": (CHUNKED + chunk(b"x") + b"0\r\nDigest: 1\r\nMore: 2\r\n\r\n", b"x", True),
    "length": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nnever", b"never", True),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok", True),
    "closes": (b"HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    "old": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    "more than asked": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP", b"ok", False),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_any_cut_gives_the_same_answer(name):
    data, body, keeps = ANSWERS[name]
    for at in range(len(data) + 1):
        parser, found = parsed([data[:at], data[at:]])
        assert (found, parser.done, parser.reusable) == (body, True, keeps)
    parser, found = parsed([data[at : at + 1] for at in range(len(data))])
    assert (found, parser.done, parser.reusable) == (body, True, keeps)


def test_head():
    parser, _ = parsed([CHUNKED])
    assert (parser.head.status, parser.head.headers["x-two"], parser.done) == (200, "a b", False)


def test_an_answer_without_a_length_ends_with_its_connection():
    parser, found = parsed([b"HTTP/1.1 200 OK\r\n\r\nas much", b" as there is"])
    assert (found, parser.done) == (b"as much as there is", False)
    assert parser.closed() and not parser.reusable
    for torn in (CHUNKED, CHUNKED + b"5\r\nab", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", b"HTTP/1.1 20", b""):
        assert not parsed([torn])[0].closed()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 many\r\n\r\n",
        b"x" * 70_000,
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\nabc",
        CHUNKED + b"ffffffffffffffff\r\n",
        CHUNKED + b"2\r\nabc\r\n",
        CHUNKED + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
    ],
)
def test_what_is_no_http_is_said(data):
    with pytest.raises(ValueError, match=r"it is|its head|its response|chunk|literal"):
        parsed([data])


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=6))
def test_no_bytes_do_more_than_a_value_error(data, cuts):
    places = [0, *sorted(cuts), len(data)]
    for start in (b"", CHUNKED):
        with contextlib.suppress(ValueError):
            parsed([start, *(data[low:high] for low, high in itertools.pairwise(places))])


def test_how_long_a_server_wants_to_be_left_alone():
    assert retry_after_s("12") == 12.0 and retry_after_s("99999") == 600.0
    assert 50 < retry_after_s(formatdate(time.time() + 60, usegmt=True)) <= 61
    assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT") == 0.0
    assert retry_after_s("soon") is None and retry_after_s(None) is None
