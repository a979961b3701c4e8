"""The document of the precision lab: what is said first, and that layers add up."""

from dataclasses import replace

import pytest
from precisions import EVIL, precision_result

from everywatt.bench.precision.result import Row
from everywatt.report.html.page import trials_page
from everywatt.report.html.trials import precision_document


def test_verdicts_first_and_a_precision_that_failed_is_told():
    data = precision_document(precision_result(), command=["everywatt", "bench", "precision"])
    assert data["kind"] == "precision" and data["first"] == "fp32"
    assert data["verdicts"][1].startswith("int8 uses 50") and "less energy" in data["verdicts"][1]
    assert data["failures"] == ["fp16: this CPU has no fp16 (try: bf16)"]
    assert [one["label"] for one in data["candidates"]] == ["fp32", "bf16", "int8"]
    assert [one["energy"]["value"] for one in data["candidates"]] == pytest.approx([2.0, 3.0, 1.0], rel=0.01)
    assert [one["chosen"] for one in data["candidates"]] == [True, False, True], "bf16 is beaten in both"
    assert [t["label"] for t in data["trials"][:6]] == ["fp32", "bf16", "int8", "int8", "bf16", "fp32"]


def test_layers_and_what_is_outside_of_them_add_up():
    found = precision_document(precision_result())["layers"]
    assert [one["precision"] for one in found] == ["fp32", "int8"]
    assert [(part["name"], part["shown"]) for part in found[0]["parts"]] == [
        ("mlp", "12.00 J"), ("attention", "6.00 J"), ("(outside layers)", "2.000 J")
    ]  # fmt: skip
    assert sum(part["share"] for part in found[0]["parts"]) == pytest.approx(1.0)


def test_where_everything_failed_the_page_says_so():
    broken = replace(precision_result(), rows=(Row("fp32", failure="out of memory"),), sensitivity=None)
    data = precision_document(broken)
    assert data["verdicts"] == ["no precision has an energy"] and data["trials"] == []
    assert "out of memory" in trials_page(data)


def test_names_are_text():
    text = trials_page(precision_document(precision_result(), command=["x", EVIL]))
    assert EVIL not in text and "\\u003cscript\\u003ewindow.evil" in text
