"""Rows of `wattmetre-read` as whole tenths: what it prints, without its points, is integers, and these are quick.

Taking every `.` out of the text turns `1794765346.932382660` into nanoseconds and `232.3` into tenths. That holds where
times have nine decimals and values one, which is looked at first, byte by byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from everywatt.meters.bare_arrow import to_numpy
from everywatt.meters.block import PHASES, Block, Bools, Floats, Ints

_POINT, _COMMA, _END = ord("."), ord(","), ord("\n")


class TenthsBlock(Block):
    """A block that is an Arrow table of integers until somebody asks for its numbers."""

    __slots__ = ("table",)
    table: Any

    def __init__(self, utc_ns: Ints, ok: Bools, table: Any) -> None:
        object.__setattr__(self, "utc_ns", utc_ns)
        object.__setattr__(self, "ok", ok)
        object.__setattr__(self, "table", table)

    def _columns(self, first: int, step: int) -> Floats:
        places = range(first, self.table.num_columns, step) if step else range(first, first + PHASES)
        return np.stack([to_numpy(self.table.column(place)) for place in places], axis=1) / 10

    @property
    def plugs(self) -> int:
        """How many plugs the meter has."""
        return int(self.table.num_columns - 2 - PHASES) // 2

    @property
    def volts(self) -> Floats:
        """Volts by phase."""
        return self._columns(2, 0)

    @property
    def amps(self) -> Floats:
        """Amperes by plug."""
        return self._columns(2 + PHASES, 2)

    @property
    def watts(self) -> Floats:
        """Watts by plug."""
        return self._columns(3 + PHASES, 2)


def read_tenths(text: bytes, columns: int, names: list[str]) -> TenthsBlock | None:
    """Whole lines as tenths; None where Arrow is missing or a line is anything but a plain good row."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    rows = text.count(b"\n")
    if not _regular(text, rows, columns):
        return None
    types: dict[str, Any] = dict.fromkeys(names, pa.int32())
    types["utc_ns"], types["ok"] = pa.int64(), pa.bool_()
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(text.translate(None, b".")),
            # One piece is one block: threads would only hold more of them in memory.
            read_options=arrow_csv.ReadOptions(
                column_names=["utc_ns", "ok", *names], block_size=len(text), use_threads=False
            ),
            parse_options=arrow_csv.ParseOptions(quote_char=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, null_values=[], true_values=["true"], false_values=[]
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != rows:
        return None
    return TenthsBlock(to_numpy(table.column(0)), np.ones(rows, dtype=np.bool_), table)


def _regular(text: bytes, rows: int, columns: int) -> bool:
    """True where every line has one time with nine decimals and values with one, and nothing else."""
    raw = np.frombuffer(text, dtype=np.uint8)
    if not rows or len(raw) < 12 or raw[-1] != _END:
        return False
    point = raw == _POINT
    if np.count_nonzero(point) != rows * (columns - 1):
        return False
    # One decimal: two bytes on, the cell or the line ends. What is left are the times, with nine.
    longer = point[:-2] & (raw[2:] != _COMMA) & (raw[2:] != _END)
    times = np.flatnonzero(longer)
    if len(times) != rows or point[-2] or int(times[-1]) + 10 >= len(raw):
        return False
    return bool((raw[times + 10] == _COMMA).all())
