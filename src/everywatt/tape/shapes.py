"""What the rows of a tape may hold: a checksum says that a row is as it was written, not that it makes sense.

A shape is a type, a tuple of shapes (any of them), `[shape]` (a list of it), or a table: `{"name": shape}` for the keys
that are read here (others are free, and None is as good as missing), `{ANY: shape}` for all keys.
"""

from __future__ import annotations

from typing import Any, Final

from everywatt.tape import schema

ANY: Final = "*"
_NUMBER: Final = (int, float)
_NONE: Final = type(None)
_TEXT: Final = (str, _NONE)
_WORDS: Final = (str, [str], _NONE)
_MAY_BE_NONE: Final = frozenset(("parent", "end_ns", "span", "channel", "count", "most", "cum", "data"))
_TYPES: Final[dict[str, tuple[type, ...]]] = {"INTEGER": (int,), "REAL": (int, float), "TEXT": (str,), "BLOB": (bytes,)}
COLUMNS: Final[dict[str, tuple[tuple[str, tuple[type, ...]], ...]]] = {
    table: tuple(
        (name, _TYPES[schema.type_of(table, name).partition(" ")[0]] + (_NONE,) * (name in _MAY_BE_NONE))
        for name in names
    )
    for table, names in schema.COLUMNS.items()
}
_HOST: Final = {"name": str, "cpus": _NUMBER, "packages": [int], "memory_bytes": _NUMBER, "cpu": str, "kernel": str}
META: Final[dict[str, Any]] = {
    "abandoned": bool,
    "agent": {"devices": {ANY: {"group": str, "channel": str, "at_ns": int, "uj": int}}, "owners": list},
    "bounds_ns": ([(int, _NONE)], _NONE),
    "checkpoint_s": (*_NUMBER, _NONE),
    "command": _WORDS,
    "continues": _TEXT,
    "cwd": _TEXT,
    "everywatt": _TEXT,
    "git": (_NONE, {"commit": str, "branch": str, "dirty": bool}),
    "host": (_HOST, str, _NONE),
    "in_process": bool,
    "meter": (dict, _NONE),
    "note": _TEXT,
    "period_s": (*_NUMBER, _NONE),
    "place": _TEXT,
    "profile": _TEXT,
    "python": _TEXT,
    "quality": (dict, _NONE),
    "tags": dict,
    "user": _TEXT,
}
_CHANNEL: Final = {
    "name": str, "unit": str, "kind": str, "device": str, "domain": str, "scale": _NUMBER, "pedigree": str,
    "mirror_of": str, "facts": {"cards": str, "calibrated": bool} | dict.fromkeys(
        (
            "period_s", "window_s", "quantum", "wrap", "max_w", "gain_pct", "offset_w", "gain", "bias_w", "correlation",
            "freedom", "gain_alike", "offset_alike",
        ),
        _NUMBER,
    ),
}  # fmt: skip
_GROUP: Final = {
    "name": str, "sensor": str, "device": str, "channels": [_CHANNEL], "cadence": str, "label": str, "uuid": str,
    "inline": bool, "tracked": bool, "table": bool, "expected_period_s": _NUMBER,
}  # fmt: skip
JSON: Final[dict[str, Any]] = {
    "grp": _GROUP,
    "note": dict,
    "point": object,
    "seal": {ANY: [int]},
    "span": dict,
}


def odd_column(table: str, row: tuple[Any, ...]) -> str | None:
    """The first column of a row that does not hold what it should."""
    for (name, types), value in zip(COLUMNS[table], row, strict=True):
        if not isinstance(value, types):
            return name
    return None


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if ANY in shape:
            return all(fits(one, shape[ANY]) for one in value.values())
        return all(value.get(key) is None or fits(value[key], one) for key, one in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    return isinstance(value, shape) and (shape in (bool, object) or not isinstance(value, bool))
