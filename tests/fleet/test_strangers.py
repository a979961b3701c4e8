"""Strangers without a token, by the hundred, at the agent and at the pages: an honest request is answered in time."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
from agents import SRC, AgentProcess, home_of
from sites import write_home
from strangers import KINDS, besiege
from webserver import certificate

from everywatt.sim.machine import SimMachine

pytest.importorskip("starlette")
pytestmark = [
    pytest.mark.realtime,
    pytest.mark.serial,  # a second is promised, and the strangers take a core
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]
TOKEN = "s3cret-s3cret-s3cret"
MOST_GROWN_BYTES = 20_000_000
MOST_LINES = 100  # a minute


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """An agent as on a node, TLS and a token: one for all sieges, as a node has one for all its days."""
    folder = tmp_path_factory.mktemp("agent")
    cert, key = certificate(folder)
    (folder / "token").write_text(TOKEN)
    words = ("--state", str(folder / "s"), "--token-file", str(folder / "token"), "--cert", str(cert))
    machine = SimMachine.of(gpus=["square:100W,300W,2s"], packages=["constant:60W"])
    with machine.start() as lab, AgentProcess(home_of(folder, lab.environment()), *words, "--key", str(key)) as process:
        yield process.url, process.process.pid, lambda: len(process.log)


@pytest.fixture
def plain_agent(sim_machine, tmp_path):
    """An agent as it is without options: on loopback, for every user of the machine."""
    lab = sim_machine(packages=["constant:60W"])
    with AgentProcess(home_of(tmp_path, lab.environment()), "--state", str(tmp_path / "s")) as process:
        yield process.url, process.process.pid, lambda: len(process.log)


@pytest.fixture
def pages(tmp_path):
    """`everywatt serve` with TLS and a token."""
    home = tmp_path / "home"
    write_home(home)
    cert, key = certificate(tmp_path)
    words = ["serve", "--json", "--home", str(home), "--listen", "127.0.0.1:0", "--token", TOKEN]
    process = subprocess.Popen(
        [sys.executable, "-m", "everywatt", *words, "--cert", str(cert), "--key", str(key)],
        env={**os.environ, "PYTHONPATH": str(SRC)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True).start()
    text = ""
    while not text.endswith("}\n"):
        line = process.stdout.readline()
        assert line, lines
        text += line
    try:
        yield json.loads(text)["url"] + "api/runs", process.pid, lambda: len(lines)
    finally:
        process.terminate()
        process.wait(20)


def withstands(server, kind, count, seconds):
    url, pid, log = server
    siege = besiege(kind, url, pid, log, count=count, seconds=seconds, token=TOKEN)
    print(kind, siege)
    assert max(siege.took_s) <= 1.0, siege
    assert siege.grown_bytes <= MOST_GROWN_BYTES, siege
    assert siege.lines <= MOST_LINES, siege


@pytest.mark.parametrize(
    ("server", "kind"), [*(("agent", kind) for kind in KINDS), ("plain_agent", "scrapes"), ("pages", "idle")]
)
def test_strangers_do_not_keep_others_out(server, kind, request):
    withstands(request.getfixturevalue(server), kind, count=300, seconds=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", ["agent", "plain_agent", "pages"])
def test_fifteen_hundred_strangers_do_not_keep_others_out(server, kind, request):
    withstands(request.getfixturevalue(server), kind, count=1500, seconds=20)
