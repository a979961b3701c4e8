"""`everywatt compare` in a machine of exactly 50 W, where energy is 50 J for every second."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from truths import holds
from waiting import until

from everywatt.core.errors import TapeError
from everywatt.sim.machine import SimMachine
from everywatt.tape.reader import Tape

A, B = "sleep 0.2", "sleep 0.4"


@pytest.fixture(scope="module")
def machine():
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        yield lab


@pytest.fixture
def place(machine, tmp_path):
    return machine.environment() | {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs")}


def words(*more):
    return [sys.executable, "-m", "everywatt", "compare", "--idle", "0.5", "--no-cooldown", *more]


def compare(place, *more, code=0):
    done = subprocess.run(words(*more), env=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def trials_done(runs):
    """How many trials have ended in the run that is recorded now."""
    for path in runs.glob("*/*.tape"):
        with contextlib.suppress(TapeError), Tape.open(path, verify=False) as tape:  # it may have just been made
            return sum(span.attributes.get("role") == "trial" and span.end_ns is not None for span in tape.spans())
    return 0


def test_twice_the_time_is_twice_the_energy(place, tmp_path):
    out = tmp_path / "c.csv"
    done = compare(place, "--json", "-o", str(out), "--target", "5%", A, B)
    found = json.loads(done.stdout)
    assert (found["kind"], found["ended"]) == ("comparison", "decided")
    a, b = found["candidates"]
    seconds = [trial["seconds"] for trial in b["trials"]]
    assert holds(b["energy"], 50 * sum(seconds) / len(seconds))
    true = sum(t["seconds"] for t in b["trials"]) / sum(t["seconds"] for t in a["trials"])
    assert b["ratio"]["low"] * 0.98 < true < b["ratio"]["high"] * 1.02
    assert "more energy" in b["verdict"]
    # interleaved, and every other block backwards
    assert found["order"][:4] == ["A", "B", "B", "A"]
    (header, *rows) = csv.reader(out.open())
    assert [row[header.index("label")] for row in rows] == ["A", "B"]


def test_a_gate_ends_with_1_and_the_table_says_why(place, tmp_path):
    out = tmp_path / "c.md"
    done = compare(place, "--trials", "6", "--fail-if", "energy > baseline * 1.1", "-o", str(out), A, B, code=1)
    assert "\nB uses" in done.stdout and "B: B" not in done.stdout
    assert "failed: B: energy > baseline * 1.1" in done.stderr
    assert out.read_text().startswith("|  | command | trials")
    compare(place, "--trials", "3", "--fail-if", "energy > baseline * 9", A, B)


def test_parameters_names_and_hooks(place, tmp_path):
    log = tmp_path / "log"
    done = compare(
        place,
        *("--json", "--trials", "2", "--warmup", "0", "--param", "n", "0.1,0.2", "--name", "nap"),
        *("--setup", f"echo setup >> {log}", "--prepare", f"echo prepare >> {log}", "--cleanup", f"echo end >> {log}"),
        "sleep {n}",
    )
    found = json.loads(done.stdout)
    assert [one["label"] for one in found["candidates"]] == ["nap n=0.1", "nap n=0.2"]
    assert log.read_text().split() == ["setup", *["prepare"] * 4, "end"]


def test_a_command_that_fails_now_and_then_gets_no_verdict(place, tmp_path):
    count = tmp_path / "count"
    flaky = f"echo >> {count}; [ $(wc -l < {count}) != 3 ]"
    done = compare(place, "--json", "--shell", "--trials", "3", "--warmup", "0", "true", flaky, code=3)
    b = json.loads(done.stdout)["candidates"][1]
    assert b["failures"] == 1
    assert [trial["exit_code"] for trial in b["trials"]] == [0, 0, 1]
    assert b["verdict"].startswith("no verdict")


def test_a_command_that_always_fails_is_given_up(place):
    done = compare(place, "--json", "--target", "1%", "false", "true", code=3)
    assert json.loads(done.stdout)["ended"] == "failures"


def test_why_trials_failed_is_told(place):
    few = ("--setup", "true", "--trials", "1", "--warmup", "0")  # --setup might have made the program
    done = compare(place, *few, "no-such-program", "sh -c 'exit 9'", code=3)
    assert "A: ended with 127 (there is no no-such-program)" in done.stderr
    assert "B: ended with 9; " in done.stderr


def test_failures_that_are_to_be_counted_are_fine_but_a_command_that_never_began_is_not(place):
    few = ("--trials", "1", "--warmup", "0", "--ignore-failure")
    compare(place, *few, "false", "sh -c 'exit 9'")
    compare(place, *few, "--setup", "true", "true", "no-such-program", code=3)


def test_without_any_sensor_there_is_no_ratio_and_it_ends_with_4(tmp_path):
    bare = {k: v for k, v in os.environ.items() if not k.startswith("EVERYWATT_")}
    with SimMachine.of().start() as lab:
        bare |= lab.environment() | {"EVERYWATT_HOME": str(tmp_path / "runs")}
        done = compare(bare, "--json", "--no-estimate", "--trials", "1", "--warmup", "0", "true", "true", code=4)
    assert [one["energy"] for one in json.loads(done.stdout)["candidates"]] == [None, None]


def test_a_gate_on_a_figure_that_is_not_there_does_not_pass(place):
    few = ("--trials", "1", "--warmup", "0", "--fail-if", "memory > 1 GB")
    done = compare(place, *few, "true", code=3)  # Linux hides the peak of a program smaller than everywatt
    assert "A: memory > 1 GB cannot be decided: no figure for memory" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_there_is_and_resume_goes_on(place, tmp_path, number):
    started = subprocess.Popen(
        words("--json", "--trials", "9", "--warmup", "0", A, B),
        env=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until(lambda: trials_done(tmp_path / "runs"), "the first trials")
    os.kill(started.pid, number)
    out, err = started.communicate(timeout=240)
    assert started.returncode == 128 + number, err
    first = json.loads(out)
    assert first["ended"] == "interrupted"
    done = len(first["order"])
    assert done < 18
    resumed = json.loads(
        compare(place, "--json", "--trials", "6", "--warmup", "0", "--resume", first["run"], A, B).stdout
    )
    assert resumed["ended"] == "trials"
    assert all(len(one["trials"]) >= 6 - 1 for one in resumed["candidates"])
    compare(place, "--resume", first["run"], "true", "false", code=2)


def test_the_command_that_resumes_works_as_printed(place, tmp_path):
    started = subprocess.Popen(
        words("--trials", "9", "--warmup", "0", A, B), env=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: trials_done(tmp_path / "runs"), "the first trials")
    os.kill(started.pid, signal.SIGTERM)
    _, err = started.communicate(timeout=240)
    (printed,) = re.findall(r"Resume with: .*everywatt compare (--resume .*)", err)
    done = compare(place, *printed.split(), "--json")
    found = json.loads(done.stdout)
    assert found["ended"] == "trials" and [one["command"] for one in found["candidates"]] == [A, B]
    assert len(found["order"]) == 18, "the number of trials is that of the first call"
    more = json.loads(compare(place, "=".join(printed.split()), "--json", "--trials", "10").stdout)
    assert len(more["order"]) == 20, "an option beside it counts more"


def test_finished_runs_are_compared_by_their_budgets(place, tmp_path):
    for length in ("0.4", "0.8"):
        subprocess.run(
            [sys.executable, "-m", "everywatt", "run", "--quiet", "--", "sleep", length], env=place, check=True
        )
    names = sorted(os.listdir(place["EVERYWATT_HOME"]))
    names = [name for name in names if not name.startswith(".")]
    found = json.loads(compare(place, "--json", *names).stdout)
    a, b = found["candidates"]
    true = b["duration_s"] / a["duration_s"]
    assert b["ratio"]["low"] * 0.97 < true < b["ratio"]["high"] * 1.03
    assert "more energy" in b["verdict"]
    for ending, word in ((".csv", "ratio_net_high"), (".md", "| run | energy |"), (".html", "<!doctype html>")):
        out = tmp_path / f"runs{ending}"
        compare(place, "-o", str(out), *names)
        assert word in out.read_text()
    # Neither run recorded idle: no ratio above it, not a ratio of 1.
    rows = [line for line in (tmp_path / "runs.md").read_text().splitlines() if line.startswith(f"| {names[0][:8]}")]
    assert rows[0].split(" | ")[4:] == ["1", "- |"]
    assert rows[1].endswith(" | - |")
    assert "above idle: refused: the idle power of cpu.0 is not known" in (tmp_path / "runs.md").read_text()


def test_a_page_is_written_and_a_failure_in_trial_7_is_on_it(place, tmp_path):
    count, page = tmp_path / "count", tmp_path / "c.html"
    script = tmp_path / "seventh.sh"
    script.write_text(f"#!/bin/sh\necho x >> {count}\n[ $(wc -l < {count}) -ne 7 ]\n")
    script.chmod(0o755)
    done = compare(
        place, "--trials", "8", "--warmup", "0", "--json", "-o", str(page), "sleep 0.05", str(script), code=3
    )
    b = json.loads(done.stdout)["candidates"][1]
    assert [trial["exit_code"] for trial in b["trials"]] == [0] * 6 + [1, 0] and b["failures"] == 1
    assert b["verdict"] == "no verdict: 1 trial failed (--ignore-failure counts them)"
    inside = re.search(r'id="document">(.*?)</script>', page.read_text(), re.DOTALL)[1]
    data = json.loads(inside)
    assert data["failures"] == ["B: 1 of 8 trials failed; the command ended with 1"]
    assert [trial["label"] for trial in data["trials"]] == list("ABBA" * 4)
    assert data["command"].startswith("everywatt compare --idle 0.5")
    assert ["Run", json.loads(done.stdout)["run"]] in data["pairs"]
    assert any(label == "Command" and text == data["command"] for label, text in data["pairs"])


@pytest.mark.parametrize("name", ["x.txt", "missing/x.html"])
def test_a_file_that_cannot_be_written_is_told_before_the_trials(place, tmp_path, name):
    done = compare(place, "-o", str(tmp_path / name), f"touch {tmp_path}/ran", "true", code=2)
    assert name in done.stderr and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("more", [["--target", "x", "true"], ["--fail-if", "nonsense", "true"], ["'"], []])
def test_wrong_words_end_with_2(place, more):
    compare(place, *more, code=2)


def test_what_is_neither_a_run_nor_a_program_is_named(place):
    done = compare(place, "train-2026-11", code=2)
    assert "'train-2026-11' is neither a run nor a program" in done.stderr


def test_one_command_runs_ten_times_at_most(place):
    done = compare(place, "--json", "--target", "0.0001%", "--verbose", "true")
    found = json.loads(done.stdout)
    assert found["ended"] == "trials" and len(found["candidates"][0]["trials"]) == 10
    assert "10 trials at most" in done.stderr


def test_a_command_without_quotes_is_explained_before_anything_runs(place):
    done = compare(place, "--", "python3", "-c", "print(1)", code=2)
    assert "'-c' is not a command" in done.stderr and "compare 'python3 -c …'" in done.stderr


def test_a_word_after_a_program_may_lack_quotes(place):
    done = compare(place, "--", "sleep", "0.3", code=2)
    assert "'0.3' is neither a run nor a program" in done.stderr
    assert "everywatt compare 'sleep 0.3'" in done.stderr


def test_no_verdict_is_not_called_modelled(place):
    done = compare(place, "--trials", "1", "--warmup", "0", "--sensors", "modelled", "false", "true", code=3)
    assert "no verdict" in done.stdout and "(modelled)" not in done.stdout


@pytest.mark.parametrize("command", ["no-such-program", "no-such-program --fast 3"])
def test_a_program_that_does_not_exist_is_refused_before_any_trial(place, tmp_path, command):
    done = compare(place, f"touch {tmp_path}/ran", command, code=2)
    assert "no-such-program" in done.stderr and "Try:" in done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "runs").exists()
