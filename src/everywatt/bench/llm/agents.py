"""Agents: what turns, model calls and tool calls cost.

In a program that is measured:

    with everywatt.measure("agent"):
        with turn(1):
            with model_call("qwen"):
                ...
            with tool_call("search"):
                ...

These are spans with the attributes that OpenTelemetry gives to them, so `agent_bill` reads both. A joule belongs to the
innermost span that was open when it was drawn (several share it), so nothing is counted twice: what is within a turn is
its own and that of everything below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.api.meter import SpanHandle, span
from everywatt.api.run import Run
from everywatt.core import foreign
from everywatt.core.clocks import union
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_energy
from everywatt.core.jsonio import declared
from everywatt.core.spans import Span
from everywatt.core.tables import Cell, Table, columns_of
from everywatt.energy.sources import sources
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.spans import span_ledger
from everywatt.tape.reader import Tape

OPERATION, TOOL, MODEL = "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.request.model"
PREFIX = "gen_ai."
KINDS = columns_of("KIND, COUNT [], TIME [s], OWN ENERGY [J], SHARE [%]")
STEPS = columns_of("STEP, KIND, TIME [s], OWN ENERGY [J], WITH CHILDREN [J], TOKENS")
TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


def turn(number: int | None = None, **attributes: Any) -> AbstractContextManager[SpanHandle]:
    """A turn of an agent: a span around its model calls and tool calls."""
    more = {} if number is None else {"turn": number}
    return span("turn", **{OPERATION: "invoke_agent", **more, **attributes})


def model_call(model: str, **attributes: Any) -> AbstractContextManager[SpanHandle]:
    """A call of a model. Set `gen_ai.usage.input_tokens` and `…output_tokens` in the handle's attributes to count."""
    return span(f"chat {model}", **{OPERATION: "chat", MODEL: model, **attributes})


def tool_call(name: str, **attributes: Any) -> AbstractContextManager[SpanHandle]:
    return span(f"execute_tool {name}", **{OPERATION: "execute_tool", TOOL: name, **attributes})


@dataclass(frozen=True)
class Step:
    """One span. `own` is what was drawn while nothing below it was open, `whole` is with everything below it."""

    span: Span
    kind: str
    own: Energy
    whole: Energy

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Input and output tokens, if the span reports them."""
        found = [self.span.attributes.get(name) for name in TOKENS]
        first, second = (one if isinstance(one, int) and not isinstance(one, bool) else None for one in found)
        return first, second

    def to_dict(self) -> dict[str, Any]:
        return {
            **declared(self, "id=span.id parent=span.parent name=span.name kind duration_s=span.duration_s"),
            "input_tokens": self.tokens[0],
            "output_tokens": self.tokens[1],
            "energy_own": replace(self.own, parts=()).to_dict(),
            "energy": replace(self.whole, parts=()).to_dict(),
        }


@dataclass(frozen=True)
class AgentBill:
    """All steps, and their energy counted once."""

    total: Energy
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    def by_kind(self) -> dict[str, tuple[int, float, Energy]]:
        """For each kind how often, seconds and its own energy; the energies add up to the total."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            found.setdefault(step.kind, []).append(step)
        return {
            kind: (
                len(same),
                sum(step.span.duration_s or 0.0 for step in same),
                sum_energies(step.own for step in same),
            )
            for kind, same in found.items()
        }

    def tables(self) -> list[Table]:
        """The summary by kind, and every span."""
        total, whole = self.total, self.total.joules or 0.0
        ordered = sorted(self.by_kind().items(), key=lambda row: -(row[1][2].joules or 0.0))
        kinds: list[list[Cell]] = [
            [kind, count, seconds, own, (own.joules or 0.0) / whole if whole else None]
            for kind, (count, seconds, own) in ordered
        ]
        said = f"{len(self.steps)} steps, {format_energy(total)} in total · {total.scope} · {total.pedigree}"
        steps: list[list[Cell]] = [
            [
                *(one.span.name, one.kind, one.span.duration_s or 0.0, one.own, one.whole),
                " + ".join("–" if count is None else str(count) for count in one.tokens) if any(one.tokens) else None,
            ]
            for one in self.steps
        ]
        return [Table.of(*KINDS, rows=kinds, title=said), Table.of(*STEPS, rows=steps)]

    def to_csv(self) -> str:
        return self.tables()[1].csv()

    def to_dict(self) -> dict[str, Any]:
        return {
            "energy": replace(self.total, parts=()).to_dict(),
            "by_kind": {
                kind: {"count": count, "duration_s": seconds, "energy": replace(energy, parts=()).to_dict()}
                for kind, (count, seconds, energy) in self.by_kind().items()
            },
            "steps": [step.to_dict() for step in self.steps],
            "notes": list(self.notes),
        }


def agent_bill(run: Run, otel: Path | None = None) -> AgentBill:
    """The energy of the GenAI spans of a run: those that the program made, or those of an OpenTelemetry file."""
    outer = None if otel is None else read_spans(otel)
    steps: list[Step] = []
    notes: list[str] = list(run.trouble)
    placed: set[str] = set()
    for tape in run.tapes:
        ended = [one for one in tape.spans() if one.end_ns is not None and one.end_ns > one.start_ns]
        spans = _genai(ended) if outer is None else _on_clock(outer, tape)
        placed |= {one.id for one in spans}
        if spans:
            steps += _steps(tape, spans)
    if outer is not None and len(placed) < len(outer):
        notes.append(f"{len(outer) - len(placed)} of {len(outer)} spans lie outside the recording: no energy")
    if not steps:
        if outer:
            raise MeasurementRefused(
                "The recording does not cover any of these spans.",
                cure="check that the file and the run cover the same time",
            )
        raise UsageError(f"{run.name} has no agent spans.", cure="turn(), model_call(), tool_call(), or --otel FILE")
    return AgentBill(sum_energies(step.own for step in steps), tuple(steps), tuple(notes))


def _steps(tape: Tape, spans: Sequence[Span]) -> Iterator[Step]:
    windows = union([(one.start_ns, one.end_ns or one.start_ns) for one in spans])
    book = span_ledger(sources(tape), windows, spans)
    if book.total.joules is None:
        raise MeasurementRefused(f"No energy was measured: {book.total.refused}")
    own = {entry.owner.id: entry.energy for entry in book.entries if entry.owner.kind is OwnerKind.SPAN}
    below: dict[str, list[str]] = {}
    for one in spans:
        if one.parent is not None:
            below.setdefault(one.parent, []).append(one.id)
    for one in spans:
        yield Step(one, kind_of(one), own[one.id], sum_energies(own[name] for name in _descendants(one.id, below)))


def _descendants(name: str, below: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A span and everything under it, each once, also where a file has a circle."""
    waiting, seen = [name], set()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            yield at
            waiting += below.get(at, ())


def kind_of(one: Span) -> str:
    """`turn`, `chat MODEL`, `tool NAME`, or what the operation is called."""
    operation = str(one.attributes.get(OPERATION) or "")
    if operation == "execute_tool":
        return f"tool {one.attributes.get(TOOL) or one.name}"
    if operation == "invoke_agent":
        return "turn" if one.name == "turn" else f"agent {one.attributes.get('gen_ai.agent.name') or one.name}"
    if operation in ("chat", "text_completion", "generate_content", "embeddings"):
        return f"{operation} {one.attributes.get(MODEL) or ''}".strip()
    return operation or one.name


def read_spans(path: Path) -> list[Span]:
    """The GenAI spans of an OpenTelemetry file: OTLP as JSON lines, as the collector's file exporter writes them, with
    UTC nanoseconds as their times. UsageError where it is something else."""
    found = list(_all(path))
    if not found:
        raise UsageError(f"{path} contains no OpenTelemetry spans.", cure="OTLP as JSON lines")
    return _genai(found)


def _genai(spans: Sequence[Span]) -> list[Span]:
    """Spans with an attribute `gen_ai.…`; what lies between two of them (HTTP calls, database calls) is taken out, and
    the inner one hangs on the outer one. A circle of parents ends."""
    known = {one.id: one for one in spans}
    chosen = {name for name, one in known.items() if any(key.startswith(PREFIX) for key in one.attributes)}

    def above(one: Span) -> str | None:
        at, seen = one.parent, {one.id}
        while at is not None and at not in chosen and at not in seen:
            seen.add(at)
            at = known[at].parent if at in known else None
        return at if at in chosen and at != one.id else None

    return [replace(known[name], parent=above(known[name])) for name in known if name in chosen]


def _on_clock(spans: Sequence[Span], tape: Tape) -> list[Span]:
    """Spans of UTC on the clock of a tape; those that it does not cover as a whole are left out."""
    first, last = tape.extent_ns()
    placed = [
        replace(one, start_ns=tape.from_utc_ns(one.start_ns), end_ns=tape.from_utc_ns(one.end_ns or one.start_ns))
        for one in spans
    ]
    return [one for one in placed if one.end_ns is not None and first <= one.start_ns < one.end_ns <= last]


def _all(path: Path) -> Iterator[Span]:
    for number, data in foreign.json_lines(path, "OTLP in JSON"):
        try:
            yield from _of_line(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}:{number} is not OTLP in JSON: {error}.") from None


def _of_line(data: Mapping[str, Any]) -> Iterator[Span]:
    for resource in data.get("resourceSpans") or data.get("resource_spans") or ():
        for scope in resource.get("scopeSpans") or resource.get("scope_spans") or ():
            for one in scope.get("spans") or ():
                trace = str(one.get("traceId", ""))
                parent = one.get("parentSpanId") or None
                yield Span(
                    f"{trace}:{one['spanId']}",
                    str(one.get("name", "")),
                    int(one["startTimeUnixNano"]),
                    int(one["endTimeUnixNano"]),
                    None if parent is None else f"{trace}:{parent}",
                    {str(pair["key"]): _value(pair.get("value") or {}) for pair in one.get("attributes") or ()},
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
