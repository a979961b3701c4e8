"""Measured figures that appear on several pages come from docs/figures.json, which agrees with docs/accuracy.md."""

import importlib.util
import json
import re

import pytest
from pages import ROOT

FIGURES = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("fill_figures", ROOT / "scripts" / "fill_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_have_the_figures_of_the_file(script):
    assert script.main(["--check"]) == 0, "run scripts/fill_figures.py"


def test_every_figure_is_used_on_a_page(script):
    text = "".join(page.read_text(encoding="utf-8") for page in script.pages())
    assert {mark[0] for mark in script.MARK.findall(text)} == FIGURES.keys()


def test_a_changed_or_unknown_figure_is_noticed(script):
    assert script.filled("<!--fig:a-->1<!--/fig-->", {"a": "2"}) == "<!--fig:a-->2<!--/fig-->"
    with pytest.raises(KeyError):
        script.filled("<!--fig:b-->1<!--/fig-->", {"a": "2"})


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_how_and_when_it_was_measured(name):
    figure = FIGURES[name]
    assert figure.keys() == {"value", "what", "command", "commit", "date", "kind"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", figure["date"]) and re.fullmatch(r"[0-9a-f]{7}", figure["commit"])
    assert figure["command"].startswith(("python -m benchmarks ", "python scripts/long_tests.py"))


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("rows-lowest", "lowest peer: {} rows"),
    ],
)
def test_figures_are_those_of_the_tables(name, printed):
    table = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert printed.format(FIGURES[name]["value"]) in table
