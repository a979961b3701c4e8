"""What a node tells the world: a hostile process name is one label, and command lines stay at home."""

import shutil
import subprocess
import sys

import pytest
from agents import SRC, home_of

SECRET = "hunter2-on-the-command-line"
NAME = 'a"b\\c\né}{,='
"""15 bytes at most: a quote, a backslash, a newline, a letter beyond ASCII, and the marks of the format itself."""
OWNER = "everywatt_owner_cpu_seconds_total"

BUSY = f"""
import ctypes, os, sys, time
name = {NAME.encode()!r}
assert ctypes.CDLL(None).prctl(15, name, 0, 0, 0) == 0
print("named", flush=True)
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        pass
    time.sleep(0.02)
"""


@pytest.fixture
def hostile():
    """A process that uses CPU under such a name, with a secret on its command line."""
    assert len(NAME.encode()) <= 15
    process = subprocess.Popen([sys.executable, "-c", BUSY, SECRET], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "named\n"
    yield process
    process.kill()
    process.wait(60)


def owners(text: str) -> dict[tuple[str, str], float]:
    """(kind, owner) of every owner that used CPU, as Prometheus' own parser reads it."""
    parser = pytest.importorskip("prometheus_client.parser")
    samples = [one for family in parser.text_string_to_metric_families(text) for one in family.samples]
    return {(one.labels["kind"], one.labels["owner"]): one.value for one in samples if one.name == OWNER}


def test_names_are_told_only_when_asked_and_never_break_a_line(sim_machine, tmp_path, hostile):
    lab = sim_machine(packages=["constant:60W"])
    env = {**home_of(tmp_path, lab.environment()), "PYTHONPATH": str(SRC)}
    words = [sys.executable, "-m", "everywatt", "agent", "--check", "--quiet"]
    agents = [
        subprocess.Popen([*words, *more], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for more in ([], ["--programs"])
    ]
    (plain, _), (named, _) = [agent.communicate(timeout=120) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0]
    for text in (plain, named):
        assert SECRET not in text and "prctl" not in text
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines and all(line.startswith("everywatt_") for line in lines), "one line for each sample"
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")
    assert not [owner for kind, owner in owners(plain) if kind == "process"]
    assert 'a"b' not in str(owners(plain)) and 'a\\"b' not in plain
    found = [owner for kind, owner in owners(named) if kind == "process" and owner.startswith('a"b')]
    if not found and any(kind == "container" for kind, _ in owners(named)):
        pytest.skip("this test is itself in a container or unit, which owns its processes")
    # The kernel writes a newline and a backslash of a name as \\n and \\\\ in /proc; either is a name.
    assert found and found[0] in (NAME, NAME.replace("\\", "\\\\").replace("\n", "\\n"))
    assert owners(named)["process", found[0]] > 0
    assert hostile.poll() is None
