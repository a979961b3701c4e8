"""The flame graph: nodes are as wide as the ledger's joules, and spans of one name are one node."""

import pytest
from reports import EVIL, write_other_scope, write_run

import everywatt
from everywatt.report.html.spans import flames


def test_nested_spans_add_up(tmp_path):
    run = everywatt.load(write_run(tmp_path / "nested.tape"))
    (found,) = flames(run, None)
    (outer,) = found["root"]["children"]
    inner = {child["name"]: child for child in outer["children"]}
    assert found["title"] == "Spans" and found["root"]["joules"] == pytest.approx(run.energy().joules, abs=1e-5)
    assert outer["name"] == "run" and outer["joules"] == pytest.approx(found["root"]["joules"], abs=1e-5)
    assert list(inner) == ["epoch", EVIL]  # the widest first, both epochs together
    for name, child in inner.items():
        assert child["joules"] == pytest.approx(run.energy(span=name).joules, rel=1e-6) and "±" in child["shown"]
    assert sum(child["joules"] for child in outer["children"]) < outer["joules"]


def test_nothing_is_drawn_without_nesting(tmp_path):
    assert flames(everywatt.load(write_other_scope(tmp_path / "flat.tape")), None) == []
