"""Columns as bytes, without numpy: plain, constant, or differences of whole numbers, deflated where that is smaller.

A frame's `data` is one byte of flags, then (deflated as a whole where it is short) for each column a tag, the length of
its bytes, and its bytes. The columns are read, read − late, late − early, then the channels. A column can be decoded
alone.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from operator import sub
from typing import Final

DEFLATED: Final = 1  # the whole body
BREAK: Final = 2  # rows before this frame were lost: it does not continue the one before
MOST_ROWS: Final = 1 << 16
MOST_COLUMNS: Final = 1 << 14
_HEAD: Final = struct.Struct("<BI")
_WHOLE_BELOW_ROWS: Final = 256
_EXACT: Final = float(1 << 53)
_NEGATIVE_ZERO: Final = struct.pack("<d", -0.0)
_WIDTHS: Final = (("b", 1 << 7), ("h", 1 << 15), ("i", 1 << 31))

# Tags: how one column is stored. Bit 3 (8) says that the bytes are deflated.
PLAIN: Final = 0
CONSTANT: Final = 1
DIFF_1: Final = 2
DIFF_2: Final = 3
DIFF_4: Final = 4
PACKED: Final = 8
_DIFF_CODE: Final = {DIFF_1: "b", DIFF_2: "h", DIFF_4: "i"}

if sys.byteorder != "little" or array("i").itemsize != 4:  # pragma: no cover
    raise ImportError("tapes need a little-endian machine with 32-bit integers")


class CodecError(ValueError):
    """Bytes that are not a column."""


def encode_ints(values: Sequence[int]) -> tuple[int, bytes]:
    """Tag and bytes of a column of 64-bit whole numbers."""
    plain = values if isinstance(values, array) else array("q", values)
    return _smallest(plain.tobytes(), _differences(plain))


def encode_floats(values: Sequence[float]) -> tuple[int, bytes]:
    """Tag and bytes of a column of float64. NaN and −0.0 come back as they were."""
    column = values if isinstance(values, array) else array("d", values)
    plain = column.tobytes()
    if len(column) > 1 and plain[:8] * len(column) == plain:
        return CONSTANT, plain[:8]
    whole = None
    if (
        all(map(float.is_integer, column))
        and max(column) < _EXACT
        and min(column) > -_EXACT
        and _NEGATIVE_ZERO not in plain
    ):
        differences = _differences(array("q", map(int, column)))
        if differences is not None:
            # The first value of a column of floats is a float, so that every tag reads alike.
            whole = (differences[0], plain[:8] + differences[1][8:])
    return _smallest(plain, whole)


def _differences(column: array[int]) -> tuple[int, bytes] | None:
    if len(column) < 2:
        return None
    steps = list(map(sub, column[1:], column))
    least, most = min(steps), max(steps)
    for tag, (code, bound) in zip((DIFF_1, DIFF_2, DIFF_4), _WIDTHS, strict=True):
        if -bound <= least and most < bound:
            if least == most == 0:
                return CONSTANT, column[:1].tobytes()
            return tag, column[:1].tobytes() + array(code, steps).tobytes()
    return None


def _smallest(plain: bytes, other: tuple[int, bytes] | None) -> tuple[int, bytes]:
    tag, data = other if other is not None else (PLAIN, plain)
    if len(data) > 8 * _WHOLE_BELOW_ROWS // 4:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data) * 0.9:
            return tag | PACKED, packed
    return tag, data


def encode_frame(columns: Sequence[tuple[int, bytes]], rows: int, flags: int = 0) -> bytes:
    """The `data` of a frame from its encoded columns."""
    body = b"".join(_HEAD.pack(tag, len(data)) + data for tag, data in columns)
    if rows < _WHOLE_BELOW_ROWS:
        packed = zlib.compress(body, 6)
        if len(packed) < len(body):
            return bytes([flags | DEFLATED]) + packed
    return bytes([flags]) + body


def split_frame(data: bytes, columns: int, rows: int) -> list[tuple[int, memoryview]]:
    """Tag and bytes of each column of a frame, nothing decoded yet."""
    if not data or rows < 1 or rows > MOST_ROWS or columns > MOST_COLUMNS:
        raise CodecError("empty or too large")
    body = memoryview(data)[1:]
    if data[0] & DEFLATED:
        body = memoryview(inflate(body, columns * (rows * 8 + _HEAD.size + 8)))
    parts = []
    at = 0
    for _ in range(columns):
        if at + _HEAD.size > len(body):
            raise CodecError("columns are missing")
        tag, length = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        parts.append((tag, body[at : at + length]))
        at += length
    if at != len(body):
        raise CodecError("its length is wrong")
    return parts


def inflate(data: bytes | memoryview, most: int) -> bytes:
    """Inflated bytes, never more than `most`: a small file must not become a large memory."""
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(data, most + 1)
    except zlib.error as error:
        raise CodecError(str(error)) from None
    if len(plain) > most or not engine.eof or engine.unused_data:
        raise CodecError("it does not inflate to what it should")
    return plain


def raw_column(tag: int, data: bytes | memoryview, rows: int) -> tuple[int, bytes | memoryview]:
    """Tag without PACKED, and the bytes inflated and checked for their length."""
    kind = tag & ~PACKED
    if kind == PLAIN:
        size = rows * 8
    elif kind == CONSTANT:
        size = 8
    elif kind in _DIFF_CODE:
        size = 8 + (rows - 1) * (1, 2, 4)[kind - DIFF_1]
    else:
        raise CodecError(f"unknown column tag {tag}")
    if tag & PACKED:
        data = inflate(data, size)
    if len(data) != size:
        raise CodecError("a column has a wrong length")
    return kind, data


def decode_ints(tag: int, data: bytes | memoryview, rows: int) -> array[int]:
    """A column of whole numbers."""
    kind, data = raw_column(tag, data, rows)
    if kind == PLAIN:
        return array("q", bytes(data))
    first = struct.unpack_from("<q", data)[0]
    if kind == CONSTANT:
        return array("q", [first]) * rows
    try:
        return array("q", _running(first, array(_DIFF_CODE[kind], bytes(data[8:]))))
    except OverflowError:
        raise CodecError("a time out of range") from None


def decode_floats(tag: int, data: bytes | memoryview, rows: int) -> array[float]:
    """A column of float64."""
    kind, data = raw_column(tag, data, rows)
    if kind == PLAIN:
        return array("d", bytes(data))
    first = struct.unpack_from("<d", data)[0]
    if kind == CONSTANT:
        return array("d", [first]) * rows
    if not (first.is_integer() and abs(first) < _EXACT):
        raise CodecError("a column of whole numbers starts with another")
    return array("d", map(float, _running(int(first), array(_DIFF_CODE[kind], bytes(data[8:])))))


def _running(first: int, steps: Sequence[int]) -> Iterator[int]:
    from itertools import accumulate

    return accumulate(steps, initial=first)
