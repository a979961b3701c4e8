"""OpenTelemetry's GenAI spans from a file: OTLP as JSON lines, as the collector's file exporter writes them.

Every span with an attribute `gen_ai.…` counts; what lies between two of them (HTTP calls, database calls) is taken out,
and the inner one hangs on the outer one. Times are UTC: the tape's anchors place them on its clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.spans import Span
from everywatt.tape.reader import Tape

PREFIX = "gen_ai."


@dataclass(frozen=True, slots=True)
class Placed:
    """Spans on a tape's clock, and how many could not be placed because the tape does not cover them."""

    spans: tuple[Span, ...]
    outside: int


def read_spans(path: Path) -> list[Span]:
    """The GenAI spans of a file, with UTC nanoseconds as their times. UsageError where it is something else."""
    found: dict[str, Span] = {}
    for span in _all(path):
        found[span.id] = span
    chosen = {name: span for name, span in found.items() if any(key.startswith(PREFIX) for key in span.attributes)}
    if not found:
        raise UsageError(f"{path} contains no OpenTelemetry spans.", cure="OTLP as JSON lines")
    return [replace(span, parent=_above(span, found, chosen)) for span in chosen.values()]


def place(spans: Sequence[Span], tape: Tape) -> Placed:
    """Spans of UTC on the clock of a tape; those that it does not cover as a whole are left out."""
    first, last = tape.extent_ns()
    placed = []
    for span in spans:
        start, end = tape.from_utc_ns(span.start_ns), tape.from_utc_ns(span.end_ns or span.start_ns)
        if first <= start < end <= last:
            placed.append(replace(span, start_ns=start, end_ns=end))
    return Placed(tuple(placed), len(spans) - len(placed))


def _above(span: Span, found: Mapping[str, Span], chosen: Mapping[str, Span]) -> str | None:
    """The nearest GenAI span above; a circle of parents ends."""
    seen = {span.id}
    at = span.parent
    while at is not None and at not in seen:
        if at in chosen:
            return at
        seen.add(at)
        at = found[at].parent if at in found else None
    return None


def _all(path: Path) -> Iterator[Span]:
    for number, line in enumerate(foreign.lines(path, errors="strict"), start=1):
        if not line.strip():
            continue
        try:
            yield from _of_line(foreign.parse_json(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}:{number} is not OTLP in JSON: {error}.") from None


def _of_line(data: Mapping[str, Any]) -> Iterator[Span]:
    for resource in data.get("resourceSpans") or data.get("resource_spans") or ():
        for scope in resource.get("scopeSpans") or resource.get("scope_spans") or ():
            for span in scope.get("spans") or ():
                trace = str(span.get("traceId", ""))
                parent = span.get("parentSpanId") or None
                yield Span(
                    f"{trace}:{span['spanId']}",
                    str(span.get("name", "")),
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    None if parent is None else f"{trace}:{parent}",
                    {str(one["key"]): _value(one.get("value") or {}) for one in span.get("attributes") or ()},
                )


def _value(found: Mapping[str, Any]) -> Any:
    for name, value in found.items():
        if name == "intValue":
            return int(value)
        if name == "arrayValue":
            return [_value(one) for one in value.get("values") or ()]
        if name in ("stringValue", "boolValue", "doubleValue"):
            return value
    return None
