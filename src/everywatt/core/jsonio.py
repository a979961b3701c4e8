"""The one JSON writer: versioned objects, no NaN, nothing else on stdout."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

SCHEMA = "everywatt/1"
CUT = "…"  # stands for what was left out
MOST_DEPTH = 50  # of containers in each other; Python itself gives up at about 300, the caller's own calls included
MOST_BITS = 1024  # of a whole number; Python writes no decimal number of more than 4,300 digits
VALUE_CHARS = 8  # what a value that is no text counts for in `most_chars`


def document(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object as every command prints it: `schema`, `kind`, then the data."""
    return {"schema": SCHEMA, "kind": kind, **data}


def dumps(data: Any, *, indent: int | None = None) -> str:
    """JSON text. NaN and infinity become null, paths and dataclasses plain data."""
    return json.dumps(plain(data), indent=indent, ensure_ascii=False, allow_nan=False)


def declared(value: Any, names: str) -> dict[str, Any]:
    """What `names` lists of a value: `name` is its attribute, `name=attribute.of.it` one under another name.

    Parts of a path may be keys of a mapping. What None or a mapping does not have is None. `name?` is left out if None.
    """
    found = {}
    for word in names.split():
        name, _, path = word.rstrip("?").partition("=")
        at = value
        for part in (path or name).split("."):
            at = at.get(part) if isinstance(at, Mapping) else None if at is None else getattr(at, part)
        if at is not None or not word.endswith("?"):
            found[name] = at
    return found


class ToDict:
    """A dataclass whose JSON form is declared: `JSON` names what is in it, as for `declared`; empty: every field."""

    __slots__ = ()
    JSON: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        names = self.JSON or " ".join(vars(type(self))["__dataclass_fields__"])
        return {name: as_data(value) for name, value in declared(self, names).items()}


def as_data(value: Any) -> Any:
    """A value as its own `to_dict` says, also in lists and mappings; None for a number that JSON does not have."""
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: as_data(one) for key, one in value.items()}
    return [as_data(one) for one in value] if isinstance(value, list | tuple) else value


def number(value: Any) -> float | None:
    """A finite JSON number, None for anything else (also for true and false)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < 1e15 else None


def text(value: Any, most_chars: float = math.inf) -> str:
    """A value as text that every file and socket takes. Never raises.

    Bytes that are no text, as in the names of some files, become escapes: `caf\\xe9`. So do lone surrogates.
    """
    try:
        if isinstance(value, str):
            found = str.__str__(value)
        elif isinstance(value, bytes | bytearray):
            found = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, list | tuple | Mapping | set | frozenset):
            found = reprlib.repr(value)  # the first few: it may contain itself
        else:
            found = str(value)
    except Exception:  # noqa: BLE001 - an object of the user's may do anything
        found = f"<{type(value).__name__}>"
    if not found.isascii():
        try:
            found = found.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:  # a surrogate that stands for no byte
            found = found.encode("utf-8", "backslashreplace").decode()
    return found if len(found) <= most_chars else found[: int(most_chars)] + CUT


def plain(data: Any, most_chars: float = math.inf) -> Any:
    """Data that JSON can hold. Never raises: what cannot be converted becomes its type's name, `<Lock>`.

    What contains itself, lies too deep or goes beyond about `most_chars` characters is cut, where `…` is left.
    """
    return _plain(data, [most_chars], ())


def _plain(data: Any, left: list[float], outer: tuple[Any, ...]) -> Any:
    """`left` is how many characters there may still be; `outer` are the containers that `data` lies in."""
    try:
        if isinstance(data, str):
            found = text(data, max(0, left[0]))
            left[0] -= len(found)
            return found
        if data is None or isinstance(data, bool):
            return data
        if isinstance(data, int):
            return data if data.bit_length() <= MOST_BITS else text(hex(data), max(0, left[0]))
        if isinstance(data, float):
            return data if math.isfinite(data) else None
        if len(outer) >= MOST_DEPTH or any(data is one for one in outer):
            return CUT
        return _contents(data, left, (*outer, data))
    except Exception:  # noqa: BLE001 - an object of the user's may do anything
        return f"<{type(data).__name__}>"


def _contents(data: Any, left: list[float], outer: tuple[Any, ...]) -> Any:
    if isinstance(data, Mapping):
        return _object(data.items(), left, outer)
    if isinstance(data, type | bytes | bytearray):
        return _plain(text(data, max(0, left[0])), left, outer)
    if hasattr(data, "to_dict"):
        return _plain(data.to_dict(), left, outer)
    if is_dataclass(data):
        return _object(((one.name, getattr(data, one.name)) for one in fields(data)), left, outer)
    if isinstance(data, Sequence | set | frozenset):
        return [_plain(value, left, outer) for value in _until_full(data, left, CUT)]
    if hasattr(data, "tolist"):
        if getattr(data, "nbytes", 0) > VALUE_CHARS * left[0]:
            return CUT
        return _plain(data.tolist(), left, outer)
    return text(data, max(0, left[0]))


def _object(items: Iterable[tuple[Any, Any]], left: list[float], outer: tuple[Any, ...]) -> dict[str, Any]:
    found = {}
    for key, value in _until_full(items, left, (CUT, CUT)):
        name = _plain(text(key, max(0, left[0])), left, outer)
        found[name] = _plain(value, left, outer)
    return found


def _until_full(values: Iterable[Any], left: list[float], last: Any) -> Iterator[Any]:
    """The values for which there is room, and `last` in place of the others."""
    for value in values:
        left[0] -= VALUE_CHARS
        if left[0] < 0:
            yield last
            return
        yield value
