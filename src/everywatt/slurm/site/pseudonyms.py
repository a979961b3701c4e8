"""Names for exports that leave the site: stable for a person, and irreversible without the key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.monthly import Month

KEY_BYTES: Final = 32
NAMED: Final = ("user", "account", "name")  # columns that name people or their work
_LENGTH: Final = 10  # characters of base32, 50 bits: among a million names a collision has a chance of 1 in 2,000


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    """Keyed hashes (HMAC-SHA-256) of users, accounts and job names."""

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
        """A record with its names replaced."""
        user, account, name = (self.of(kind, getattr(job, kind)) for kind in NAMED)
        return replace(job, uid=None, user=user, account=account, name=name)

    def month(self, month: Month) -> Month:
        """A month with its names replaced."""
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
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096).strip()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise UsageError(f"{path} can be read by others, who could undo the pseudonyms.", cure=f"chmod 600 {path}")
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise UsageError(f"{path} is not a key of {KEY_BYTES} bytes.", cure="name a file that does not exist yet")
    return key
