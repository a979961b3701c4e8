"""`everywatt stress`: the table, the run, files and options, bad input, and what is left after Ctrl-C and a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from loads import gone, workers_below
from waiting import until

from everywatt.api.run import load
from everywatt.cli.stress import Duty, step_table
from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.errors import TapeError
from everywatt.sim.machine import SimMachine
from everywatt.stress.program import Cpu, Program, Step
from everywatt.stress.results import StepResult

SHORT = ["--cpu", "2", "--shape", "steps:10,40", "--time", "1"]


@pytest.fixture
def place(tmp_path):
    """Folders of the test's own, and its temporary files in one that can be looked at."""
    (tmp_path / "tmp").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERYWATT_")}
    environ = kept | {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "tmp"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "EVERYWATT_RUNTIME_DIR": str(tmp_path / "r"),
        "EVERYWATT_RECORDER_IDLE_S": "1",
    }
    return Place(tmp_path, environ)


class Place:
    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ = folder, environ

    def run(self, *words: str, check: int = 0, environ=None):
        done = subprocess.run(
            [sys.executable, "-m", "everywatt", "stress", *words],
            cwd=self.folder,
            env=environ or self.environ,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == check, done.stdout + done.stderr
        return done

    def start(self, *words: str):
        return subprocess.Popen(
            [sys.executable, "-m", "everywatt", "stress", *words],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def runs(self) -> list[Path]:
        folder = self.folder / "everywatt-runs"
        return [one for one in folder.iterdir() if not one.name.startswith(".")] if folder.exists() else []

    def json(self, *words: str, **more):
        return json.loads(self.run(*words, "--json", **more).stdout)


def test_a_table_of_what_was_asked_and_reached_and_a_run_with_spans(place):
    done = place.run(*SHORT, "--sensors", "use,modelled")
    head, first, second, *notes, duty_told = done.stdout.splitlines()
    assert head.replace("%", "").split() == ["step", "start", "duration", "cpu", "reached", "power"]
    assert first.split()[:5] == ["1", "0", "s", "500", "ms"] and float(first.split()[5]) == 10
    assert second.split()[:5] == ["2", "500", "ms", "500", "ms"] and float(second.split()[5]) == 40
    assert all(note.startswith("step ") and "of" in note for note in notes), "only what fell short is told"
    assert duty_told.startswith("CPU: ")
    (folder,) = place.runs()
    assert folder.name in done.stderr
    spans = load(folder).spans
    assert [span.name for span in spans] == ["stress", "step", "step"]
    assert {span.parent for span in spans[1:]} == {spans[0].id}
    assert [span.attributes["asked"]["cpu_percent"] for span in spans[1:]] == [10, 40]
    assert all("cpu_percent" in span.attributes["reached"] for span in spans[1:])


def test_power_of_a_step_has_the_digits_of_its_energy():
    program = Program((Step(1.0, cpu=Cpu(1, 50.0)),))
    result = StepResult(0, program.steps[0], 0, 10**9, {"cpu_percent": 50.0})
    modelled = Energy(68.4321, Budget((), (Bound("model", "model:host", 60.0, 500.0),)), "machine", "modelled")
    assert step_table(program, [result], {0: modelled}).cells()[0][-1] == "70 W"
    counted = Energy(68.4321, Budget((Term("gain", "gain:cpu.0", 0.05),)), "cpu", "counter")
    assert step_table(program, [result], {0: counted}).cells()[0][-1] == "68.43 W"


def test_json_has_the_same_facts(place):
    found = place.json(*SHORT, "--quiet")
    assert (found["kind"], found["schema"], found["complete"]) == ("stress", "everywatt/1", True)
    assert found["asked_s"] == 1.0 and found["duration_s"] == pytest.approx(1.0, abs=1e-6)
    assert [step["asked"]["cpu_percent"] for step in found["steps"]] == [10, 40]
    assert found["run"] and found["steps"][0]["energy"]["scope"]
    start, end = (datetime.fromisoformat(found["steps"][1][key]) for key in ("start", "end"))
    assert (end - start).total_seconds() == pytest.approx(0.5, abs=1e-3)
    assert abs((datetime.now(UTC) - end).total_seconds()) < 60, "times of day, to join it with other recordings"


def test_no_record_leaves_no_run(place):
    found = place.json("--cpu", "1", "--shape", "20", "--time", "0.3", "--no-record")
    assert "run" not in found and "energy" not in found["steps"][0]
    assert place.runs() == []


def test_a_file_is_the_same_program_as_its_options(place):
    (place.folder / "p.toml").write_text(
        'name = "stress"\ntime = "8s"\ncpu = 2\nkind = "integer,vector"\nram = "32MiB"\nseed = 5\nsteps = 4\n'
        'one-by-one = true\nshape = {cpu = "random:20..80", ram = "constant:50"}\n'
    )
    words = ["--time", "8s", "--cpu", "2", "--kind", "integer,vector", "--ram", "32MiB", "--seed", "5", "--steps", "4"]
    words += ["--one-by-one", "--shape", "cpu=random:20..80", "--shape", "ram=constant:50"]
    plan = place.json("p.toml", "--plan")
    assert plan == place.json(*words, "--plan")
    assert plan["kind"] == "stress-plan" and plan["duration_s"] == pytest.approx(8.0) and len(plan["steps"]) == 9
    assert plan != place.json(*words, "--plan", "--seed", "6")
    assert "ram" in place.run("p.toml", "--plan").stdout.splitlines()[0]


def test_loads_are_percentages(place):
    rows = place.run("--cpu", "1", "--shape", "steps:0,50,100", "--time", "3", "--plan").stdout.splitlines()
    assert [row.split()[-2:] for row in rows[1:]] == [["0.0", "%"], ["50.0", "%"], ["100", "%"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "No resource was given"),
        (["--cpu", "0"], "0 is not in the range"),
        (["--cpu", "2", "--shape", "zigzag"], "There is no shape 'zigzag'"),
        (["--cpu", "2", "--shape", "ramp:0..200"], "200 % in the shape"),
        (["--cpu", "2", "--shape", "50", "--shape", "60"], "Two shapes were given for all resources"),
        (["--cpu", "2", "--shape", "gpu=50"], "shape for gpu"),
        (["--cpu", "2", "--shape", "tpu=50"], "no resource 'tpu'"),
        (["--cpu", "2", "--time", "-5"], "'-5' is not a duration above zero"),
        (["--cpu", "2", "--time", "0"], "'0' is not a duration above zero"),
        (["--cpu", "2", "--kind", "quantum"], "no kind of work 'quantum'"),
        (["--ram", "much"], "'much' is not a size"),
        (["--ram", "1000000GiB"], "of memory;"),
        (["--gpu", "x"], "not a list of GPUs"),
        (["--disk", "1MB/s", "--disk-folder", "/no/such"], "not a writable folder"),
        (["--cpu", "1", "--shape", "replay:no-such-run"], "no-such-run"),
        (["none.toml"], "none.toml"),
        (["p.toml", "--cpu", "2"], "and --cpu both describe the load."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_and_leaves_no_run(place, words, says):
    (place.folder / "p.toml").write_text("cpu = 1\n")
    done = place.run(*words, check=2)
    assert says in done.stderr and "Traceback" not in done.stderr
    assert place.runs() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_after_ctrl_c_nothing_is_left(place, number):
    words = ["--cpu", "2", "--ram", "16MiB", "--disk", "1MB/s", "--network", "1MB/s", "--shape", "20"]
    process = place.start(*words, "--time", "300")
    try:
        found = started(process, 5)
        until(lambda: begun(place), "the first step")
        time.sleep(1)  # of it, in which something is reached
        os.killpg(process.pid, number)  # as a terminal does
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert gone(found, 0.0), "they were waited for"
    assert list((place.folder / "tmp").iterdir()) == []
    assert number.name in out and "stopped in step 1" in err, "what was reached until then is told"
    (folder,) = place.runs()
    step = next(span for span in load(folder).spans if span.name == "step")
    assert step.attributes["complete"] is False and "cpu_percent" in step.attributes["reached"]


def test_after_a_kill_nothing_is_left(place):
    process = place.start("--cpu", "2", "--disk", "1MB/s", "--shape", "20", "--time", "300", "--no-record")
    try:
        found = started(process, 3)
    finally:
        process.kill()
        process.communicate(timeout=240)
    assert gone(found)
    assert list((place.folder / "tmp").iterdir()) == []


def started(process, count):
    def workers():
        assert process.poll() is None, process.communicate()
        found = workers_below(process.pid)
        return found if len(found) >= count else []

    return until(workers, f"{count} workers")


def begun(place):
    """Whether the first step is on the tape that is being written."""
    try:
        return any(span.name == "step" for folder in place.runs() for span in load(folder).spans)
    except TapeError:  # it has no rows yet
        return False


def test_too_hot_ends_it_with_1(place):
    with SimMachine.of(gpus=["constant:100W"]).start() as lab:
        environ = lab.environment() | {"HOME": str(place.folder), "EVERYWATT_HOME": str(place.folder / "runs")}
        words = ["--cpu", "1", "--shape", "10", "--time", "120", "--no-record"]
        done = place.run(*words, "--max-temperature", "1", check=1, environ=environ)
        assert "gpu.0.temperature is at" in done.stdout and "above 1 °C" in done.stdout
        place.run(
            "--cpu", "1", "--shape", "10", "--time", "0.5", "--no-record", "--max-temperature", "150", environ=environ
        )


def test_more_cores_than_there_are_is_a_warning(place):
    done = place.run("--cpu", str(len(os.sched_getaffinity(0)) + 1), "--shape", "5", "--time", "0.2", "--no-record")
    assert "full load cannot be reached" in done.stderr


def test_idle_is_recorded_first(place):
    found = place.json(*SHORT[:2], "--shape", "30", "--time", "0.4", "--idle", "0.3", "--quiet")
    spans = load(place.folder / "everywatt-runs" / found["run"]).spans
    assert [span.name for span in spans] == ["idle", "stress", "step"]
    assert spans[0].parent is None and spans[0].attributes["role"] == "idle"


def result_of(asked, reached, waited_s=0.0):
    told = {"cpu_percent": reached, "waited_s": waited_s}
    return StepResult(0, Step(1.0, Cpu(1, asked)), 0, 1_000_000_000, told)


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ([(10, 10.2), (90, 88.5)], "CPU: every step within 3 points of the request (worst 1.5)"),
        ([(10, 10.25)], "CPU: the step within 3 points of the request (worst 0.2)"),
        ([(10, 10), (90, 80)], "CPU: every step NOT within 3 points of the request (worst 10.0)"),
        (
            [(10, 9), (90, 20, 0.8)],
            "CPU: 1 of 2 steps within 3 points of the request (worst 1.0); "
            "in 1 of 2 steps the machine did not provide the CPU time requested",
        ),
        (
            [(90, 20, 0.8)],
            "CPU: in 1 of 1 steps the machine did not provide the CPU time requested; "
            "the accuracy of the duty cycle cannot be determined",
        ),
    ],
)
def test_the_last_line_tells_a_busy_machine_from_a_duty_cycle_that_is_off(results, says):
    assert str(Duty.of([result_of(*one) for one in results])) == says


def test_the_line_is_printed_and_in_the_json(place):
    done = place.run("--cpu", "1", "--shape", "steps:20,40", "--time", "1", "--no-record")
    assert done.stdout.splitlines()[-1].startswith("CPU: ")
    found = place.json("--cpu", "1", "--shape", "steps:20,40", "--time", "1", "--no-record")
    assert found["cpu"]["steps"] == 2 and found["cpu"]["target_points"] == 3
    assert "cpu" not in place.json("--ram", "8MiB", "--shape", "50", "--time", "0.3", "--no-record")
