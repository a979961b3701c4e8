"""`everywatt serve` from a shell: refusals, the address it prints, and how it ends."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from sites import tree, write_home
from waiting import until

from everywatt.cli.main import main

pytest.importorskip("starlette")
ROOT = Path(__file__).resolve().parents[2]


def started(home, *words, **more):
    """The process, and the object that it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "everywatt", "serve", "--json", "--home", str(home), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "EVERYWATT_RECORDER_IDLE_S": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    lines = []
    while not lines or lines[-1] != "}\n":
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=10)[1])
        lines.append(line)
    return process, json.loads("".join(lines))


def ended(process, number=signal.SIGTERM):
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@contextlib.contextmanager
def serving(home, *words):
    process, said = started(home, *words)
    try:
        yield said["url"]
    finally:
        if process.poll() is None:
            ended(process)


def get(url, context=None, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=240, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize(
    "words",
    [
        ["--listen", "0.0.0.0:0"],
        ["--listen", "0.0.0.0:0", "--token", "a-token-of-some-length"],
        ["--listen", "[::]:0"],
        ["--listen", "nonsense"],
        ["--cert", "x.pem"],
        ["--token", "a", "--token-file", "b"],
        ["--token", ""],
        ["--token-file", "/nowhere"],
    ],
    ids=" ".join,
)
def test_it_refuses_with_2(words, own_home, capsys):
    assert main(["serve", *words]) == 2
    assert "Error: " in capsys.readouterr().err


def test_other_addresses_are_told_what_they_want(own_home, capsys):
    assert main(["serve", "--listen", "0.0.0.0:8765"]) == 2
    err = capsys.readouterr().err
    assert "can be reached from other machines and therefore requires a token and TLS files" in err
    assert "--token-file FILE --cert FILE --key FILE" in err


def test_a_port_in_use_is_said(own_home, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    assert "is in use" in capsys.readouterr().err


def test_without_the_extra_the_cure_is_named(own_home, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert "pip install 'everywatt[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_it_serves_reads_only_and_ends_in_order(tmp_path, number):
    home = write_home(tmp_path / "home")
    before = tree(home)
    process, said = started(home, "--listen", "127.0.0.1:0")
    assert said["kind"] == "serve" and said["home"] == str(home) and said["token"] is False
    url = said["url"]
    assert get(url)[0] == 200
    until(lambda: not json.loads(get(f"{url}api/runs")[1])["pending"])
    assert len(json.loads(get(f"{url}api/runs")[1])["runs"]) == 6
    status, body = get(f"{url}api/report?run=whole.tape&run=20261115-000000-job")
    assert status == 200 and [run["name"] for run in json.loads(body)["runs"]] == ["whole", "20261115-000000-job"]
    assert get(url, Host="evil.example")[0] == 421
    code, out, err = ended(process, number)
    assert (code, out) == (0, "")
    assert err.startswith(url) and "Traceback" not in err
    assert tree(home) == before


def test_a_slow_client_takes_nobodys_place_and_a_large_head_is_refused(tmp_path):
    with serving(tmp_path, "--listen", "127.0.0.1:0") as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)]
            for sock in slow:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert get(url)[0] == 200
            large = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            large.settimeout(120)
            with contextlib.suppress(OSError):
                large.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
            with contextlib.suppress(OSError):
                assert large.recv(100).startswith(b"HTTP/1.1 400")
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            raw.sendall(
                b"GET /run/../../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port
            )
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 404")
            slow[0].settimeout(120)
            assert slow[0].recv(10) == b"", "who does not say what it wants is sent away"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_with_token_and_tls_it_listens_elsewhere(tmp_path):
    cert, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x"]
    subprocess.run(["openssl", *words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    token.write_text("a-token-that-is-long-enough\n")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    process, said = started(
        tmp_path, "--listen", "0.0.0.0:0", "--token-file", str(token), "--cert", str(cert), "--key", str(key)
    )
    port = said["url"].rstrip("/").rpartition(":")[2]
    assert said["url"].startswith("https://") and said["token"] is True
    url = f"https://127.0.0.1:{port}/api/runs"
    assert get(url, context)[0] == 401
    assert get(url, context, Authorization="Bearer a-token-that-is-long-enough")[0] == 200
    assert get(url, context, Host=f"evil.example:{port}")[0] == 421
    code, out, err = ended(process)
    assert code == 0 and "a-token" not in out + err
