"""`everywatt run`: all that the command starts is counted, and left alone when it should be."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from everywatt.api import own_cgroup
from everywatt.sim.machine import SimMachine
from everywatt.tape.reader import Tape

# Leaves its parent, burns a CPU-second of its own, and says so in a file.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while time.process_time() < 1.0: pass
        open(sys.argv[1], "w").close()
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def machine():
    with SimMachine.of(packages=["load:10W,60W"]).start() as lab:
        yield lab


@pytest.fixture
def run(machine, tmp_path):
    def go(*words, **more):
        command = [sys.executable, "-m", "everywatt", "run", "--json=out.json", *words]
        env = machine.environment() | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, **more)
        assert done.returncode == 0, done.stderr
        (path,) = tmp_path.glob("everywatt-runs/*/*.tape")
        return json.loads((tmp_path / "out.json").read_text()), Tape.open(path)

    return go


def rows_of(tape, name):
    group = next(group for group in tape.groups if group.info.name == name)
    return [row for _, rows in tape.tables(group.id) for row in rows]


def test_a_daemon_is_in_the_table_and_in_the_group(run, tmp_path):
    data, tape = run("--", sys.executable, "-S", "-c", DAEMON, str(tmp_path / "done"))
    attributes = data["spans"][0]["attributes"]
    assert attributes["cpu_method"] in ("cgroup", "exit records", "rusage")
    assert 0.95 <= attributes["cpu_s"] <= 1.6
    rows = rows_of(tape, "use.processes")
    reaper = [row for row in rows if row.get("reaper")][-1]
    subject = {}
    for row in rows:
        if row["pid"] and not row.get("meter") and "cpu_s" in row:
            subject[row["pid"], row["start"]] = row["cpu_s"]
    host = [row for row in rows if row["pid"] == 0]
    told = sum(subject.values()) if host and host[-1]["exits"] else reaper["children_cpu_s"]
    assert 0.95 <= told <= 1.6
    (note,) = [note for note in tape.notes() if note.kind == "follow" and note.data["pids"]]
    assert note.data["starts"][0] is not None
    if own_cgroup.make()[0] is None:
        return
    own_cgroup.OwnCgroup(own_cgroup.make()[0].folder).remove()
    assert attributes["cpu_method"] == "cgroup"
    made = [row for row in rows_of(tape, "use.cgroups") if row.get("made") and "cpu_s" in row]
    assert made[-1]["cpu_s"] == pytest.approx(attributes["cpu_s"], abs=0.05)
    assert not os.path.exists(made[-1]["cgroup"])


def test_a_daemon_that_goes_on_is_left_alone(run, tmp_path):
    started = time.monotonic()
    run("--quiet", "--", "sh", "-c", "setsid sleep 120 >/dev/null 2>&1 & echo $! > pid; sleep 0.2")
    assert time.monotonic() - started < 110
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)  # it lives
    os.kill(pid, signal.SIGTERM)


def test_zombies_of_others_are_waited_for_while_the_command_runs(run, tmp_path):
    code = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
time.sleep(0.6)
print(sum(open(f"/proc/{p}/stat").read().split()[3] == str(os.getppid()) and ") Z" in open(f"/proc/{p}/stat").read()
          for p in os.listdir("/proc") if p.isdigit() and os.path.exists(f"/proc/{p}/stat")))
"""
    command = [sys.executable, "-m", "everywatt", "run", "--quiet", "--", sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "0"


def test_no_library_with_threads_is_loaded_before_signals_are_held():
    code = "import sys, everywatt.cli.run; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_dead_recorder_does_not_hold_up_the_end(machine, tmp_path):
    env = machine.environment() | {"HOME": str(tmp_path), "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt")}
    script = ": > began; until [ -e go ]; do sleep 0.05; done; exit 5"
    command = [sys.executable, "-m", "everywatt", "run", "--quiet", "--", "sh", "-c", script]
    process = subprocess.Popen(command, cwd=tmp_path, env=env)
    until((tmp_path / "began").exists)
    (recorder,) = recorders(os.fsencode(str(tmp_path / "rt")))
    os.kill(recorder, signal.SIGSTOP)  # it answers nothing any more
    try:
        (tmp_path / "go").touch()
        assert process.wait(timeout=240) == 5
    finally:
        os.kill(recorder, signal.SIGCONT)


def recorders(folder: bytes) -> list[int]:
    """Recorders whose socket is in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if b"recorder/__main__" in words and folder in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def limited(most: int) -> list[str]:
    """Words before a command that may have so many processes. Root has no such limit, so it becomes another user."""
    words = ["prlimit", f"--nproc={most}:{most}"]
    if os.getuid():
        return words
    may_read = "+dac_override,+dac_read_search"
    return [
        "setpriv",
        "--reuid=54321",
        "--clear-groups",
        f"--inh-caps={may_read}",
        f"--ambient-caps={may_read}",
        *words,
    ]


@pytest.mark.skipif(not shutil.which("setpriv") or not shutil.which("prlimit"), reason="needs util-linux")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_where_no_more_processes_may_be_started_the_command_runs_all_the_same(tmp_path, most):
    env = {**os.environ, "HOME": str(tmp_path), "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt")}
    env.pop("OPENBLAS_NUM_THREADS", None)
    command = [sys.executable, "-m", "everywatt", "run", "--", "sh", "-c", "echo it runs; exit 7"]
    done = subprocess.run([*limited(most), *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "it runs\n"), done.stderr
    assert "Traceback" not in done.stderr and "OpenBLAS" not in done.stderr
