"""Is a tape what it says it is? Every page, row, checksum and sum is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from everywatt.core.errors import TapeError
from everywatt.tape import SUFFIX, columns
from everywatt.tape.accumulate import Cum, energy_channels, expected_ns
from everywatt.tape.reader import StoredGroup, Tape

_KINDS = ("missed", "reset", "many-wraps", "jump", "suspend", "lost")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    file: Path
    table: str | None
    row: Any
    field: str | None
    problem: str

    def __str__(self) -> str:
        where = [f"table {self.table}"] if self.table else []
        where += [f"row {self.row}"] if self.row is not None else []
        where += [f"field {self.field}"] if self.field else []
        return f"{self.file}: {', '.join(where)}{': ' if where else ''}{self.problem}"


def validate(path: Path) -> list[Finding]:
    """All that is wrong with a tape, a run's folder or a tree of them; empty where nothing is."""
    path = Path(path)
    if not path.is_dir():
        return list(_tape_findings(path))
    tapes = sorted(file for file in path.rglob(f"*{SUFFIX}") if file.is_file() and not file.name.startswith("."))
    if not tapes:
        return [Finding(path, None, None, None, "There is no tape in this folder.")]
    return [finding for tape in tapes for finding in _tape_findings(tape)]


def _tape_findings(path: Path) -> Iterator[Finding]:
    try:
        with Tape.open(path, verify=False) as tape:
            yield from (Finding(path, None, None, None, sentence) for sentence in tape.trouble)
            if any("truncated" in sentence for sentence in tape.trouble):
                return
            found = [Finding(path, *problem) for problem in tape.problems()]
            yield from found
            if not found:
                yield from _content_findings(path, tape)
    except TapeError as error:
        yield Finding(path, None, None, None, error.message)


def _content_findings(path: Path, tape: Tape) -> Iterator[Finding]:
    for group in tape.groups:
        try:
            yield from _frame_findings(path, tape, group)
        except TapeError as error:
            yield Finding(path, "frame", None, None, error.message)
        for gap in tape.gaps(group.id):
            if gap.kind not in _KINDS or gap.end_ns < gap.start_ns:
                yield Finding(
                    path, "gap", None, "kind", f"A gap of kind {gap.kind} from {gap.start_ns} to {gap.end_ns}."
                )
        said = len(tape.trouble)
        tape.edges(group.id)
        yield from (Finding(path, "edge", None, "data", sentence) for sentence in tape.trouble[said:])
        tape.tables(group.id)
    known = {span.id for span in tape.spans()}
    for number, span in enumerate(tape.spans(), 1):
        if span.end_ns is not None and span.end_ns < span.start_ns:
            yield Finding(path, "span", number, "end_ns", f"Span {span.name} ends before it starts.")
        if span.parent is not None and span.parent not in known:
            yield Finding(path, "span", number, "parent", f"Span {span.name} has a parent that is not on the tape.")
    tape.points(), tape.notes()


def _frame_findings(path: Path, tape: Tape, group: StoredGroup) -> Iterator[Finding]:
    """The sums of each frame follow from the rows of the one before, and rows are in order."""
    names = [group.info.channels[index].name for index in energy_channels(group.info)]
    before: columns.Columns | None = None
    for frame in tape.iter_frames(group.id):
        here = columns.columns_of(tape, group, [frame], names)
        if (np.diff(here.published) <= 0).any():
            yield Finding(path, "frame", frame.id, "data", "Rows are not in order of publication.")
        elif (int(here.published[0]), int(here.published[-1])) != (frame.first_ns, frame.last_ns):
            yield Finding(path, "frame", frame.id, "first_ns", "The rows do not span first_ns to last_ns.")
        elif before is not None and not frame.breaks:
            wrong = _sums_that_differ(tape, group, names, before, here)
            yield from (
                Finding(path, "frame", frame.id, "cum", f"The cumulative sum of {name} is inconsistent.")
                for name in wrong
            )
        before = here


def _sums_that_differ(
    tape: Tape, group: StoredGroup, names: list[str], before: columns.Columns, here: columns.Columns
) -> Iterator[str]:
    """Channels whose sum at the first row here is not what the rows before make it."""
    for index, name in zip(energy_channels(group.info), names, strict=True):
        values = np.append(before.values[name], here.values[name][:1])
        published = np.append(before.published, here.published[:1])
        start = Cum(before.accumulated[name][0], int(before.observed_ns[name][0]), *before.carried[name])
        total, observed = columns.accumulate_columns(
            group.info.channels[index],
            expected_ns(group.expected_period_s),
            values,
            published,
            np.zeros(1, np.int64),
            [start],
            partial(columns.jumps, tape, group, name),
        )
        if total[-1] != here.accumulated[name][0] or observed[-1] != here.observed_ns[name][0]:
            yield name
