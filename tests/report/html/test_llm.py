"""The section of a run of a language model."""

import json

import pytest

import everywatt
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
