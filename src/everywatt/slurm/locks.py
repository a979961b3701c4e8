"""One at a time, also over hosts: POSIX locks where the filesystem has them, else a lock file."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from everywatt.core.files import usable

STALE_S: Final = 3600.0
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_STEP_S: Final = 0.05


@contextmanager
def exclusive(path: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold a lock by the name of a file, which stays; False where another holds it for longer than `wait_s`."""
    until = time.monotonic() + wait_s
    with usable(path.parent, "written"):
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o660)
    marker: Path | None = None
    held: bool | None = None
    try:
        held = _try(handle)
        if held is None:
            marker = path.with_name(f"{path.name}.held")
            held = _mark(marker)
        while not held and time.monotonic() < until:
            time.sleep(_STEP_S)
            held = _mark(marker) if marker is not None else bool(_try(handle))
        yield held
    finally:
        if held and marker is not None:
            marker.unlink(missing_ok=True)
        os.close(handle)


def _try(handle: int) -> bool | None:
    """Whether the lock is ours now; None where the filesystem knows no locks."""
    import fcntl  # Windows has no such module

    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        return False
    return True


def _mark(marker: Path) -> bool:
    try:
        if time.time() - marker.stat().st_mtime > STALE_S:
            marker.unlink(missing_ok=True)
    except OSError:
        pass
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    except FileExistsError:
        return False
    return True
