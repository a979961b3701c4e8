"""Which processes a server is, by the port that it listens on."""

import os
import socket
import subprocess
import sys

import pytest

from everywatt.net.server_processes import forwarder, is_here, listeners, port_of

SERVE = "import os, socket, sys, time; s = socket.create_server(('127.0.0.1', 0)); pid = os.fork()\n"
SERVE += "print(s.getsockname()[1], pid, flush=True) if pid else None; time.sleep(600)"


def test_a_server_is_the_process_that_listens_without_its_workers():
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True) as server:
        try:
            port, worker = map(int, server.stdout.readline().split())
            assert listeners(port) == [server.pid]
            os.kill(worker, 9)
        finally:
            server.kill()
    with socket.create_server(("::1", 0), family=socket.AF_INET6) if socket.has_ipv6 else pytest.skip("no IPv6") as one:
        assert listeners(one.getsockname()[1]) == [os.getpid()]


def test_where_nobody_listens_there_is_no_server():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        assert listeners(one.getsockname()[1]) == []


@pytest.mark.parametrize(
    ("url", "here", "port"),
    [
        ("http://127.0.0.1:8000", True, 8000),
        ("http://localhost", True, 80),
        ("https://[::1]/v1", True, 443),
        ("http://192.0.2.7:8000", False, 8000),  # an address that is kept for documents
        ("http://no-such-host.invalid:8000", False, 8000),
    ],
)
def test_a_url_is_of_this_host_or_of_another(url, here, port):
    assert (is_here(url), port_of(url)) == (here, port)


def test_a_program_that_only_passes_on_is_told_by_its_name(tmp_path):
    for pid, name in ((7, "python3"), (8, "docker-proxy"), (9, "ssh")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    assert [forwarder(pids, tmp_path) for pids in ([7], [7, 8], [9], [99], [])] == [
        None,
        "docker-proxy",
        "ssh",
        None,
        None,
    ]
