"""The spool folder that hooks, agent and node share: events of jobs, and who works on the node.

Events are files that hooks dropped, read oldest first and with suspicion. Files of `events` are root's. Files of
`tasks/UID` are written by that user, so of those only what cannot hurt is used, where the file belongs to the user
whose job it names, and of each user a few at a time.

A process that works here leaves its pid and start time, where hooks look for them: `agent.pid` is who records the node,
`node.pid` who charges what was recorded to jobs; one process may be both.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from everywatt.core.errors import EverywattError
from everywatt.recorder.wire import own_folder
from everywatt.sensors.procfs import parse_process_stat
from everywatt.slurm.lists import number
from everywatt.slurm.locks import exclusive
from everywatt.slurm.schema import ID_PARTS

QUARANTINE: Final = "quarantine"
MOST_BYTES: Final = 65_536
MOST_FILES: Final = 20_000
MOST_OF_USER: Final = 200  # files of one user's tasks that are read at a time: others wait for them
TASK_KEYS: Final = frozenset({*ID_PARTS, "step", "pid", "name", "restart"})
STATE: Final = "node.json"  # what `slurm node` knows of its jobs
AGENT: Final = "agent.pid"
NODE: Final = "node.pid"


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
        """A value as a whole number, None where it is not one."""
        return number(self.values.get(key))

    def text(self, key: str) -> str:
        """A value, empty where the hook did not know it."""
        value = self.values.get(key, "")
        return "" if value == "(null)" else value


def read_events(spool: Path, unread: list[Path] | None = None) -> list[Event]:
    """What lies in the spool, oldest first. A file that is not an event is put into `quarantine`, of a user's removed.

    `unread` gets what root's hooks may have said and could not be read: the folder, or files of it.
    """
    found = []
    unread = [] if unread is None else unread
    users = (spool / "tasks" / name for name in _names(spool / "tasks", MOST_FILES, []) if name.isdecimal())
    for folder in (spool / "events", *users):
        tasks = folder.name != "events"
        for name in _names(folder, MOST_OF_USER if tasks else MOST_FILES, [] if tasks else unread):
            path = folder / name
            try:
                event = _read(path, tasks) if name.endswith(".event") else None
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ELOOP:
                    unread += [] if tasks else [path]
                    continue
                event = None  # a link
            if event is not None:
                found.append(event)
            elif tasks and not name.startswith("."):
                path.unlink(missing_ok=True)
            elif name.endswith(".event"):
                put_aside(path, spool)
    return sorted(found, key=lambda event: (event.at_s, event.path.name))


def _names(folder: Path, most: int, unread: list[Path]) -> list[str]:
    """Names in a folder, at most so many."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, most))
    except FileNotFoundError:
        return []
    except OSError:
        unread.append(folder)
        return []


def forget(event: Event) -> None:
    """Take an event out of the spool, once what it said is kept elsewhere."""
    try:
        event.path.unlink(missing_ok=True)
    except OSError:
        pass  # it is taken again, which changes nothing


def read_values(path: Path) -> tuple[dict[str, str], os.stat_result | None]:
    """The lines KEY=VALUE of a regular file, and its facts; empty and None if linked, too large or not regular."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES or facts.st_nlink != 1:
            return {}, None
        text = os.read(fd, MOST_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, sign, value = line.partition("=")
        if sign and key not in values:  # what comes later may be the rest of a value with a newline
            values[key] = value
    return values, facts


def _read(path: Path, tasks: bool) -> Event | None:
    values, facts = read_values(path)
    kind, job = values.get("event", ""), number(values.get("job_id"))
    if (kind == "task") != tasks or kind not in ("start", "end", "task") or values.get("whole") != "yes":
        return None
    if job is None or facts is None:
        return None
    if kind == "task":
        values = {key: value for key, value in values.items() if key in TASK_KEYS}
    return Event(kind, job, facts.st_mtime, facts.st_uid, values, path)


def put_aside(path: Path, spool: Path) -> None:
    """Move a file where it is read no more, and `slurm validate` names it."""
    try:
        (spool / QUARANTINE).mkdir(mode=0o700, exist_ok=True)
        path.replace(spool / QUARANTINE / path.name)
    except OSError:
        pass


def quarantined(spool: Path) -> list[str]:
    """Names of files that were put aside, at most a hundred."""
    return _names(spool / QUARANTINE, 100, [])


@contextmanager
def alone(spool: Path) -> Iterator[bool]:
    """Be the only one of this user that works on a spool; False where another does.

    A lock outside of the spool: a place in it is gone when another program removes the folder, and then a hook finds
    no process and starts a second one.
    """
    name = hashlib.sha256(os.fsencode(spool.resolve())).hexdigest()[:16]
    with ExitStack() as held:
        try:
            mine = held.enter_context(exclusive(own_folder() / f"slurm-{name}.lock"))
        except EverywattError:
            mine = True  # where nothing can be locked the place in the spool has to do
        yield mine


def take_place(spool: Path, name: str = NODE, pid: int | None = None) -> bool:
    """Become the one that does this for the spool. False where another one does, and lives."""
    pid = os.getpid() if pid is None else pid
    path = spool / name
    part = spool / f".{name}.{pid}"
    part.write_text(f"{pid} {started(pid)}\n", encoding="ascii")
    part.chmod(0o644)
    try:
        for _ in range(3):
            try:
                os.link(part, path)  # fails where there is one, so of two that come at once one gets it
                return True
            except FileExistsError:
                there = holder(spool, name)
                if there is not None and there != pid:
                    return False
                path.unlink(missing_ok=True)
        return False
    finally:
        part.unlink(missing_ok=True)


def leave(spool: Path, name: str = NODE) -> None:
    """Give the place up, if it is ours."""
    try:
        if (spool / name).read_text(encoding="ascii").split()[0] == str(os.getpid()):
            (spool / name).unlink()
    except (OSError, IndexError, ValueError):
        pass


def holder(spool: Path, name: str = NODE, proc: Path = Path("/proc")) -> int | None:
    """The living process that does this for the spool; None if there is no such process."""
    try:
        pid, start = (spool / name).read_text(encoding="ascii").split()
        return int(pid) if started(int(pid), proc) == start else None
    except (OSError, ValueError):
        return None


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """When a process started, in the kernel's own count; "" if it does not exist or is dead."""
    try:
        facts = parse_process_stat((proc / str(pid) / "stat").read_bytes())
        return "" if facts.state in "ZX" else str(facts.start)
    except (OSError, ValueError):
        return ""
