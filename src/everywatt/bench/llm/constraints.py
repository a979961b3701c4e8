"""Constraints on an answer that a program can check: the rules of the bundled instruction-following set."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from everywatt.core.errors import UsageError


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _is_json_with(text: str, keys: Iterable[str]) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and set(data) == set(keys)


CHECKS: Mapping[str, Callable[[str, Any], bool]] = {
    "words_exactly": lambda text, n: len(text.split()) == n,
    "words_at_most": lambda text, n: 0 < len(text.split()) <= n,
    "lines_exactly": lambda text, n: len(_lines(text)) == n,
    "contains": lambda text, word: str(word).casefold() in text.casefold(),
    "lacks_letter": lambda text, letter: str(letter).casefold() not in text.casefold(),
    "ends_with": lambda text, end: text.rstrip().endswith(str(end)),
    "starts_with": lambda text, start: text.lstrip().startswith(str(start)),
    "upper": lambda text, _: text == text.upper() and any(c.isalpha() for c in text),
    "lower": lambda text, _: text == text.lower() and any(c.isalpha() for c in text),
    "no_comma": lambda text, _: "," not in text,
    "items_exactly": lambda text, n: len([part for part in text.split(",") if part.strip()]) == n,
    "bullets_exactly": lambda text, n: len(re.findall(r"(?m)^\s*[-*]\s+\S", text)) == n,
    "json_keys": _is_json_with,
}


def broken_constraints(text: str, constraints: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those that do not hold, as `name value`. Each is {"check": NAME, "value": …}."""
    text = text.strip()
    broken = []
    for one in constraints:
        name = str(one.get("check"))
        if name not in CHECKS:
            raise UsageError(f"There is no constraint '{name}'.", cure=f"one of: {', '.join(CHECKS)}")
        if not CHECKS[name](text, one.get("value")):
            broken.append(f"{name} {one.get('value')}".strip())
    return broken
