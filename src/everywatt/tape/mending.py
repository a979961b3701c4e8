"""Tapes whose recorder was killed: sealed afterwards, and taken out of the spool, once no process can be writing them.

A tape that is being written is locked by its recorder, and its log is touched at every flush. Only if both show that
no recorder is there is a tape sealed; it then records that its recorder ended. Nothing is ever removed that was not
written whole elsewhere first, and any failure leaves the tape as it is: readable, and not sealed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from everywatt.core.clocks import SystemClock
from everywatt.core.errors import TapeError
from everywatt.core.jsonio import dumps
from everywatt.core.platforms import user_id
from everywatt.tape import SUFFIX, codec, places, schema, sealing
from everywatt.tape.reader import Tape

# A recorder writes every few seconds; a file that rested for so long is not in the midst of being made either.
QUIET_S: Final = 30.0
# Sealing a larger one takes longer than a reader should have to wait.
MOST_BYTES: Final = 256 << 20
KIND: Final = "recorder"


def seal_left(path: Path, *, quiet_s: float = QUIET_S) -> bool:
    """Seal a tape that its recorder left behind. False if there is nothing to do, or it must not be done."""
    try:
        if not at_rest(path, quiet_s):
            return False
        with Tape.open(path, verify=False) as tape:
            if not tape.sealable:
                return False
            last_ns = tape.extent_ns()[1]
        return _seal(path, last_ns)
    except (TapeError, OSError, *schema.BROKEN):
        return False


def empty_spool(spool: Path | None = None) -> list[Path]:
    """Seal what dead recorders left in the spool and move it to where it belongs; gives the new places.

    A tape stays in the spool where its folder is not there, or where a file of its name is.
    """
    import tempfile  # as in places

    folder = spool or Path(tempfile.gettempdir()) / places.spool_name()
    moved = []
    with contextlib.suppress(OSError):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != user_id():
            return []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(TapeError, OSError):
                target = _out_of_spool(path)
                moved += [target] if target else []
    return moved


def _out_of_spool(path: Path) -> Path | None:
    if not at_rest(path):
        return None
    seal_left(path)
    with Tape.open(path, verify=False) as tape:
        place = tape.meta.get("place")
        if not tape.sealed or not isinstance(place, str) or not Path(place).is_absolute():
            return None
    target = Path(place)
    if target.suffix != SUFFIX or not target.parent.is_dir() or os.path.lexists(target):
        return None
    with _times_kept(target, path.stat().st_mtime_ns):
        places.move_into_place(path, target)
    return target


def at_rest(path: Path, quiet_s: float = QUIET_S) -> bool:
    """True for a file of our own, neither too large nor lately touched, in a local folder that can be written."""
    stats = _stats(path)
    if not stats or path.is_symlink() or any(stat.st_uid != user_id() for stat in stats):
        return False
    if sum(stat.st_size for stat in stats) > MOST_BYTES:
        return False
    if SystemClock().utc_ns() - max(stat.st_mtime_ns for stat in stats) < quiet_s * 1e9:
        return False
    return os.access(path.parent, os.W_OK | os.X_OK) and not places.is_network(places.filesystem(path))


@contextlib.contextmanager
def _times_kept(path: Path, changed_ns: int) -> Iterator[None]:
    """Leave the times of a tape and its folder as its recorder set them: `last` is the run that was recorded last."""
    folder_ns = path.parent.stat().st_mtime_ns
    yield
    for one, time_ns in ((path, changed_ns), (path.parent, folder_ns)):
        with contextlib.suppress(OSError):
            os.utime(one, ns=(time_ns, time_ns))


def _stats(path: Path) -> list[os.stat_result]:
    """Of the tape and of the log beside it, as far as they are there."""
    stats = []
    for side in ("", "-wal"):
        with contextlib.suppress(OSError):
            stats.append(Path(f"{path}{side}").lstat())
    return stats


def _seal(path: Path, last_ns: int) -> bool:
    inode = path.stat().st_ino
    db = sqlite3.connect(path, isolation_level=None, timeout=0.0)
    try:
        # The lock is refused while any other process, writer or reader, has the tape open.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        if path.stat().st_ino != inode or db.execute("SELECT count(*) FROM seal").fetchone()[0]:
            db.execute("ROLLBACK")
            return False
        with _times_kept(path, max(stat.st_mtime_ns for stat in _stats(path))):
            _say_so(db, last_ns)
            db.execute("COMMIT")
            sealing.seal(db, path, last_ns)
        return True
    finally:
        db.close()


def _say_so(db: sqlite3.Connection, last_ns: int) -> None:
    """A note, once: what was not yet flushed when the recorder ended is missing."""
    if db.execute("SELECT 1 FROM meta WHERE key='sealed_later'").fetchone():
        return
    from everywatt.tape.exporting import iso

    when = iso(SystemClock().utc_ns())
    db.execute(schema.REPLACE["meta"], codec.sealed_row("meta", ("sealed_later", dumps(when))))
    number = db.execute("SELECT ifnull(max(id), 0) + 1 FROM note").fetchone()[0]
    text = "The recorder ended without sealing the tape: rows that it had not written yet are missing."
    db.execute(schema.INSERT["note"], codec.sealed_row("note", (number, last_ns, KIND, text, dumps({"sealed": when}))))
