"""The public pytest plug-in, used as somebody's own tests would use it."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[1] / "src")
TESTS = """
import subprocess, time
import pynvml
import pytest


def test_in_this_process(simulated_gpu):
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 100_000
    pynvml.nvmlShutdown()
    assert simulated_gpu.truth("gpu.0", 0, 10**9) == pytest.approx(100)


def test_another_machine_in_the_same_process(simulated_gpu):
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    assert simulated_gpu.calls()["nvmlDeviceGetCount_v2"] == 1


def test_a_program_inside(sim_machine):
    lab = sim_machine(gpus=["constant:80W"], replicate=3)
    done = subprocess.run(["nvidia-smi", "-L"], env=lab.environment(), capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 3


def test_a_package(simulated_package):
    path = simulated_package.folder / "sys/class/powercap/intel-rapl:0/name"
    assert path.read_text() == "package-0\\n"
"""


def test_the_fixtures_work_in_a_users_test_suite(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    args = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    from importlib.metadata import entry_points

    if not any(entry.value == "everywatt.testing" for entry in entry_points(group="pytest11")):
        args += ["-p", "everywatt.testing"]
    done = subprocess.run(
        [*args, str(tmp_path)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
