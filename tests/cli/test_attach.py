"""`everywatt attach`: processes that run already."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from truths import holds
from waiting import until

from everywatt.sim.machine import SimMachine
from everywatt.tape.reader import Tape


@pytest.fixture(scope="module")
def machine():
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab


@pytest.fixture
def attach(machine, tmp_path):
    """Start `everywatt attach` in that machine."""

    def start(*words, environ=None):
        command = [sys.executable, "-m", "everywatt", "attach", *map(str, words)]
        env = machine.environment() | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)} | (environ or {})
        env.pop("EVERYWATT_HOME", None)  # of whoever runs the tests
        usual = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
        return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True, preexec_fn=usual)

    return start


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def wait_for_tape(folder):
    """Until it has its first bytes: the file is there a moment before."""
    until(lambda: any(path.stat().st_size for path in folder.glob("everywatt-runs/*/*.tape")))


def pids_on_tape(folder):
    (path,) = folder.glob("everywatt-runs/*/*.tape")
    with Tape.open(path, verify=False) as tape:
        ids = [group.id for group in tape.groups if group.info.name == "use.processes"]
        return {row["pid"] for number in ids for _, rows in tape.tables(number) for row in rows}


def test_until_all_are_gone_with_the_children_that_joined(attach, tmp_path):
    subject = subprocess.Popen(["sh", "-c", "read x; sleep 600 >/dev/null 2>&1 & echo $!; read x"], stdin=-1, stdout=-1)
    done = attach(subject.pid, "--json")
    wait_for_tape(tmp_path)
    subject.stdin.write(b"\n")
    subject.stdin.flush()
    child = int(subject.stdout.readline())
    until(lambda: child in pids_on_tape(tmp_path), "a look at the child before its parent goes")
    subject.communicate(b"\n")  # it ends, and what it started goes on
    left = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        done.wait(1)
    os.kill(child, signal.SIGKILL)
    beside_s = time.monotonic() - left
    out, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    data = json.loads(out)
    assert data["ended"] == "gone" and data["kind"] == "run"
    assert data["duration_s"] >= beside_s, "the child that was left behind counts"
    assert holds(data["energy"], 50 * data["duration_s"])
    (path,) = tmp_path.glob("everywatt-runs/*/*.tape")
    tape = Tape.open(path)
    (note,) = [note for note in tape.notes() if note.kind == "follow"]
    assert note.data["pids"] == [subject.pid] and isinstance(note.data["starts"][0], int)


def test_for_a_time(attach, sleeper):
    done = attach(sleeper.pid, "--for", "300ms", "--json")
    out, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    assert json.loads(out)["ended"] == "time" and sleeper.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(attach, sleeper, tmp_path, number):
    done = attach(sleeper.pid)
    wait_for_tape(tmp_path)
    time.sleep(0.5)  # of recorded time, so that there is an energy
    os.kill(done.pid, number)
    _, err = done.communicate(timeout=240)
    assert done.returncode == 0 and "energy" in err and sleeper.poll() is None
    (path,) = tmp_path.glob("everywatt-runs/*/*.tape")
    assert Tape.open(path).sealed


@pytest.mark.parametrize("words", [["4194303999"], ["abc"], ["0"], [], ["--for", "x", "1"], ["--for", "-3s", "1"]])
def test_mistakes_are_exit_2(attach, tmp_path, words):
    done = attach(*words)
    _, err = done.communicate(timeout=240)
    assert done.returncode == 2 and err and not (tmp_path / "everywatt-runs").exists()


def test_nothing_to_measure_with_is_exit_4(attach, sleeper, tmp_path):
    done = attach(sleeper.pid, "--no-estimate", "--sensors", "use")
    _, err = done.communicate(timeout=240)
    assert done.returncode == 4 and "measures power" in err
    assert not list(tmp_path.glob("everywatt-runs/*/*.tape"))


def test_on_a_machine_without_sensors_cpu_time_leads_and_idle_is_not_to_be_recorded_again(attach):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        done = attach(busy.pid, "--for", "1500ms", "--sensors", "modelled,use")
        _, err = done.communicate(timeout=240)
    finally:
        busy.kill()
        busy.wait()
    assert done.returncode == 0, err
    assert err.startswith("cpu     ") and " of CPU time in " in err.splitlines()[0]
    assert "everywatt run --idle" not in err
