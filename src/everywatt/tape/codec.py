"""Columns as bytes, without numpy: plain, constant, or differences of whole numbers, deflated where that is smaller;
and the checksum of a row.

A frame's `data` is one byte of flags, then (deflated as a whole where it is short) for each column a tag, the length of
its bytes, and its bytes. The columns are read, read − late, late − early, then the channels. A column can be decoded
alone.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import eq, sub
from typing import Any, Final, Literal

from everywatt.core.errors import TapeError
from everywatt.core.jsonio import text

DEFLATED: Final = 1  # the whole body
BREAK: Final = 2  # rows before this frame were lost: it does not continue the one before
MOST_ROWS: Final = 1 << 16
MOST_COLUMNS: Final = 1 << 14
_HEAD: Final = struct.Struct("<BI")
_WHOLE_BELOW_ROWS: Final = 256
_PACK_ABOVE_BYTES: Final = 512
_SAMPLE_BYTES: Final = 2048
_LONG_BYTES: Final = 4096
_WORTH: Final = 0.7
_EXACT: Final = float(1 << 53)
_NEGATIVE_ZERO: Final = struct.pack("<d", -0.0)

# Tags: how one column is stored. Bit 3 (8) says that the bytes are deflated.
PLAIN: Final = 0
CONSTANT: Final = 1
DIFF_1: Final = 2
DIFF_2: Final = 3
DIFF_4: Final = 4
PACKED: Final = 8
_WIDTHS: Final = ((DIFF_1, "b", 1 << 7), (DIFF_2, "h", 1 << 15), (DIFF_4, "i", 1 << 31))
_FIRST: Final = struct.Struct("<q")
_DIFF_CODE: Final = {DIFF_1: "b", DIFF_2: "h", DIFF_4: "i"}
_DIFF_BYTES: Final = {DIFF_1: 1, DIFF_2: 2, DIFF_4: 4}

if sys.byteorder != "little" or array("i").itemsize != 4:  # pragma: no cover
    raise ImportError("tapes need a little-endian machine with 32-bit integers")


class CodecError(ValueError):
    """Bytes that are not a column."""


def encode_ints(values: Sequence[int]) -> tuple[int, bytes]:
    """Tag and bytes of a column of 64-bit whole numbers."""
    return _smallest(*(_differences(values) or (PLAIN, array("q", values).tobytes())))


def encode_floats(values: Sequence[float]) -> tuple[int, bytes]:
    """Tag and bytes of a column of float64. NaN and −0.0 come back as they were."""
    plain = array("d", values).tobytes()
    if len(values) > 1 and plain[:8] * len(values) == plain:
        return CONSTANT, plain[:8]
    numbers = _whole(values)
    if numbers is not None and _NEGATIVE_ZERO not in plain:
        differences = _differences(numbers)
        if differences is not None:
            # The first value of a column of floats is a float, so that every tag reads alike.
            return _smallest(differences[0], plain[:8] + differences[1][8:])
    return _smallest(PLAIN, plain)


def _whole(values: Sequence[float]) -> list[int] | None:
    """The values as integers that a float64 holds exactly, or None if they are not such integers."""
    try:
        numbers = list(map(int, values))
    except (ValueError, OverflowError):  # NaN, infinite
        return None
    exact = all(map(eq, numbers, values)) and max(numbers) < _EXACT and min(numbers) > -_EXACT
    return numbers if exact else None


def _differences(column: Sequence[int]) -> tuple[int, bytes] | None:
    if len(column) < 2:
        return None
    steps = list(map(sub, column[1:], column))
    least, most = min(steps), max(steps)
    first = _FIRST.pack(column[0])
    if least == most == 0:
        return CONSTANT, first
    for tag, code, bound in _WIDTHS:
        if -bound <= least and most < bound:
            return tag, first + array(code, steps).tobytes()
    return None


def _smallest(tag: int, data: bytes) -> tuple[int, bytes]:
    sample = data[:_SAMPLE_BYTES]
    # Deflating must be worth the time it takes to undo; a jittery clock is not.
    if len(data) > _PACK_ABOVE_BYTES and len(zlib.compress(sample, 1)) < len(sample) * _WORTH:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data) * _WORTH:
            return tag | PACKED, packed
    return tag, data


def encode_frame(columns: Sequence[tuple[int, bytes]], rows: int, flags: int = 0) -> bytes:
    """The `data` of a frame from its encoded columns."""
    body = b"".join(_HEAD.pack(tag, len(data)) + data for tag, data in columns)
    if rows < _WHOLE_BELOW_ROWS:
        packed = deflate(body)
        if len(packed) < len(body):
            return bytes([flags | DEFLATED]) + packed
    return bytes([flags]) + body


def deflate(body: bytes) -> bytes:
    """A few hundred bytes deflated, with little memory to prepare: that costs more than the work itself."""
    engine = zlib.compressobj(6, zlib.DEFLATED, 12, 5)
    return engine.compress(body) + engine.flush()


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
        raise CodecError("wrong length")
    return parts


def inflate(data: bytes | memoryview, most: int) -> bytes:
    """Inflated bytes, never more than `most`: a small file must not become a large memory."""
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(data, most + 1)
    except zlib.error as error:
        raise CodecError(str(error)) from None
    if len(plain) > most or not engine.eof or engine.unused_data:
        raise CodecError("decompressed size mismatch")
    return plain


def raw_column(tag: int, data: bytes | memoryview, rows: int) -> tuple[int, bytes | memoryview]:
    """Tag without PACKED, and the bytes inflated and checked for their length."""
    kind = tag & ~PACKED
    if kind in _DIFF_BYTES:
        size = 8 + (rows - 1) * _DIFF_BYTES[kind]
    elif kind in (PLAIN, CONSTANT):
        size = rows * 8 if kind == PLAIN else 8
    else:
        raise CodecError(f"unknown column tag {tag}")
    if tag & PACKED:
        data = inflate(data, size)
    if len(data) != size:
        raise CodecError("a column has a wrong length")
    return kind, data


def decode(code: Literal["q", "d"], tag: int, data: bytes | memoryview, rows: int) -> array[Any]:
    """A column of whole numbers (`q`) or of float64 (`d`)."""
    column: array[Any] = array(code)
    extend(column, tag, data, rows)
    return column


def extend(column: array[Any], tag: int, data: bytes | memoryview, rows: int) -> None:
    """Append a stored column to `column`, of whole numbers or of float64."""
    kind, data = raw_column(tag, data, rows)
    if kind in _DIFF_CODE:
        try:
            # Floats too: sums of whole numbers below 2^53 are exact.
            column.extend(accumulate(_layout(column.typecode, kind, rows).unpack(data)))
        except OverflowError:
            raise CodecError("a time out of range") from None
    else:
        column.frombytes(data if kind == PLAIN else bytes(data) * rows)


@lru_cache(maxsize=64)
def _layout(first: str, kind: int, rows: int) -> struct.Struct:
    return struct.Struct(f"<{first}{rows - 1}{_DIFF_CODE[kind]}")


def checksum(table: str, values: Iterable[Any]) -> int:
    """CRC-32 over a row's table and columns (without its own checksum), types and lengths included."""
    crc, parts = 0, [table.encode()]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, int):
            parts.append(b"i%d" % value)
        elif isinstance(value, float):
            parts.append(b"f" + struct.pack("<d", value))
        else:
            data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            parts.append(b"%s%d:" % (b"s" if isinstance(value, str) else b"b", len(data)))
            if len(data) > _LONG_BYTES:  # copying it would cost more than another call
                crc, parts = zlib.crc32(data, zlib.crc32(b"".join(parts), crc)), []
            else:
                parts.append(data)
    return zlib.crc32(b"".join(parts), crc)


def sealed_row(table: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The row with its checksum at the end, ready for INSERT; TapeError for a number that SQLite cannot hold."""
    clean = [text(value) if isinstance(value, str) else value for value in values]
    for value in clean:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise TapeError(f"A tape holds no number like {value:#x}.")
    return (*clean, checksum(table, clean))
