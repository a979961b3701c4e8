"""`everywatt sim` as a command: exit codes, stdio, signals, the truth file."""

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from everywatt.cli.sim import sim
from everywatt.core.errors import SimError, UsageError

MAIN = "import sys; from everywatt.cli.sim import sim; sim.main(sys.argv[1:], prog_name='everywatt sim')"


def start(*args, **options):
    return subprocess.Popen([sys.executable, "-c", MAIN, *args], text=True, **options)


def call(*args, **options):
    with start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE) as child:
        out, err = child.communicate(options.get("input", ""), timeout=240)
    return child.returncode, out, err


@pytest.mark.parametrize(
    ("command", "code"),
    [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 127)],
)
def test_the_exit_code_is_the_commands_own(command, code):
    assert call("--gpu", "constant:100W", "--", *command)[0] == code


def test_a_verb_without_its_program_is_explained():
    code, out, err = call("--gpu", "constant:1W", "--", "compare", "true")
    assert (code, out) == (127, "")
    assert err.splitlines() == [
        "Error: compare: No such file or directory",
        "Try:   everywatt sim … -- everywatt compare true",
    ]


def test_stdio_is_the_commands_own():
    assert call("--gpu", "constant:1W", "--", "cat", input="hello") == (0, "hello", "")


def test_a_signal_reaches_the_command():
    child = start("--gpu", "constant:1W", "--", "sh", "-c", "echo up; exec sleep 30", stdout=subprocess.PIPE)
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=240) == 128 + signal.SIGTERM
    child.stdout.close()


def test_nothing_is_left_behind(tmp_path):
    os.environ["TMPDIR"] = str(tmp_path)
    try:
        code, out, _ = call("--gpu", "load:1W,2W", "--", "sh", "-c", "echo $EVERYWATT_SIM")
    finally:
        del os.environ["TMPDIR"]
    assert code == 0
    assert out.startswith(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("everywatt-sim")] == []


def test_the_truth_of_the_commands_life_and_of_any_window(tmp_path):
    file = tmp_path / "truth.json"
    args = ("--gpu", "step:100W,300W,1h", "--gpus", "2", "--package", "sine:50W,10W,0.1s", "--sensor", "psys=5W")
    code, _, err = call(*args, "--truth", str(file), "--", "nvidia-smi", "-L")
    assert (code, err) == (0, "")
    data = json.loads(file.read_text())
    assert (data["schema"], data["kind"], data["exit_code"]) == ("everywatt/1", "sim-truth", 0)
    seconds = data["duration_s"]
    assert seconds == (data["end_ns"] - data["start_ns"]) / 1e9
    assert data["devices"]["gpu.1"]["joules"] == pytest.approx(100 * seconds)
    assert data["nvml_calls"]["nvmlDeviceGetUUID"] == 2
    window = ask(file, "0.2s", "0.4s")
    expected = {"gpu.0": 20, "gpu.1": 20, "cpu.0": 10, "cpu.0.core": 7, "psys": 11}
    assert {k: v["joules"] for k, v in window["devices"].items()} == pytest.approx(expected)
    start_s = data["start_ns"] / 1e9
    same = ask(file, f"mono:{start_s + 0.2:.9f}", f"mono:{start_s + 0.4:.9f}")
    assert same["devices"]["cpu.0"]["joules"] == pytest.approx(10, abs=1e-6)
    assert ask(file, "0", "end")["duration_s"] == seconds


def test_the_truth_takes_wall_clock_times(tmp_path):
    from datetime import UTC, datetime

    file = tmp_path / "truth.json"
    assert call("--gpu", "constant:100W", "--truth", str(file), "--", "true")[0] == 0
    data = json.loads(file.read_text())
    a = (data["start_ns"] + data["utc_offset_ns"]) / 1e9
    texts = [datetime.fromtimestamp(a + plus, UTC).isoformat() for plus in (0.0, 1.0)]
    assert ask(file, *texts)["devices"]["gpu.0"]["joules"] == pytest.approx(100, rel=1e-5)


def ask(file, a, b):
    done = CliRunner().invoke(sim, ["truth", str(file), "--between", a, b, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_the_truth_as_text(tmp_path):
    file = tmp_path / "truth.json"
    assert call("--gpu", "constant:100W", "--truth", str(file), "--", "true")[0] == 0
    done = CliRunner().invoke(sim, ["truth", str(file), "--between", "0", "2s"])
    assert "gpu.0            200.000000 J     100.000 W" in done.output


@pytest.mark.parametrize(
    "args",
    [
        ["--gpu", "constant:100W"],
        ["--gpu", "wobble:1W", "--", "true"],
        ["--gpu", "constant:1W", "--sensor", "colour=red", "--", "true"],
        ["--gpu", "constant:1W", "--sensor", "period", "--", "true"],
        ["--gpu", "constant:1W", "--sensor", "period=fast", "--", "true"],
        ["--gpu", "constant:1W", "--sensor", "gpu.3.gain=2", "--", "true"],
        ["--gpu", "constant:1W", "--sensor", "jitter=2s", "--", "true"],
        ["--gpu", "constant:1W", "--sensor", "mig=big", "--", "true"],
        ["--package", "constant:1W", "--sensor", "package.fault=odd", "--", "true"],
        ["--gpus", "0", "--", "true"],
    ],
)
def test_wrong_arguments_are_usage_errors(args):
    with pytest.raises(UsageError):
        CliRunner().invoke(sim, args, catch_exceptions=False)


def test_a_truth_file_that_is_none(tmp_path):
    (tmp_path / "x").write_text("{}")
    with pytest.raises(SimError):
        CliRunner().invoke(sim, ["truth", str(tmp_path / "x")], catch_exceptions=False)


def test_replays_are_found_again_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "m.csv").write_text("seconds,watts\n0,10\n1,10\n")
    monkeypatch.chdir(tmp_path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path if p)}
    args = [sys.executable, "-c", MAIN, "--gpu", "replay:m.csv", "--truth", "t.json", "--", "true"]
    subprocess.run(args, env=env, check=True)
    monkeypatch.chdir("/")
    assert ask(tmp_path / "t.json", "0", "10s")["devices"]["gpu.0"]["joules"] == pytest.approx(100)


def test_a_truth_file_that_is_not_there(tmp_path):
    with pytest.raises(SimError) as wrong:
        CliRunner().invoke(sim, ["truth", str(tmp_path / "none.json")], catch_exceptions=False)
    assert wrong.value.message == f"{tmp_path / 'none.json'} cannot be read: No such file or directory."


def test_a_machine_without_cards_does_not_speak_of_nvml(tmp_path):
    words = [sys.executable, "-m", "everywatt", "run", "--", "true"]
    code, _, err = call("--package", "constant:100W", "--", "env", f"EVERYWATT_HOME={tmp_path}", *words)
    assert code == 0 and "package-0" in err
    assert "nvml" not in err.lower() and "nvidia" not in err.lower()
