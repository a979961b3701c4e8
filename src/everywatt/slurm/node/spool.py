"""Events of jobs: the files that hooks dropped, oldest first, read with suspicion.

Files of `events` are root's. Files of `tasks` are written by users, so of those only what cannot hurt is used, and only
where the file belongs to the user whose job it names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 65_536
MOST_FILES: Final = 20_000
TASK_KEYS: Final = frozenset(
    {"array_job_id", "array_task_id", "het_job_id", "het_offset", "step", "pid", "name", "restart"}
)


@dataclass(frozen=True, slots=True)
class Event:
    """One file of the spool. `uid` is the file's owner; `at_s` (unix time) is when it was written."""

    kind: str  # start, end, task
    job_id: int
    at_s: float
    uid: int
    values: Mapping[str, str]
    path: Path

    def number(self, key: str) -> int | None:
        """A value as a whole number, None where it is none."""
        text = self.values.get(key, "")
        return int(text) if text.isdecimal() and len(text) < 19 else None

    def text(self, key: str) -> str:
        """A value, empty where the hook did not know it."""
        value = self.values.get(key, "")
        return "" if value == "(null)" else value


def read_events(spool: Path) -> list[Event]:
    """What lies in the spool, oldest first. A file that is no event is put aside as `NAME.bad`."""
    found = []
    for folder in ("events", "tasks"):
        try:
            with os.scandir(spool / folder) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(".event")]
        except OSError:
            continue
        for name in sorted(names)[:MOST_FILES]:
            path = spool / folder / name
            try:
                event = _read(path, folder)
            except OSError:
                continue  # gone meanwhile, or not ours to read
            if event is None:
                _put_aside(path)
            else:
                found.append(event)
    return sorted(found, key=lambda event: (event.at_s, event.path.name))


def forget(event: Event) -> None:
    """Take an event out of the spool, once what it said is kept elsewhere."""
    event.path.unlink(missing_ok=True)


def _read(path: Path, folder: str) -> Event | None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES or facts.st_nlink != 1:
            return None
        text = os.read(fd, MOST_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, sign, value = line.partition("=")
        if sign and key not in values:  # what comes later may be the rest of a value with a newline
            values[key] = value
    kind, job = values.get("event", ""), values.get("job_id", "")
    if (kind == "task") != (folder == "tasks") or kind not in ("start", "end", "task") or values.get("whole") != "yes":
        return None
    if not (job.isdecimal() and len(job) < 19):
        return None
    if kind == "task":
        values = {key: value for key, value in values.items() if key in TASK_KEYS}
    return Event(kind, int(job), facts.st_mtime, facts.st_uid, values, path)


def _put_aside(path: Path) -> None:
    try:
        path.replace(path.with_suffix(".bad"))
    except OSError:
        pass
