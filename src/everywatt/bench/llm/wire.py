"""What a server sends, looked at before it is trusted: every surprise is a ValueError, which ends that query alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def document(text: str) -> dict[str, Any]:
    """A JSON object as it came."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


def part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in an object; an empty one where there is none."""
    found = data.get(name)
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"'{name}' is not an object")
    return found or {}


def parts(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list in an object; none where there is no list."""
    found = data.get(name)
    if found is not None and not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
        raise ValueError(f"'{name}' is not a list of objects")
    return found or []


def words(data: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that has a text; empty where none has."""
    for name in names:
        found = data.get(name)
        if found is not None and not isinstance(found, str):
            raise ValueError(f"'{name}' is not a string")
        if found:
            return found
    return ""


def count(value: Any) -> int | None:
    """A number of tokens as reported by a server; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def numbers(data: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of an object; the rest of it is left out."""
    return {
        name: value
        for name, value in data.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def whole(pieces: list[str]) -> str:
    """The text of all pieces; a character that came in two halves is one again, half a character is replaced."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
