"""`everywatt calibrate --against METER` as a shell sees it."""

import subprocess
import sys

from everywatt.sim.machine import SimMachine


def calibrate(environ, *words):
    return subprocess.run(
        [sys.executable, "-m", "everywatt", "calibrate", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_meter_that_is_not_there_is_told_before_ten_minutes_of_load(tmp_path):
    with SimMachine.of(gpus=["load:50W,250W"]).start() as lab:
        place = lab.environment() | {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs")}
        done = calibrate(place, "--against", "wall.7", "--for", "10m")
        assert done.returncode == 3
        assert "No meter 'wall.7' was found here; available: gpu.0." in done.stderr
        assert calibrate(place, "--against", "wall.7", "--for", "1s").returncode == 2


def test_a_machine_without_a_card_has_nothing_to_calibrate(tmp_path):
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        place = lab.environment() | {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs")}
        done = calibrate(place, "--against", "cpu.0")
        assert done.returncode == 3 and "No card was found to calibrate" in done.stderr
