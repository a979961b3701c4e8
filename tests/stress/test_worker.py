"""The worker process: it speaks lines, ends when its parent does, however that ends, and is small."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loads import gone, workers_below

from everywatt.stress.crew import Crew, Plan, environment
from everywatt.stress.worker import stretches

PARENT = """
import sys, time
from everywatt.stress.crew import Crew, Plan
minute = 60_000_000_000
with Crew([Plan("cpu", [(0, minute, 0.2, "integer")]), Plan("ram", [(0, minute, 2.0**20, "")])]) as crew:
    crew.go()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def worker():
    process = subprocess.Popen(
        [sys.executable, "-m", "everywatt.stress.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def say(process, **message):
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def hear(process):
    return json.loads(process.stdout.readline())


def test_a_conversation(worker):
    steps = [[0, 500_000_000, 0.5, "integer"], [500_000_000, 600_000_000, 0.0, ""]]
    say(worker, role="cpu", steps=steps, options={}, parent=os.getpid())
    assert hear(worker) == {"ready": worker.pid, "about": ""}
    say(worker, start_ns=time.monotonic_ns())
    first, second = hear(worker), hear(worker)
    assert (first["step"], second["step"]) == (0, 1)
    assert first["operations"] > 0 and second["operations"] == 0
    assert 0 < first["cpu_s"] < 0.5 and second["cpu_s"] < 0.05
    assert worker.wait(20) == 0


def test_it_leaves_when_stdin_is_closed_and_says_what_it_had(worker):
    say(worker, role="cpu", steps=[[0, 600_000_000_000, 0.1, "integer"]], options={}, parent=os.getpid())
    hear(worker)
    say(worker, start_ns=time.monotonic_ns())
    time.sleep(0.3)  # some work to report
    worker.stdin.close()
    assert hear(worker)["step"] == 0
    assert worker.wait(20) == 0


def test_a_parent_that_is_gone_already_is_noticed(worker):
    say(worker, role="cpu", steps=[[0, 600_000_000_000, 1.0, "integer"]], options={}, parent=1)
    assert worker.wait(20) == 0


def test_what_fails_in_it_is_told(worker):
    say(
        worker,
        role="disk",
        steps=[[0, 1_000_000_000, 1.0, ""]],
        options={"folder": "/no/such/folder"},
        parent=os.getpid(),
    )
    assert "FileNotFoundError" in hear(worker)["error"]
    assert worker.wait(20) == 1


def test_kill_of_the_parent_leaves_no_worker():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment(), text=True)
    try:
        assert parent.stdout.readline() == "ready\n"
        found = workers_below(parent.pid)
        assert len(found) == 2
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert gone(found)


def test_it_is_a_small_process():
    with Crew([Plan("cpu", [(0, 1_000_000_000, 0.1, "integer")])]) as crew:
        status = Path(f"/proc/{crew.workers[0].process.pid}/status").read_text()
        loaded = Path(f"/proc/{crew.workers[0].process.pid}/maps").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert rss < 24 * 1024, "kilobytes"
    assert "numpy" not in loaded


def test_steps_on_the_clock():
    first, second = stretches([[0, 500, 1.0, "a"], [500, 750, 2.0, "b"]], 10)
    assert (first.start_ns, first.end_ns) == (10, 510)
    assert (second.start_ns, second.end_ns, second.level, second.kind) == (510, 760, 2.0, "b")
