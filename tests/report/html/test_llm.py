"""The section of a run of a language model."""

import json
from dataclasses import replace

import pytest

import everywatt
from everywatt.core.budget import Budget, Term
from everywatt.report.html import llm as page
from everywatt.report.html.llm import llm_view

llm_runs = pytest.importorskip("llm_runs", reason="pyarrow is not installed")


def test_queries_that_were_never_sent_are_named(tmp_path):
    run = llm_runs.llm_run(tmp_path, "model", lambda n: 10.0, lambda n: True)
    assert "planned" not in llm_view(run)["answer"]
    (file,) = run.path.glob("llm.json")
    plan = json.loads(file.read_text())
    plan["dataset"]["items"] = llm_runs.N + 40
    file.write_text(json.dumps(plan))
    assert llm_view(everywatt.load(run.path))["answer"].endswith(" Only 60 of 100 planned queries were sent.")


def test_no_load_is_called_the_cheapest_by_chance(tmp_path, monkeypatch):
    """Half the joules for as many requests: the second load is named where its ratio to the first is surely below 1."""
    run = llm_runs.llm_run(tmp_path, "model", lambda n: 10.0, lambda n: True)
    plan, (one,) = page.evaluate_folder(run)

    def answer(half_width):
        loads = []
        for number, level in enumerate(("concurrency 1", "concurrency 2"), start=1):
            joules = one.bill.gross.value / number
            budget = Budget((Term("edges", f"edges {number}", half_width * joules),))
            bill = replace(one.bill, gross=replace(one.bill.gross, joules=joules, budget=budget))
            each = replace(one.figures["energy_per_request"], value=joules / one.queries, low=0.0)
            figures = {**one.figures, "energy_per_request": each}
            loads.append(replace(one, level=level, bill=bill, figures=figures))
        monkeypatch.setattr(page, "evaluate_folder", lambda run: (plan, loads))
        return llm_view(run)["answer"]

    assert answer(0.1).startswith("At concurrency 2, with the lowest energy per request of 2 loads, the ")
    assert answer(0.9).startswith("At concurrency 1, the first of 2 loads of which none is surely the cheapest, the ")
