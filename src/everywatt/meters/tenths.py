"""Rows of `wattmetre-read` as whole tenths: what it prints, without its points, is integers, and these are quick.

`1794765346.932382660` without its point is nanoseconds, and `232.3` tenths. That holds where times have nine decimals
and values one, and every byte is looked at for it. Half of the rows of a box repeat the one before but for their time:
such a row is compared, not parsed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain, compress
from typing import Final

import numpy as np

from everywatt.meters.block import PHASES, Block, Bools, Floats, Ints
from everywatt.meters.digits import Tenths, read_digits

HEAD_BYTES: Final = len(b"1794765346.932382660,true,")
_POINT, _END, _ZERO = ord("."), ord("\n"), ord("0")
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
