"""Sweeps: ranges, the Pareto set, the recommendation; and limits that are restored on any exit."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import until

from everywatt.bench.comparing import Plan, Result
from everywatt.bench.figures import figures
from everywatt.bench.sweep import Sweep, choose, parse_watts
from everywatt.bench.trials import Candidate, Trial
from everywatt.bench.verdict import Verdict
from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.sim.machine import SimMachine

LIMIT = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(0)))"


def test_ranges_are_highest_first():
    assert parse_watts("150W..300W:50W") == [300.0, 250.0, 200.0, 150.0]
    assert parse_watts("200W, 0.3kW") == [300.0, 200.0]
    for bad in ("0W", "1W..2W:0W", "1W..1MW:1W", "x"):
        with pytest.raises(UsageError):
            parse_watts(bad)


def measured(points):
    found, trials = [], []
    for place, (joules, seconds) in enumerate(points):
        found.append(Candidate(place, f"s{place}", "x", ("x",)))
        for block in range(4):
            energy = Energy(joules * (1 + 0.001 * block), Budget(), "gpu", "counter")
            trials.append(Trial(place, block, 0, None, 0, seconds, 0.0, None, energy=energy))
    return figures(found, trials)


def test_what_is_beaten_in_both_is_not_worth_choosing():
    choice = choose(measured([(100, 1.0), (80, 1.2), (90, 1.3), (60, 2.0)]))
    assert choice.pareto == ("s0", "s1", "s3")
    assert choice.best == "s3"
    assert "s3 uses 40" in choice.why
    assert "100 % more time" in choice.why


def test_a_setting_at_which_the_command_failed_is_not_chosen():
    found = measured([(100, 1.0), (80, 1.2), (1, 0.1)])
    found[2] = replace(found[2], failures=1)
    assert choose(found).best == "s1" and choose(found).pareto == ("s0", "s1")
    assert choose(found, ignore_failure=True).best == "s2"
    lost = [replace(one, failures=1) for one in found]
    assert (choose(lost).best, choose(lost).why) == (None, "the command failed at every setting")


def test_an_undecided_choice_says_so():
    noisy = measured([(100, 1.0), (99.95, 1.1)])
    choice = choose(
        [noisy[0], replace(noisy[1], gross=replace(noisy[1].gross, answer=Verdict.UNDECIDED, more_trials=9))]
    )
    assert choice.best == "s1"
    assert (
        choice.why
        == "lowest mean, but undecided: about 9 more trials needed to distinguish it from s0; s1 takes 10.0 % more time"
    )
    same = choose(measured([(100, 1.0), (99.95, 1.1)])).why
    assert same == "no difference in energy larger than 2.0 % compared with s0; s1 takes 10.0 % more time"


def test_the_pace_has_a_subject_in_every_sentence():
    noisy = measured([(100, 1.0), (99.95, 0.8)])
    open_ = replace(noisy[1], gross=replace(noisy[1].gross, answer=Verdict.UNDECIDED, more_trials=9))
    assert choose([noisy[0], open_]).why == (
        "lowest mean, but undecided: about 9 more trials needed to distinguish it from s0; s1 takes 20.0 % less time"
    )
    assert choose(noisy).why == "no difference in energy larger than 2.0 % compared with s0; s1 takes 20.0 % less time"
    assert choose(measured([(100, 1.0), (60, 2.0)])).why.endswith(" less energy than s0; s1 takes 100 % more time")


def test_the_first_setting_may_be_the_best():
    assert choose(measured([(50, 1.0), (90, 1.1), (80, 1.2)])).why.startswith("s2 uses 60")
    noisy = measured([(50, 1.0), (80, 1.2)])
    open_ = replace(noisy[1], gross=replace(noisy[1].gross, answer=Verdict.UNDECIDED, more_trials=9))
    assert (
        choose([noisy[0], open_]).why
        == "lowest mean, but undecided: about 9 more trials needed to distinguish it from s1"
    )
    assert choose(noisy[:1]).why == "the only setting with an energy"


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_a_choice_that_no_count_of_trials_decides_is_said_in_a_sentence(places):
    noisy = measured([((100, 1.0), (99.95, 1.1))[place] for place in places])
    open_ = replace(noisy[1], gross=replace(noisy[1].gross, answer=Verdict.UNDECIDED, more_trials=None))
    other = "s0" if places[0] == 0 else "s1"
    assert choose([noisy[0], open_]).why.startswith(f"lowest mean, though not distinguished from {other}")


def test_nothing_is_recommended_while_it_is_undecided():
    noisy = measured([(100, 1.0), (99.95, 1.1)])
    open_ = [noisy[0], replace(noisy[1], gross=replace(noisy[1].gross, answer=Verdict.UNDECIDED, more_trials=9))]
    two = tuple(one.candidate for one in open_)
    sweep = Sweep(Result(Plan(), two, tuple(open_), "trials", None), choose(open_))
    assert sweep.recommendation.startswith("no recommendation yet: s1 has the lowest mean, but undecided: about 9 more")
    assert [row[-1] for row in sweep.tables()[0].cells()] == ["yes", "lowest mean"]
    assert sweep.to_dict()["choice"]["decided"] is False
    decided = measured([(100, 1.0), (60, 2.0)])
    sweep = Sweep(Result(Plan(), two, tuple(decided), "trials", None), choose(decided))
    assert sweep.recommendation.startswith("recommended: s1: ")
    assert [row[-1] for row in sweep.tables()[0].cells()] == ["yes", "recommended"]


def test_cpu_time_leads_where_energy_is_modelled():
    counted = measured([(100, 1.0), (60, 2.0)])
    assert (
        "CPU time" not in Sweep(Result(Plan(), (), tuple(counted), "trials", None), choose(counted)).tables()[0].headers
    )
    trials = [
        replace(trial, energy=replace(trial.energy, pedigree="modelled"), cpu_s=1.0 + trial.candidate)
        for one in counted
        for trial in one.trials
    ]
    found = figures([one.candidate for one in counted], trials)
    sweep = Sweep(Result(Plan(), (), tuple(found), "trials", None), choose(found))
    assert list(sweep.tables()[0].headers[2:5]) == ["CPU time", "ratio of CPU time", "energy"]


def test_a_recommendation_by_modelled_energy_says_so_and_cpu_time_leads():
    counted = measured([(100, 1.0), (60, 2.0)])
    trials = [
        replace(trial, energy=replace(trial.energy, pedigree="modelled"), cpu_s=1.0 + trial.candidate)
        for one in counted
        for trial in one.trials
    ]
    two = tuple(one.candidate for one in counted)
    found = figures(two, trials)
    lines = Sweep(Result(Plan(), two, tuple(found), "trials", None), choose(found)).lines
    assert lines[0].startswith("s1 uses 100") and lines[0].endswith("more CPU time than s0")
    assert lines[-1].startswith("recommended: s1: ") and lines[-1].endswith(" s0 (modelled); s1 takes 100 % more time")
    lines = Sweep(Result(Plan(), two, tuple(counted), "trials", None), choose(counted)).lines
    assert len(lines) == 1 and lines[0].startswith("recommended: s1: ") and "modelled" not in lines[0]


@pytest.fixture(scope="module")
def machine():
    sensor = ["power_limit=300W,power_limit_min=100W,power_limit_max=300W"]
    with SimMachine.of(gpus=["load:10W,300W"], sensor=sensor).start() as lab:
        yield lab


@pytest.fixture
def place(machine, tmp_path):
    return machine.environment() | {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs")}


def limit_mw(place):
    return int(subprocess.run([sys.executable, "-c", LIMIT], env=place, capture_output=True, check=True).stdout)


def sweep(*more):
    words = [sys.executable, "-m", "everywatt", "sweep", "--json", "--idle", "0.3", "--no-cooldown", "--warmup", "0"]
    return [*words, *more]


WORK = [
    sys.executable,
    "-c",
    "import os; from everywatt.testing import gpu_work; took_s = gpu_work(0.5)\n"
    "with open(os.path.expanduser('~/took'), 'a') as file: print(took_s, file=file)",
]


def test_a_lower_limit_is_slower_and_the_limit_is_restored(place):
    done = subprocess.run(
        sweep("--power-limit", "100W,300W", "--trials", "3", "--", *WORK),
        env=place,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "sweep"
    high, low = found["candidates"]
    assert (high["label"], low["label"]) == ("300 W", "100 W")
    # At 100 W the card has (90 / 290)^(1/3) of its speed; a busy machine only ever makes the work longer.
    took_s = [float(line) for line in (Path(place["HOME"]) / "took").read_text().split()]
    slow_s = [seconds for seconds, label in zip(took_s, found["order"], strict=True) if label == "100 W"]
    assert len(slow_s) == 3 and min(slow_s) >= 0.5 / (90 / 290) ** (1 / 3) - 0.02
    # Of 145 J above idle at full speed and 66 J at 100 W; how long Python takes to start is idle, and not in it.
    least = [min(trial["energy_net"]["joules"] for trial in one["trials"]) for one in (low, high)]
    assert least[0] < least[1]
    assert found["choice"]["recommended"] == "100 W"
    assert limit_mw(place) == 300_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_limit_is_restored_when_the_sweep_is_ended(place, number):
    started = subprocess.Popen(
        sweep("--power-limit", "100W,120W", "--trials", "50", "--", *WORK),
        env=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until(lambda: limit_mw(place) < 300_000)
    os.kill(started.pid, number)
    started.wait(timeout=240)
    until(lambda: limit_mw(place) == 300_000)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--power-limit", "50W,300W"], "outside the range that the GPU accepts: 100 to 300 W"),
        (["--power-limit", "200W", "--gpu", "7"], "no GPU 7"),
        ([], "either --power-limit or --param"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_run(place, more, words):
    done = subprocess.run(sweep(*more, "--", "true"), env=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert words in done.stderr


def test_without_a_gpu_it_says_so(tmp_path):
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        done = subprocess.run(
            sweep("--power-limit", "200W", "--", "true"),
            env=lab.environment() | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 3
    assert "No GPU was found whose power limit could be set" in done.stderr or "There is no GPU" in done.stderr


def test_parameters_can_be_swept_too(place):
    done = subprocess.run(
        sweep("--param", "n", "0.1,0.2", "--trials", "3", "--", "sleep", "{n}"),
        env=place,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert [one["label"] for one in json.loads(done.stdout)["candidates"]] == ["n=0.1", "n=0.2"]


def test_a_pace_that_trials_do_not_show_is_not_claimed():
    first, second = measured([(100, 1.0), (60, 0.9)])
    open_ = replace(second, time=replace(second.time, answer=Verdict.UNDECIDED, low=0.2, high=4.0))
    assert choose([first, open_]).why == choose([first, replace(second, time=None)]).why
    assert " time" not in choose([first, open_]).why


def test_several_parameters_are_swept_together(place):
    done = subprocess.run(
        sweep("--param", "n", "0.1,0.2", "--param", "m", "1,2", "--trials", "1", "--", "sleep", "{n}", "0.{m}"),
        env=place,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    labels = [one["label"] for one in json.loads(done.stdout)["candidates"]]
    assert labels == ["n=0.1 m=1", "n=0.1 m=2", "n=0.2 m=1", "n=0.2 m=2"]


def test_a_sweep_whose_every_trial_fails_ends_with_3(tmp_path):
    with SimMachine.of(packages=["constant:50W"]).start() as lab:
        environ = lab.environment() | {"HOME": str(tmp_path), "EVERYWATT_HOME": str(tmp_path / "runs")}
        words = [
            sys.executable,
            "-m",
            "everywatt",
            "sweep",
            "--json",
            "--idle",
            "0.3",
            "--no-cooldown",
            "--warmup",
            "0",
        ]
        words += ["--trials", "1", "--param", "n", "3,4", "--", "sh", "-c", "exit {n}"]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["choice"]["why"] == "the command failed at every setting"
    assert "n=3: ended with 3; --show-output shows its messages" in done.stderr
