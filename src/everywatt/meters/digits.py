"""Cells with one decimal, as whole tenths, all of a text at once: by where its points are, not cell by cell.

Every cell of a row that `wattmetre-read` printed is digits, a point, one digit and a separator. So the points say where
each cell is and how long, and the digits of one place (the tenths, the ones, the tens) of all cells are taken together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Tenths = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
MOST_DIGITS: Final = 8  # before the point: nine digits of tenths fit into an int32
_POINT, _COMMA, _END, _MINUS, _ZERO = (ord(mark) for mark in ".,\n-0")


def read_digits(text: bytes, columns: int) -> Tenths | None:
    """The cells of whole lines as tenths, one line of the result a column; None where any is something else."""
    minus = b"-" in text
    raw = np.frombuffer(b"".join((b"0" * MOST_DIGITS, text.replace(b"-", b"0") if minus else text)), dtype=np.uint8)
    points = np.flatnonzero(raw[MOST_DIGITS:] == _POINT)
    if not len(points) or len(points) % columns or points[-1] + 3 != len(text):
        return None
    long = _lengths(points)
    if long is None or not _only_rows(raw, points, columns):
        return None
    digits = raw & np.uint8(15)
    tenths = (digits[MOST_DIGITS - 1 :].take(points) * 10 + digits[MOST_DIGITS + 1 :].take(points)).astype(np.int32)
    scale = 100
    for place in range(2, int(long.max()) + 1):
        there = digits[MOST_DIGITS - place :].take(points)
        there *= long >= place
        tenths += there * np.int32(scale)
        scale *= 10
    if minus and not _turn(tenths, text, points):
        return None
    return tenths.reshape(-1, columns).T.copy()


def _lengths(points: Any) -> Bytes | None:
    """How many digits each cell has before its point, None where one has none or too many."""
    low = points.astype(np.uint8)
    long = np.empty(len(low), dtype=np.uint8)
    long[0] = low[0]
    np.subtract(low[1:], low[:-1], out=long[1:])
    long[1:] -= np.uint8(3)  # a point, a digit and a separator lie between
    # One that is longer than a byte can say would be missing from the sum.
    whole = int(long.sum(dtype=np.int64)) + 3 * (len(long) - 1) == int(points[-1])
    return long if whole and long.min() >= 1 and long.max() <= MOST_DIGITS else None


def _only_rows(raw: Bytes, points: Any, columns: int) -> bool:
    """True where every cell ends as its column must, and all that is no point and no end is a digit."""
    ends = raw[MOST_DIGITS + 2 :].take(points).reshape(-1, columns)
    if not ((ends[:, -1] == _END).all() and (ends[:, :-1] == _COMMA).all()):
        return False
    digits = np.count_nonzero(raw - np.uint8(_ZERO) < 10)
    return bool(digits + 2 * len(points) == len(raw))


def _turn(tenths: Tenths, text: bytes, points: Any) -> bool:
    """Make cells with a minus negative; False where one is not at the start of a cell or alone before its point."""
    signs = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _MINUS)
    cells = np.searchsorted(points, signs)
    starts = np.concatenate(([0], points + 3))  # one more than there are cells, so that of a last "1.-" is found too
    if (starts[cells] != signs).any() or (points[cells] - signs < 2).any():
        return False
    tenths[cells] = -tenths[cells]
    return True
