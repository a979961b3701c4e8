"""Who serves a node's spool: one process, whose pid and start time are in `agent.pid`, where hooks look for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NAME: Final = "agent.pid"


def take_place(spool: Path, pid: int | None = None, proc: Path = Path("/proc")) -> bool:
    """Become the one that serves this spool. False where another one does, and lives."""
    pid = os.getpid() if pid is None else pid
    path = spool / NAME
    part = spool / f".{NAME}.{pid}"
    part.write_text(f"{pid} {started(pid, proc)}\n", encoding="ascii")
    part.chmod(0o644)
    try:
        for _ in range(3):
            try:
                os.link(part, path)  # fails where there is one, so of two that come at once one gets it
                return True
            except FileExistsError:
                there = holder(spool, proc)
                if there is not None and there != pid:
                    return False
                path.unlink(missing_ok=True)
        return False
    finally:
        part.unlink(missing_ok=True)


def leave(spool: Path, pid: int) -> None:
    """Give the place up, if it is ours."""
    try:
        if (spool / NAME).read_text(encoding="ascii").split()[0] == str(pid):
            (spool / NAME).unlink()
    except (OSError, IndexError, ValueError):
        pass


def holder(spool: Path, proc: Path = Path("/proc")) -> int | None:
    """The living process that serves this spool; None where there is none."""
    try:
        pid, start = (spool / NAME).read_text(encoding="ascii").split()
        return int(pid) if started(int(pid), proc) == start else None
    except (OSError, ValueError):
        return None


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """When a process started, in the kernel's own count; "" where there is none."""
    try:
        return (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[19]
    except (OSError, IndexError):
        return ""
