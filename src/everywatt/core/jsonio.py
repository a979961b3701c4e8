"""The one JSON writer: versioned objects, no NaN, nothing else on stdout."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

SCHEMA = "everywatt/1"


def document(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object as every command prints it: `schema`, `kind`, then the data."""
    return {"schema": SCHEMA, "kind": kind, **data}


def dumps(data: Any, *, indent: int | None = None) -> str:
    """JSON text. NaN and infinity become null, paths and dataclasses plain data."""
    return json.dumps(plain(data), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(data: Any) -> Any:
    """Data that JSON can hold."""
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if hasattr(data, "to_dict"):
        return plain(data.to_dict())
    if is_dataclass(data) and not isinstance(data, type):
        return plain(asdict(data))
    if isinstance(data, Sequence | set | frozenset):
        return [plain(value) for value in data]
    if isinstance(data, Path):
        return str(data)
    if hasattr(data, "tolist"):
        return plain(data.tolist())
    return str(data)
