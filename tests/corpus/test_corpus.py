"""Every frozen file opens, and every command prints what it printed when the corpus was made (see corpus.py).

A difference that is wanted: `python tests/corpus/update.py NAME`, in a commit of its own that says why.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus_cases import CASES

from corpus import DATA, EXPECTED, MANIFEST, difference, named, play, stored


@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_what_it_did(name):
    case = CASES[name]
    if case.extra and importlib.util.find_spec(case.extra) is None:
        pytest.skip(f"{case.extra} is not installed")
    expected = stored(name)
    assert expected is not None, f"python tests/corpus/update.py {name}"
    found = difference(expected, play(case))
    assert not found, f"\n{found}\nWhere this is wanted: python tests/corpus/update.py {name}"


def test_every_frozen_file_is_used():
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    kept = {str(path.relative_to(DATA)) for path in DATA.rglob("*") if path.is_file()}
    assert kept == {name for name in manifest if not name.endswith("/")}
    used = {path for case in CASES.values() for path in (*named(case), case.serves)}
    unused = {name for name in kept if not any(name == path or name.startswith(f"{path}/") for path in used)}
    # The state of agents and what they told are taken over in test_upgrade.py.
    assert unused == {"agent-killed/state.json", "agent-killed-metrics.txt"}


def test_every_expectation_has_a_case():
    assert {path.name.removesuffix(".gz").removesuffix(".txt") for path in EXPECTED.iterdir()} == set(CASES)
