"""Sensors that break while a command runs: it ends with its own result, and the figure stays honest."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from truths import holds
from waiting import until

CODE = 5


def long(value):
    return pytest.param(value, marks=pytest.mark.long)


SECONDS = 1.1


def run(lab, folder, *options, seconds=SECONDS):
    """Run a command in the machine; gives the JSON of the run after checking what must always hold."""
    words = [sys.executable, "-m", "everywatt", "run", "--no-estimate", "--json=out.json", *options, "--"]
    command = [sys.executable, "-c", f"import time, sys; time.sleep({seconds}); print('done'); sys.exit({CODE})"]
    environ = lab.environment() | {"EVERYWATT_RECORDER_IDLE_S": "0.2"}
    done = subprocess.run([*words, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == CODE and done.stdout == "done\n" and "Traceback" not in done.stderr, done.stderr
    return json.loads((folder / "out.json").read_text())


def honest(out, watts) -> None:
    """The truth is inside the interval, or there is no figure and a reason."""
    energy, truth = out["energy"], watts * out["duration_s"]
    if energy["joules"] is None:
        assert energy["refused"]
        return
    assert holds(energy, truth)
    if energy["coverage"] < 0.95:
        assert any("not observed" in note for note in energy["notes"])


@pytest.mark.parametrize("fault", ["vanish", "empty", long("garbage"), "negative", long("unreadable")])
def test_a_counter_file_that_breaks(sim_machine, tmp_path, fault) -> None:
    lab = sim_machine(packages=["constant:50W"], sensor=[f"package.fault={fault},package.fault_at=1s"])
    honest(run(lab, tmp_path), 50.0)


def test_a_counter_that_starts_again_from_zero(sim_machine, tmp_path) -> None:
    lab = sim_machine(packages=["constant:50W"], sensor=["package.reset_at=1s,package.start=500J"])
    honest(run(lab, tmp_path), 50.0)


def test_a_counter_that_wraps_every_second(sim_machine, tmp_path) -> None:
    lab = sim_machine(packages=["constant:50W"], sensor=["package.wrap=50J"])
    out = run(lab, tmp_path)
    honest(out, 50.0)
    assert out["energy"]["coverage"] >= 0.99


def test_a_range_that_cannot_be_read(sim_machine, tmp_path) -> None:
    lab = sim_machine(packages=["constant:50W"], sensor=["package.wrap=50J,package.range_unreadable=1"])
    honest(run(lab, tmp_path), 50.0)


@pytest.mark.parametrize(
    "fault",
    [
        "fail_call=100",
        long("fail_after=100"),
        "fail_after=100,fail_code=15",
        "lost_at=1.3s",
        "lost_at=1.1s,back_at=1.6s",
    ],
)
def test_an_nvml_that_breaks(sim_machine, tmp_path, fault) -> None:
    lab = sim_machine(gpus=["constant:100W"], sensor=[fault])
    honest(run(lab, tmp_path), 100.0)


def test_one_gpu_of_two_is_lost_and_the_other_goes_on(sim_machine, tmp_path) -> None:
    lab = sim_machine(gpus=["constant:100W", "constant:60W"], sensor=["gpu.1.lost_at=1.3s"])
    out = run(lab, tmp_path)
    first, second = (out["energy"]["parts"].get(f"gpu.{index}") for index in range(2))
    assert holds(first, 100.0 * out["duration_s"]) and first["coverage"] == 1.0
    if second is None or second["joules"] is None:  # it was lost before it gave two readings: the total says so
        assert second is None or any("gpu.1" in note for note in out["energy"]["notes"])
    else:
        honest(out, 160.0)


def test_an_nvidia_smi_that_hangs_costs_nothing_where_nvml_works(sim_machine, tmp_path) -> None:
    lab = sim_machine(gpus=["constant:100W"], sensor=["smi=hang"])
    real = lab.folder / "bin" / "nvidia-smi"
    hanging = real.rename(real.with_name("hanging-nvidia-smi"))
    real.write_text(f'#!/bin/sh\ntouch "{tmp_path}/asked"\nexec "{hanging}" "$@"\n')
    real.chmod(0o755)
    honest(run(lab, tmp_path, seconds=0.3), 100.0)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("fault", ["hang-after:3", long("exit-after:3"), "no-loop", long("na")])
def test_an_nvidia_smi_that_breaks(sim_machine, tmp_path, fault) -> None:
    lab = sim_machine(gpus=["constant:100W"], sensor=[f"smi={fault}"])
    honest(run(lab, tmp_path, "--sensors", "nvidia-smi"), 100.0)


@pytest.mark.long
def test_an_nvidia_smi_that_hangs_from_the_start(sim_machine, tmp_path) -> None:
    lab = sim_machine(gpus=["constant:100W"], sensor=["smi=hang"])
    out = run(lab, tmp_path, "--sensors", "nvidia-smi")
    assert out["energy"]["joules"] is None and out["energy"]["refused"]


def recorder_of(lab) -> int | None:
    """The recorder inside of the simulated machine; None where there is none."""
    where = f"EVERYWATT_RUNTIME_DIR={lab.environment()['EVERYWATT_RUNTIME_DIR']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            ours = where in (folder / "environ").read_bytes().split(b"\0")
            if ours and any(word.endswith(b"recorder/__main__.py") for word in words):
                return int(folder.name)
        except OSError:
            continue
    return None


def test_a_killed_recorder_is_replaced_while_the_command_runs(sim_machine, tmp_path) -> None:
    lab = sim_machine(gpus=["constant:100W"])
    command = f": > go; until [ -e end ]; do sleep 0.05; done; exit {CODE}"
    words = [sys.executable, "-m", "everywatt", "run", "--no-estimate", "--json=out.json", "--"]
    child = subprocess.Popen([*words, "sh", "-c", command], cwd=tmp_path, env=lab.environment())
    until((tmp_path / "go").exists)
    began = time.monotonic()
    time.sleep(1.5)  # of which a flush is on the tape
    first = recorder_of(lab)
    os.kill(first, signal.SIGKILL)
    until(lambda: recorder_of(lab) not in (None, first), "another recorder")
    time.sleep(1.5)  # as much again by the second recorder
    lasted_s = time.monotonic() - began
    (tmp_path / "end").touch()
    assert child.wait(240) == CODE
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["duration_s"] >= lasted_s, "the whole command, and not what one recorder saw of it"
    (span,) = (one for one in out["spans"] if one["name"] == "run")
    assert span["duration_s"] == pytest.approx(out["duration_s"])
    assert any("ended unexpectedly" in text for text in out["quality"]["warnings"])
    honest(out, 100)
