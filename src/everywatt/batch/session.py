"""A batch from its beginning to its end, or from where an earlier one was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.batch.devices import Lane
from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, INTERRUPTED, RUNNING, Device, History, Journal, State, read_journal
from everywatt.batch.plan import Pace
from everywatt.batch.runner import Event, Progress, Runner, Settings
from everywatt.batch.worker import describe_file, end_batch
from everywatt.core.errors import EverywattError, UsageError

Watcher = Callable[[Event, Progress], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done: the items that are left, those that the journal does not know as they are now, and notes."""

    todo: tuple[Item, ...]
    new: tuple[Item, ...]
    cut_off: tuple[State, ...] = ()
    notes: tuple[str, ...] = ()


def what_is_left(items: Sequence[Item], history: History | None) -> Work:
    """Which items have to run: not those that are done, unless their row or their file has changed since."""
    if history is None:
        return Work(tuple(items), tuple(items))
    todo, new, notes = [], [], []
    for item in items:
        state = history.states.get(item.id)
        if state is None or state.item != item:
            new.append(item)
        if state is None or state.status != DONE:
            todo.append(item)
        elif state.item.row != item.row:
            todo.append(item)
            notes.append(f"{item.id} is finished, but its row has changed: running it again")
        elif file_changed(item, state):
            todo.append(item)
            notes.append(f"{item.id} is finished, but the content of {item.input} has changed: running it again")
    cut_off = tuple(state for state in history.states.values() if state.status == RUNNING)
    return Work(tuple(todo), tuple(new), cut_off, tuple(notes))


def file_changed(item: Item, state: State) -> bool:
    """Whether the item's file has other content than when it was done; one with the old size and time is not read."""
    before = state.file
    if not before:
        return False
    try:
        facts = Path(item.input).stat()
    except OSError:
        return False  # it may have been moved away once it was done
    if (facts.st_size, facts.st_mtime_ns) == (before.get("bytes"), before.get("mtime_ns")):
        return False
    now = describe_file(item.input)
    return now is not None and now["sha256"] != before.get("sha256")


def take_up(folder: Path, command: Sequence[str]) -> History:
    """The journal of an earlier session. UsageError where it ran another command, or was killed before it ran any."""
    history = read_journal(folder)
    if not history.command:
        raise UsageError(
            f"{folder.name} was killed while its items were listed: none has run.", cure="start the batch again"
        )
    if command and list(command) != history.command:
        raise UsageError(f"{folder.name} ran another command: {' '.join(history.command)}.")
    return history


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a session: the run (None: nothing was recorded), where its journal is, whether it was stopped.

    `trouble` is a sentence where the journal is not whole; `statuses` are those of this session's items all the same.
    """

    run: Run | None
    folder: Path
    stopped: bool
    trouble: str = ""
    statuses: Sequence[str] = ()


def work_off(
    work: Work,
    devices: Sequence[Device],
    settings: Settings,
    meter: Meter,
    *,
    folder: Callable[[], Path],
    history: History | None = None,
    watch: Watcher | None = None,
    ready: Callable[[Runner], None] | None = None,
    lane: Callable[[int, Device, Mapping[str, str]], Lane] = Lane,
) -> Outcome:
    """Run what is left, in a recording of its own. `meter` has been started; `folder` gives a place without a tape.

    `ready` gets the runner before it starts, to be able to stop it.
    """
    place = meter.recording.path.parent if meter.recording is not None else folder()
    known = {} if history is None else history.states
    states = [known.get(item.id) or State(item) for item in work.todo]
    for state, item in zip(states, work.todo, strict=True):
        state.item = item
    run: Run | None = None
    journal = Journal(place)
    if work.cut_off:
        end_batch(str(place))  # where batch and workers were killed at the same moment, commands may still run
    try:
        for state in work.cut_off:
            last = state.attempts[-1]
            ended = {"error": "the batch was interrupted"}
            journal.end(state.item, last.number, INTERRUPTED, ended, final=False, device=last.device)
        for state in history.late if history is not None else ():
            last = state.attempts[-1]
            journal.end(state.item, last.number, DONE, last.ended, final=True, device=last.device)
        different = list({(one.name, one.visible): one for one in devices}.values())
        journal.batch(settings.command, work.new, different, options=settings.options, source=settings.source)
        pace = Pace.of(history.states) if history is not None else None
        runner = Runner(
            states, devices, settings, journal, meter.recording, watch=watch, pace=pace, lane=lane
        )  # fmt: skip
        if ready is not None:
            ready(runner)
        runner.run()
    finally:
        trouble = journal.close()
        with suppress(EverywattError):
            run = meter.stop()
    return Outcome(run, place, runner.stopped, trouble, [state.status for state in states])
