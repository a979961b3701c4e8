"""Code as an answer: right where the unit tests of the item pass. Nothing runs unless the user allowed it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everywatt.bench.llm.sandbox import MOST_SECONDS, Sandbox
from everywatt.bench.llm.scorers import RIGHT, UNPARSED, WRONG, Score
from everywatt.bench.llm.values import Item
from everywatt.core.errors import UsageError

CODE = "code"
_FENCE = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def code_of(text: str) -> str | None:
    """The code in an answer: the fenced blocks together, else the whole text where it compiles."""
    blocks = _FENCE.findall(text)
    code = "\n".join(blocks) if blocks else text
    if not code.strip():
        return None
    try:
        compile(code, "answer.py", "exec")
    except (SyntaxError, ValueError):
        return code if blocks else None
    return code


def program(code: str, rules: Mapping[str, Any]) -> str:
    """The answer and the item's tests: `tests` (a text, or several), perhaps `before` it and an `entry_point`, with
    which a function `check` of the tests is called."""
    tests = rules.get("tests", "")
    body = tests if isinstance(tests, str) else "\n".join(str(one) for one in tests)
    parts = [str(rules.get("before", "")), code, body]
    if rules.get("entry_point"):
        name = str(rules["entry_point"])
        if not name.isidentifier():
            raise UsageError(f"entry_point {name!r} is not an identifier.")
        parts.append(f"check({name})")
    return "\n\n".join(part for part in parts if part)


def score_code(text: str, item: Item, sandbox: Sandbox, *, seconds: float = MOST_SECONDS) -> Score:
    """Run the item's tests on the answer. No code in it is unparsed; what fails, breaks or takes too long is wrong."""
    if not item.rules.get("tests"):
        raise UsageError(f"Item {item.id} has no unit tests.", cure='rules: {"tests": "assert …"}')
    code = code_of(text)
    how = f"unit tests ({sandbox.about})"
    if code is None:
        return Score(UNPARSED, None, how)
    ending = sandbox.run(program(code, item.rules), seconds=float(item.rules.get("seconds", seconds)))
    if ending.code == 0:
        return Score(RIGHT, "passed", how)
    last = ending.said.rstrip("\n").rpartition("\n")[2][:200] if ending.said else f"ended with {ending.code}"
    return Score(WRONG, "timed out" if ending.code is None else last, how)
