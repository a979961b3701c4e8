"""A board with a known truth, measured from end to end."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from truths import holds
from virtual_time import FAR_NS
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter, missed
from everywatt.api.run import load
from everywatt.core.machine import Machine
from everywatt.sensors import child
from everywatt.sensors.base import Request
from everywatt.sensors.jetson import tegrastats
from everywatt.sensors.jetson.jetson import Jetson
from everywatt.sensors.jetson.tegrastats import INTERVAL_MS
from everywatt.sim.jetson import Board, line

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
RAILS = {"VDD_IN": "square:4W,12W,2s", "VDD_CPU_GPU_CV": "constant:2W", "VDD_SOC": "constant:1W"}
NO_INPUT = {"VDD_GPU_SOC": "constant:3W", "VDD_CPU_CV": "constant:1W", "VIN_SYS_5V0": "constant:5W"}


@contextmanager
def measured(tmp_path: Path, rails: dict[str, str], layout: str, seconds: float, **options):
    """A board that was measured in virtual time: the board, the run and what was remarked."""
    with (
        VirtualWorld(tmp_path, cpu="constant:1W") as world,
        Board(tmp_path / "board", rails, layout=layout, clock=world.time, **options) as board,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("EVERYWATT_SYS", board.environment()["EVERYWATT_SYS"])
        with Meter("work", sensors=["jetson"], estimate=False) as meter:
            recording = meter.recording
            with meter.span("run"):
                world.sleep(seconds)
        yield board, meter.run, missed(recording.reports)


def window(run) -> tuple[int, int]:
    (span,) = [span for span in run.spans if span.name == "run"]
    return span.start_ns, span.end_ns


@pytest.mark.parametrize("layout", ["hwmon", "iio"])
@pytest.mark.parametrize("seconds", [3.5, 60.0])
def test_joules_of_a_run_are_the_boards_own(tmp_path, layout, seconds):
    with measured(tmp_path, RAILS, layout, seconds) as (board, run, _):
        truth = board.energy_j("VDD_IN", *window(run))
    found = run.energy(span="run")
    assert found.scope == "soc" and [name for name, _ in found.parts] == ["jetson"]
    assert found.joules == pytest.approx(truth, rel=0.10 if seconds < 10 else 0.01)
    assert found.low <= truth <= found.high


class VirtualChild:
    """`tegrastats` in virtual time: a line at its start and every 430 ms after that; `fault` as a board has it."""

    def __init__(self, board: Board, world: VirtualWorld, fault: str = "") -> None:
        self._board, self._world = board, world
        self._curves = board._curves
        self._sums: dict[str, tuple[int, int]] = {}
        self._next_ns = self._start_ns = world.now_ns
        self._what, _, after = fault.partition(":")
        self._last_ns = self._start_ns + round(float(after) * 1e9) if fault else FAR_NS

    def lines(self) -> list[str]:
        found = []
        while self._next_ns <= min(self._world.now_ns, self._last_ns):
            now_s = (self._next_ns - self._board.t0_ns) / 1e9
            found.append(line(self._curves, now_s, self._board.period_s, self._sums))
            self._next_ns += round(INTERVAL_MS * 1e6)
        return found

    @property
    def finished(self) -> bool:
        return self._what == "end" and self._world.now_ns > self._last_ns

    def end(self) -> None: ...


@contextmanager
def with_tegrastats(tmp_path: Path, rails: dict[str, str], *faults: str):
    """A board of which nothing but tegrastats tells, in virtual time: each child has the next fault, then none."""
    waiting = list(faults)
    with (
        VirtualWorld(tmp_path, cpu="constant:1W") as world,
        Board(tmp_path / "board", rails, layout="tegrastats", clock=world.time) as board,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("EVERYWATT_SYS", "PATH"):
            patch.setenv(name, board.environment()[name])

        def start(*_: object) -> VirtualChild:
            return VirtualChild(board, world, waiting.pop(0) if waiting else "")

        for module in (child, tegrastats):
            patch.setattr(module, "Child", start)
        yield world, board


@pytest.mark.parametrize("rails", [RAILS, {"VDD_IN": "constant:5W"}], ids=["square", "constant"])
def test_joules_of_a_run_with_tegrastats_are_the_boards_own(tmp_path, rails):
    with with_tegrastats(tmp_path, rails) as (world, board):
        with Meter("work", sensors=["tegrastats"], estimate=False) as meter, meter.span("run"):
            world.sleep(60)
        truth = board.energy_j("VDD_IN", *window(meter.run))
    found = meter.run.energy(span="run")
    assert found.scope == "soc" and [name for name, _ in found.parts] == ["jetson"]
    assert found.joules == pytest.approx(truth, rel=0.01)
    assert found.low <= truth <= found.high


@pytest.mark.realtime
def test_a_command_with_tegrastats(tmp_path):
    """A child process prints the lines, in its own time; the interval says how well they are placed."""
    with Board(tmp_path / "board", RAILS, layout="tegrastats", dither_w=0.0) as board:
        environ = board.environment() | {
            "PYTHONPATH": SOURCE,
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "EVERYWATT_HOME": str(tmp_path / "runs"),
            "EVERYWATT_RECORDER_IDLE_S": "0.2",
        }
        words = [sys.executable, "-m", "everywatt", "run", "--no-estimate", "--", "sleep", "2"]
        done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / "runs").iterdir()
        run = load(folder)
        truth = board.energy_j("VDD_IN", *window(run))
    found = run.energy(span="run")
    assert found.scope == "soc" and [name for name, _ in found.parts] == ["jetson"]
    assert holds(found, truth)


def test_a_board_without_an_input_says_what_is_missing(tmp_path):
    with measured(tmp_path, NO_INPUT, "hwmon", 2) as (board, run, said):
        truth = sum(board.energy_j(rail, *window(run)) for rail in NO_INPUT)
    found = run.energy(span="run")
    assert found.scope == "rail" and found.joules == pytest.approx(truth, rel=0.02)
    assert any("carrier board" in sentence for sentence in said)


def test_the_tree_shows_the_mean_of_the_last_period(tmp_path):
    with Board(tmp_path / "board", {"VDD_IN": "constant:7W"}, period_s=0.05) as board:
        sensor = Jetson(Request(machine=Machine.here(board.environment())))
        assert sensor.probe().samples["jetson.VDD_IN.power"] == pytest.approx(7.0, abs=0.006)
        assert sensor.groups()[0].info.channels[0].facts.period_s == 0.05


@pytest.mark.parametrize("what", ["silent", "end"])
def test_a_tegrastats_that_stops_is_a_gap_and_is_started_anew(tmp_path, what):
    """It stops after 20 s of a minute, and its successor runs on."""
    with with_tegrastats(tmp_path, {"VDD_IN": "constant:7W"}, "", f"{what}:20") as (world, board):
        with Meter("work", sensors=["tegrastats"], estimate=False) as meter, meter.span("run"):
            world.sleep(60)
        truth = board.energy_j("VDD_IN", *window(meter.run))
    found = meter.run.energy(span="run")
    assert found.low <= truth <= found.high
    notes = " ".join(note.text for note in meter.run.tapes[0].notes())
    assert ("printed no line" if what == "silent" else "exited") in notes
    gap_s = (1 - found.coverage) * 60
    assert (4 if what == "silent" else 0.5) < gap_s < 8, "five seconds of silence, or one until the next start"


@pytest.mark.parametrize(("layout", "seconds"), [("hwmon", 5), ("iio", 1)])
def test_a_value_that_never_changes_is_still_five_watts(tmp_path, layout, seconds):
    """Without noise no publication can be seen, and so none can be locked on to; the energy is there all the same."""
    with measured(tmp_path, {"VDD_IN": "constant:5W"}, layout, seconds, dither_w=0.0) as (_, run, _):
        start_ns, end_ns = window(run)
    found, truth = run.energy(span="run"), 5.0 * (end_ns - start_ns) / 1e9
    assert found.joules == pytest.approx(truth, rel=0.001) and found.low <= truth <= found.high
