"""The part of JSON Schema that answers of language models need; a keyword outside of it is refused, never ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everywatt.core.errors import UsageError

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_SILENT = {"$schema", "title", "description", "default", "examples", "$comment"}
_KNOWN = {
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "anyOf",
}


def violations(data: Any, schema: Any, at: str = "$") -> list[str]:
    """What of `data` does not fit, as sentences; none where all fits. UsageError for a keyword that is not known."""
    if schema is True or schema == {}:
        return []
    if not isinstance(schema, Mapping):
        return [f"{at} is not allowed"]
    odd = [word for word in schema if word not in _KNOWN and word not in _SILENT]
    if odd:
        raise UsageError(f"'{odd[0]}' of JSON Schema is not supported; supported are: {', '.join(sorted(_KNOWN))}.")
    wrong = [*_plain(data, schema, at)]
    if isinstance(data, str):
        wrong += _text(data, schema, at)
    elif isinstance(data, int | float) and not isinstance(data, bool):
        wrong += _range(data, schema, at)
    elif isinstance(data, list):
        wrong += _array(data, schema, at)
    elif isinstance(data, dict):
        wrong += _object(data, schema, at)
    return wrong


def _plain(data: Any, schema: Mapping[str, Any], at: str) -> list[str]:
    wrong = []
    wanted = schema.get("type")
    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        if not any(_is(data, name) for name in names):
            wrong.append(f"{at} is not of type {' or '.join(names)}")
    if "enum" in schema and data not in schema["enum"]:
        wrong.append(f"{at} is not one of {schema['enum']}")
    if "const" in schema and data != schema["const"]:
        wrong.append(f"{at} is not {schema['const']!r}")
    if "anyOf" in schema and all(violations(data, one, at) for one in schema["anyOf"]):
        wrong.append(f"{at} matches none of the alternatives")
    return wrong


def _is(data: Any, name: str) -> bool:
    if name not in _TYPES:
        raise UsageError(f"'{name}' is not a JSON type.")
    if isinstance(data, bool):
        return name == "boolean"
    if name == "integer" and isinstance(data, float):
        return data.is_integer()
    return isinstance(data, _TYPES[name])


def _text(data: str, schema: Mapping[str, Any], at: str) -> list[str]:
    wrong = []
    if len(data) < schema.get("minLength", 0):
        wrong.append(f"{at} is shorter than {schema['minLength']}")
    if len(data) > schema.get("maxLength", len(data)):
        wrong.append(f"{at} is longer than {schema['maxLength']}")
    if "pattern" in schema and not re.search(schema["pattern"], data):
        wrong.append(f"{at} does not match {schema['pattern']!r}")
    return wrong


def _range(data: float, schema: Mapping[str, Any], at: str) -> list[str]:
    wrong = []
    if data < schema.get("minimum", data):
        wrong.append(f"{at} is below {schema['minimum']}")
    if data > schema.get("maximum", data):
        wrong.append(f"{at} is above {schema['maximum']}")
    return wrong


def _array(data: list[Any], schema: Mapping[str, Any], at: str) -> list[str]:
    wrong = []
    if len(data) < schema.get("minItems", 0):
        wrong.append(f"{at} has fewer than {schema['minItems']} items")
    if len(data) > schema.get("maxItems", len(data)):
        wrong.append(f"{at} has more than {schema['maxItems']} items")
    if "items" in schema:
        wrong += [text for n, one in enumerate(data) for text in violations(one, schema["items"], f"{at}[{n}]")]
    return wrong


def _object(data: dict[str, Any], schema: Mapping[str, Any], at: str) -> list[str]:
    known = schema.get("properties", {})
    wrong = [f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in data]
    for name, value in data.items():
        if name in known:
            wrong += violations(value, known[name], f"{at}.{name}")
        elif "additionalProperties" in schema:
            wrong += violations(value, schema["additionalProperties"], f"{at}.{name}")
    return wrong
