"""Rows of `wattmetre-read` as whole tenths: what it prints, without its points, is integers, and these are quick.

Taking every `.` out of the text turns `1794765346.932382660` into nanoseconds and `232.3` into tenths. That holds where
times have nine decimals and values one, which is looked at first, byte by byte. Half of the rows of a box repeat the
one before but for their time: such a row is compared, not parsed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.meters.bare_arrow import to_numpy
from everywatt.meters.block import PHASES, Block, Bools, Floats, Ints, names_of

Tenths = npt.NDArray[np.int32]
HEAD_BYTES: Final = len(b"1794765346.932382660,true,")
_POINT, _COMMA, _END, _ZERO = ord("."), ord(","), ord("\n"), ord("0")
_DIGITS = np.array([place for place in range(20) if place != 10])
_NS = 10 ** np.arange(18, -1, -1, dtype=np.int64)
_LEAST: Final = -(2**31)  # the one number without a positive twin: refused as larger ones are
_ROW_BYTES: Final = b"0123456789.,-\n"


class TenthsBlock(Block):
    """A block that is whole tenths until somebody asks for its numbers: `tenths` has one line a column of the file."""

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


def read_tenths(lines: list[bytes], plugs: int) -> TenthsBlock | None:
    """Lines (without their ends) as tenths; None where Arrow is missing or one is anything but a plain good row."""
    utc_ns = _times(b"".join([line[:HEAD_BYTES] for line in lines]), len(lines))
    if utc_ns is None:
        return None
    tails = [line[HEAD_BYTES:] for line in lines]
    fresh = np.fromiter(map(operator.ne, tails, chain((b"",), tails)), dtype=np.bool_, count=len(tails))
    values = _values(b"\n".join(compress(tails, fresh)) + b"\n", names_of(plugs))
    if values is None or values.shape[1] != np.count_nonzero(fresh):
        return None
    tenths = values if fresh.all() else np.take(values, np.cumsum(fresh) - 1, axis=1)
    return TenthsBlock(utc_ns, np.ones(len(lines), dtype=np.bool_), tenths)


def _times(heads: bytes, rows: int) -> Ints | None:
    """Nanoseconds of `1794765346.932382660,true,` one after the other; None where one is something else."""
    if not rows or len(heads) != rows * HEAD_BYTES:
        return None
    table = np.frombuffer(heads, dtype=np.uint8).reshape(rows, HEAD_BYTES)
    digits = table[:, _DIGITS] - np.uint8(_ZERO)  # what is below wraps to a large one
    marks = (table[:, 10] == _POINT).all() and (table[:, 20:] == np.frombuffer(b",true,", dtype=np.uint8)).all()
    if not marks or (digits > 9).any() or (digits[:, 0] > 8).any():  # 9… would not fit into 63 bits
        return None
    return np.asarray(digits.astype(np.int64) @ _NS)


def _values(text: bytes, names: list[str]) -> Tenths | None:
    """Cells of whole lines by column; None where Arrow is missing or a cell is not a number with one decimal."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    if text.translate(None, _ROW_BYTES) or not _one_decimal(text):
        return None
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(text.translate(None, b".")),
            # One piece is one block: threads would only hold more of them in memory.
            read_options=arrow_csv.ReadOptions(column_names=names, block_size=len(text), use_threads=False),
            parse_options=arrow_csv.ParseOptions(quote_char=False),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int32()), null_values=[]),
        )
    except pa.ArrowInvalid:
        return None
    found = _matrix(table)
    return found if found.size and found.min() > _LEAST else None


def _matrix(table: Any) -> Tenths:
    found = np.empty((table.num_columns, table.num_rows), dtype=np.int32)
    for place in range(table.num_columns):
        found[place] = to_numpy(table.column(place))
    return found


def _one_decimal(text: bytes) -> bool:
    """True where every cell ends with a point and one byte, and there are no other points."""
    raw = np.frombuffer(text, dtype=np.uint8)
    points, ends = raw == _POINT, (raw == _COMMA) | (raw == _END)
    return bool(not ends[:2].any() and not points[-2:].any() and np.array_equal(points[:-2], ends[2:]))
