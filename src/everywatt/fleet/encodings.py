"""How a batch of samples is written for a receiver: Prometheus remote write, Influx line protocol, Sage records.

All of them leave the same queue, so what is not taken waits on the tape and goes out in order later. Remote write 1.0
is four small messages of protobuf, written by hand:

WriteRequest { repeated TimeSeries timeseries = 1 }
TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2 }
Label        { string name = 1; string value = 2 }
Sample       { double value = 1; int64 timestamp = 2 }
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

STALE: Final = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that marks the end of a series
_DOUBLE: Final = struct.Struct("<d")

Sample = tuple[int, float | None]
"""UTC milliseconds and value; None: the series has ended."""
Series = Sequence[tuple[bytes, Sequence[Sample]]]
NODE_LABELS: Final = ("instance", "job")


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


@dataclass(frozen=True, slots=True)
class Encoding:
    """A body's writer, its content type and headers, and the word before the token in the header Authorization."""

    write: Callable[[Series], bytes]
    content_type: str
    headers: Mapping[str, str]
    scheme: str = "Bearer"


def influx_lines(series: Series) -> bytes:
    """`metric,label=value value=1.5 NANOSECONDS`, oldest first. The end of a series has no line: Influx has no NaN.

    >>> from everywatt.fleet.encodings import labels_bytes
    >>> influx_lines([(labels_bytes("up", {"node": "n 1"}), [(1000, 2.0)])])
    b'up,node=n\\\\ 1 value=2.0 1000000000\\n'
    """
    lines = []
    for at_ms, name, labels, value in _in_order(series):
        tags = "".join(f",{_escaped(key)}={_escaped(text)}" for key, text in sorted(labels.items()))
        lines.append(f"{_escaped(name, equals=False)}{tags} value={value!r} {at_ms * 1_000_000}\n")
    return "".join(lines).encode("utf-8", "replace")


def sage_records(series: Series) -> bytes:
    """A record of Sage for each sample, one a line: timestamp, name (its topic), value, meta. Oldest first.

    A topic is the metric's name with points: `everywatt_power_watts` is `everywatt.power.watts`. Labels are meta, and
    the node is `meta.node`.
    """
    lines = []
    for at_ms, name, labels, value in _in_order(series):
        moment = datetime.fromtimestamp(at_ms // 1000, UTC)
        meta = {key: text for key, text in labels.items() if key not in NODE_LABELS}
        record = {
            "timestamp": f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}000000Z",
            "name": name.replace("_", "."),
            "value": value,
            "meta": {**meta, "node": labels.get("instance", "")},
        }
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    return "".join(lines).encode("utf-8", "replace")


def _in_order(series: Series) -> list[tuple[int, str, dict[str, str], float]]:
    """Time, name, labels and value of each sample, oldest first."""
    found = []
    for encoded, samples in series:
        labels = labels_of(encoded)
        name = labels.pop("__name__", "")
        found += [(at_ms, name, labels, float(value)) for at_ms, value in samples if value is not None]
    return sorted(found, key=lambda sample: sample[:2])


def _escaped(text: str, *, equals: bool = True) -> str:
    """A measurement, tag key or tag value: blanks, commas and equals signs escaped.

    A newline cannot be in it, and a backslash at the end would escape what follows.
    """
    text = text.replace("\n", " ").rstrip("\\").replace(",", "\\,").replace(" ", "\\ ")
    return text.replace("=", "\\=") if equals else text


def _remote_write(series: Series) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress_raw(write_request(series)))


ENCODINGS: Final[Mapping[str, Encoding]] = {
    "prometheus": Encoding(
        _remote_write,
        "application/x-protobuf",
        {"Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"},
    ),
    "influx": Encoding(influx_lines, "text/plain; charset=utf-8", {}, "Token"),
    "sage": Encoding(sage_records, "application/x-ndjson", {}),
}
