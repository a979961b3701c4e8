"""Users of a site: folders of what is theirs, readable by them alone, and pseudonyms for exports that leave the site.

    STORE/users/ada/jobs/date=2026-11-15/compact.parquet      owner ada, 0700

Root writes them with the user's own rights, so nothing that a user puts into the folder can make root write elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from everywatt.core.errors import UsageError
from everywatt.core.files import replacing, usable

if TYPE_CHECKING:
    from everywatt.slurm.schema import JobOnNode
    from everywatt.slurm.site.monthly import Month

USERS: Final = "users"
KEY_BYTES: Final = 32
NAMED: Final = ("user", "account", "name")  # columns that name people or their work
_LENGTH: Final = 10  # characters of base32, 50 bits: among a million names a collision has a chance of 1 in 2,000
_NAME = re.compile(r"[A-Za-z0-9_][\w.@-]{0,63}\$?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Person:
    """Who owns a folder."""

    name: str
    uid: int
    gid: int


def folder_of(store: Path, user: str) -> Path:
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
        with replacing(path) as part:
            handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(content)


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    """Keyed hashes (HMAC-SHA-256) of users, accounts and job names: stable, and irreversible without the key."""

    key: bytes

    def of(self, kind: str, name: str) -> str:
        """The pseudonym of a name: `user-k3v…`; a name that is empty stays so."""
        if not name:
            return name
        digest = hmac.digest(self.key, f"{kind}:{name}".encode("utf-8", "surrogateescape"), hashlib.sha256)
        return f"{kind}-{base64.b32encode(digest).decode().lower()[:_LENGTH]}"

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with its names replaced and without a uid."""
        hidden = {name: self.of(name, row[name] or "") for name in NAMED if name in row}
        return {**row, **hidden, **({"uid": None} if "uid" in row else {})}

    def groups(self, by: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Sums with the name of each group replaced, where groups are users or accounts."""
        return [{**row, "group": self.of(by, row["group"] or "")} if by in NAMED else dict(row) for row in rows]

    def job(self, job: JobOnNode) -> JobOnNode:
        user, account, name = (self.of(kind, getattr(job, kind)) for kind in NAMED)
        return replace(job, uid=None, user=user, account=account, name=name)

    def month(self, month: Month) -> Month:
        groups = {by: self.groups(by, rows) for by, rows in month.groups.items()}
        return replace(month, groups=groups, costliest=[self.row(row) for row in month.costliest])


def read_key(path: Path) -> Pseudonyms:
    """Pseudonyms by the key in a file, which is made if it is not there. UsageError where others can read it."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return Pseudonyms(_checked(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    key = secrets.token_bytes(KEY_BYTES)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{key.hex()}\n")
    return Pseudonyms(key)


def _checked(path: Path) -> bytes:
    with usable(path, "read"), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(4096).strip()
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise UsageError(f"{path} can be read by others, who could undo the pseudonyms.", cure=f"chmod 600 {path}")
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise UsageError(f"{path} is not a key of {KEY_BYTES} bytes.", cure="name a file that does not exist yet")
    return key
