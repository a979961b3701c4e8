"""Where it may listen, and what a browser may call it."""

import shutil
import socket
import subprocess

import pytest

from everywatt.core.errors import UsageError
from everywatt.net.listen import (
    Address,
    check_open,
    hosts_of,
    listen,
    parse_listen,
    url_of,
)
from everywatt.net.tls import check_tls, read_token


@pytest.mark.parametrize(
    ("text", "expected", "loopback"),
    [
        ("127.0.0.1:8765", ("127.0.0.1", "127.0.0.1", 8765), True),
        ("127.9.9.9:1", ("127.9.9.9", "127.9.9.9", 1), True),
        ("[::1]:80", ("::1", "::1", 80), True),
        ("8765", ("127.0.0.1", "127.0.0.1", 8765), True),
        ("0.0.0.0:8765", ("0.0.0.0", "0.0.0.0", 8765), False),
        ("[::]:8765", ("::", "::", 8765), False),
        ("192.0.2.7:443", ("192.0.2.7", "192.0.2.7", 443), False),
    ],
)
def test_addresses(text, expected, loopback):
    address = parse_listen(text)
    assert (address.host, address.ip, address.port) == expected
    assert address.loopback is loopback


@pytest.mark.parametrize(
    "text", ["", ":8765", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "1.2.3.4:x", "no such host:1"]
)
def test_what_is_no_address(text):
    with pytest.raises(UsageError):
        parse_listen(text)


@pytest.mark.parametrize(
    ("token", "tls", "lacks"),
    [(None, False, "a token and TLS files"), ("t", False, "TLS files"), (None, True, "a token")],
)
def test_others_reach_it_only_with_both(token, tls, lacks):
    for ip in ("0.0.0.0", "192.0.2.7", "::"):
        with pytest.raises(UsageError, match=f"requires {lacks}\\."):
            check_open(Address(ip, ip, 1), token=token, tls=tls)
        check_open(Address(ip, ip, 1), token="t", tls=True)
    check_open(Address("127.0.0.1", "127.0.0.1", 1), token=token, tls=tls)


def test_names():
    hosts = hosts_of(Address("127.0.0.1", "127.0.0.1", 0), 8765, tls=False)
    assert hosts == {"127.0.0.1:8765", "localhost:8765", "[::1]:8765"}
    assert "127.0.0.1" in hosts_of(Address("127.0.0.1", "127.0.0.1", 80), 80, tls=False)
    assert hosts_of(Address("192.0.2.7", "192.0.2.7", 9), 9, tls=True, names=["GPU1.lab.example"]) == {
        "192.0.2.7:9",
        "gpu1.lab.example:9",
    }
    assert f"{socket.gethostname().lower()}:9" in hosts_of(Address("::", "::", 9), 9, tls=True)


def test_urls():
    assert url_of(Address("::1", "::1", 0), 8765, tls=False) == "http://[::1]:8765/"
    assert url_of(Address("0.0.0.0", "0.0.0.0", 0), 1, tls=True) == f"https://{socket.gethostname()}:1/"


def test_a_port_that_is_taken_is_said():
    with listen(parse_listen("127.0.0.1:0")) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} of 127.0.0.1 is in use") as caught:
            listen(parse_listen(f"127.0.0.1:{port}"))
        assert caught.value.cure == "--listen 127.0.0.1:0"
    with pytest.raises(UsageError, match="Cannot listen on"):
        listen(Address("192.0.2.7", "192.0.2.7", 0))


def test_tokens(tmp_path):
    file = tmp_path / "token"
    file.write_text("from-a-file\nand more\n")
    assert read_token(None, None) is None
    assert read_token("abc", None) == "abc" and read_token(None, file) == "from-a-file"
    file.write_text("\n")
    for token, path in [
        ("", None),
        ("a b", None),
        ("ü", None),
        ("x" * 513, None),
        ("a", file),
        (None, file),
        (None, tmp_path),
    ]:
        with pytest.raises(UsageError):
            read_token(token, path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_files(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x"]
    subprocess.run(["openssl", *words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    assert check_tls(None, None) is False and check_tls(cert, key) is True
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-out", locked, "-aes128", "-passout", "pass:abcd"],
        check=True,
        capture_output=True,
    )
    for pair in [(cert, None), (None, key), (cert, tmp_path / "none"), (key, cert), (cert, locked)]:
        with pytest.raises(UsageError):
            check_tls(*pair)
