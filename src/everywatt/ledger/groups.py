"""What a ledger can be asked by, and how processes become owners of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everywatt.core.errors import UsageError
from everywatt.ledger.facts import ProcessFacts
from everywatt.ledger.owners import Owner, OwnerKind
from everywatt.tape.reader import Tape

KINDS = ("process", "container", "user", "job", "span", "device")
Grouper = Callable[[Tape, ProcessFacts], Owner]
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
    if by not in _groupers:
        raise UsageError(f"This version keeps no ledger by {by}.", cure="by process or device")
    return _groupers[by](tapes)


def by_process(tape: Tape, facts: ProcessFacts) -> Owner:
    """Each process is its own owner."""
    return Owner(OwnerKind.PROCESS, facts.id, facts.label)
