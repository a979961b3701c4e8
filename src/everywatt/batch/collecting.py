"""The parts of a job array come back into one run: one journal, and the tapes of each node.

Collecting again, also after a kill in the middle of it, adds nothing twice.

Tasks of an array that run on one node at the same time each record that node's processors. Added up, those joules would
count twice, so tapes of one host that overlap in time become one, on which the items of all tasks share them by
overlap, as the items of one batch do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.batch import array
from everywatt.batch.journal import INTERRUPTED, RUNNING, Device, History, Journal, State, read_journal
from everywatt.core.channels import Channel, GroupInfo, Row
from everywatt.core.clocks import NS
from everywatt.core.device import is_gpu
from everywatt.core.errors import EverywattError
from everywatt.core.files import replacing
from everywatt.core.spans import Span
from everywatt.tape.importing import ImportedTable, Recording, write_tape
from everywatt.tape.reader import StoredGroup, Tape
from everywatt.tape.run_store import segments, slug

SAME_BOOT_NS = 2 * NS  # clocks of one boot agree on UTC to within this
REPORTED_GAPS = ("suspend", "lost")  # gaps that the recorder reports; the others are found again in the rows
Renaming = Mapping[str, str]


def clusters(tapes: Sequence[Tape]) -> list[list[int]]:
    """Places of tapes that belong together: of one host and boot, and overlapping, directly or through others."""
    found: list[list[int]] = []
    for place in sorted(range(len(tapes)), key=lambda i: (tapes[i].host, tapes[i].to_utc_ns(tapes[i].extent_ns()[0]))):
        last = found[-1] if found else []
        if last and any(_together(tapes[place], tapes[other]) for other in last):
            last.append(place)
        else:
            found.append([place])
    return found


def _together(a: Tape, b: Tape) -> bool:
    (a_low, a_high), (b_low, b_high) = a.extent_ns(), b.extent_ns()
    return a.same_boot(b, SAME_BOOT_NS) and a_low <= b_high and b_low <= a_high


def place_tape(tapes: Sequence[Tape], renaming: Sequence[Renaming], out: Path) -> None:
    """One tape at `out` that holds what these hold; nothing where it is there already. A sealed one alone is linked."""
    if out.exists():
        return
    if len(tapes) == 1 and tapes[0].sealed and not renaming[0]:
        try:
            os.link(tapes[0].path, out)
        except OSError:
            with replacing(out) as part:
                shutil.copy2(tapes[0].path, part)
        return
    partial = out.with_name(f".{out.stem}.{os.getpid()}.part.tape")
    with suppress(FileNotFoundError):
        partial.unlink()
    join(tapes, renaming, partial).replace(out)


def join(tapes: Sequence[Tape], renaming: Sequence[Renaming], out: Path) -> Path:
    """Write a sealed tape of everything in `tapes`, which are of one host; devices are called as `renaming` says."""
    meta = {key: value for key, value in tapes[0].meta.items() if key not in ("place", "sealed_later")}
    meta["joined_from"] = [tape.path.name for tape in tapes]
    anchors = sorted(
        {a.monotonic_ns: a for tape in tapes for a in tape.anchors()}.values(), key=lambda anchor: anchor.monotonic_ns
    )
    same = list(_groups(tapes, renaming))
    return write_tape(
        out,
        [_recording(one) for one in same if not one[0][2].table],
        meta=meta,
        anchors=anchors,
        spans=[_named(span, names, tape) for tape, names in zip(tapes, renaming, strict=True) for span in tape.spans()],
        points=(point for tape in tapes for point in tape.points()),
        tables=[ImportedTable(one[0][2], _tables(one), _period_s(one)) for one in same if one[0][2].table],
        notes=(note for tape in tapes for note in tape.notes()),
    )


Same = list[tuple[Tape, StoredGroup, GroupInfo, Renaming]]


def _groups(tapes: Sequence[Tape], renaming: Sequence[Renaming]) -> Iterable[Same]:
    """The groups by name, each with the tapes that have it, with the channels of the first one."""
    found: dict[str, Same] = {}
    for tape, names in zip(tapes, renaming, strict=True):
        for group in tape.groups:
            info = _renamed(group.info, names)
            same = found.setdefault(info.name, [])
            if not same or [c.name for c in same[0][2].channels] == [c.name for c in info.channels]:
                same.append((tape, group, info, names))
    return found.values()


def _renamed(info: GroupInfo, names: Renaming) -> GroupInfo:
    def channel(one: Channel) -> Channel:
        mirror = None if one.mirror_of is None else _swap(one.mirror_of, names)
        return replace(one, name=_swap(one.name, names), device=_swap(one.device, names), mirror_of=mirror)

    if not names:
        return info
    channels = tuple(channel(one) for one in info.channels)
    return replace(info, name=_swap(info.name, names), device=_swap(info.device, names), channels=channels)


def _swap(text: str, names: Renaming) -> str:
    """`gpu.0.power` with gpu.0 called gpu.1; sensors put their own word before or after it, with a dot between."""
    for old, new in names.items():
        if f".{old}." in f".{text}.":
            return f".{text}.".replace(f".{old}.", f".{new}.", 1)[1:-1]
    return text


def _named(span: Span, names: Renaming, tape: Tape) -> Span:
    attributes = dict(span.attributes)
    if names and isinstance(attributes.get("device"), str):
        attributes["device"] = _swap(attributes["device"], names)
    if names and isinstance(attributes.get("devices"), list | tuple):
        attributes["devices"] = [_swap(str(name), names) for name in attributes["devices"]]
    # A task that was killed left its spans open: they end where its tape does.
    return replace(span, attributes=attributes, end_ns=tape.extent_ns()[1] if span.end_ns is None else span.end_ns)


def _period_s(same: Same) -> float:
    return min(group.expected_period_s for _, group, _, _ in same)


def _recording(same: Same) -> Recording:
    edges = {row.read_ns: row for tape, group, _, _ in same for row in tape.edges(group.id)}
    reported = {
        (gap.channel and _swap(gap.channel, names), gap.start_ns, gap.end_ns, gap.kind)
        for tape, group, _, names in same
        for gap in tape.gaps(group.id)
        if gap.kind in REPORTED_GAPS
    }
    gaps = sorted(reported, key=lambda gap: (gap[1], gap[2], str(gap[0])))
    return Recording(same[0][2], _rows(same), _period_s(same), [row for _, row in sorted(edges.items())], gaps)


def _rows(same: Same) -> Iterator[Row]:
    """Rows of the tape that began first, then those of the next one that come after them, and so on.

    They are not mixed: two recorders place one publication at slightly different times.
    """
    last = None
    for tape, group, _, _ in sorted(same, key=lambda one: one[0].extent_ns()):
        for row in (row for frame in tape.iter_frames(group.id) for row in frame.rows()):
            published = row.early_ns + row.late_ns
            if last is None or published > last:
                yield row
                last = published


def _tables(same: Same) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Processes: what each tape saw last, together, since each follows those of its own task."""
    newest: dict[int, list[dict[str, Any]]] = {}
    frames = [(frame.at_ns, place, frame.rows) for place, (t, g, _, _) in enumerate(same) for frame in t.tables(g.id)]
    ends = {place: tape.extent_ns()[1] for place, (tape, _, _, _) in enumerate(same)}
    last = None
    for at_ns, place, rows in sorted(frames, key=lambda frame: frame[:2]):
        newest = {other: seen for other, seen in newest.items() if ends[other] >= at_ns}
        newest[place] = rows
        if last is not None and at_ns <= last:
            continue
        last = at_ns
        seen: dict[Any, dict[str, Any]] = {}
        for row in (row for rows in newest.values() for row in rows):
            seen[row.get("pid"), row.get("gpu"), row.get("uuid")] = row
        yield at_ns, list(seen.values())


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
        placed = _place(run, part, tapes, owners)
    _write(run, part, found, placed)
    return notes


Placed = Mapping[str, tuple[str, Renaming]]
"""By the id of a span its host, and what devices are called there."""
NOWHERE: tuple[str, Renaming] = ("", {})


def _place(run: Path, part: Path, tapes: Sequence[Tape], owners: Sequence[Task]) -> Placed:
    placed: dict[str, tuple[str, Renaming]] = {}
    counts: dict[str, int] = {}
    for cluster in clusters(tapes):
        mine = [tapes[place] for place in cluster]
        renaming = _renaming([owners[place].history for place in cluster])
        host = mine[0].host or "host"
        counts[host] = counts.get(host, 0) + 1
        place_tape(mine, renaming, run / f"{slug(host)}-part{part.name}-{counts[host]:04d}.tape")
        for tape, names_here in zip(mine, renaming, strict=True):
            placed |= {span.id: (host, names_here) for span in tape.spans()}
    return placed


def _renaming(histories: Sequence[History]) -> list[dict[str, str]]:
    """Where tasks of one node see one GPU each and call it gpu.0, all but the first get a number of their own."""
    taken: dict[str, str] = {}
    found = []
    for history in histories:
        names: dict[str, str] = {}
        for one in history.devices:
            name, uuid = one.name, one.uuid
            if not is_gpu(name) or not uuid or uuid.startswith("MIG-"):
                continue
            known = next((kept for kept, owner in taken.items() if owner == uuid), None)
            free = name if name not in taken else next(f"gpu.{n}" for n in range(10_000) if f"gpu.{n}" not in taken)
            taken.setdefault(known or free, uuid)
            if (known or free) != name:
                names[name] = known or free
        found.append(names)
    return found


def _write(run: Path, part: Path, found: Sequence[Task], placed: Placed) -> None:
    before = read_journal(run)
    known = {_key(one) for state in before.states.values() for one in state.attempts}
    journal = Journal(run)
    try:
        journal.batch(before.command, [], list(_devices(found, placed)))
        for task in found:
            for state in task.history.states.values():
                _attempts(journal, before, state, task, known, placed)
        journal.collected(part.name)
    finally:
        why = journal.close()
    if why:
        raise EverywattError(why)


def _key(one: Any) -> tuple[str, str]:
    return one.span or "", one.at


def _attempts(
    journal: Journal, before: History, state: State, task: Task, known: set[tuple[str, str]], placed: Placed
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
        host, names = placed.get(one.span or "", NOWHERE)
        device = names.get(one.device, one.device)
        if fresh:
            moved = replace(one, number=number, device=device, host=host, task=task.number)
            journal.start(state.item, moved)
        if one.status == RUNNING:
            journal.end(state.item, number, INTERRUPTED, {"error": LOST}, final=False, device=device)
        else:
            final = last and state.status == one.status and one.status != INTERRUPTED
            journal.end(state.item, number, one.status, one.ended, final=final, device=device)


def _devices(found: Sequence[Task], placed: Placed) -> Iterator[Device]:
    seen = set()
    for task in found:
        spans = [one.span for state in task.history.states.values() for one in state.attempts if one.span]
        at = {(host, tuple(names.items())) for host, names in (placed.get(span, NOWHERE) for span in spans)}
        for host, renamed in sorted(at):
            for one in task.history.devices:
                name = dict(renamed).get(one.name, one.name)
                if (host, name) not in seen:
                    seen.add((host, name))
                    yield replace(one, name=name, host=host)
