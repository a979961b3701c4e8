"""Remote write 1.0 on the wire: four small messages of protobuf, written by hand.

WriteRequest { repeated TimeSeries timeseries = 1 }
TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2 }
Label        { string name = 1; string value = 2 }
Sample       { double value = 1; int64 timestamp = 2 }
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

STALE: Final = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that says: this series has ended
_DOUBLE: Final = struct.Struct("<d")

Sample = tuple[int, float | None]
"""UTC milliseconds and value; None: the series has ended."""


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte; a negative one as 64-bit two's complement."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + varint(len(data)) + data


def labels_bytes(name: str, labels: Mapping[str, str]) -> bytes:
    """The labels of a series, its name among them, in order of their names; empty ones are as good as absent."""
    pairs = {"__name__": name, **{key: value for key, value in labels.items() if value}}
    out = []
    for key in sorted(pairs):
        value = pairs[key].encode("utf-8", "replace")
        out.append(_field(0x0A, _field(0x0A, key.encode()) + _field(0x12, value)))
    return b"".join(out)


def labels_of(data: bytes) -> dict[str, str]:
    """The inverse of `labels_bytes`.

    >>> labels_of(labels_bytes("up", {"node": "n1"}))
    {'__name__': 'up', 'node': 'n1'}
    """
    found = {}
    for pair in _parts(data):
        key, value = _parts(pair)
        found[key.decode()] = value.decode()
    return found


def _parts(data: bytes) -> list[bytes]:
    """The fields of a message of which all are texts or messages."""
    parts, at = [], 0
    while at < len(data):
        at, length, shift = at + 1, 0, 0
        while True:
            byte = data[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        parts.append(data[at : at + length])
        at += length
    return parts


def series_bytes(labels: bytes, samples: Sequence[Sample]) -> bytes:
    """One series with samples in order of time, as a field of the request."""
    out = [labels]
    for at_ms, value in samples:
        body = b"\x09" + (STALE if value is None else _DOUBLE.pack(value)) + b"\x10" + varint(at_ms)
        out.append(_field(0x12, body))
    return _field(0x0A, b"".join(out))


def write_request(series: Iterable[tuple[bytes, Sequence[Sample]]]) -> bytes:
    """The whole request, not yet compressed."""
    return b"".join(series_bytes(labels, samples) for labels, samples in series)
