"""Who works on a node: processes that leave their pid and start time beside the spool, where hooks look for them.

`agent.pid` is who records the node, `node.pid` who charges what was recorded to jobs; one process may be both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from everywatt.core.errors import EverywattError
from everywatt.recorder.wire import own_folder
from everywatt.slurm.locks import exclusive

AGENT: Final = "agent.pid"
NODE: Final = "node.pid"


@contextmanager
def alone(spool: Path) -> Iterator[bool]:
    """Be the only one of this user that works on a spool; False where another does.

    A lock outside of the spool: a place in it is gone when somebody removes the folder, and then a hook finds nobody
    and starts a second one.
    """
    name = hashlib.sha256(os.fsencode(spool.resolve())).hexdigest()[:16]
    with ExitStack() as held:
        try:
            mine = held.enter_context(exclusive(own_folder() / f"slurm-{name}.lock"))
        except EverywattError:
            mine = True  # where nothing can be locked the place in the spool has to do
        yield mine


def take_place(spool: Path, name: str = NODE, pid: int | None = None, proc: Path = Path("/proc")) -> bool:
    """Become the one that does this for the spool. False where another one does, and lives."""
    pid = os.getpid() if pid is None else pid
    path = spool / name
    part = spool / f".{name}.{pid}"
    part.write_text(f"{pid} {started(pid, proc)}\n", encoding="ascii")
    part.chmod(0o644)
    try:
        for _ in range(3):
            try:
                os.link(part, path)  # fails where there is one, so of two that come at once one gets it
                return True
            except FileExistsError:
                there = holder(spool, name, proc)
                if there is not None and there != pid:
                    return False
                path.unlink(missing_ok=True)
        return False
    finally:
        part.unlink(missing_ok=True)


def leave(spool: Path, name: str = NODE, pid: int | None = None) -> None:
    """Give the place up, if it is ours."""
    try:
        if (spool / name).read_text(encoding="ascii").split()[0] == str(os.getpid() if pid is None else pid):
            (spool / name).unlink()
    except (OSError, IndexError, ValueError):
        pass


def holder(spool: Path, name: str = NODE, proc: Path = Path("/proc")) -> int | None:
    """The living process that does this for the spool; None where there is none."""
    try:
        pid, start = (spool / name).read_text(encoding="ascii").split()
        return int(pid) if started(int(pid), proc) == start else None
    except (OSError, ValueError):
        return None


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """When a process started, in the kernel's own count; "" where there is none, or one that is dead already."""
    try:
        words = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        return "" if words[0] in "ZX" else words[19]
    except (OSError, IndexError):
        return ""
