"""Rows of `wattmetre-read` as whole tenths: what it prints, without its points, is integers, and these are quick.

Taking every `.` out of the text turns `1794765346.932382660` into nanoseconds and `232.3` into tenths. That holds where
times have nine decimals and values one, which is looked at first, byte by byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
        return np.stack([self.table.column(place).to_numpy() for place in places], axis=1) / 10

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
            read_options=arrow_csv.ReadOptions(column_names=["utc_ns", "ok", *names], block_size=1 << 20),
            parse_options=arrow_csv.ParseOptions(quote_char=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, null_values=[], true_values=["true"], false_values=[]
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != rows:
        return None
    return TenthsBlock(table.column(0).to_numpy(), np.ones(rows, dtype=np.bool_), table)


def _regular(text: bytes, rows: int, columns: int) -> bool:
    """True where every line has one time with nine decimals and values with one, and nothing else."""
    raw = np.frombuffer(text, dtype=np.uint8)
    points = np.flatnonzero(raw == _POINT)
    if not rows or len(points) != rows * (columns - 1) or int(points[-1]) + 2 >= len(raw):
        return False
    first, others = points[:: columns - 1], points.reshape(rows, columns - 1)[:, 1:]
    after = raw[others + 2]
    inside = (after[:, :-1] == _COMMA).all() and (after[:, -1] == _END).all()
    return bool(inside and (raw[first + 10] == _COMMA).all())
