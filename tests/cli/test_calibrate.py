"""`everywatt calibrate --against METER` as a shell sees it."""

import json
import random
import subprocess
import sys

import pytest

from everywatt.cli.main import main
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


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    """A card of 1.04 × watts + 1.5 W, noisy enough that its offset may have either sign, beside a meter."""
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path / "runs"))
    dice, lines = random.Random(4), ["t,card,meter"]
    for n in range(600):
        watts = 200.0 + 100 * (n // 17 % 2) + 20 * (n // 5 % 3)
        lines.append(f"{1_700_000_000 + n / 10:.1f},{1.04 * watts + 1.5 + dice.gauss(0, 6):.3f},{watts}")
    (tmp_path / "both.csv").write_text("\n".join(lines))
    values = {
        "card": {"channel": "gpu.0.power", "device": "gpu.0", "domain": "gpu", "unit": "W"},
        "meter": {"channel": "wall.0.power", "device": "wall.0", "domain": "wall", "unit": "W"},
    }
    how = ["time=t", "time_format=s", "kind=gauge", "gain_pct=1", f"values={json.dumps(values)}"]
    assert main(["import", "csv", str(tmp_path / "both.csv"), *(word for one in how for word in ("--set", one))]) == 0


def test_an_offset_of_unknown_sign_is_a_term_of_the_line(noisy, capsys):
    words = ["--from", "last", "--meter", "last", "--device", "gpu.0", "--meter-device", "wall.0", "--dry-run"]
    assert main(["calibrate", *words]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("gpu.0: "))
    assert line.startswith("gpu.0: reading ≈ (1.0") and " × watts +" in line and line.count("≈") == 1


def test_what_is_nothing_is_not_to_be_narrowed(noisy, capsys):
    assert main(["why", "last"]) == 0
    (edges,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("edges"))
    assert " 0 J " in edges and "measure" not in edges
