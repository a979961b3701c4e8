"""Columns of numbers as text for a page: differences, byte planes, deflate, base64. The page's script undoes it.

A column is written as whole multiples of its step. Each number is the difference to the one before, zigzag coded
(0, −1, 1, −2 … become 0, 1, 2, 3 …); then all lowest bytes, all second bytes, and so on: smooth series leave long runs
of equal bytes, which deflate makes small. Holes (NaN) repeat the number before and are marked in a bit mask.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 7  # beyond 2^53 the page's numbers are not exact


@dataclass(frozen=True, slots=True)
class Column:
    """Numbers that are, or are rounded to, multiples of `step`."""

    name: str
    values: npt.NDArray[Any]
    step: float


def pack(columns: Sequence[Column], level: int = 6) -> dict[str, Any]:
    """One deflated block and what the page needs to take it apart: `{"columns": [[name, n, bytes, step, holes]…]}`."""
    heads, blocks = [], []
    for column in columns:
        planes, width, holes = _planes(column)
        heads.append([column.name, len(column.values), width, column.step, bool(len(holes))])
        blocks += [planes, holes]
    raw = b"".join(blocks)
    return {"columns": heads, "deflate": base64.b64encode(zlib.compress(raw, level)).decode("ascii")}


def packed_bytes(packed: dict[str, Any]) -> int:
    """Bytes of a block before base64."""
    return len(packed["deflate"]) * 3 // 4


def unpack(packed: dict[str, Any]) -> dict[str, npt.NDArray[np.float64]]:
    """The columns again: what the page's script does, for tests and other readers."""
    raw = zlib.decompress(base64.b64decode(packed["deflate"]))
    found, at = {}, 0
    for name, n, width, step, holes in packed["columns"]:
        planes = np.frombuffer(raw, np.uint8, n * width, at).reshape(width, n).astype(np.uint64)
        at += n * width
        zigzag = np.zeros(n, np.uint64)
        for place in range(width):
            zigzag |= planes[place] << np.uint64(8 * place)
        steps = (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64)
        inverse = round(1 / step)
        whole = step < 1 and abs(inverse * step - 1) < 1e-12
        values = np.cumsum(steps) / inverse if whole else np.cumsum(steps) * step
        if holes:
            mask = np.unpackbits(np.frombuffer(raw, np.uint8, -(-n // 8), at), count=n, bitorder="little")
            at += -(-n // 8)
            values[mask == 1] = np.nan
        found[name] = values
    return found


def _planes(column: Column) -> tuple[bytes, int, bytes]:
    """The bytes of a column, lowest plane first, how many planes there are, and the mask of holes (empty: none)."""
    values = np.asarray(column.values)
    holes = b""
    if values.dtype.kind == "f":
        missing = ~np.isfinite(values)
        if missing.any():
            holes = np.packbits(missing, bitorder="little").tobytes()
            values = _carried(values, missing)
        values = np.rint(values / column.step).astype(np.int64)
    steps = np.diff(values, prepend=np.int64(0))
    zigzag = ((steps << 1) ^ (steps >> 63)).astype("<u8")
    width = max(1, -(-int(zigzag.max(initial=0)).bit_length() // 8))
    if width > MOST_BYTES:
        raise ValueError(f"{column.name} needs more than {MOST_BYTES} bytes per number")
    planes = np.ascontiguousarray(zigzag.view(np.uint8).reshape(-1, 8)[:, :width].T)
    return planes.tobytes(), width, holes


def _carried(values: npt.NDArray[np.float64], missing: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    places = np.maximum.accumulate(np.where(missing, 0, np.arange(len(values))))
    return np.nan_to_num(values[places])
