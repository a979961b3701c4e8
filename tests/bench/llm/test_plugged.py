"""Clients, data sets and scorers of another package come by entry point; one that is broken is said in a line."""

import pytest

from everywatt.bench.llm import clients
from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.datasets import load_dataset
from everywatt.bench.llm.scorers import scorer
from everywatt.core.errors import UsageError

MODULE = """
from everywatt.bench.llm.records import Item

class Echo:
    where = "nowhere"
    def __init__(self, connection):
        self.model = connection.model

def three(n: int = 3):
    return [Item(str(k), f"say {k}", answer=str(k)) for k in range(n)]

def always(text, item):
    return "right"

def broken(*anything):
    raise RuntimeError("no licence")
"""
POINTS = """
[everywatt.llm_clients]
echo = other_package:Echo
broken = other_package:broken
missing = other_package_extra:Client
[everywatt.llm_datasets]
three = other_package:three
broken = other_package:broken
[everywatt.llm_scorers]
always = other_package:always
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    (tmp_path / "other_package.py").write_text(MODULE)
    (tmp_path / "other_package_extra.py").write_text("import a_library_that_is_not_here")
    folder = tmp_path / "other_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def test_what_another_package_registers_is_used():
    client = clients.make("echo", Connection.of("tiny", "", {}))
    assert (type(client).__name__, client.model) == ("Echo", "tiny")
    assert [item.prompt for item in load_dataset("three", {"n": "2"}).items] == ["say 0", "say 1"]
    assert scorer("always")("x", None) == "right"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: clients.make("missing", Connection.of("m", "", {})), "No module named 'a_library_that_is_not_here'"),
        (lambda: clients.make("broken", Connection.of("m", "", {})), "broken cannot be used: RuntimeError: no licence"),
        (lambda: load_dataset("broken"), "broken cannot be used: RuntimeError: no licence"),
    ],
)
def test_one_that_is_broken_says_so(make, said):
    with pytest.raises(UsageError, match=said) as error:
        make()
    assert error.value.cure == "everywatt plugins"


def test_names_of_other_packages_are_offered():
    with pytest.raises(UsageError) as error:
        clients.make("ech", Connection.of("m", "", {}))
    assert error.value.cure == "one of: broken, command, echo, missing, ollama, openai, python, transcript"
    with pytest.raises(UsageError) as error:
        scorer("never")
    assert "always" in str(error.value.cure)
