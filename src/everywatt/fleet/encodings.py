"""How a batch of samples is written for a receiver: Prometheus remote write, Influx line protocol, Sage records.

All of them leave the same queue, so what is not taken waits on the tape and goes out in order later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from everywatt.fleet.protobuf import Sample, labels_of, write_request

Series = Sequence[tuple[bytes, Sequence[Sample]]]
NODE_LABELS: Final = ("instance", "job")


@dataclass(frozen=True, slots=True)
class Encoding:
    """A body's writer, its content type and headers, and the word before the token in the header Authorization."""

    write: Callable[[Series], bytes]
    content_type: str
    headers: Mapping[str, str]
    scheme: str = "Bearer"


def influx_lines(series: Series) -> bytes:
    """`metric,label=value value=1.5 NANOSECONDS`, oldest first. The end of a series has no line: Influx has no NaN.

    >>> from everywatt.fleet.protobuf import labels_bytes
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
