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
from everywatt.api.run import Run, union
from everywatt.bench.llm.otel import PREFIX, place, read_spans
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.spans import Span
from everywatt.energy.sources import sources
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.spans.spans import span_ledger
from everywatt.tape.reader import Tape

OPERATION, TOOL, MODEL = "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.request.model"
TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


def turn(number: int | None = None, **attributes: Any) -> AbstractContextManager[SpanHandle]:
    """A turn of an agent: a span around its model calls and tool calls."""
    more = {} if number is None else {"turn": number}
    return span("turn", **{OPERATION: "invoke_agent", **more, **attributes})


def model_call(model: str, **attributes: Any) -> AbstractContextManager[SpanHandle]:
    """A call of a model. Set `gen_ai.usage.input_tokens` and `…output_tokens` in the handle's attributes to count."""
    return span(f"chat {model}", **{OPERATION: "chat", MODEL: model, **attributes})


def tool_call(name: str, **attributes: Any) -> AbstractContextManager[SpanHandle]:
    """A call of a tool."""
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
        """Input and output tokens, where the span tells."""
        found = [self.span.attributes.get(name) for name in TOKENS]
        first, second = (one if isinstance(one, int) and not isinstance(one, bool) else None for one in found)
        return first, second

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "id": self.span.id,
            "parent": self.span.parent,
            "name": self.span.name,
            "kind": self.kind,
            "duration_s": self.span.duration_s,
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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
        spans = _own_spans(tape) if outer is None else place(outer, tape).spans
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


def _own_spans(tape: Tape) -> list[Span]:
    """Spans of the tape that name a GenAI operation, hung on one another."""
    ended = [one for one in tape.spans() if one.end_ns is not None and one.end_ns > one.start_ns]
    known = {one.id: one for one in ended}
    chosen = {one.id for one in ended if any(name.startswith(PREFIX) for name in one.attributes)}

    def above(one: Span) -> str | None:
        at, seen = one.parent, {one.id}
        while at is not None and at not in chosen and at not in seen:
            seen.add(at)
            at = known[at].parent if at in known else None
        return at if at in chosen else None

    return [replace(one, parent=above(one)) for one in ended if one.id in chosen]


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
