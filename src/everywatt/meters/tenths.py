"""Rows of `wattmetre-read` as whole tenths: what it prints, without its points, is integers, and these are quick.

`1794765346.932382660` without its point is nanoseconds, and `232.3` tenths. That holds where times have nine decimals
and values one, and every byte is looked at for it. Half of the rows of a box repeat the one before but for their time:
such a row is compared, not parsed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.meters.block import PHASES, Block, Bools, Floats, Ints

HEAD_BYTES: Final = len(b"1794765346.932382660,true,")
Tenths = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
MOST_DIGITS: Final = 8  # before the point: nine digits of tenths fit into an int32
_POINT, _COMMA, _END, _MINUS, _ZERO = (ord(mark) for mark in ".,\n-0")
_DIGITS = np.array([place for place in range(20) if place != 10])
_NS = 10 ** np.arange(18, -1, -1, dtype=np.int64)


class TenthsBlock(Block):
    """A block that stays in whole tenths until its numbers are needed: `tenths` has one line a column of the file."""

    __slots__ = ("tenths",)
    tenths: Tenths

    def __init__(self, utc_ns: Ints, ok: Bools, tenths: Tenths) -> None:
        object.__setattr__(self, "utc_ns", utc_ns)
        object.__setattr__(self, "ok", ok)
        object.__setattr__(self, "tenths", tenths)

    @property
    def plugs(self) -> int:
        """How many plugs the meter has."""
        return int(self.tenths.shape[0] - PHASES) // 2

    def take(self, chosen: Bools | Ints | slice) -> TenthsBlock:
        """Some of the rows."""
        return TenthsBlock(self.utc_ns[chosen], self.ok[chosen], self.tenths[:, chosen])

    @property
    def volts(self) -> Floats:
        """Volts by phase."""
        return np.asarray(self.tenths[:PHASES].T / 10)

    @property
    def amps(self) -> Floats:
        """Amperes by plug."""
        return np.asarray(self.tenths[PHASES::2].T / 10)

    @property
    def watts(self) -> Floats:
        """Watts by plug."""
        return np.asarray(self.tenths[PHASES + 1 :: 2].T / 10)


def joined(blocks: Sequence[TenthsBlock]) -> TenthsBlock:
    """Blocks of one meter one after the other."""
    times, good = (np.concatenate(parts) for parts in zip(*((b.utc_ns, b.ok) for b in blocks), strict=True))
    return TenthsBlock(times, good, np.concatenate([block.tenths for block in blocks], axis=1))


def read_tenths(text: bytes, plugs: int) -> TenthsBlock | None:
    """Whole lines as tenths; None where one is anything but a plain good row."""
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _END)
    starts = np.concatenate(([0], ends[:-1] + 1))
    if not len(ends) or ends[-1] + 1 != len(text) or (ends - starts <= HEAD_BYTES).any():
        return None
    utc_ns = _times(text, starts)
    if utc_ns is None:
        return None
    tails = [text[start:end] for start, end in zip((starts + HEAD_BYTES).tolist(), (ends + 1).tolist(), strict=True)]
    fresh = np.fromiter(map(operator.ne, tails, chain((b"",), tails)), dtype=np.bool_, count=len(tails))
    values = read_digits(b"".join(compress(tails, fresh)), PHASES + 2 * plugs)
    if values is None or values.shape[1] != np.count_nonzero(fresh):
        return None
    tenths = values if fresh.all() else np.take(values, np.cumsum(fresh) - 1, axis=1)
    return TenthsBlock(utc_ns, np.ones(len(tails), dtype=np.bool_), tenths)


def _times(text: bytes, starts: Ints) -> Ints | None:
    """Nanoseconds of the `1794765346.932382660,true,` that each line starts with; None where one is something else."""
    heads = np.ndarray((len(text) - HEAD_BYTES,), dtype=f"V{HEAD_BYTES}", buffer=text, strides=(1,))[starts]
    table = heads.view(np.uint8).reshape(len(starts), HEAD_BYTES)
    digits = table[:, _DIGITS] - np.uint8(_ZERO)  # what is below wraps to a large one
    marks = (table[:, 10] == _POINT).all() and (table[:, 20:] == np.frombuffer(b",true,", dtype=np.uint8)).all()
    if not marks or (digits > 9).any() or (digits[:, 0] > 8).any():  # 9… would not fit into 63 bits
        return None
    return np.asarray(digits.astype(np.int64) @ _NS)


def read_digits(text: bytes, columns: int) -> Tenths | None:
    """The cells of whole lines as tenths, one line of the result a column; None where any is something else.

    A cell is digits, a point, one digit and a separator. So the points say where each cell is and how long, and the
    digits of one place (the tenths, the ones, the tens) of all cells are taken together, not cell by cell.
    """
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
