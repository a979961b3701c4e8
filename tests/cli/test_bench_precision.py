"""`everywatt bench precision` in a machine of exactly 50 W: a batch of t seconds is 50 t joules. No torch here."""

import csv
import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from truths import holds
from waiting import until

from everywatt.sim.machine import SimMachine

ENTRY = """
import os, signal, time
import numpy as np

def build(precision):
    if precision == "broken":
        raise ValueError("no such kernel")
    if precision == "big":
        raise MemoryError
    if precision == "amx" and "ONEDNN_MAX_CPU_ISA" not in os.environ:
        os.kill(os.getpid(), signal.SIGILL)
    if precision == "illegal":
        os.kill(os.getpid(), signal.SIGILL)
    rest = {"slow": 0.04}.get(precision, 0.02)
    calls = []

    def model(inputs):
        calls.append(1)
        print("noise on stdout")
        if precision == "dies" and len(calls) > 12:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(rest)
        right = inputs[:, 0] > 0
        wrong = precision == "slow" and len(inputs) > 1
        answers = right.copy()
        if wrong:
            answers[0] = not answers[0]
        return np.stack([~answers, answers], axis=1).astype(float)

    return model
"""


@pytest.fixture(scope="module")
def machine():
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab


@pytest.fixture
def place(machine, tmp_path):
    (tmp_path / "mymodels.py").write_text(ENTRY)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(64, 3))
    np.savez(tmp_path / "data.npz", inputs=inputs, labels=(inputs[:, 0] > 0).astype(int))
    return machine.environment() | {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs")}


def bench(place, *more, code=0):
    words = [sys.executable, "-m", "everywatt", "bench", "precision", "--entry", "mymodels:build", "--data", "data.npz"]
    options = ["--idle", "0.2", "--no-cooldown", "--loop", "0.3"]
    done = subprocess.run(
        [*words, *options, *more], env=place, cwd=place["HOME"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done


def rows(done):
    found = json.loads(done.stdout)
    return found, {row["precision"]: row for row in found["precisions"]}


def test_energy_is_power_times_the_loop_and_never_the_rest(place, tmp_path):
    out = tmp_path / "p.csv"
    done = bench(place, "--precisions", "fast,slow", "--trials", "3", "--json", "-o", str(out))
    found, row = rows(done)
    assert (found["kind"], found["baseline"], found["ended"]) == ("precision", "fast", "trials")
    # interleaved, and every other block backwards
    assert found["order"] == ["fast", "slow", "slow", "fast", "fast", "slow"]
    for name in ("fast", "slow"):
        mean_s = np.mean([trial["seconds"] for trial in row[name]["trials"]])
        assert holds(row[name]["energy_per_batch"], 50 * mean_s)
        assert row[name]["energy_per_sample"]["value"] == pytest.approx(row[name]["energy_per_batch"]["value"] / 8)
        assert row[name]["latency"]["mean_s"] == pytest.approx(mean_s, rel=0.02)
        assert row[name]["power_w"] == pytest.approx(row[name]["energy_per_batch"]["value"] / mean_s, rel=0.02)
        assert row[name]["hooks"] == 0
    score = row["fast"]["score"]
    assert (score["metric"], score["value"], score["high"], score["n"]) == ("accuracy", 1.0, 1.0, 64)
    assert score["low"] == pytest.approx(0.9434, abs=1e-4)
    # one item of each scored batch of 16 is wrong
    assert row["slow"]["score"]["value"] == 60 / 64 and row["slow"]["paired"]["change"] == -4 / 64
    assert row["slow"]["percent"]["energy_per_sample"] > 120 and row["slow"]["percent"]["accuracy"] == 93.75
    assert found["pareto"] == ["fast"]
    assert row["fast"]["accuracy_per_joule"] == pytest.approx(row["fast"]["samples_per_joule"])
    (one, two) = csv.DictReader(out.open())
    assert (one["precision"], two["score_value"]) == ("fast", "0.9375")


def test_set_up_accuracy_and_loop_are_spans_of_their_own(place):
    found, _ = rows(bench(place, "--precisions", "fast", "--trials", "2", "--json"))
    done = subprocess.run(
        [sys.executable, "-m", "everywatt", "show", found["run"], "--json"],
        env=place, cwd=place["HOME"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    spans = json.loads(done.stdout)["spans"]
    names = [span["name"] for span in spans]
    assert names[:5] == ["idle", "set-up", "profile", "accuracy", "warm-up"]
    assert names[5:] == ["trial", "loop"] * 2
    for outer, inner in zip(spans[5::2], spans[6::2], strict=True):
        assert inner["parent"] == outer["id"]
        assert outer["start_s"] <= inner["start_s"]
        assert inner["start_s"] + inner["duration_s"] <= outer["start_s"] + outer["duration_s"]


def test_what_goes_wrong_is_a_row(place):
    names = "fast,broken,big,illegal,amx,dies,int8"
    done = bench(place, "--precisions", names, "--trials", "2", "--json")
    found, row = rows(done)
    assert row["broken"]["failure"] == "ValueError: no such kernel"
    assert row["big"]["failure"] == "out of memory"
    assert row["illegal"]["failure"].startswith("SIGILL") and "ONEDNN_MAX_CPU_ISA" in row["illegal"]["cure"]
    assert row["amx"]["failure"] is None
    assert any("measured with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in note for note in row["amx"]["notes"])
    assert "SIGSEGV" in row["dies"]["failure"]
    assert "is not visible" in row["int8"]["failure"]
    assert row["fast"]["energy_per_batch"]["value"] > 0
    assert set(found["order"]) <= {"fast", "amx", "dies"}


def test_the_table_for_people(place):
    done = bench(place, "--precisions", "fast,slow,broken", "--trials", "3")
    assert "energy / sample" in done.stdout and "energy / batch" in done.stdout
    assert "100.0 % −5.7/+0.0" in done.stdout
    assert "broken: ValueError: no such kernel" in done.stdout
    assert "noise" not in done.stdout


@pytest.mark.parametrize(
    "more, said",
    [
        (["--data", "none.npz"], "neither"),
        (["--precisions", "fast,fast"], "twice"),
        (["--entry", "mymodels"], "not of the form module:function"),
    ],
)
def test_wrong_requests_say_what_is_wrong(place, more, said):
    assert said in bench(place, *more, code=2).stderr


def test_nothing_measured_ends_with_3(place):
    assert "no such kernel" in bench(place, "--precisions", "broken", code=3).stdout
    done = bench(place, "--entry", "mymodels:missing", "--precisions", "x", code=3)
    assert "cannot be imported" in done.stdout


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("what", ["precision", "train"])
def test_without_torch_it_says_what_to_install(place, what):
    done = subprocess.run(
        [sys.executable, "-m", "everywatt", "bench", what], env=place, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2 and "pip install 'everywatt[precision]'" in done.stderr


def interrupted(place, tmp_path, kind, *more, after):
    """Start a benchmark, end it once `after` timed loops are in its journal, and give the name of its run."""
    words = [sys.executable, "-m", "everywatt", "bench", "precision", "--entry", "mymodels:build", "--data", "data.npz"]
    options = ["--idle", "0.2", "--no-cooldown", "--loop", "0.3", "--json"]
    process = subprocess.Popen(
        [*words, *options, *more], env=place, cwd=place["HOME"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip

    def timed():
        assert process.poll() is None, process.communicate()
        files = list((tmp_path / "runs").glob("*/precision.jsonl"))
        return files if files and files[0].read_text().count('"timed"') >= after else []

    (file,) = until(timed, f"{after} timed loops")
    process.send_signal(kind)
    process.communicate(timeout=240)
    assert process.returncode == (130 if kind == signal.SIGINT else -kind)
    return file.parent


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_what_is_finished_is_not_done_again(place, tmp_path, kind):
    folder = interrupted(place, tmp_path, kind, "--precisions", "fast,slow", "--trials", "4", after=3)
    before = [json.loads(line) for line in (folder / "precision.jsonl").read_text().splitlines()]
    done = [(line["precision"], line["block"]) for line in before if line["kind"] == "timed"]
    found, row = rows(bench(place, "--json", "--resume", folder.name))
    assert found["ended"] == "trials" and found["run"] == folder.name
    assert found["order"] == ["fast", "slow", "slow", "fast"] * 2
    assert {len(one["trials"]) for one in row.values()} == {4}
    lines = [json.loads(line) for line in (folder / "precision.jsonl").read_text().splitlines()]
    timed = [(line["precision"], line["block"]) for line in lines if line["kind"] == "timed"]
    assert timed[: len(done)] == done and sorted(timed) == sorted((p, b) for p in ("fast", "slow") for b in range(4))
    assert [line["kind"] for line in lines].count("checked") == 2, "neither was looked at and scored again"
    assert row["slow"]["score"]["value"] == 60 / 64
    for name in ("fast", "slow"):
        mean_s = np.mean([trial["seconds"] for trial in row[name]["trials"]])
        assert holds(row[name]["energy_per_batch"], 50 * mean_s)
        assert row[name]["latency"]["n"] == row[name]["iters"]
    # All is done: once more takes no worker at all.
    again, _ = rows(bench(place, "--json", "--resume", folder.name))
    assert again["order"] == found["order"] and len((folder / "precision.jsonl").read_text().splitlines()) == len(lines)
    # More can be asked of it, but nothing else.
    more, _ = rows(bench(place, "--json", "--resume", folder.name, "--trials", "5"))
    assert len(more["order"]) == 10
    done = bench(place, "--resume", folder.name, "--batch-size", "4", code=2)
    assert "used other options: batch_size" in done.stderr


def test_only_such_a_run_is_taken_up(place, tmp_path):
    subprocess.run([sys.executable, "-m", "everywatt", "run", "--quiet", "--", "true"], env=place, check=True)
    name = next(path.name for path in (tmp_path / "runs").iterdir() if not path.name.startswith("."))
    assert "is not a run of `bench precision`" in bench(place, "--resume", name, code=2).stderr


def test_models_are_loaded_one_at_a_time_where_memory_is_short(place, tmp_path):
    """A worker that is alone may be made; one beside another is refused memory."""
    (tmp_path / "mymodels.py").write_text(
        ENTRY
        + """
def build(precision, plain=build):
    beside = open("/proc/self/stat").read().split()[3]
    mine = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid() and parent(p) == beside]
    if any("bench.precision.worker" in line(p) for p in mine):
        raise MemoryError
    return plain(precision)

def parent(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
    except OSError:
        return ""

def line(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:
        return ""
"""
    )
    found, row = rows(bench(place, "--precisions", "fast,slow", "--trials", "2", "--json"))
    assert found["order"] == ["fast", "slow", "slow", "fast"]
    assert all(one["failure"] is None for one in row.values())
    assert any("memory is short" in note for note in found["notes"])
