"""Folders of users under a store: what is theirs, readable by them alone.

    STORE/users/ada/jobs/date=2026-11-15/compact.parquet      owner ada, 0700

Root writes them with the user's own rights, so nothing that a user puts into the folder can make root write elsewhere.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everywatt.core.errors import UsageError

USERS: Final = "users"
_NAME = re.compile(r"[A-Za-z0-9_][\w.@-]{0,63}\$?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Person:
    """Who owns a folder."""

    name: str
    uid: int
    gid: int


def folder_of(store: Path, user: str) -> Path:
    """Where a user's own jobs lie."""
    return store / USERS / user


def is_name(user: str) -> bool:
    """Whether a user's name can be the name of a file."""
    return _NAME.fullmatch(user) is not None


def person(user: str, uid: int | None = None) -> Person | None:
    """The account of a user of this machine; None where it has none, or where the name cannot be a folder."""
    if not is_name(user):
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return Person(user, uid, uid) if uid is not None and uid >= 0 else None
    return Person(user, entry.pw_uid, entry.pw_gid)


@contextmanager
def as_person(who: Person) -> Iterator[None]:
    """Do something with a user's rights where this is root, else with our own."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([who.gid])
    os.setegid(who.gid)
    os.seteuid(who.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def make_folder(store: Path, who: Person) -> Path:
    """The folder of a user, 0700 and theirs. The folder of all of them can be passed through, not listed."""
    if os.geteuid() == 0 and who.uid != 0 and not store.stat().st_mode & 0o001:
        raise UsageError(f"{store} cannot be passed through by its users.", cure=f"chmod o+x {store}")
    users = store / USERS
    users.mkdir(mode=0o711, exist_ok=True)
    folder = users / who.name
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, who.uid, who.gid, follow_symlinks=False)
        users.chmod(0o711)
    folder.chmod(0o700)
    return folder


def put(who: Person, path: Path, content: bytes) -> None:
    """Write a file in a user's folder, whole or not at all, 0600, with that user's rights."""
    with as_person(who):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
