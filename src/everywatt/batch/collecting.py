"""The parts of a job array come back into one run: one journal, and the tapes of each node.

Collecting again, also after a kill in the middle of it, adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.batch import array
from everywatt.batch.joining import clusters, place_tape
from everywatt.batch.journal import INTERRUPTED, RUNNING, History, Journal, State, read_journal
from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import segments, slug

LOST = "its task was terminated"


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an array: its number, its journal and its tapes."""

    number: str
    history: History
    tapes: tuple[Path, ...]


def collect(run: Path, part: Path) -> list[str]:
    """Bring what the tasks of a submission have come to into the run; gives sentences on what is missing."""
    found = [Task(folder.name, read_journal(folder), tuple(segments(folder))) for folder in array.tasks(part)]
    notes: list[str] = []
    with ExitStack() as stack:
        tapes: list[Tape] = []
        owners: list[Task] = []
        for task, path in ((one, path) for one in found for path in one.tapes):
            try:
                tape = stack.enter_context(Tape.open(path))
                tape.extent_ns()
            except EverywattError as error:
                notes.append(f"the recording of task {task.number} was skipped: {error}")
                continue
            tapes.append(tape)
            owners.append(task)
        hosts, names = _place(run, part, tapes, owners)
    _write(run, part, found, hosts, names)
    return notes


def _place(
    run: Path, part: Path, tapes: Sequence[Tape], owners: Sequence[Task]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Put the tapes into the run. Gives the host of each span, and what devices are called there."""
    hosts: dict[str, str] = {}
    names: dict[str, dict[str, str]] = {}
    counts: dict[str, int] = {}
    for cluster in clusters(tapes):
        mine = [tapes[place] for place in cluster]
        renaming = _renaming([owners[place].history for place in cluster])
        host = str(mine[0].meta.get("host", {}).get("name", "")) or "host"
        counts[host] = counts.get(host, 0) + 1
        place_tape(mine, renaming, run / f"{slug(host)}-part{part.name}-{counts[host]:04d}.tape")
        for tape, names_here in zip(mine, renaming, strict=True):
            for span in tape.spans():
                hosts[span.id] = host
                names[span.id] = dict(names_here)
    return hosts, names


def _renaming(histories: Sequence[History]) -> list[dict[str, str]]:
    """Where tasks of one node see one GPU each and call it gpu.0, all but the first get a number of their own."""
    taken: dict[str, str] = {}
    found = []
    for history in histories:
        names: dict[str, str] = {}
        for one in history.devices:
            name, uuid = str(one.get("device")), str(one.get("uuid") or "")
            if not is_gpu(name) or not uuid or uuid.startswith("MIG-"):
                continue
            known = next((kept for kept, owner in taken.items() if owner == uuid), None)
            free = name if name not in taken else next(f"gpu.{n}" for n in range(10_000) if f"gpu.{n}" not in taken)
            taken.setdefault(known or free, uuid)
            if (known or free) != name:
                names[name] = known or free
        found.append(names)
    return found


def _write(
    run: Path, part: Path, found: Sequence[Task], hosts: Mapping[str, str], names: Mapping[str, Mapping[str, str]]
) -> None:
    before = read_journal(run)
    known = {_key(one) for state in before.states.values() for one in state.attempts}
    journal = Journal(run)
    try:
        journal.batch(before.command, [], list(_devices(found, hosts, names)))
        for task in found:
            for state in task.history.states.values():
                _attempts(journal, before, state, task, known, hosts, names)
        journal.collected(part.name)
    finally:
        why = journal.close()
    if why:
        raise EverywattError(why)


def _key(one: Any) -> tuple[str, str]:
    return one.span or "", one.at


def _attempts(
    journal: Journal,
    before: History,
    state: State,
    task: Task,
    known: set[tuple[str, str]],
    hosts: Mapping[str, str],
    names: Mapping[str, Mapping[str, str]],
) -> None:
    there = before.states.get(state.item.id)
    ours = {_key(one): one for one in there.attempts} if there is not None else {}
    number = max((one.number for one in ours.values()), default=0)
    for place, one in enumerate(state.attempts):
        last = place == len(state.attempts) - 1
        fresh = _key(one) not in known
        number = number + 1 if fresh else ours[_key(one)].number if _key(one) in ours else one.number
        if not fresh and ours[_key(one)].status != RUNNING:
            continue
        span = one.span or ""
        device = names.get(span, {}).get(one.device, one.device)
        if fresh:
            moved = replace(one, number=number, device=device, host=hosts.get(span, ""), task=task.number)
            journal.start(state.item, moved)
        if one.status == RUNNING:
            journal.end(state.item, number, INTERRUPTED, {"error": LOST}, final=False, device=device)
        else:
            final = last and state.status == one.status and one.status != INTERRUPTED
            journal.end(state.item, number, one.status, one.ended, final=final, device=device)


def _devices(
    found: Sequence[Task], hosts: Mapping[str, str], names: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    seen = set()
    for task in found:
        spans = [one.span for state in task.history.states.values() for one in state.attempts if one.span]
        at = {(hosts.get(span, ""), tuple(names.get(span, {}).items())) for span in spans}
        for host, renamed in sorted(at):
            for one in task.history.devices:
                name = dict(renamed).get(str(one.get("device")), str(one.get("device")))
                if (host, name) not in seen:
                    seen.add((host, name))
                    yield {**one, "device": name, "host": host}
