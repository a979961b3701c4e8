"""A window's figure is the same whatever was asked before."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.api.run import load


@pytest.mark.parametrize("name", ["steady", "rare spikes", "square 0.7 s"])
def test_spans_between_inline_reads(product, ablation, tmp_path, name):
    path = tmp_path / "a.tape"
    rng = np.random.default_rng(1)
    ablation.read_inline(product.LOADS[name](rng), path, rng)
    spans = [span.id for span in load(path).spans]
    alone = {span: load(path).energy(span) for span in spans}
    run = load(path)
    together = {span: run.energy(span) for span in rng.permutation(spans).tolist()}
    assert {one: (e.joules, e.low, e.high) for one, e in together.items()} == {
        one: (e.joules, e.low, e.high) for one, e in alone.items()
    }


def test_short_spans_after_a_ledger(product, ablation, tmp_path, monkeypatch):
    """More reads than rows, which a ledger places all."""
    monkeypatch.setattr(ablation, "LENGTHS_S", (0.002, 0.003, 0.01) * 16)
    path = tmp_path / "a.tape"
    rng = np.random.default_rng(1)
    ablation.read_inline(product.LOADS["steady"](rng), path, rng)
    run = load(path)
    alone = {span.id: load(path).energy(span) for span in run.spans[::40]}
    run.ledger(by="span")
    after = {span: run.energy(span) for span in alone}
    assert {s: e.sides() for s, e in after.items()} == {s: e.sides() for s, e in alone.items()}
