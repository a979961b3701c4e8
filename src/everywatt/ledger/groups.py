"""What a ledger can be asked by, and how processes become owners of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everywatt.core.errors import UsageError
from everywatt.ledger import names
from everywatt.ledger.facts import ProcessFacts
from everywatt.ledger.owners import Owner, OwnerKind
from everywatt.tape.reader import Tape

KINDS = ("process", "container", "user", "job", "span", "device")
Grouper = Callable[[Tape, ProcessFacts], Owner]
Describer = Callable[[Tape, ProcessFacts], dict[str, Any]]
_groupers: dict[str, Callable[[Sequence[Tape]], Grouper]] = {}


def register(by: str, make: Callable[[Sequence[Tape]], Grouper]) -> None:
    """Answer `by` with what `make(tapes)` says of each process. Who is idle, meter or other stays as it is."""
    _groupers[by] = make


def grouper(by: str, tapes: Sequence[Tape]) -> Grouper:
    """How processes become owners; UsageError where `by` is not one of the kinds, or not known how to."""
    if by not in KINDS:
        raise UsageError(f"A ledger is not kept by '{by}'.", cure=f"one of: {', '.join(KINDS)}")
    if by in ("process", "device"):
        return by_process
    if by in names.GROUPINGS:
        return _by_names(by, tapes)
    if by not in _groupers:
        raise UsageError(f"This version keeps no ledger by {by}.", cure="by process or device")
    return _groupers[by](tapes)


def by_process(tape: Tape, facts: ProcessFacts) -> Owner:
    """Each process is its own owner."""
    return Owner(OwnerKind.PROCESS, facts.id, facts.label)


def _by_names(by: str, tapes: Sequence[Tape]) -> Grouper:
    """The container, job or user of a process, by the names on its tape."""
    known = {id(tape): names.Names.of_tape(tape) for tape in tapes}
    return lambda tape, facts: names.owner_of(facts, by, known[id(tape)])


def describer(by: str, tapes: Sequence[Tape]) -> Describer:
    """What is told of an owner, by what is known of one of its processes."""
    if by not in names.GROUPINGS:
        return about_process
    known = {id(tape): names.Names.of_tape(tape) for tape in tapes}
    return lambda tape, facts: names.details_of(facts, by, known[id(tape)])


def about_process(tape: Tape, facts: ProcessFacts) -> dict[str, Any]:
    """Everything that is known of a process."""
    return facts.to_dict()
