"""Every example in a docstring runs: as a doctest, or, where its result depends on the machine, without an error."""

import doctest
import importlib
import pkgutil
import textwrap
from pathlib import Path

import pytest

import everywatt

PARSER = doctest.DocTestParser()
FOLDER = Path(everywatt.__file__).parent


def modules():
    """The names of modules whose text has a prompt."""
    found = [one.name for one in pkgutil.walk_packages([str(FOLDER)], "everywatt.", onerror=lambda name: None)]
    return [name for name in found if ">>> " in _text(name)]


def _text(name):
    path = FOLDER.parent / (name.replace(".", "/") + ".py")
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.parametrize("name", modules())
def test_examples_give_what_they_say(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


def test_the_first_example_runs(own_home, capsys):
    _, example, *_ = everywatt.__doc__.split("\n\n    import")
    code = "import" + example.split("\n\nThe public")[0]
    exec(textwrap.dedent("    " + code), {"train": lambda: sum(range(10_000))})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", ["everywatt.api.measurement", "everywatt.api.meter", "everywatt.api.run"])
def test_examples_whose_figures_depend_on_the_machine_run(own_home, name):
    names = {"everywatt": everywatt, "train": lambda: None, "train_one_epoch": lambda: sum(range(300_000))}
    if name.endswith("run"):
        with everywatt.Meter("train") as meter, meter.span("epoch"):
            sum(range(300_000))
    examples = [one for one in PARSER.get_examples(_text(name)) if "+SKIP" in one.source]
    assert examples
    for one in examples:
        exec(one.source, names)
