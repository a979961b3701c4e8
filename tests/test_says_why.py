"""A test that sleeps, or asks for a private name, says why."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
FILES = sorted(path for path in TESTS.rglob("*.py") if path.name != "make.py")  # that one makes the frozen corpus


def sleeps(tree: ast.AST) -> list[int]:
    """Lines that sleep, but for loops that look again and again for something."""
    polling = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in polling)
    return [call.lineno for call in calls if ast.unparse(call.func) == "time.sleep"]


def private_names(tree: ast.AST) -> list[int]:
    """Lines that import a name of ours that begins with an underscore; modules of integrations are private as such."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None)
    ours = (node for node in found if node.module.startswith("everywatt.") and node.module != "everywatt.integrations")
    return [node.lineno for node in ours if any(alias.name.startswith("_") for alias in node.names)]


@pytest.mark.parametrize("find", [sleeps, private_names])
def test_it_says_why(find):
    silent = []
    for path in FILES:
        lines = path.read_text(encoding="utf-8").split("\n")
        silent += [
            f"{path.relative_to(TESTS)}:{number}"
            for number in find(ast.parse("\n".join(lines)))
            if "#" not in lines[number - 1] and not lines[number - 2].lstrip().startswith("#")
        ]
    assert silent == []
