"""The document and the page of a comparison, from trials whose figures are known."""

import html
import json
import re
from dataclasses import replace

import pytest
from comparisons import EVIL, compared
from reports import write_run

import everywatt
from everywatt.api.run import Run
from everywatt.bench.sweep import Sweep, choose
from everywatt.report.html.page import trials_page
from everywatt.report.html.trials import trials_document


def test_verdicts_come_first_and_ratios_have_their_intervals():
    data = trials_document(compared(), command=["everywatt", "compare", "./old", "x y"])
    assert re.match(r"B uses 20(\.\d)? % ± [\d.]+ less energy", data["verdicts"][0]), data["verdicts"]
    energy, net, time = data["ratios"]
    assert (energy["what"], net["what"], time["what"]) == ("energy", "energy above idle", "time")
    assert energy["value"] == pytest.approx(0.8, rel=0.01) and energy["low"] < energy["value"] < energy["high"]
    assert time["value"] == pytest.approx(1.2)
    assert data["failures"] == [] and data["command"] == "everywatt compare ./old 'x y'"
    assert data["kind"] == "comparison"


def test_the_command_to_reproduce_says_where(tmp_path, monkeypatch):
    run = everywatt.load(write_run(tmp_path / "compared.tape"))
    monkeypatch.setattr(Run, "meta", {**run.meta, "cwd": "/my data"})
    data = trials_document(compared(), run=run, command=["everywatt", "compare", "./old", "x y"])
    assert data["reproduce"] == "cd '/my data' && everywatt compare ./old 'x y'"


def test_where_energy_is_modelled_the_ratio_of_cpu_time_comes_first():
    first, *others = trials_document(compared(pedigree="modelled"))["ratios"]
    assert first["what"] == "CPU time" and first["value"] == pytest.approx(0.8, rel=0.01)
    assert "less CPU time" in first["verdict"] and others[0]["what"] == "energy"


def test_trials_are_in_the_order_in_which_they_ran():
    data = trials_document(compared(count=4))
    assert [trial["label"] for trial in data["trials"]] == list("ABBAABBA")
    assert [trial["number"] for trial in data["trials"]] == list(range(1, 9))
    assert data["trials"][1]["joules"] == pytest.approx(80, rel=0.02)
    assert data["trials"][0]["low"] < data["trials"][0]["joules"] < data["trials"][0]["high"]


def test_a_failure_is_named_and_there_is_no_verdict():
    data = trials_document(compared(failing=(1, 6)))
    assert data["failures"] == ["B: 1 of 8 trials failed; the command ended with 3"]
    assert data["verdicts"] == ["B: no verdict: 1 trial failed (--ignore-failure counts them)"]
    failed = [trial for trial in data["trials"] if trial["exit_code"]]
    assert [(trial["label"], trial["block"], trial["remark"]) for trial in failed] == [("B", 6, "failed")]


def test_an_outlier_is_told_and_kept():
    data = trials_document(compared(odd=(0, 2)))
    assert "A: trial 3 is an outlier; kept" in data["remarks"]
    assert [t["remark"] for t in data["trials"] if t["joules"] > 250] == ["outlier"]


def test_too_few_trials_have_no_ends():
    data = trials_document(compared(count=2))
    assert data["ratios"][0]["high"] is None and data["candidates"][0]["energy"]["low"] is None


def test_a_sweep_says_what_is_worth_choosing():
    result = compared(((100, 1.0), (80, 1.2), (90, 1.3)))
    data = trials_document(result, sweep=Sweep(result, choose(result.found)))
    assert data["kind"] == "sweep" and data["verdicts"][0] == "Recommended: B"
    assert data["verdicts"][1].startswith("B uses 20")
    assert sum(line.startswith(data["verdicts"][1]) for line in data["verdicts"]) == 1
    assert [one["chosen"] for one in data["candidates"]] == [True, True, False]


def test_a_sweep_that_decides_nothing_recommends_nothing():
    result = compared(((100, 1.0), (80, 1.2), (90, 1.3)))
    sweep = Sweep(result, replace(choose(result.found), why="lowest mean, but undecided: 9 more trials", decided=False))
    said = trials_document(result, sweep=sweep)["verdicts"]
    assert said[:2] == ["No recommendation yet", "B has the lowest mean, but undecided: 9 more trials"]
    assert sweep.recommendation == f"{said[0].lower()}: {said[1]}"


def test_the_page_holds_its_document_and_nothing_is_markup():
    text = trials_page(trials_document(compared()))
    assert EVIL not in text
    inside = re.search(r'<script type="application/json" id="document">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(inside)["candidates"][1]["command"] == EVIL
    plain = html.unescape(re.search(r"<noscript>.*</noscript>", text, re.DOTALL)[0])
    assert "less energy" in plain
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert len(text.encode()) < 200_000
