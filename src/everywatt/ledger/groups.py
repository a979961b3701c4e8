"""What a ledger can be asked by, and how processes become owners of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everywatt.core.errors import UsageError
from everywatt.ledger import names
from everywatt.ledger.owners import Owner, OwnerKind
from everywatt.ledger.use.account import tape_use
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.ledger.use.job_tree import JobTree
from everywatt.tape.reader import Tape

KINDS = ("process", "container", "user", "job", "step", "span", "device")
Grouper = Callable[[Tape, ProcessFacts], Owner]
Describer = Callable[[Tape, ProcessFacts], dict[str, Any]]


def grouper(by: str, tapes: Sequence[Tape]) -> Grouper:
    """How processes become owners; UsageError where `by` is not one of the kinds, or not known how to."""
    if by not in KINDS:
        raise UsageError(f"A ledger cannot be grouped by '{by}'.", cure=f"one of: {', '.join(KINDS)}")
    if by in ("process", "device"):
        return by_process
    if by not in names.GROUPINGS:
        raise UsageError(f"Processes cannot be grouped by {by}.", cure=f"one of: {', '.join(names.GROUPINGS)}")
    known, trees = _known(tapes), _trees(tapes)
    return lambda tape, facts: names.owner_of(facts, by, known[id(tape)], trees[id(tape)].step_of(facts))


def by_process(tape: Tape, facts: ProcessFacts) -> Owner:
    """Each process is its own owner."""
    return Owner(OwnerKind.PROCESS, facts.id, facts.label)


def _known(tapes: Sequence[Tape]) -> dict[int, names.Names]:
    return {id(tape): names.Names.of_tape(tape) for tape in tapes}


def _trees(tapes: Sequence[Tape]) -> dict[int, JobTree]:
    found = ((id(tape), tape_use(tape)) for tape in tapes)
    return {key: JobTree(use.processes.processes if use.processes is not None else (), use.steps) for key, use in found}


def describer(by: str, tapes: Sequence[Tape]) -> Describer:
    """What is told of an owner, by what is known of one of its processes."""
    if by not in names.GROUPINGS:
        return about_process
    known, trees = _known(tapes), _trees(tapes)
    return lambda tape, facts: names.details_of(facts, by, known[id(tape)], trees[id(tape)].step_of(facts))


def about_process(tape: Tape, facts: ProcessFacts) -> dict[str, Any]:
    """Everything that is known of a process."""
    return facts.to_dict()
