"""The flame graph: nodes are as wide as the ledger's joules, and spans of one name are one node."""

import pytest
from reports import EVIL, write_other_scope, write_run
from tapes import counter_group, rows, write_tape

import everywatt
from everywatt.report.html.spans import flames, phases_of


def test_nested_spans_add_up(tmp_path):
    run = everywatt.load(write_run(tmp_path / "nested.tape"))
    (found,) = flames(run, None, phases_of(run))
    (outer,) = found["root"]["children"]
    inner = {child["name"]: child for child in outer["children"]}
    assert found["title"] == "Spans" and found["root"]["joules"] == pytest.approx(run.energy().joules, abs=1e-5)
    assert outer["name"] == "run" and outer["joules"] == pytest.approx(found["root"]["joules"], abs=1e-5)
    assert list(inner) == ["epoch", EVIL]  # the widest first, both epochs together
    for name, child in inner.items():
        assert child["joules"] == pytest.approx(run.energy(span=name).joules, rel=1e-6) and "±" in child["shown"]
    assert sum(child["joules"] for child in outer["children"]) < outer["joules"]


def test_nothing_is_drawn_without_nesting(tmp_path):
    run = everywatt.load(write_other_scope(tmp_path / "flat.tape"))
    assert flames(run, None, phases_of(run)) == []


def test_a_span_has_one_interval_in_phases_and_in_the_graph(tmp_path):
    package = (counter_group(quantum=6e-5, max_w=200.0), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))
    steps = [("step", 0.02 * n, 0.02 * (n + 1), "s0", {}) for n in range(450)]
    run = everywatt.load(write_tape(tmp_path / "steps.tape", [package], [("run", 0, 10, None, {}), *steps]))
    phases = phases_of(run)
    (graph,) = flames(run, None, phases)
    (outer,) = graph["root"]["children"]
    found = {one["name"]: one["shown"] for one in (outer, *outer["children"])}
    assert found == {row["name"]: row["energy"]["shown"] for row in phases["rows"]} and not graph["left_out"]


def test_a_span_that_is_open_lasts_until_now(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))
    path = write_tape(tmp_path / "open.tape", [package], [("run", 2, None, None, {}), ("load", 3, 4, "s0", {})])
    found = {row["name"]: row for row in phases_of(everywatt.load(path))["rows"]}
    assert found["run"]["seconds"] == pytest.approx(8.0, abs=0.2) and found["load"]["seconds_shown"] == "1.00 s"
    assert found["run"]["mean_shown"] == "40.00 W"


def test_trainings_of_two_precisions_are_two_phases(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))
    spans = [("training", 2 * n, 2 * n + 1 + n % 2, None, {"precision": ("fp32", "bf16")[n % 2]}) for n in range(4)]
    run = everywatt.load(write_tape(tmp_path / "train.tape", [package], spans))
    found = {row["name"]: row for row in phases_of(run)["rows"]}
    assert {name: (row["count"], row["seconds"]) for name, row in found.items()} == {
        "training fp32": (2, pytest.approx(2.0)), "training bf16": (2, pytest.approx(4.0))
    }  # fmt: skip
    assert found["training bf16"]["energy"]["joules"] == pytest.approx(160.0, rel=0.01)


def test_the_run_itself_is_the_root_alone(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))
    spans = [("train", 0, 10, None, {"role": "run"}), ("epoch", 2, 6, "s0", {}), ("load", 3, 4, "s1", {})]
    run = everywatt.load(write_tape(tmp_path / "x.tape", [package], spans))
    (graph,) = flames(run, None, phases_of(run))
    nodes = {child["name"]: child for child in graph["root"]["children"]}
    assert nodes.keys() == {"epoch", "outside the spans"}
    assert nodes["epoch"]["joules"] == pytest.approx(160.0) and nodes["epoch"]["shown"] == "160.0 J"
    assert [child["name"] for child in nodes["epoch"]["children"]] == ["load"]


def test_trials_of_two_candidates_are_two_phases_and_warm_ups_none_of_them(tmp_path):
    package = (counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))
    tried = [("fast", True), ("slow", True), ("fast", False), ("slow", False), ("fast", False)]
    spans = [
        ("trial", 2 * n, 2 * n + 1, None, {"role": "trial", "label": label, "warmup": warm})
        for n, (label, warm) in enumerate(tried)
    ]
    found = phases_of(everywatt.load(write_tape(tmp_path / "x.tape", [package], spans)))["rows"]
    assert {row["name"]: row["count"] for row in found} == {
        "warm-up fast": 1, "warm-up slow": 1, "trial fast": 2, "trial slow": 1
    }  # fmt: skip
