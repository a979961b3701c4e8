"""Columns of numbers as deflated typed arrays in base64, which a page's script turns into arrays (js/unpack.js)."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def pack(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """`{"columns": [[name, type, n]…], "deflate": base64}`.

    Whole numbers are written as differences (`i4`, or `f8` where one does not fit), because times then deflate to a
    third. Others are written in single precision (`f4`, seven digits); NaN is a hole.
    """
    arrays = {name: _typed(values) for name, values in columns.items()}
    raw = b"".join(array.tobytes() for array in arrays.values())
    heads = [[name, array.dtype.str[1:], len(array)] for name, array in arrays.items()]
    return {"columns": heads, "deflate": base64.b64encode(zlib.compress(raw)).decode("ascii")}


def _typed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype("<f4")
    steps = np.diff(values, prepend=0)
    return steps.astype("<i4" if np.abs(steps).max(initial=0) < 2**31 else "<f8")


def packed_bytes(packed: dict[str, Any]) -> int:
    """Bytes of a block before base64."""
    return len(packed["deflate"]) * 3 // 4
