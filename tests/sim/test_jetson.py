"""A board with a known truth, measured from end to end by `everywatt run`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from everywatt.api.run import load
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request
from everywatt.sensors.jetson.jetson import Jetson
from everywatt.sensors.jetson.tegrastats import Tegrastats
from everywatt.sim.jetson import Board

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
RAILS = {"VDD_IN": "square:4W,12W,2s", "VDD_CPU_GPU_CV": "constant:2W", "VDD_SOC": "constant:1W"}
NO_INPUT = {"VDD_GPU_SOC": "constant:3W", "VDD_CPU_CV": "constant:1W", "VIN_SYS_5V0": "constant:5W"}


def measure(board, tmp_path, seconds):
    environ = board.environment() | {
        "PYTHONPATH": SOURCE,
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "EVERYWATT_HOME": str(tmp_path / "runs"),
        "EVERYWATT_RECORDER_IDLE_S": "1",
    }
    words = [sys.executable, "-m", "everywatt", "run", "--no-estimate", "--", "sleep", str(seconds)]
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    return load(folder), done.stderr


@pytest.mark.parametrize("layout", ["hwmon", "iio", "tegrastats"])
def test_joules_of_a_run_are_the_boards_own(tmp_path, layout):
    with Board(tmp_path / "board", RAILS, layout=layout) as board:
        run, _ = measure(board, tmp_path, 3.5)
        (span,) = [span for span in run.spans if span.name == "run"]
        truth = board.energy_j("VDD_IN", span.start_ns, span.end_ns)
    found = run.energy(span="run")
    assert found.scope == "soc" and [name for name, _ in found.parts] == ["jetson"]
    assert found.joules == pytest.approx(truth, rel=0.10)
    assert found.low <= truth <= found.high


def test_a_board_without_an_input_says_what_is_missing(tmp_path):
    with Board(tmp_path / "board", NO_INPUT) as board:
        run, said = measure(board, tmp_path, 2)
        (span,) = [span for span in run.spans if span.name == "run"]
        truth = sum(board.energy_j(rail, span.start_ns, span.end_ns) for rail in NO_INPUT)
    found = run.energy(span="run")
    assert found.scope == "rail" and found.joules == pytest.approx(truth, rel=0.02)
    assert "carrier board" in said


def test_the_tree_shows_the_mean_of_the_last_period(tmp_path):
    with Board(tmp_path / "board", {"VDD_IN": "constant:7W"}, period_s=0.05) as board:
        sensor = Jetson(Request(machine=Machine.here(board.environment())))
        assert sensor.probe().samples == pytest.approx({"jetson.VDD_IN.power": 7.0}, abs=0.006)
        assert sensor.groups()[0].info.channels[0].facts.period_s == 0.05


@pytest.mark.parametrize("what", ["silent", "end"])
def test_a_tegrastats_that_stops_is_a_gap_and_is_started_anew(tmp_path, monkeypatch, what):
    monkeypatch.setattr("everywatt.sensors.jetson.tegrastats.SILENCE_S", 0.6)
    monkeypatch.setattr("everywatt.sensors.jetson.tegrastats.BACKOFF_S", 0.05)
    rails, fault = {"VDD_IN": "constant:7W"}, f"{what}:0.3"
    with Board(tmp_path / "board", rails, layout="tegrastats", period_s=0.05, fault=fault) as board:
        sensor = Tegrastats(Request(machine=Machine.here(board.environment())))
        assert sensor.probe().samples["jetson.VDD_IN.power"] == pytest.approx(7.0)
        (group,) = sensor.groups()
        told: list[str] = []
        rows, lost_ns, deadline = [], 0, time.monotonic() + 20
        while time.monotonic() < deadline and not (told and rows and rows[-1].read_ns > lost_ns):
            try:
                rows += group.read()
            except Exception as error:
                told.append(str(error))
                lost_ns = time.monotonic_ns() if len(told) == 1 else lost_ns
            time.sleep(0.02)
        group.close()
    assert told and rows[-1].read_ns > lost_ns
    assert ("gave no line" if what == "silent" else "ended") in told[0]
    assert all(row.values[0] == pytest.approx(7.0) for row in rows)
    assert [row.read_ns for row in rows] == sorted({row.read_ns for row in rows})


@pytest.mark.parametrize(("layout", "seconds"), [("hwmon", 5), ("iio", 1), ("tegrastats", 2)])
def test_a_value_that_never_changes_is_still_five_watts(tmp_path, layout, seconds):
    """Without noise no publication can be seen, and so none can be locked on to; the energy is there all the same."""
    with Board(tmp_path / "board", {"VDD_IN": "constant:5W"}, layout=layout, dither_w=0.0) as board:
        run, _ = measure(board, tmp_path, seconds)
    (span,) = [span for span in run.spans if span.name == "run"]
    found, truth = run.energy(span="run"), 5.0 * (span.end_ns - span.start_ns) / 1e9
    assert found.joules == pytest.approx(truth, rel=0.001) and found.low <= truth <= found.high
