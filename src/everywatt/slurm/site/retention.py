"""Delete the records of users that ended before a time: store, daily sums, users' folders, and this node's spool.

Hours of nodes hold no names and stay, so a node's energy does not change. Finding and deleting are one walk, so the
number that is shown before is the number that is deleted.
"""

from __future__ import annotations

import io
import json
import shutil
import stat
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import EverywattError
from everywatt.core.files import replace_text
from everywatt.core.foreign import text_lines
from everywatt.core.format import format_count
from everywatt.core.jsonio import dumps
from everywatt.core.plugins import arrow
from everywatt.core.tables import Table
from everywatt.slurm.locks import exclusive
from everywatt.slurm.node.spool import QUARANTINE, alone, holder, read_values
from everywatt.slurm.node.state import STATE, State
from everywatt.slurm.schema import JOB_KEY
from everywatt.slurm.site.daily import LOCK
from everywatt.slurm.site.store import COMPACTING, Store, day_bounds_s, files_of_day, replace_parquet
from everywatt.slurm.site.users import USERS, Person, as_person, folder_of, is_name, person, put

LOCK_S: Final = 30.0  # compacting a day takes seconds
_COLUMNS: Final = (*JOB_KEY, "user", "end_s")


@dataclass(frozen=True, slots=True)
class Whose:
    """Jobs of a user (of all users: None) that ended before a time."""

    user: str | None
    before_s: float

    def has(self, user: object, end_s: object) -> bool:
        return (self.user is None or user == self.user) and isinstance(end_s, (int, float)) and end_s < self.before_s

    def __str__(self) -> str:
        who = "any user" if self.user is None else self.user
        return f"{who} before {datetime.fromtimestamp(self.before_s, UTC):%Y-%m-%dT%H:%M}Z"


@dataclass(slots=True)
class Forgotten:
    """What was found, and whether it was deleted. `left` says what could not be reached."""

    whose: Whose
    deleted: bool = False
    jobs: set[tuple[Any, ...]] = field(default_factory=set)
    records: int = 0
    files: int = 0  # of the store that hold such records
    events: int = 0  # of the spool: files and jobs that are not stored yet
    folders: int = 0  # days in users' folders
    left: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not (self.records or self.events or self.folders)

    def to_dict(self) -> dict[str, Any]:
        names = ("records", "files", "events", "folders", "left")
        facts = {"user": self.whose.user, "before_s": self.whose.before_s, "deleted": self.deleted}
        return {**facts, "jobs": len(self.jobs), **{name: getattr(self, name) for name in names}}

    def tables(self) -> list[Table]:
        if self.nothing:
            return [Table.lines(f"There are no records of {self.whose}.")]
        return [Table.lines(f"{self}{': deleted' if self.deleted else ''}.")]

    def __str__(self) -> str:
        parts = [f"{format_count(len(self.jobs), 'job')} of {self.whose}"]
        parts.append(f"{format_count(self.records, 'record')} in {format_count(self.files, 'file')}")
        parts += [format_count(self.folders, "day") + " in users' folders"] if self.folders else []
        parts += [format_count(self.events, "event") + " of this node"] if self.events else []
        return ", ".join(parts)


def forget(store: Store, spool: Path | None, whose: Whose, *, delete: bool) -> Forgotten:
    """Count the records of jobs, and delete them if asked. EverywattError where another process is at work."""
    found = Forgotten(whose)
    with exclusive(store.path / LOCK, LOCK_S) if delete else nullcontext(True) as mine:
        if not mine:
            raise EverywattError("Another process is working on this store.", cure="try again when it has finished")
        for day in store.days():
            if day_bounds_s(day)[0] < whose.before_s:
                _forget_day(store, day, whose, found, delete)
        _forget_folders(store, whose, found, delete)
    if spool is not None and spool.is_dir():
        _forget_spool(spool, whose, found, delete)
    found.deleted = delete and not found.nothing
    return found


def _forget_day(store: Store, day: date, whose: Whose, found: Forgotten, delete: bool) -> None:
    folder = store.path / "jobs" / f"date={day.isoformat()}"
    with exclusive(folder / COMPACTING, LOCK_S) if delete else nullcontext(True) as mine:
        if not mine:
            raise EverywattError(f"{folder} is being compacted.", cure="try again when that has finished")
        for path in files_of_day(folder):
            _forget_file(path, whose, found, delete)
    if delete:
        _forget_sums(store.path / "daily" / f"{day.isoformat()}.json", whose.user)


def _forget_file(path: Path, whose: Whose, found: Forgotten, delete: bool) -> None:
    pa, pq = arrow()
    try:
        lines = text_lines(path.read_text(encoding="utf-8")) if path.suffix == ".jsonl" else None
        if lines is not None:
            rows = [json.loads(line) for line in lines]
        else:
            names = [name for name in _COLUMNS if name in pq.read_schema(path).names]
            rows = pq.read_table(path, columns=names).to_pylist()
    except (OSError, ValueError, pa.ArrowException):
        found.left.append(f"{path} cannot be read")
        return
    meant = [whose.has(row.get("user"), row.get("end_s")) for row in rows]
    if not any(meant):
        return
    found.jobs |= {tuple(row.get(name) for name in JOB_KEY[:3]) for row, yes in zip(rows, meant, strict=True) if yes}
    found.records += sum(meant)
    found.files += 1
    if not delete:
        return
    if all(meant):
        path.unlink()
    elif lines is not None:
        kept = [line for line, yes in zip(lines, meant, strict=True) if not yes]
        replace_text(path, "".join(f"{line}\n" for line in kept))
    else:
        table = pq.read_table(path)
        replace_parquet(path, table.filter(pa.array([not yes for yes in meant])))


def _forget_sums(path: Path, user: str | None) -> None:
    """Take a user out of a day's sums by user; sums of the site, of accounts and of states stay."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = data["by_user"]
        kept = [] if user is None else [row for row in rows if row["group"] != user]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if len(kept) != len(rows):
        replace_text(path, dumps({**data, "by_user": kept}, indent=2) + "\n")


def _forget_folders(store: Store, whose: Whose, found: Forgotten, delete: bool) -> None:
    """What `slurm daily` handed out. It is written with its user's rights, and nothing in there is parsed."""
    users = store.path / USERS
    try:
        names = sorted(entry.name for entry in users.iterdir()) if whose.user is None else [whose.user]
    except OSError:
        return
    for name in filter(is_name, names):
        folder = folder_of(store.path, name)
        try:
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode):
                continue
            who = person(name) or Person(name, facts.st_uid, facts.st_gid)
            with as_person(who):
                days = [day for day in Store(folder).days() if day_bounds_s(day)[0] < whose.before_s]
            found.folders += len(days)
            for day in days if delete else ():
                _forget_handed_out(store, folder, who, day)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.left.append(f"{folder}: {error.strerror}")


def _forget_handed_out(store: Store, folder: Path, who: Person, day: date) -> None:
    """A day of a user's folder is what the store still has of it."""
    of_day = folder / "jobs" / f"date={day.isoformat()}"
    table = store.jobs(*day_bounds_s(day), '"user" = ?', [who.name])
    with as_person(who):
        (folder / "daily" / f"{day.isoformat()}.json").unlink(missing_ok=True)
        if not len(table):
            shutil.rmtree(of_day)
    if len(table):
        content = io.BytesIO()
        arrow()[1].write_table(table, content, compression="zstd")
        put(who, of_day / "compact.parquet", content.getvalue())


def _forget_spool(spool: Path, whose: Whose, found: Forgotten, delete: bool) -> None:
    """Events that are not stored yet, on this node only."""
    folders = [spool / QUARANTINE]
    with alone(spool) as mine:
        if mine and holder(spool) is None:
            folders.append(spool / "events")
            _forget_state(spool / STATE, whose, found, delete)
        else:
            found.left.append("what this node's recorder has not stored yet: run this again in a minute")
        if whose.user is None:
            folders += _subfolders(spool / "tasks")
        elif (who := person(whose.user)) is not None:
            folders.append(spool / "tasks" / str(who.uid))
        for folder in folders:
            own = folder.parent.name == "tasks"  # a file in there is its user's, whatever it says
            for path, user in _events(folder, whose.before_s):
                if own or whose.user in (None, user):
                    found.events += 1
                    if delete:
                        path.unlink(missing_ok=True)


def _forget_state(path: Path, whose: Whose, found: Forgotten, delete: bool) -> None:
    if not path.exists():
        return
    state = State.read(path)
    meant = [job for job in state.jobs if whose.has(job.user, job.end_s)]
    found.events += len(meant)
    if meant and delete:
        state.jobs = [job for job in state.jobs if job not in meant]
        for job in meant:
            state.accounts.pop(job.key, None)
        state.write(path)


def _subfolders(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def _events(folder: Path, before_s: float) -> Iterator[tuple[Path, str]]:
    """Files of a spool from before a time, and the user that each names. Links are not followed."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            with suppress(OSError):
                facts = path.lstat()
                if facts.st_mtime >= before_s or stat.S_ISDIR(facts.st_mode):
                    continue
                yield path, read_values(path)[0].get("user", "") if stat.S_ISREG(facts.st_mode) else ""
